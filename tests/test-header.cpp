// hwkv.h must compile as C++ and be enough by itself.

#include "hwkv.h"

#include <cstring>

int main() {
    hwkv_error             err    = {};
    const hwkv_plan_params params = hwkv_plan_params_default();
    char                   text[16];

    if (std::strcmp(hwkv_err_name(HWKV_ERR_TYPE), "HWKV_ERR_TYPE") != 0) {
        return 1;
    }
    return params.n_ctx == 0 || hwkv_error_format(&err, text, sizeof(text)) != text;
}
