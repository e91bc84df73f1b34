// Policies in files: those of data/policy-ok and those that ship load and survive a round trip, those that make-corpus.py
// made give the error that EXPECT.tsv names.

// scandir and mkdtemp
#define _POSIX_C_SOURCE 200809L

#include "hwkv-error.h"
#include "hwkv.h"
#include "testing.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define PATH_SIZE 1024

static char g_temp[PATH_SIZE];

static bool is_json(const char * name) {
    const size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".json") == 0;
}

static int filter_json(const struct dirent * entry) {
    return is_json(entry->d_name);
}

// The whole file in a buffer of exactly its size, so that ASan sees a read past the end.
static char * read_exact(const char * path, size_t * size) {
    FILE * file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s: cannot read: %s\n", path, strerror(errno));
        exit(1);
    }
    *size = (size_t) ftell(file);
    rewind(file);
    char * text = malloc(*size > 0 ? *size : 1);
    if (!text || fread(text, 1, *size, file) != *size) {
        fprintf(stderr, "%s: cannot read\n", path);
        exit(1);
    }
    fclose(file);
    return text;
}

//
// what every error must be
//

static bool is_one_line(const char * text) {
    for (; *text; text++) {
        if ((unsigned char) *text < 0x20 || *text == 0x7f) {
            return false;
        }
    }
    return true;
}

static void check_error(const struct hwkv_error * err, int code) {
    CHECK_EQ_INT(err->code, code);
    CHECK(memchr(err->msg, 0, sizeof(err->msg)) != NULL);
    CHECK(memchr(err->path, 0, sizeof(err->path)) != NULL);
    CHECK(err->msg[0] != '\0');
    CHECK(is_one_line(err->msg) && is_one_line(err->path));
    CHECK(hwkv_is_utf8(err->msg) && hwkv_is_utf8(err->path));

    char line[sizeof(err->msg) + sizeof(err->path) + 64];
    CHECK(hwkv_error_format(err, line, sizeof(line)) == line);
    CHECK(strstr(line, err->msg) != NULL);
    char small[8];
    memset(small, 'x', sizeof(small));
    hwkv_error_format(err, small, sizeof(small));
    CHECK(strlen(small) < sizeof(small));
}

// A load that must fail with this code and leave nothing behind, with an error object and without one.
static void check_load_fails(const char * path, int code) {
    struct hwkv_policy * policy = (struct hwkv_policy *) (void *) &policy;
    struct hwkv_error    err;
    memset(&err, 0xAA, sizeof(err));
    CHECK_ERR(hwkv_policy_load(&policy, path, &err), code);
    CHECK(policy == NULL);
    check_error(&err, code);
    policy = (struct hwkv_policy *) (void *) &policy;
    CHECK_ERR(hwkv_policy_load(&policy, path, NULL), code);
    CHECK(policy == NULL);
}

//
// good policies
//

static void check_same_point(const struct hwkv_policy * p, const struct hwkv_point * a, const struct hwkv_point * b) {
    CHECK_STR(a->name, b->name);
    CHECK_STR(a->method, b->method);
    CHECK_STR(a->artifact_id, b->artifact_id);
    CHECK(a->tau == b->tau);
    CHECK(a->retention == b->retention);
    CHECK(a->min_score == b->min_score || (isnan(a->min_score) && isnan(b->min_score)));
    CHECK(a->budget == b->budget && (a->lambda == b->lambda || (isnan(a->lambda) && isnan(b->lambda))));
    CHECK(a->retention_tokens == b->retention_tokens && a->retention_query == b->retention_query);
    CHECK(a->bytes == b->bytes);
    CHECK(!a->validation == !b->validation);
    if (a->validation && b->validation) {
        CHECK_STR(a->validation, b->validation);
    }
    int32_t n_codebook = 0;
    hwkv_policy_codebook(p, &n_codebook);
    const size_t n_unit = (size_t) hwkv_policy_n_unit(p);
    CHECK(memcmp(a->entries, b->entries, n_unit * sizeof(*a->entries)) == 0);
    CHECK_EQ_INT(a->n_scores, b->n_scores);
    for (int32_t i = 0; i < a->n_scores && i < b->n_scores; i++) {
        CHECK_STR(a->scores[i].kind, b->scores[i].kind);
        CHECK_EQ_INT(a->scores[i].context, b->scores[i].context);
        CHECK(memcmp(a->scores[i].values, b->scores[i].values, n_unit * (size_t) n_codebook * sizeof(double)) == 0);
    }
}

