#include "devices.h"

#include "ggml-backend.h"
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool device_option(struct device_options * opt, const char * key, const char * value) {
    if      (strcmp(key, "--fake")   == 0) { opt->n_fake  = atoi(value); }
    else if (strcmp(key, "--rpc")    == 0) { opt->rpc     = value; }
    else if (strcmp(key, "--device") == 0) { opt->names   = value; }
    else if (strcmp(key, "-sm")      == 0) { opt->split   = value; }
    else if (strcmp(key, "-ot")      == 0) { opt->to_host = value; }
    else {
        return false;
    }
    return true;
}

// Calls fn with every part of a list.
static void for_parts(const char * list, void (*fn)(const char * part)) {
    char part[128];
    for (const char * at = list; at && *at;) {
        const size_t n = strcspn(at, ",");
        if (n >= sizeof(part)) {
            die("a name of a device is too long");
        }
        memcpy(part, at, n);
        part[n] = '\0';
        fn(part);
        at += n + (at[n] == ',');
    }
}

static void add_server(const char * endpoint) {
    typedef ggml_backend_reg_t (*add_server_t)(const char * endpoint);
    ggml_backend_reg_t rpc  = ggml_backend_reg_by_name("RPC");
    void             * proc = rpc ? ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server") : NULL;
    add_server_t       add;
    if (!proc) {
        die("built without RPC");
    }
    memcpy(&add, &proc, sizeof(add)); // ISO C has no conversion to a function
    ggml_backend_register(add(endpoint));
}

void add_devices(const struct device_options * opt) {
    add_fake_devices(opt->n_fake);
    for_parts(opt->rpc, add_server);
}

enum { DEVICE_MAX = 8 };

static ggml_backend_dev_t g_devices[DEVICE_MAX + 1];
static int                g_n_device;

static void use_device(const char * name) {
    ggml_backend_dev_t dev = ggml_backend_dev_by_name(name);
    if (!dev || g_n_device == DEVICE_MAX) {
        fprintf(stderr, "bridge-test: found device %s, expected up to %d of these:", name, DEVICE_MAX);
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            fprintf(stderr, " %s", ggml_backend_dev_name(ggml_backend_dev_get(i)));
        }
        fprintf(stderr, "\n");
        exit(2);
    }
    g_devices[g_n_device++] = dev;
}

static enum llama_split_mode split_mode(const char * name) {
    static const char * const names[] = { "none", "layer", "row", "tensor" };
    for (int i = 0; i < 4; i++) {
        if (strcmp(names[i], name) == 0) {
            return (enum llama_split_mode) i;
        }
    }
    fprintf(stderr, "bridge-test: found split mode %s, expected none, layer, row or tensor\n", name);
    exit(2);
}

void use_devices(struct llama_model_params * params, const struct device_options * opt) {
    static struct llama_model_tensor_buft_override overrides[2];
    if (opt->names) {
        g_n_device = 0;
        for_parts(opt->names, use_device);
        params->devices = g_devices;
    }
    if (opt->split) {
        params->split_mode = split_mode(opt->split);
    }
    if (opt->to_host) {
        overrides[0].pattern = opt->to_host;
        overrides[0].buft    = ggml_backend_cpu_buffer_type();
        params->tensor_buft_overrides = overrides;
    }
}

bool has_device(void) {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        if (ggml_backend_dev_type(ggml_backend_dev_get(i)) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            return true;
        }
    }
    return false;
}
