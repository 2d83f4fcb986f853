/* status.c - errors as owned objects: a code and one allocated message. */
#include "base/status.h"

#include "base/arena.h"
#include "base/shown.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mx_error {
    mx_code code;
    char text[];
};

static mx_status make(mx_code code, const char *fmt, va_list ap, const char *suffix)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    size_t extra = suffix ? strlen(suffix) + 2 : 0;
    MX_ASSERT(n >= 0, "the format of an error: %s", fmt);
    mx_error *e = mx_realloc(NULL, sizeof *e + (size_t)n + extra + 1);
    e->code = code;
    vsnprintf(e->text, (size_t)n + 1, fmt, ap);
    if (suffix)
        snprintf(e->text + n, extra + 1, ": %s", suffix);
    mx_replace_controls(e->text);
    return e;
}

mx_status mx_fail(mx_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    mx_status s = make(code, fmt, ap, NULL);
    va_end(ap);
    return s;
}

mx_status mx_fail_errno(mx_code code, const char *fmt, ...)
{
    char reason[128];
    const char *text = strerror_r(errno, reason, sizeof reason); /* GNU variant: returns the text */
    va_list ap;
    va_start(ap, fmt);
    mx_status s = make(code, fmt, ap, text);
    va_end(ap);
    return s;
}

mx_status mx_status_wrap(mx_status s, const char *fmt, ...)
{
    if (!s)
        return MX_OK;
    va_list ap;
    va_start(ap, fmt);
    mx_status w = make(s->code, fmt, ap, s->text);
    va_end(ap);
    mx_status_free(s);
    return w;
}

mx_status mx_status_join(mx_status a, mx_status b)
{
    if (!a || !b)
        return a ? a : b;
    mx_status both = mx_fail(a->code, "%s\n%s", a->text, b->text);
    mx_status_free(a);
    mx_status_free(b);
    return both;
}

mx_code mx_status_code(mx_status s)
{
    return s ? s->code : (mx_code)0;
}

const char *mx_status_text(mx_status s)
{
    return s ? s->text : "";
}

void mx_status_free(mx_status s)
{
    mx_free(s);
}

void mx_assert_failed(const char *file, int line, const char *cond, const char *fmt, ...)
{
    fprintf(stderr, "%s:%d: assertion failed: %s", file, line, cond);
    if (*fmt) {
        va_list ap;
        va_start(ap, fmt);
        fputs(" (", stderr);
        vfprintf(stderr, fmt, ap);
        fputc(')', stderr);
        va_end(ap);
    }
    fputs("\nThis is a bug in maxc; please report it with the command you ran.\n", stderr);
    abort();
}