static void check_same_geometry(const struct hwkv_geometry * a, const struct hwkv_geometry * b) {
    CHECK_STR(a->architecture, b->architecture);
    CHECK_STR(a->name, b->name);
    CHECK_STR(a->fingerprint, b->fingerprint);
    CHECK_STR(a->type_fingerprint, b->type_fingerprint);
    CHECK_EQ_INT(a->n_layer, b->n_layer);
    CHECK_EQ_INT(a->n_full, b->n_full);
    CHECK(a->n_full == b->n_full && memcmp(a->layers, b->layers, (size_t) a->n_full * sizeof(*a->layers)) == 0);
}

static void check_same_policy(const struct hwkv_policy * a, const struct hwkv_policy * b) {
    check_same_geometry(hwkv_policy_geometry(a), hwkv_policy_geometry(b));
    CHECK_EQ_INT(hwkv_policy_context(a), hwkv_policy_context(b));
    CHECK_EQ_INT(hwkv_policy_sinks(a), hwkv_policy_sinks(b));
    CHECK_EQ_INT(hwkv_policy_type_k(a), hwkv_policy_type_k(b));
    CHECK_EQ_INT(hwkv_policy_type_v(a), hwkv_policy_type_v(b));
    CHECK_EQ_INT(hwkv_policy_reference(a), hwkv_policy_reference(b));
    CHECK_EQ_INT(hwkv_policy_has_types(a), hwkv_policy_has_types(b));
    CHECK_EQ_INT(hwkv_policy_selected(a), hwkv_policy_selected(b));
    CHECK_EQ_INT(hwkv_policy_n_unit(a), hwkv_policy_n_unit(b));
    CHECK_EQ_INT(hwkv_policy_n_point(a), hwkv_policy_n_point(b));

    int32_t na = 0;
    int32_t nb = 0;
    const struct hwkv_entry * ca = hwkv_policy_codebook(a, &na);
    const struct hwkv_entry * cb = hwkv_policy_codebook(b, &nb);
    CHECK(na == nb && memcmp(ca, cb, (size_t) na * sizeof(*ca)) == 0);

    const struct hwkv_calibration * la = hwkv_policy_calibration(a);
    const struct hwkv_calibration * lb = hwkv_policy_calibration(b);
    CHECK(!la == !lb);
    if (la && lb) {
        CHECK_STR(la->text, lb->text);
        CHECK_STR(la->text_sha256, lb->text_sha256);
        CHECK_STR(la->query_rule, lb->query_rule);
        CHECK_STR(la->tool, lb->tool);
        CHECK(la->seed == lb->seed && la->n_seq == lb->n_seq && la->n_query == lb->n_query);
    }
    CHECK(!hwkv_policy_extensions(a) == !hwkv_policy_extensions(b));
    if (hwkv_policy_extensions(a) && hwkv_policy_extensions(b)) {
        CHECK_STR(hwkv_policy_extensions(a), hwkv_policy_extensions(b));
    }
    for (int32_t i = 0; i < hwkv_policy_n_point(a) && i < hwkv_policy_n_point(b); i++) {
        check_same_point(a, hwkv_policy_point(a, i), hwkv_policy_point(b, i));
    }
}

// print, parse, print: the same policy and the same bytes
static void check_round_trip(const struct hwkv_policy * policy) {
    char * first  = NULL;
    char * second = NULL;
    struct hwkv_policy * again = NULL;
    struct hwkv_error    err   = { 0 };
    CHECK_ERR(hwkv_policy_print(&first, policy, &err), 0);
    if (first) {
        CHECK_ERR(hwkv_policy_parse(&again, first, strlen(first), &err), 0);
    }
    if (err.code) {
        fprintf(stderr, "    %s: %s\n", err.path, err.msg);
    }
    if (again) {
        CHECK_ERR(hwkv_policy_print(&second, again, &err), 0);
        CHECK_STR(second, first);
        check_same_policy(policy, again);
    }
    hwkv_policy_free(again);
    hwkv_string_free(first);
    hwkv_string_free(second);
}

