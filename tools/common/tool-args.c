#include "tool-args.h"

#include "hwkv-error.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

//
// numbers and lists
//

bool tool_parse_int(const char * text, int64_t * out) {
    if (text[0] == '\0' || strspn(text, "0123456789") != strlen(text)) {
        return false;
    }
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0;
}

bool tool_parse_number(const char * text, double * out) {
    if (text[0] == '\0' || strspn(text, "0123456789.eE+-") != strlen(text)) {
        return false;
    }
    char * end;
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

bool tool_next_field(const char ** list, char * field, size_t size) {
    if (!*list) {
        return false;
    }
    const size_t len = strcspn(*list, ",");
    snprintf(field, size, "%.*s", (int) (len < size ? len : size - 1), *list);
    *list = (*list)[len] == ',' ? *list + len + 1 : NULL;
    return true;
}

//
// values
//

static int read_int(const struct tool_option * o, int64_t * out, const char * text, struct hwkv_error * err) {
    int64_t value;
    if (!tool_parse_int(text, &value) || value < o->min || value > o->max) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "%s: found '%s', expected a whole number from %lld to %lld", o->name, text, (long long) o->min,
                         (long long) o->max);
    }
    *out = value;
    return HWKV_OK;
}

static int read_int32(const struct tool_option * o, int32_t * out, const char * text, struct hwkv_error * err) {
    int64_t   value = *out;
    const int res   = read_int(o, &value, text, err);
    *out = (int32_t) value;
    return res;
}

static int read_ratio(const struct tool_option * o, double * out, const char * text, struct hwkv_error * err) {
    double value;
    if (!tool_parse_number(text, &value) || value < 0.0 || value > 1.0) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "%s: found '%s', expected a number of at least 0 and at most 1", o->name, text);
    }
    *out = value;
    return HWKV_OK;
}

static int read_type(const struct tool_option * o, enum hwkv_type * out, const char * text, struct hwkv_error * err) {
    const int type = hwkv_type_from_name(text);
    if (type < 0) {
        char list[128] = "";
        for (int i = 0; i < HWKV_TYPE_COUNT; i++) {
            const size_t n = strlen(list);
            snprintf(list + n, sizeof(list) - n, "%s%s", i > 0 ? ", " : "", hwkv_type_name((enum hwkv_type) i));
        }
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "%s: found '%s', expected one of %s", o->name, text, list);
    }
    *out = (enum hwkv_type) type;
    return HWKV_OK;
}

static int read_on_off(const struct tool_option * o, bool * out, const char * text, struct hwkv_error * err) {
    if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "%s: found '%s', expected on or off", o->name, text);
    }
    *out = strcmp(text, "on") == 0;
    return HWKV_OK;
}

static int add_string(const struct tool_option * o, struct tool_strings * list, const char * text, struct hwkv_error * err) {
    if (list->n == o->max) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "%s: found more than %lld, expected at most that", o->name, (long long) o->max);
    }
    list->items[list->n++] = text;
    return HWKV_OK;
}

static int read_other(const struct tool_option * o, void * target, const char * text, struct hwkv_error * err) {
    struct hwkv_error what;
    const int res = o->read(target, text, &what);
    return res == HWKV_OK ? HWKV_OK : hwkv_fail(err, HWKV_ERR_ARG, NULL, "%s: %s", o->name, what.msg);
}

static int read_value(const struct tool_option * o, void * target, const char * text, struct hwkv_error * err) {
    if (text[0] == '\0') {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "%s: the value is empty", o->name);
    }
    switch (o->kind) {
        case TOOL_STRING:  *(const char **) target = text; return HWKV_OK;
        case TOOL_STRINGS: return add_string (o, target, text, err);
        case TOOL_INT:     return read_int32 (o, target, text, err);
        case TOOL_INT64:   return read_int   (o, target, text, err);
        case TOOL_RATIO:   return read_ratio (o, target, text, err);
        case TOOL_ON_OFF:  return read_on_off(o, target, text, err);
        case TOOL_TYPE:    return read_type  (o, target, text, err);
        default:           return read_other (o, target, text, err);
    }
}

