#include "seqcalib-output.h"

#include "tool-json.h"
#include "tool-print.h"
#include "tool-progress.h"

#include <math.h>
#include <string.h>

void sc_artifact_id(const struct sc_input * in, double goal, char hex[65]) {
    struct hwkv_sha256 s;
    char text[32];

    hwkv_sha256_init(&s);
    hwkv_sha256_string(&s, in->geo->fingerprint);
    hwkv_sha256_string(&s, in->geo->type_fingerprint);
    hwkv_sha256_i64(&s, in->n_ctx);
    hwkv_sha256_i64(&s, in->n_seq);
    for (int64_t i = 0; i < (int64_t) in->n_seq*in->n_ctx; i++) {
        hwkv_sha256_i64(&s, in->tokens[i]);
    }
    for (int32_t i = 0; i < in->codebook->n; i++) {
        hwkv_sha256_i64(&s, in->codebook->entries[i].window);
        if (in->codebook->typed) {
            hwkv_sha256_i64(&s, in->codebook->entries[i].type_k);
            hwkv_sha256_i64(&s, in->codebook->entries[i].type_v);
        }
    }
    hwkv_sha256_i64(&s, in->sinks);
    hwkv_sha256_i64(&s, in->n_query);
    hwkv_sha256_i64(&s, (int64_t) in->seed);
    hwkv_sha256_string(&s, ggml_type_name(in->type_k));
    hwkv_sha256_string(&s, ggml_type_name(in->type_v));
    snprintf(text, sizeof(text), "%.17g", goal);
    hwkv_sha256_string(&s, text);
    if (in->per_layer) {
        hwkv_sha256_string(&s, "per-layer");
    }
    hwkv_sha256_final(&s, hex);
}

// bytes the runtime allocates for a point at this context; UINT64_MAX if there is no plan
static uint64_t plan_bytes(const struct hwkv_policy * policy, int32_t ip, const struct sc_calib * calib) {
    const struct hwkv_plan_params params = sc_plan_params(calib->in);

    struct hwkv_plan * plan;
    if (hwkv_plan_init(&plan, policy, ip, &params, NULL) != HWKV_OK) {
        return UINT64_MAX;
    }
    const uint64_t res = hwkv_plan_size(plan);
    hwkv_plan_free(plan);
    return res;
}

// The point to use: the budget's choice, or the first.
static int32_t choose(const struct hwkv_policy * policy, const struct sc_calib * calib, const struct sc_options * opt, bool * selected) {
    struct hwkv_record records[SC_POINT_MAX];
    const int32_t n = hwkv_policy_n_point(policy);

    *selected = true;
    if (opt->budget.share <= 0.0 && opt->budget.bytes == 0) {
        return 0;
    }
    int32_t cheapest = 0;
    for (int32_t ip = 0; ip < n; ip++) {
        const struct hwkv_point * point = hwkv_policy_point(policy, ip);
        const bool fits = opt->budget.bytes == 0 || plan_bytes(policy, ip, calib) <= opt->budget.bytes;
        records[ip] = (struct hwkv_record) { .retention = fits ? point->retention : (double) INFINITY, .min_score = point->min_score };
        if (point->retention < hwkv_policy_point(policy, cheapest)->retention) {
            cheapest = ip;
        }
    }
    const int32_t ip = hwkv_select_budget(records, n, opt->budget.bytes ? 1.0 : opt->budget.share);
    *selected = ip >= 0;
    return *selected ? ip : cheapest;
}

