// hwkv.h must compile as strict C99 and be enough by itself.

#include "hwkv.h"

#include <string.h>

int main(void) {
    struct hwkv_error       err;
    struct hwkv_plan_params params = hwkv_plan_params_default();
    char                    text[16];

    memset(&err, 0, sizeof(err));
    if (strcmp(hwkv_err_name(HWKV_ERR_TYPE), "HWKV_ERR_TYPE") != 0) {
        return 1;
    }
    return params.n_ctx == 0 || hwkv_error_format(&err, text, sizeof(text)) != text;
}
