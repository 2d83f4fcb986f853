/* help_models.c - see help_models.h. README.md shows the same, by family (tools/readme). */
#include "cmd/help_models.h"

#include "models/from_config.h"
#include "keys/keys.h"
#include <stdio.h>
#include <string.h>

/* 8030261248 -> "8.03 G" */
static const char *short_number(double n, char *buf, size_t cap)
{
    static const char unit[] = " kMGT";
    int k = 0;
    for (; n >= 999.5 && k < 4; k++)
        n /= 1000;
    snprintf(buf, cap, "%.*f%s%.*s", n < 9.995 ? 2 : n < 99.95 ? 1 : 0, n, k ? " " : "", k > 0,
             unit + k);
    return buf;
}

/* The part of a reason that names the key and its value, without the place before it and the
 * meaning and advice after it; "" for the line that counts the reasons. */
static const char *core_of(char *line)
{
    static const char *const ends[] = {" yet; ", "; supported:", ", but "};
    char *from = strstr(line, ".yml:");
    from = from ? strstr(from + 1, ": ") : NULL;
    from = from ? from + 2 : line;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char *end = strstr(from, ends[i]);
        if (end)
            *end = 0;
    }
    char *help = strstr(from, " ("), *value = help ? strstr(help, ") cannot be ") : NULL;
    if (value)
        memmove(help, value + 1, strlen(value));
    return mx_ends_with(from, ":") ? "" : from;
}

static void print_reasons(mx_arena *a, const char *text)
{
    enum { SHOWN = 2 };
    int n = 0;
    char *save = NULL, *copy = mx_arena_strdup(a, text);
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *core = core_of(line);
        if (*core && n++ < SHOWN)
            printf("%s%s", n > 1 ? ", " : "", core);
    }
    if (n > SHOWN)
        printf(", and %d more", n - SHOWN);
    printf("\n");
}

static mx_status print_model(mx_arena *a, const char *home, const char *name)
{
    char arg[300], number[32];
    const char *args[] = {arg};
    mx_config *cfg = NULL;
    mx_model_spec m = {0};
    int64_t n = 0;
    snprintf(arg, sizeof arg, "model_name=%s", name);
    mx_config_request r = {.schema = &mx_keys, .home = home, .args = args, .n_args = 1};
    mx_status st = mx_config_load(&cfg, &r);
    if (!st)
        st = mx_model_from_config(&m, cfg);
    if (!st)
        st = mx_model_weights(&m, &n);
    if (st) {
        printf("%-26s not built: ", name);
        print_reasons(a, mx_status_text(st));
    } else {
        printf("%-26s %-14s %s\n", name, m.family->name,
               short_number((double)n, number, sizeof number));
    }
    mx_status_free(st);
    mx_model_spec_fini(&m);
    mx_config_free(cfg);
    return MX_OK;
}

mx_status mx_help_models(const char *home)
{
    if (!home)
        return mx_fail(MX_INPUT,
                       "configs/ was not found beside the program; let MAXC_CONFIGS name it");
    mx_arena arena = {0};
    char **names = NULL;
    int n = mx_config_models(&arena, home, &names);
    mx_status st = MX_OK;
    for (int i = 0; i < n && !st; i++)
        st = print_model(&arena, home, names[i]);
    mx_arena_fini(&arena);
    return st;
}
