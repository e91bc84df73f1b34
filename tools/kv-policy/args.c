// Command line: a table of options, read strictly.

#include "kv-policy.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool parse_int(const char * text, int64_t * out) {
    if (text[0] == '\0' || strspn(text, "0123456789") != strlen(text)) {
        return false;
    }
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0;
}

bool parse_ratio(const char * text, double * out) {
    if (text[0] == '\0' || strspn(text, "0123456789.eE+-") != strlen(text)) {
        return false;
    }
    char * end;
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

static const struct opt * opt_find(const struct opt_set * set, const char * name, size_t len) {
    for (int i = 0; i < set->n_opts; i++) {
        const struct opt * o = &set->opts[i];
        if ((strlen(o->name) == len && strncmp(o->name, name, len) == 0) ||
            (o->alias && strlen(o->alias) == len && strncmp(o->alias, name, len) == 0)) {
            return o;
        }
    }
    return NULL;
}

static bool opt_set_int(const struct opt_set * set, const struct opt * o, const char * text) {
    int64_t value;
    if (!parse_int(text, &value) || value < o->min || value > o->max) {
        fail_usage(set->command, "%s: found '%s', expected a whole number from %lld to %lld", o->name, text,
                   (long long) o->min, (long long) o->max);
        return false;
    }
    *(int64_t *) o->value = value;
    return true;
}

static bool opt_set_ratio(const struct opt_set * set, const struct opt * o, const char * text) {
    double value;
    if (!parse_ratio(text, &value) || value < 0.0 || value > 1.0 || (o->min > 0 && value == 0.0)) {
        fail_usage(set->command, "%s: found '%s', expected a number %s 0 and at most 1", o->name, text,
                   o->min > 0 ? "above" : "of at least");
        return false;
    }
    *(double *) o->value = value;
    return true;
}

static bool opt_set_type(const struct opt_set * set, const struct opt * o, const char * text) {
    const int type = hwkv_type_from_name(text);
    if (type < 0) {
        char list[128] = "";
        for (int i = 0; i < HWKV_TYPE_COUNT; i++) {
            const size_t n = strlen(list);
            snprintf(list + n, sizeof(list) - n, "%s%s", i > 0 ? ", " : "", hwkv_type_name((enum hwkv_type) i));
        }
        fail_usage(set->command, "%s: found '%s', expected one of %s", o->name, text, list);
        return false;
    }
    *(int *) o->value = type;
    return true;
}

static bool opt_set_value(const struct opt_set * set, const struct opt * o, const char * text) {
    switch (o->kind) {
        case OPT_STRING:
            if (text[0] == '\0') {
                fail_usage(set->command, "%s: the value is empty", o->name);
                return false;
            }
            *(const char **) o->value = text;
            return true;
        case OPT_INT:
            return opt_set_int(set, o, text);
        case OPT_RATIO:
            return opt_set_ratio(set, o, text);
        case OPT_TYPE:
            return opt_set_type(set, o, text);
        default:
            if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0) {
                fail_usage(set->command, "%s: found '%s', expected on or off", o->name, text);
                return false;
            }
            *(bool *) o->value = strcmp(text, "on") == 0;
            return true;
    }
}

static bool add_word(struct opt_set * set, const char * word) {
    if (set->n_words == set->max_words) {
        fail_usage(set->command, "unexpected argument '%s'", word);
        return false;
    }
    set->words[set->n_words++] = word;
    return true;
}

// One option at argv[*i], with its value in the same or the next argument.
static bool opt_read(struct opt_set * set, int argc, char ** argv, int * i) {
    const char * arg   = argv[*i];
    const char * equal = strncmp(arg, "--", 2) == 0 ? strchr(arg, '=') : NULL;

    const struct opt * o = opt_find(set, arg, equal ? (size_t) (equal - arg) : strlen(arg));
    if (!o) {
        fail_usage(set->command, "unknown option '%s'", arg);
        return false;
    }
    if (o->kind == OPT_FLAG || o->kind == OPT_CLEAR) {
        if (equal) {
            fail_usage(set->command, "%s takes no value", o->name);
            return false;
        }
        *(bool *) o->value = o->kind == OPT_FLAG;
        return true;
    }
    if (equal) {
        return opt_set_value(set, o, equal + 1);
    }
    if (*i + 1 >= argc) {
        fail_usage(set->command, "%s needs a value", arg);
        return false;
    }
    return opt_set_value(set, o, argv[++*i]);
}

bool args_read(struct opt_set * set, int argc, char ** argv) {
    bool only_words = false;

    for (int i = 0; i < argc; i++) {
        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = true;
        } else if (only_words || argv[i][0] != '-' || argv[i][1] == '\0') {
            if (!add_word(set, argv[i])) {
                return false;
            }
        } else if (!opt_read(set, argc, argv, &i)) {
            return false;
        }
    }
    return true;
}