static void check_save(const struct hwkv_policy * policy) {
    char path[PATH_SIZE + 32];
    snprintf(path, sizeof(path), "%s/saved.json", g_temp);
    const int status = hwkv_policy_save(policy, path, NULL);
    CHECK_EQ_INT(status, 0);
    if (status) {
        return;
    }
    char * text = NULL;
    CHECK_ERR(hwkv_policy_print(&text, policy, NULL), 0);
    size_t size = 0;
    char * saved = read_exact(path, &size);
    CHECK(text && size == strlen(text) && memcmp(saved, text, size) == 0);
    free(saved);
    hwkv_string_free(text);
    CHECK(remove(path) == 0);
}

static void check_good_file(const char * path) {
    struct hwkv_error    err    = { 0 };
    struct hwkv_policy * policy = NULL;
    CHECK_ERR(hwkv_policy_load(&policy, path, &err), 0);
    if (!policy) {
        fprintf(stderr, "    %s: %s\n", err.path, err.msg);
        return;
    }
    size_t size = 0;
    char * text = read_exact(path, &size);
    char   hex[65];
    struct hwkv_sha256 sha;
    hwkv_sha256_init(&sha);
    hwkv_sha256_update(&sha, text, size);
    hwkv_sha256_final(&sha, hex);
    CHECK_STR(hwkv_policy_hash(policy), hex);

    struct hwkv_policy * parsed = NULL;
    CHECK_ERR(hwkv_policy_parse(&parsed, text, size, NULL), 0);
    if (parsed) {
        check_same_policy(policy, parsed);
    }
    hwkv_policy_free(parsed);
    free(text);
    check_round_trip(policy);
    check_save(policy);
    hwkv_policy_free(policy);
}

static void test_good_files(void) {
    char dir[PATH_SIZE];
    snprintf(dir, sizeof(dir), "%s/policy-ok", HWKV_TEST_DATA);
    struct dirent ** names = NULL;
    const int n = scandir(dir, &names, filter_json, alphasort);
    CHECK(n >= 10);
    for (int i = 0; i < n; i++) {
        char path[PATH_SIZE + 300];
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
        const int before = testing_n_failed;
        check_good_file(path);
        if (testing_n_failed > before) {
            fprintf(stderr, "    in %s\n", path);
        }
        free(names[i]);
    }
    free(names);
}

// What ships was written by this library: it prints them as they are.
static void test_shipped_files(void) {
    struct dirent ** names = NULL;
    const int n = scandir(HWKV_SOURCE_DIR "/policies", &names, filter_json, alphasort);
    int n_policy = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i]->d_name, "policy.schema.json") != 0) {
            char path[PATH_SIZE + 300];
            snprintf(path, sizeof(path), "%s/policies/%s", HWKV_SOURCE_DIR, names[i]->d_name);
            check_good_file(path);
            size_t size = 0;
            char * text = read_exact(path, &size);
            struct hwkv_policy * policy = NULL;
            char * printed = NULL;
            CHECK_ERR(hwkv_policy_load(&policy, path, NULL), 0);
            CHECK_ERR(hwkv_policy_print(&printed, policy, NULL), 0);
            CHECK(printed && strlen(printed) == size && memcmp(printed, text, size) == 0);
            hwkv_string_free(printed);
            hwkv_policy_free(policy);
            free(text);
            n_policy++;
        }
        free(names[i]);
    }
    free(names);
    CHECK(n_policy > 0);
}

static void check_same_plan(const struct hwkv_policy * a, const struct hwkv_policy * b, int32_t ip) {
    const struct hwkv_plan_params params = hwkv_plan_params_default();
    struct hwkv_plan * pa = NULL;
    struct hwkv_plan * pb = NULL;
    CHECK_ERR(hwkv_plan_init(&pa, a, ip, &params, NULL), 0);
    CHECK_ERR(hwkv_plan_init(&pb, b, ip, &params, NULL), 0);
    CHECK(pa && pb && hwkv_plan_n_group(pa) == hwkv_plan_n_group(pb) && hwkv_plan_size(pa) == hwkv_plan_size(pb));
    for (int32_t ig = 0; pa && pb && ig < hwkv_plan_n_group(pa); ig++) {
        CHECK(memcmp(hwkv_plan_group(pa, ig), hwkv_plan_group(pb, ig), sizeof(struct hwkv_group)) == 0);
    }
    hwkv_plan_free(pa);
    hwkv_plan_free(pb);
}

