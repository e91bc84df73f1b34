#include "seqcalib-codebook.h"

#include "hwkv-error.h"

#include <string.h>

static bool same_pair(struct sc_pair a, struct sc_pair b) {
    return a.k == b.k && a.v == b.v;
}

// What entries without types are in.
static struct sc_pair types_of(const struct sc_codebook * codebook, const struct hwkv_entry * entry) {
    return codebook->typed ? (struct sc_pair) { entry->type_k, entry->type_v } : codebook->cache;
}

static void add_entry(struct sc_codebook * codebook, int32_t window, struct sc_pair types) {
    struct hwkv_entry entry = hwkv_entry_of_window(window);
    if (codebook->typed) {
        entry.type_k = types.k;
        entry.type_v = types.v;
    }
    codebook->entries[codebook->n++] = entry;
}

// In the order of the codebook: among the entries of one pair windows ascend, because longer ones take more bytes.
static void make_scans(struct sc_codebook * codebook) {
    codebook->n_scan = 0;
    for (int32_t ic = 0, first = 0; ic < codebook->n; ic++) {
        const struct sc_pair types = types_of(codebook, &codebook->entries[ic]);

        bool known = false;
        for (int32_t is = 0; is < codebook->n_scan; is++) {
            known |= same_pair(codebook->scans[is].types, types);
        }
        if (known) {
            continue;
        }
        const int32_t is = codebook->n_scan++;
        struct sc_scan * scan = &codebook->scans[is];
        *scan = (struct sc_scan) { .types = types, .first = first };
        for (int32_t i = ic; i < codebook->n; i++) {
            if (same_pair(types_of(codebook, &codebook->entries[i]), types)) {
                codebook->scan[i] = is;
                codebook->slot[i] = scan->n;
                codebook->windows[first + scan->n++] = hwkv_entry_of_window(codebook->entries[i].window);
            }
        }
        first += scan->n;
    }
}

int sc_codebook_init(struct sc_codebook * codebook, const struct sc_codebook_params * params, struct hwkv_error * err) {
    const struct sc_pair   open  = { HWKV_TYPE_CACHE, HWKV_TYPE_CACHE };
    const struct sc_pair * pairs = params->pairs->n > 0 ? params->pairs->pair : &open;
    const int32_t          n     = params->pairs->n > 0 ? params->pairs->n : 1;

    memset(codebook, 0, sizeof(*codebook));
    codebook->cache = params->cache;
    codebook->typed = params->pairs->n > 0;

    const struct sc_pair exact = { HWKV_TYPE_F32, HWKV_TYPE_F32 };
    bool has_reference = !codebook->typed;
    bool has_exact     = !codebook->typed || same_pair(params->cache, exact);
    for (int32_t i = 0; i < n; i++) {
        has_reference |= same_pair(pairs[i], params->cache);
        has_exact     |= same_pair(pairs[i], exact);
    }
    // a layer is traced in F32, which takes an entry of its own
    const int32_t n_max = HWKV_CODE_MAX - !has_exact;
    const int32_t n_all = n*(params->n_window + 1) + !has_reference;
    if (n_all > n_max) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "--windows and --types: found %d windows and full with %d types, which are %d entries, expected at most %d",
                         params->n_window, n, n_all, n_max);
    }
    for (int32_t i = 0; i < n; i++) {
        for (int32_t iw = 0; iw < params->n_window; iw++) {
            add_entry(codebook, params->windows[iw], pairs[i]);
        }
        add_entry(codebook, HWKV_FULL, pairs[i]);
    }
    if (!has_reference) {
        add_entry(codebook, HWKV_FULL, params->cache);
    }

    const struct hwkv_cache cache = { params->n_ctx, params->cache.k, params->cache.v };
    const int status = hwkv_codebook_sort(codebook->entries, codebook->n, params->geo, &cache, err);
    if (status == HWKV_OK) {
        codebook->reference = hwkv_codebook_reference(codebook->entries, codebook->n, &cache);
        make_scans(codebook);
    }
    return status;
}

void sc_codebook_full(struct sc_codebook * codebook, const struct sc_codebook * of) {
    memset(codebook, 0, sizeof(*codebook));
    codebook->entries[0] = of->entries[of->reference];
    codebook->n     = 1;
    codebook->typed = of->typed;
    codebook->cache = of->cache;
    make_scans(codebook);
}