//
// arguments
//

static bool is_name(const char * name, const char * text, size_t len) {
    return name && strlen(name) == len && strncmp(name, text, len) == 0;
}

static const struct tool_option * find_option(const struct tool_args * args, const char * text, size_t len) {
    for (int i = 0; i < args->n_option; i++) {
        const struct tool_option * o = &args->options[i];
        if (is_name(o->name, text, len) || is_name(o->alias, text, len)) {
            return o;
        }
    }
    return NULL;
}

// One option at argv[*i], with its value in the same or the next argument.
static int read_option(const struct tool_args * args, int argc, char ** argv, int * i, struct hwkv_error * err) {
    const char * arg   = argv[*i];
    const char * equal = strncmp(arg, "--", 2) == 0 ? strchr(arg, '=') : NULL;

    const struct tool_option * o = find_option(args, arg, equal ? (size_t) (equal - arg) : strlen(arg));
    if (!o) {
        return hwkv_fail(err, HWKV_ERR_UNKNOWN_KEY, NULL, "unknown option '%s'", arg);
    }
    void * target = (char *) args->target + o->offset;
    if (o->kind == TOOL_FLAG || o->kind == TOOL_CLEAR) {
        if (equal) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "%s takes no value", o->name);
        }
        *(bool *) target = o->kind == TOOL_FLAG;
        return HWKV_OK;
    }
    if (equal) {
        return read_value(o, target, equal + 1, err);
    }
    if (*i + 1 >= argc) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "%s needs a value", arg);
    }
    return read_value(o, target, argv[++*i], err);
}

static int add_word(struct tool_args * args, const char * word, struct hwkv_error * err) {
    if (args->n_word == args->max_word) {
        return hwkv_fail(err, HWKV_ERR_UNKNOWN_KEY, NULL, "unexpected argument '%s'", word);
    }
    args->words[args->n_word++] = word;
    return HWKV_OK;
}

int tool_args_read(struct tool_args * args, int argc, char ** argv, struct hwkv_error * err) {
    bool only_words = false;
    int  res        = HWKV_OK;

    for (int i = 0; i < argc && res == HWKV_OK; i++) {
        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = true;
        } else if (only_words || argv[i][0] != '-' || argv[i][1] == '\0') {
            res = add_word(args, argv[i], err);
        } else {
            res = read_option(args, argc, argv, &i, err);
        }
    }
    return res;
}

bool tool_args_has(int argc, char ** argv, const char * name, const char * alias) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], name) == 0 || (alias && strcmp(argv[i], alias) == 0)) {
            return true;
        }
    }
    return false;
}

//
// help
//

// The text of an option: beside its names, or below them where they take the room.
static void put_help(FILE * out, const char * text, int used, int column) {
    if (used >= column) {
        fputc('\n', out);
        used = 0;
    }
    for (; *text; used = 0) {
        const int len = (int) strcspn(text, "\n");
        fprintf(out, "%*s%.*s\n", column - used, "", len, text);
        text += len + (text[len] == '\n');
    }
}

void tool_args_help(const struct tool_args * args, FILE * out) {
    fputs(args->usage, out);
    for (int i = 0; i < args->n_option; i++) {
        const struct tool_option * o = &args->options[i];
        if (!o->help) {
            continue;
        }
        if (!o->name) {
            fprintf(out, "\n%s\n", o->help);
            continue;
        }
        // the short name first, whichever of the two messages show
        const bool   swap  = o->alias && strncmp(o->name, "--", 2) == 0 && strncmp(o->alias, "--", 2) != 0;
        const char * first = swap ? o->alias : o->name;
        const char * other = swap ? o->name : o->alias;
        const int    used  = fprintf(out, "  %s%s%s%s%s", first, other ? ", " : "", other ? other : "", o->value ? " " : "", o->value ? o->value : "");
        put_help(out, o->help, used, args->column);
    }
    fputs(args->after ? args->after : "", out);
}
