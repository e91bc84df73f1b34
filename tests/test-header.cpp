// hwkv.h must compile as C++ and be enough by itself; so must what the bridge shares with the library.

#include "hwkv.h"

#include "hwkv-error.h"
#include "hwkv-hash.h"
#include "hwkv-history.h"
#include "hwkv-json.h"
#include "hwkv-rule.h"
#include "hwkv-slot-file.h"
#include "hwkv-state.h"
#include "hwkv-version.h"

#include <cstring>

int main() {
    hwkv_error             err    = {};
    const hwkv_plan_params params = hwkv_plan_params_default();
    char                   text[16];

    if (std::strcmp(hwkv_err_name(HWKV_ERR_TYPE), "HWKV_ERR_TYPE") != 0) {
        return 1;
    }
    if (hwkv_fail(&err, HWKV_ERR_ARG, nullptr, "%s", "x") != HWKV_ERR_ARG || hwkv_rule_n_needed(hwkv_rule_of(8, 4), 100) != 7) {
        return 1;
    }
    hwkv_json * node = hwkv_json_new_bool(true);
    const bool  ok   = node && hwkv_json_type(node) == HWKV_JSON_BOOL;
    hwkv_json_free(node);
    return !ok || params.n_ctx == 0 || hwkv_error_format(&err, text, sizeof(text)) != text;
}
