/* base64.c - see base64.h. */
#include "text/base64.h"

void mx_base64_add(mx_str *out, const void *bytes, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i += 3) {
        unsigned left = n - i < 3 ? (unsigned)(n - i) : 3;
        unsigned word = (unsigned)b[i] << 16;
        word |= left > 1 ? (unsigned)b[i + 1] << 8 : 0;
        word |= left > 2 ? b[i + 2] : 0;
        char four[4] = {digit[word >> 18], digit[word >> 12 & 63], digit[word >> 6 & 63],
                        digit[word & 63]};
        for (unsigned k = left + 1; k < 4; k++)
            four[k] = '=';
        mx_str_add_n(out, four, 4);
    }
}
