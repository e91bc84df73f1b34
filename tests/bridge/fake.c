// Devices without hardware: the CPU under another name and with memory that is nobody else's, so that graphs are split, rows copied
// and operations refused as with a GPU. They attend to what a plain build of ggml-cuda has kernels for: K and V of one type, which is not
// iq4_nl, and heads of 512 only over whole blocks of cells.

#include "devices.h"

#include "ggml-backend-impl.h"

#include <stdio.h>
#include <string.h>

enum { FAKE_MAX = 2 };

static struct fake {
    char name[16];
    struct ggml_backend_device      device;
    struct ggml_backend_buffer_type buft;
} g_fakes[FAKE_MAX];

static struct fake * fake_of(ggml_backend_dev_t dev) {
    return dev->context;
}

static ggml_backend_dev_t cpu(void) {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

//
// memory: the CPU's, though not for the CPU
//

static const char * buft_name(ggml_backend_buffer_type_t buft) {
    return fake_of(buft->device)->name;
}

static ggml_backend_buffer_t buft_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    return ggml_backend_cpu_buffer_type()->iface.alloc_buffer(buft, size);
}

static size_t buft_alignment(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

//
// device
//

static const char * dev_name(ggml_backend_dev_t dev) {
    return fake_of(dev)->name;
}

static void dev_memory(ggml_backend_dev_t dev, size_t * free, size_t * total) {
    (void) dev;
    *free = *total = (size_t) 1 << 30;
}

static enum ggml_backend_dev_type dev_type(ggml_backend_dev_t dev) {
    (void) dev;
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void dev_props(ggml_backend_dev_t dev, struct ggml_backend_dev_props * props) {
    memset(props, 0, sizeof(*props));
    props->name        = dev_name(dev);
    props->description = dev_name(dev);
    props->type        = GGML_BACKEND_DEVICE_TYPE_GPU;
    dev_memory(dev, &props->memory_free, &props->memory_total);
}

static ggml_backend_t dev_backend(ggml_backend_dev_t dev, const char * params) {
    ggml_backend_t backend = ggml_backend_dev_init(cpu(), params);
    backend->device = dev;
    return backend;
}

static ggml_backend_buffer_type_t dev_buft(ggml_backend_dev_t dev) {
    return &fake_of(dev)->buft;
}

static bool has_attention(const struct ggml_tensor * k, const struct ggml_tensor * v) {
    return k->type == v->type && k->type != GGML_TYPE_IQ4_NL && (k->ne[0] < 512 || k->ne[1] % 256 == 0);
}

static bool dev_supports_op(ggml_backend_dev_t dev, const struct ggml_tensor * op) {
    (void) dev;
    return op->op != GGML_OP_CUSTOM && (op->op != GGML_OP_FLASH_ATTN_EXT || has_attention(op->src[1], op->src[2])) &&
           ggml_backend_dev_supports_op(cpu(), op);
}

static bool dev_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) {
    return buft == dev_buft(dev);
}

//
// registry: the CPU's threads, and rows of weights "split" over the devices, all of them on one
//

static const char * reg_name(ggml_backend_reg_t reg) {
    (void) reg;
    return "Fake";
}

static size_t reg_count(ggml_backend_reg_t reg) {
    (void) reg;
    return FAKE_MAX;
}

static ggml_backend_dev_t reg_device(ggml_backend_reg_t reg, size_t i) {
    (void) reg;
    return &g_fakes[i].device;
}

static ggml_backend_buffer_type_t split_buft(int main_device, const float * tensor_split) {
    (void) tensor_split;
    return &g_fakes[main_device].buft;
}

static void * reg_proc(ggml_backend_reg_t reg, const char * name) {
    (void) reg;
    if (strcmp(name, "ggml_backend_split_buffer_type") == 0) {
        ggml_backend_buffer_type_t (*fn)(int, const float *) = split_buft;
        void * res;
        memcpy(&res, &fn, sizeof(res)); // ISO C has no conversion from a function
        return res;
    }
    return strcmp(name, "ggml_backend_set_n_threads") == 0 ? ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu()), name) : NULL;
}

void add_fake_devices(int n) {
    static struct ggml_backend_reg reg = {
        .api_version = GGML_BACKEND_API_VERSION,
        .iface       = { .get_name = reg_name, .get_device_count = reg_count, .get_device = reg_device, .get_proc_address = reg_proc },
    };
    for (int i = 0; i < n && i < FAKE_MAX; i++) {
        struct fake * fake = &g_fakes[i];
        snprintf(fake->name, sizeof(fake->name), "Fake%d", i);
        fake->device = (struct ggml_backend_device) {
            .iface = {
                .get_name = dev_name, .get_description = dev_name, .get_memory = dev_memory, .get_type = dev_type, .get_props = dev_props,
                .init_backend = dev_backend, .get_buffer_type = dev_buft, .supports_op = dev_supports_op, .supports_buft = dev_supports_buft,
            },
            .reg = &reg, .context = fake,
        };
        fake->buft = (struct ggml_backend_buffer_type) {
            .iface = { .get_name = buft_name, .alloc_buffer = buft_alloc, .get_alignment = buft_alignment },
            .device = &fake->device,
        };
        ggml_backend_device_register(&fake->device);
    }
}
