/* fuzz_image.c - any bytes as an image file: decoded, turned, resized, cut into tiles. */
#include "data/image/image_process.h"

#include "base/arena.h"
#include <stdlib.h>

static void process(const mx_image *m, mx_image_spec s)
{
    mx_image_processor p;
    mx_image_cut cut;
    if (mx_image_processor_open(&p, &s, NULL) ||
        (s.crop_texts[0] && mx_image_processor_crops(&p)))
        abort();
    p.min_crop = 2;
    mx_status st = mx_image_cut_of(&p, m->width, m->height, &cut);
    if (st && s.min_pixels) { /* one side is too long for the other */
        mx_status_free(st);
        return;
    }
    /* Long thin pictures are rounded up beyond the limit. */
    int64_t tiles = s.crop_texts[0] ? p.max_crops : s.max_tiles;
    int64_t most = s.size ? tiles + 1 : s.max_pixels / 16 * (s.min_pixels ? 20 : 1);
    if (st || cut.images < 1 || cut.images > most)
        abort();
    float *pixels = mx_realloc(NULL, sizeof(float) * (size_t)(cut.images * mx_image_floats(&s)));
    if (mx_image_process(&p, m, pixels))
        abort();
    mx_free(pixels);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mx_image m;
    mx_status st = mx_image_decode(&m, data, n, "fuzz");
    /* A picture of a few bytes may have many pixels; time is for those that are small. */
    if (!st && m.width * m.height < 1 << 20) {
        process(&m, (mx_image_spec){.channels = 3, .size = 8, .max_tiles = 1 + (int64_t)(n % 6)});
        process(&m, (mx_image_spec){.channels = 3, .size = 8, .max_tiles = 1,
                                    .crop_texts = {"", "", ""}});
        process(&m, (mx_image_spec){.channels = 3, .patch = 2, .side = 2, .frames = 1,
                                    .channels_last = true, .max_pixels = 256});
        process(&m, (mx_image_spec){.channels = 3, .patch = 2, .side = 2, .frames = 2,
                                    .min_pixels = 64, .max_pixels = 256});
    }
    if (st && mx_status_code(st) != MX_INPUT)
        abort();
    mx_status_free(st);
    mx_image_fini(&m);
    return 0;
}
