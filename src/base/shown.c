/* shown.c - see shown.h. */
#include "base/shown.h"

#include "base/utf8.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_obeyed(uint32_t c)
{
    return (c < ' ' && c != '\n' && c != '\t') || (c >= 0x7f && c <= 0x9f);
}

void mx_str_add_shown(mx_str *out, const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + n;
    while (p < end) {
        uint32_t c;
        int k = mx_utf8_decode(p, end, &c);
        if (k && !is_obeyed(c))
            mx_str_add_n(out, (const char *)p, (size_t)k);
        else
            for (int i = 0; i < (k ? k : 1); i++)
                mx_str_addf(out, "\\x%02x", p[i]);
        p += k ? k : 1;
    }
}

void mx_print_shown(const char *text, size_t n)
{
    mx_str shown = {0};
    if (isatty(STDOUT_FILENO))
        mx_str_add_shown(&shown, text, n);
    fwrite(shown.text ? shown.text : text, 1, shown.text ? shown.len : n, stdout);
    mx_str_fini(&shown);
}

void mx_replace_controls(char *text)
{
    uint8_t *p = (uint8_t *)text, *end = p + strlen(text);
    while (p < end) {
        uint32_t c;
        int k = mx_utf8_decode(p, end, &c);
        if (k && is_obeyed(c))
            memset(p, '?', (size_t)k);
        p += k ? k : 1;
    }
}
