/* fuzz_image.c - any bytes as an image file: decoded, turned, resized, cut into tiles. */
#include "data/image_process.h"

#include "base/arena.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mx_image m;
    mx_status st = mx_image_decode(&m, data, n, "fuzz");
    /* A picture of a few bytes may have many pixels; time is for those that are small. */
    if (!st && m.width * m.height < 1 << 20) {
        mx_image_processor p;
        mx_image_spec s = {.channels = 3, .size = 8, .max_tiles = 1 + (int64_t)(n % 6)};
        if (mx_image_processor_open(&p, &s, NULL))
            abort();
        mx_image_cut cut = mx_image_cut_of(&p, m.width, m.height);
        int64_t floats = cut.images * mx_image_floats(&p);
        float *pixels = mx_realloc(NULL, sizeof(float) * (size_t)floats);
        if (cut.images < 1 || cut.images > s.max_tiles + 1 || mx_image_process(&p, &m, pixels))
            abort();
        mx_free(pixels);
    }
    if (st && mx_status_code(st) != MX_INPUT)
        abort();
    mx_status_free(st);
    mx_image_fini(&m);
    return 0;
}