// What shipped as version 1 is the same policy when it is written as version 2, which then stays as it is.
static void test_version_1_files(void) {
    struct dirent ** names = NULL;
    const int n = scandir(HWKV_TEST_DATA "/policy-1", &names, filter_json, alphasort);
    CHECK(n > 0);
    for (int i = 0; i < n; i++) {
        char path[PATH_SIZE + 300];
        snprintf(path, sizeof(path), "%s/policy-1/%s", HWKV_TEST_DATA, names[i]->d_name);
        check_good_file(path);
        struct hwkv_policy * one = NULL;
        struct hwkv_policy * two = NULL;
        char * text = NULL;
        CHECK_ERR(hwkv_policy_load(&one, path, NULL), 0);
        CHECK_ERR(hwkv_policy_print(&text, one, NULL), 0);
        CHECK(text && strstr(text, "\"version\": 2,") != NULL);
        CHECK_ERR(hwkv_policy_parse(&two, text, strlen(text), NULL), 0);
        for (int32_t ip = 0; one && two && ip < hwkv_policy_n_point(one); ip++) {
            check_same_plan(one, two, ip);
        }
        hwkv_string_free(text);
        hwkv_policy_free(one);
        hwkv_policy_free(two);
        free(names[i]);
    }
    free(names);
}

// The values themselves, by hand: a round trip alone would not notice a field read into another.
static void test_calibrated_values(void) {
    char path[PATH_SIZE];
    snprintf(path, sizeof(path), "%s/policy-ok/calibrated.json", HWKV_TEST_DATA);
    struct hwkv_policy * p = NULL;
    CHECK_ERR(hwkv_policy_load(&p, path, NULL), 0);
    if (!p) {
        return;
    }
    const struct hwkv_geometry * geo = hwkv_policy_geometry(p);
    CHECK_STR(geo->architecture, "llama");
    CHECK_STR(geo->name, "calibrated");
    CHECK(geo->n_layer == 2 && geo->n_full == 2);
    CHECK(geo->layers[1].il == 1 && geo->layers[1].n_head == 6 && geo->layers[1].n_head_kv == 2);
    CHECK(geo->layers[1].head_dim_k == 64 && geo->layers[1].head_dim_v == 64);
    CHECK(hwkv_policy_context(p) == 4096 && hwkv_policy_sinks(p) == 4);
    CHECK(hwkv_policy_type_k(p) == HWKV_TYPE_Q8_0 && hwkv_policy_type_v(p) == HWKV_TYPE_Q4_0);
    CHECK(hwkv_policy_n_unit(p) == 4 && hwkv_policy_unit(p, 1, 1) == 3);

    int32_t n = 0;
    const struct hwkv_entry * codebook = hwkv_policy_codebook(p, &n);
    CHECK(n == 3 && codebook[0].window == 256 && codebook[1].window == 1024 && codebook[2].window == HWKV_FULL);

    const struct hwkv_point * point = hwkv_policy_point(p, 0);
    CHECK(hwkv_policy_n_point(p) == 2 && hwkv_policy_selected(p) == 0);
    CHECK_STR(point->name, "tau-0.95");
    CHECK(point->tau == 0.95 && point->method[0] == '\0');
    CHECK(point->retention == 0.34375 && point->min_score == 0.9501);
    CHECK_EQ_INT(point->bytes, 585728);
    CHECK(point->entries[0] == 0 && point->entries[1] == 1 && point->entries[2] == 2 && point->entries[3] == 0);
    const double * scores = hwkv_point_scores(point, p, "cosine");
    CHECK(scores && scores[0] == 0.96 && scores[3] == 0.5 && scores[7] == 0.9 && scores[9] == 0.9501);
    CHECK_STR(point->validation, "{\"perplexity\":16.1,\"kl\":0.005,\"notes\":[\"held-out\",null,true]}");
    CHECK_STR(hwkv_policy_point(p, 1)->validation, "{}");
    CHECK(hwkv_policy_point(p, 2) == NULL && hwkv_policy_point(p, -1) == NULL);
    CHECK(hwkv_policy_find_point(p, "tau-0.99") == 1 && hwkv_policy_find_point(p, "1") == 1);
    CHECK(hwkv_policy_find_point(p, "2") == -1 && hwkv_policy_find_point(p, "tau") == -1 && hwkv_policy_find_point(p, "") == -1);

    const struct hwkv_calibration * calib = hwkv_policy_calibration(p);
    CHECK_STR(calib->text, "a novel, chapters 1 to 3");
    CHECK(calib->seed == 42 && calib->n_seq == 8 && calib->n_query == 256);
    CHECK_STR(calib->query_rule, "last-quarter");
    CHECK_STR(calib->tool, "llama-seqcalib 0.1.0");
    CHECK_STR(hwkv_policy_extensions(p), "{\"vendor\":{\"anything\":[1,2.5,\"three\",{\"four\":null}],\"format\":\"not ours\"}}");
    hwkv_policy_free(p);
}

