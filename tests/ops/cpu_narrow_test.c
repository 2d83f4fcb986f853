/* cpu_narrow_test.c - rounding of rows to bfloat16 against rounding one number at a time. */
#include "base/vmath.h"
#include "ops/cpu/narrow.h"
#include "../test.h"
#include <math.h>
#include <string.h>

enum { MOST = 1100 };

static float value(int i)
{
    static const float special[] = {0, -0.0f, INFINITY, -INFINITY, 3.3895314e38f, 1, 1.00390625f,
                                    1.01171875f, -1.00390635f};
    return i % 7 == 3 ? special[i / 7 % 9] : ldexpf(sinf((float)i) * 1.7f, i % 60 - 30);
}

MX_TEST(narrow_rounds_as_one_number_at_a_time)
{
    static float x[MOST];
    static uint16_t half[MOST + 1];
    for (int n = 0; n <= MOST; n += n < 100 ? 1 : 250)
        for (int k = 0; k < 4; k++) {
            float f = k % 2 ? 0.3f : 1;
            for (int i = 0; i < n; i++)
                x[i] = value(i);
            uint16_t *to = k / 2 ? (uint16_t *)x : half;
            half[n] = 0x1234;
            if (k % 2)
                mx_narrow_scaled(to, x, n, f);
            else
                mx_narrow(to, x, n);
            for (int i = 0; i < n; i++) {
                uint16_t got, want = mx_bf16_of_float(value(i) * f);
                memcpy(&got, (char *)to + 2 * i, 2);
                MX_CHECK(got == want, "n=%d way %d element %d: %04x, not %04x", n, k, i, got, want);
            }
            MX_CHECK(half[n] == 0x1234, "n=%d: wrote past the end", n);
        }
    x[5] = NAN;
    mx_narrow(half, x, 40);
    MX_CHECK(isnan(mx_float_of_bf16(half[5])), "a NaN became %04x", half[5]);
}
