/* data_url.c - see data_url.h. */
#include "data/formats/data_url.h"

#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void mx_data_url_write(mx_str *out, const void *data, size_t n)
{
    const uint8_t *p = data;
    char four[4];
    mx_str_add(out, "\"data:;base64,");
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < n ? p[i + 2] : 0);
        for (int k = 0; k < 4; k++)
            four[k] = i + (size_t)k <= n ? digits[v >> (18 - 6 * k) & 63] : '=';
        mx_str_add_n(out, four, 4);
    }
    mx_str_add(out, "\"");
}

bool mx_data_url_is(const char *text)
{
    return mx_starts_with(text, "data:");
}

mx_status mx_data_url_read(const char *text, size_t n, mx_str *out)
{
    static const char mark[] = ";base64,";
    const char *at = memmem(text, n, mark, sizeof mark - 1), *end = text + n;
    int8_t value[256];
    if (!mx_data_url_is(text) || !at)
        return mx_fail(MX_INPUT, "a picture inside the data is not \"data:TYPE;base64,...\"");
    memset(value, -1, sizeof value);
    for (int i = 0; i < 64; i++)
        value[(uint8_t)digits[i]] = (int8_t)i;
    at += sizeof mark - 1;
    while (end > at && end[-1] == '=')
        end--;
    uint32_t bits = 0;
    for (int have = 0; at < end; at++) {
        int v = value[(uint8_t)*at];
        if (v < 0)
            return mx_fail(MX_INPUT, "a picture inside the data is not base64 at byte %zu",
                           (size_t)(at - text));
        bits = bits << 6 | (uint32_t)v;
        have += 6;
        if (have >= 8) {
            char byte = (char)(bits >> (have -= 8));
            mx_str_add_n(out, &byte, 1);
        }
    }
    return MX_OK;
}