static void check_entry(const struct hwkv_policy * p, int32_t ic, const char * expected) {
    char name[HWKV_ENTRY_SIZE];
    CHECK_STR(hwkv_entry_format(&hwkv_policy_codebook(p, NULL)[ic], name), expected);
}

// The same of a file of version 2, for what version 1 has not.
static void test_typed_values(void) {
    char path[PATH_SIZE];
    snprintf(path, sizeof(path), "%s/policy-ok/typed.json", HWKV_TEST_DATA);
    struct hwkv_policy * p = NULL;
    CHECK_ERR(hwkv_policy_load(&p, path, NULL), 0);
    if (!p) {
        return;
    }
    static const char * const names[6] = { "256:q4_0", "256:q8_0", "1024:q8_0/q4_0", "full:q4_0", "full:q8_0/q4_0", "full:f16" };
    int32_t n = 0;
    hwkv_policy_codebook(p, &n);
    CHECK_EQ_INT(n, 6);
    for (int32_t ic = 0; ic < n; ic++) {
        check_entry(p, ic, names[ic]);
    }
    CHECK_EQ_INT(hwkv_policy_reference(p), 4);
    CHECK(hwkv_policy_has_types(p));
    CHECK(hwkv_policy_n_point(p) == 2 && hwkv_policy_selected(p) == 1);

    const struct hwkv_point * point = hwkv_policy_point(p, 0);
    CHECK(point->tau == 0.95 && point->method[0] == '\0' && point->budget == 0 && isnan(point->lambda));
    CHECK(point->entries[0] == 1 && point->entries[1] == 2 && point->entries[2] == 4 && point->entries[3] == 1);
    // of a position: q8_0 136 bytes, q8_0/q4_0 104; the reference has 4 heads of 4096 positions
    CHECK_EQ_INT(point->bytes, 2 * 256 * 136 + (1024 + 4096) * 104);
    CHECK_NEAR(point->retention, (double) point->bytes / (4 * 4096 * 104), 1e-15);
    CHECK_NEAR(point->retention_tokens, (2 * 256 + 1024 + 4096) / (4.0 * 4096), 1e-15);
    CHECK(point->min_score == 0.9501 && point->n_scores == 2);
    const double * cosines = hwkv_point_scores(point, p, "cosine");
    const double * losses  = hwkv_point_scores(point, p, "loss");
    CHECK(cosines && cosines[0] == 0.91 && cosines[3] == 0.5 && cosines[6] == 0.5 && cosines[19] == 0.9501);
    CHECK(losses && losses[0] == 7.0 && losses[11] == 1e-9 && losses[19] == 5.25 && losses[22] == 0.0);

    point = hwkv_policy_point(p, 1);
    CHECK_STR(point->method, "least loss");
    CHECK(point->tau == 0.0 && point->budget == 614400 && point->lambda == 1.25e-7);
    CHECK(isnan(point->min_score) && !hwkv_point_scores(point, p, "cosine") && !hwkv_point_scores(point, p, "needle_0-1"));
    CHECK(point->n_scores == 3 && point->scores[0].context == 512 && point->scores[1].context == 4096 && point->scores[2].context == 1024);
    CHECK_STR(point->scores[2].kind, "needle_0-1");
    hwkv_policy_free(p);
}

