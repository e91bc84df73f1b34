// bridge-test COMMAND [options]: runs a model with a policy and holds it against the reference; prints one JSON line.
//   run      a prompt in one batch, then token by token
//   ops      random operations on several sequences, each continued where the policy allows it
//   copies   four copies of one prompt go on side by side
//   greedy   greedy tokens after a text
//   hash     a hash of all logits, with or without a policy (no reference)
//   shift    the front of the context is dropped and the rest moved up, or all positions are divided (--div)
//   plan     what is allocated against what was predicted, by device; with --no-alloc on what would be
//   image    a batch whose tokens see each other, with and without the policy (no reference)
//   growth   memory of the graphs before and after prompts of many lengths (no reference)
// --fake N adds devices without hardware, --rpc LIST those of servers, --device LIST picks some, -sm and -ot PATTERN (to the host) spread the model.
// --window-error N makes the finite windows of the reference longer, --type-error N takes the types of other heads, --plain on takes the policy from the context only: to see
// that a comparison can fail, and what llama.cpp's own cache does with the same operations.

#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void quiet(enum ggml_log_level level, const char * text, void * user_data) {
    (void) user_data;
    if (level == GGML_LOG_LEVEL_ERROR || getenv("BRIDGE_TEST_VERBOSE")) {
        fputs(text, stderr);
    }
}

enum ggml_type type_from_name(const char * name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * other = ggml_type_name((enum ggml_type) i);
        if (other && strcmp(other, name) == 0) {
            return (enum ggml_type) i;
        }
    }
    fprintf(stderr, "bridge-test: found cache type %s, expected one of ggml's\n", name);
    exit(2);
}

static void parse(struct options * opt, int argc, char ** argv) {
    for (int i = 2; i + 1 < argc; i += 2) {
        const char * key = argv[i];
        const char * value = argv[i + 1];
        if      (strcmp(key, "-m")    == 0) { opt->model      = value; }
        else if (strcmp(key, "-p")    == 0) { opt->policy     = value; }
        else if (strcmp(key, "--point") == 0) { opt->point    = value; }
        else if (strcmp(key, "-ctk")  == 0) { opt->type_k     = type_from_name(value); }
        else if (strcmp(key, "-ctv")  == 0) { opt->type_v     = type_from_name(value); }
        else if (strcmp(key, "-fa")   == 0) { opt->flash_attn = strcmp(value, "off") != 0; opt->flash_attn_auto = strcmp(value, "auto") == 0; }
        else if (strcmp(key, "-kvu")  == 0) { opt->kv_unified = strcmp(value, "on") == 0; }
        else if (strcmp(key, "--swa-full") == 0) { opt->swa_full = strcmp(value, "on") == 0; }
        else if (strcmp(key, "-c")    == 0) { opt->n_ctx      = (uint32_t) atoi(value); }
        else if (strcmp(key, "-ub")   == 0) { opt->n_ubatch   = (uint32_t) atoi(value); }
        else if (strcmp(key, "-np")   == 0) { opt->n_seq_max  = (uint32_t) atoi(value); }
        else if (strcmp(key, "-n")    == 0) { opt->n_prompt   = atoi(value); }
        else if (strcmp(key, "-d")    == 0) { opt->n_decode   = atoi(value); }
        else if (strcmp(key, "--ops") == 0) { opt->n_ops      = atoi(value); }
        else if (strcmp(key, "--div") == 0) { opt->divisor    = atoi(value); }
        else if (strcmp(key, "--runs") == 0) { opt->n_runs    = atoi(value); }
        else if (strcmp(key, "-t")    == 0) { opt->n_threads  = atoi(value); }
        else if (strcmp(key, "-f")    == 0) { opt->text       = value; }
        else if (strcmp(key, "--rollback") == 0) { opt->rollback = atoi(value); }
        else if (strcmp(key, "--window-error") == 0) { opt->window_error = atoi(value); }
        else if (strcmp(key, "--copies") == 0) { opt->copies = strcmp(value, "on") == 0; }
        else if (strcmp(key, "--plain") == 0) { opt->plain    = strcmp(value, "on") == 0; }
        else if (strcmp(key, "--type-error") == 0) { opt->type_error = atoi(value); }
        else if (strcmp(key, "-ngl")  == 0) { opt->n_gpu_layers = atoi(value); }
        else if (strcmp(key, "-nkvo") == 0) { opt->cache_on_host = strcmp(value, "on") == 0; }
        else if (strcmp(key, "--no-alloc") == 0) { opt->no_alloc = strcmp(value, "on") == 0; }
        else if (strcmp(key, "--outputs") == 0) { opt->n_outputs = (uint32_t) atoi(value); }
        else if (strcmp(key, "-s")    == 0) { opt->seed       = (uint32_t) atoi(value); }
        else if (strcmp(key, "--allow-cpu") == 0) { opt->allow_cpu = strcmp(value, "on") == 0; }
        else if (!device_option(&opt->device, key, value)) {
            fprintf(stderr, "bridge-test: unknown option %s\n", key);
            exit(2);
        }
    }
}

static struct llama_model * load_model(const struct options * opt, struct llama_model_params params) {
    struct llama_model * model = llama_model_load_from_file(opt->model, params);
    if (!model) {
        die("cannot load the model");
    }
    return model;
}

int main(int argc, char ** argv) {
    struct options opt = {
        .type_k = GGML_TYPE_F32, .type_v = GGML_TYPE_F32, .kv_unified = true, .copies = true, .n_ctx = 512, .n_ubatch = 64, .n_seq_max = 1,
        .n_prompt = 200, .n_decode = 100, .n_ops = 40, .n_runs = 1, .n_threads = 1, .rollback = 64, .seed = 1, .n_gpu_layers = -1,
    };
    if (argc < 2) {
        fprintf(stderr, "usage: bridge-test run|ops|copies|greedy|hash|shift|plan|image|growth -m MODEL -p POLICY [options]\n");
        return 2;
    }
    parse(&opt, argc, argv);
    llama_log_set(quiet, NULL);
    llama_backend_init();
    add_devices(&opt.device);
    struct llama_model_params mp = llama_model_default_params();
    // repacked weights round differently in batches of another size
    mp.use_extra_bufts = strcmp(argv[1], "hash") == 0;
    mp.n_gpu_layers    = opt.n_gpu_layers;
    mp.no_alloc        = opt.no_alloc;
    mp.load_mode       = opt.no_alloc ? LLAMA_LOAD_MODE_NONE : mp.load_mode;
    struct llama_model_params on_host = mp;
    use_devices(&mp, &opt.device);
    struct llama_model * model = load_model(&opt, mp);
    opt.host = model;
    if (has_device() && !opt.no_alloc) {
        ggml_backend_dev_t none[] = { NULL };
        on_host.devices = none;
        opt.host        = load_model(&opt, on_host);
    }
    static const struct {
        const char * name;
        int (*run)(struct llama_model * model, const struct options * opt);
    } commands[] = {
        { "run", run_compare }, { "ops", run_ops }, { "copies", run_copies }, { "greedy", run_greedy }, { "hash", run_hash }, { "shift", run_shift },
        { "plan", run_plan }, { "image", run_image }, { "growth", run_growth },
    };
    int status = -1;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            status = commands[i].run(model, &opt);
        }
    }
    if (status < 0) {
        fprintf(stderr, "bridge-test: unknown command %s\n", argv[1]);
        status = 2;
    }
    if (opt.host != model) {
        llama_model_free(opt.host);
    }
    llama_model_free(model);
    llama_backend_free();
    return status;
}