static int add_point(struct hwkv_policy * policy, const struct sc_calib * calib, const struct sc_allocate * alloc, int32_t ip, struct hwkv_error * err) {
    const struct sc_input * in = calib->in;
    const size_t unit = (size_t) ip*(size_t) calib->n_unit;

    char method[128];
    if (alloc) {
        snprintf(method, sizeof(method), "least %s loss in the budget%s", SC_LOSS_KIND, in->per_layer ? ", one entry a layer" : "");
    } else {
        snprintf(method, sizeof(method), "one %s a layer, %s for the mean of its heads", in->codebook->typed ? "entry" : "window", calib->names[ip]);
    }
    char id[65];
    sc_artifact_id(in, calib->tau ? calib->tau[ip] : (double) alloc->budgets[ip], id);

    const struct hwkv_scores scores[] = {
        { .kind = "cosine",     .context = in->n_ctx, .values = calib->scores + unit*(size_t) in->codebook->n },
        { .kind = SC_LOSS_KIND, .context = in->n_ctx, .values = alloc ? alloc->losses + unit*(size_t) in->codebook->n : NULL },
    };
    const struct hwkv_point_params point = {
        .name        = calib->names[ip],
        .tau         = in->per_layer || alloc ? 0.0 : calib->tau[ip],
        .method      = in->per_layer || alloc ? method : NULL,
        .budget      = alloc ? alloc->budgets[ip] : 0,
        .lambda      = alloc ? alloc->lambdas[ip] : 0.0,
        .entries     = calib->entries + unit,
        .scores      = scores,
        .n_scores    = alloc ? 2 : 1,
        .artifact_id = id,
        .validation  = calib->validation[ip],
    };
    return hwkv_policy_add_point(policy, &point, err);
}

int sc_make_policy(struct hwkv_policy ** out, bool * selected, const struct sc_result * result, const struct sc_options * opt, struct hwkv_error * err) {
    const struct sc_calib  * calib = result->calib;
    const struct sc_input  * in    = calib->in;
    const struct tool_text * text  = result->text;

    struct hwkv_calibration record = { .seed = (int64_t) in->seed, .n_seq = in->n_seq, .n_query = in->n_query };
    snprintf(record.text, sizeof(record.text), "%s", text->source);
    snprintf(record.text_sha256, sizeof(record.text_sha256), "%s", text->sha256);
    snprintf(record.query_rule, sizeof(record.query_rule), "last-quarter");
    snprintf(record.tool, sizeof(record.tool), "llama-seqcalib %s", HWKV_VERSION);

    int status = sc_policy_new(out, in, err);
    for (int32_t ip = 0; ip < calib->n_tau && status == HWKV_OK; ip++) {
        status = add_point(*out, calib, result->alloc, ip, err);
    }
    if (status == HWKV_OK) {
        status = hwkv_policy_set_calibration(*out, &record, err);
    }
    if (status == HWKV_OK) {
        status = hwkv_policy_select(*out, hwkv_policy_point(*out, choose(*out, calib, opt, selected))->name, err);
    }
    if (status != HWKV_OK) {
        hwkv_policy_free(*out);
        *out = NULL;
    }
    return status;
}

// What the held-out check found, as the end of a line; "" without one.
static void check_text(const struct hwkv_point * point, char * buf, size_t size) {
    struct hwkv_json * v = NULL;
    buf[0] = '\0';
    if (!point->validation || hwkv_json_parse(&v, point->validation, strlen(point->validation), NULL) != HWKV_OK) {
        return;
    }
    const struct hwkv_json * perplexity = tool_json_member(v, "perplexity");
    snprintf(buf, size, "; held out: perplexity %.3f -> %.3f, KL %.5f", tool_json_number(tool_json_member(perplexity, "full")),
             tool_json_number(tool_json_member(perplexity, "policy")), tool_json_number(tool_json_member(tool_json_member(v, "kl"), "mean")));
    hwkv_json_free(v);
}

void sc_print_points(struct tool_progress * progress, const struct hwkv_policy * policy) {
    const int32_t selected = hwkv_policy_selected(policy);

    for (int32_t ip = 0; ip < hwkv_policy_n_point(policy); ip++) {
        const struct hwkv_point * p = hwkv_policy_point(policy, ip);
        char check[128];
        check_text(p, check, sizeof(check));
        tool_progress_line(progress, "%s %-12s keeps %5.1f%% (%.1f MiB), lowest score %.4f%s", ip == selected ? "*" : " ", p->name, 100.0*p->retention,
                           tool_mib(p->bytes), p->min_score, check);
    }
}