//
// bad policies
//

// "not-finite" -> HWKV_ERR_NOT_FINITE
static int code_from_name(const char * name) {
    char upper[64] = "HWKV_ERR_";
    size_t n = strlen(upper);
    for (; *name && n + 1 < sizeof(upper); name++) {
        upper[n++] = (char) (*name == '-' ? '_' : *name >= 'a' && *name <= 'z' ? *name - 'a' + 'A' : *name);
    }
    upper[n] = '\0';
    for (int code = -1; code >= HWKV_ERR_INTERNAL; code--) {
        if (strcmp(hwkv_err_name(code), upper) == 0) {
            return code;
        }
    }
    return 0;
}

static void check_bad_file(const char * file, const char * code_name, const char * json_path, const char * part) {
    char path[PATH_SIZE + 300];
    snprintf(path, sizeof(path), "%s/%s", HWKV_TEST_BAD, file);
    const int before = testing_n_failed;
    const int code   = code_from_name(code_name);
    CHECK(code < 0);
    CHECK(strncmp(file, code_name, strlen(code_name)) == 0);
    check_load_fails(path, code);

    size_t size = 0;
    char * text = read_exact(path, &size);
    struct hwkv_policy * policy = (struct hwkv_policy *) (void *) text;
    struct hwkv_error    err;
    memset(&err, 0xAA, sizeof(err));
    CHECK_ERR(hwkv_policy_parse(&policy, text, size, &err), code);
    CHECK(policy == NULL);
    check_error(&err, code);
    CHECK(strstr(err.msg, part) != NULL);
    CHECK(strstr(err.msg, "expected") != NULL);
    if (strcmp(json_path, "-") == 0) {
        CHECK_STR(err.path, "");
        CHECK(err.line > 0 && err.column > 0);
    } else if (strcmp(json_path, "*") != 0) {
        CHECK_STR(err.path, json_path);
    }
    free(text);
    if (testing_n_failed > before) {
        fprintf(stderr, "    in %s: %s, path \"%s\", \"%s\"\n", file, hwkv_err_name(err.code), err.path, err.msg);
    }
}

static void test_bad_files(void) {
    char path[PATH_SIZE];
    snprintf(path, sizeof(path), "%s/EXPECT.tsv", HWKV_TEST_BAD);
    FILE * list = fopen(path, "r");
    CHECK(list != NULL);
    char line[512];
    int  n = 0;
    while (list && fgets(line, sizeof(line), list)) {
        char * field[4];
        char * p = line;
        for (int i = 0; i < 4; i++) {
            field[i] = p;
            p += strcspn(p, "\t\n");
            CHECK(*p == (i < 3 ? '\t' : '\n'));
            *p++ = '\0';
        }
        check_bad_file(field[0], field[1], field[2], field[3]);
        n++;
    }
    if (list) {
        fclose(list);
    }
    CHECK(n >= 300);

    // a file that the list has forgotten is a file that nobody checks
    struct dirent ** names = NULL;
    const int n_files = scandir(HWKV_TEST_BAD, &names, filter_json, alphasort);
    CHECK_EQ_INT(n_files, n);
    for (int i = 0; i < n_files; i++) {
        free(names[i]);
    }
    free(names);
}

int main(void) {
    const char * tmp = getenv("TMPDIR");
    snprintf(g_temp, sizeof(g_temp), "%s/hwkv-corpus-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    if (!mkdtemp(g_temp)) {
        fprintf(stderr, "%s: cannot make a directory: %s\n", g_temp, strerror(errno));
        return 1;
    }
    test_good_files();
    test_shipped_files();
    test_version_1_files();
    test_calibrated_values();
    test_typed_values();
    test_bad_files();
    // fails if a save has left something behind
    CHECK(rmdir(g_temp) == 0);
    return testing_result();
}
