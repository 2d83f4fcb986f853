/* image_test.c - pictures decoded, turned, resized and cut: against Pillow and the reference's
 * processors (tests/fixtures/images), and the fuzz target's corpus. */
#include "../test.h"

#define LLVMFuzzerTestOneInput fuzz_image
#include "../fuzz/fuzz_image.c"
#include "files.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define CORPUS "tests/fuzz/corpus/image/"
#define EXPECTED "tests/fixtures/images/"

static int largest_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
    int most = 0;
    for (size_t i = 0; i < n; i++)
        most = abs(a[i] - b[i]) > most ? abs(a[i] - b[i]) : most;
    return most;
}

MX_TEST(image_files_decode_as_pillow_does)
{
    static const char *const names[] = {
        "plain.jpg",   "progressive.jpg", "grey.jpg",   "cmyk.jpg",    "turned3.jpg",
        "turned5.jpg", "turned6.jpg",     "turned7.jpg", "turned8.png", "turned2.webp",
        "plain.png",   "palette.png",     "grey1.png",  "grey.png",    "alpha.png",
        "deep.png",    "interlaced.png",  "alpha.webp", "plain.webp",  "lossless.webp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        size_t n;
        mx_image m;
        snprintf(path, sizeof path, CORPUS "%s", names[i]);
        MX_CHECK_OK(mx_image_read(&m, path));
        snprintf(path, sizeof path, EXPECTED "%s.rgb", names[i]);
        char *want = read_whole(path, &n);
        MX_CHECK(n == (size_t)(3 * m.width * m.height), "%s: %lld x %lld", names[i],
                 (long long)m.width, (long long)m.height);
        bool turned = strstr(names[i], "turned5") || strstr(names[i], "turned6");
        MX_CHECK(!turned || (m.width == 17 && m.height == 23), "%s", names[i]);
        /* JPEG's colours differ by one step between versions of its library */
        int most = largest_difference(m.rgb, (uint8_t *)want, n);
        MX_CHECK(most <= (strstr(names[i], ".jpg") ? 1 : 0), "%s: off by %d", names[i], most);
        mx_free(want);
        mx_image_fini(&m);
    }
}

MX_TEST(image_files_that_are_damaged_or_too_large_are_refused)
{
    mx_image m;
    MX_CHECK_ERROR(mx_image_read(&m, CORPUS "enormous.png"), "65535 x 65535 pixels is too large");
    MX_CHECK_ERROR(mx_image_read(&m, CORPUS "enormous.jpg"), "65000 x 65000 pixels is too large");
    MX_CHECK_ERROR(mx_image_read(&m, CORPUS "animated.webp"), "animated");
    MX_CHECK_ERROR(mx_image_read(&m, CORPUS "absent.png"), "absent.png");
    MX_CHECK_ERROR(mx_image_read(&m, "tests/data/image_test.c"), "not a JPEG, PNG or WebP");
    static const char *const names[] = {"plain.jpg", "plain.png", "plain.webp"};
    for (int i = 0; i < 3; i++) {
        char path[256];
        size_t n;
        snprintf(path, sizeof path, CORPUS "%s", names[i]);
        char *p = read_whole(path, &n);
        MX_CHECK_ERROR(mx_image_decode(&m, p, n * 2 / 3, names[i]), names[i]);
        MX_CHECK(!m.rgb);
        mx_free(p);
    }
    size_t n;
    char *png = read_whole(CORPUS "plain.png", &n);
    png[n / 2] ^= 1;
    MX_CHECK_ERROR(mx_image_decode(&m, png, n, "x.png"), "x.png: the PNG image is damaged: ");
    mx_free(png);
}

MX_TEST(image_resize_equals_pillow)
{
    static const struct {
        const char *name;
        int w, h;
        mx_filter filter;
    } cases[] = {{"wide_lanczos", 13, 40, MX_FILTER_LANCZOS},
                 {"wide_bicubic", 7, 3, MX_FILTER_BICUBIC},
                 {"wide_bilinear", 7, 90, MX_FILTER_BILINEAR}};
    mx_image m, r;
    MX_CHECK_OK(mx_image_read(&m, CORPUS "wide.png"));
    for (int i = 0; i < 3; i++) {
        char path[256];
        size_t n;
        snprintf(path, sizeof path, EXPECTED "%s.u8", cases[i].name);
        char *want = read_whole(path, &n);
        MX_CHECK_OK(mx_image_resize(&r, &m, cases[i].w, cases[i].h, cases[i].filter));
        MX_CHECK(n == (size_t)(3 * r.width * r.height));
        int most = largest_difference(r.rgb, (uint8_t *)want, n);
        MX_CHECK(most == 0, "%s: off by %d", cases[i].name, most);
        mx_free(want);
        mx_image_fini(&r);
    }
    mx_image_fini(&m);
}

/* Within one step of 255 in the resized picture, which is 2/255 after scaling to -1..1; where
 * pixels are scaled in bfloat16, its step as well. */
static void check_pixels(const char *picture, const char *expected, mx_image_spec s, int filter,
                         bool largest_canvas)
{
    char path[256];
    size_t n;
    mx_image m;
    mx_image_processor p;
    s.channels = 3;
    MX_CHECK_OK(mx_image_processor_open(&p, &s, NULL));
    p.filter = (mx_filter)filter;
    p.largest_canvas = largest_canvas;
    snprintf(path, sizeof path, CORPUS "%s", picture);
    MX_CHECK_OK(mx_image_read(&m, path));
    mx_image_cut cut;
    MX_CHECK_OK(mx_image_cut_of(&p, m.width, m.height, &cut));
    snprintf(path, sizeof path, EXPECTED "%s.f32", expected);
    float *want = (float *)read_whole(path, &n);
    int64_t floats = cut.images * mx_image_floats(&s);
    MX_CHECK(n == 4 * (size_t)floats, "%s: %lld images", expected, (long long)cut.images);
    float *have = mx_realloc(NULL, 4 * (size_t)floats), most = 0;
    MX_CHECK_OK(mx_image_process(&p, &m, have));
    int64_t off = 0;
    for (int64_t i = 0; i < floats; i++) {
        most = fmaxf(most, fabsf(have[i] - want[i]));
        off += have[i] != want[i];
    }
    float step = s.in_bf16 ? 2.1f / 255 : s.plain ? 1.001f / 255 : 2.001f / 255;
    MX_CHECK(most <= step, "%s: off by %g", expected, most);
    MX_CHECK(off <= floats / 10, "%s: %lld of %lld numbers differ", expected, (long long)off,
             (long long)floats);
    mx_free(have);
    mx_free(want);
    mx_image_fini(&m);
}

MX_TEST(image_processors_equal_the_reference)
{
    check_pixels("wide.png", "gemma3_wide", (mx_image_spec){.size = 20, .max_tiles = 1},
                 MX_FILTER_BILINEAR, false);
    check_pixels("plain.png", "gemma3_small_bicubic", (mx_image_spec){.size = 20, .max_tiles = 1},
                 MX_FILTER_BICUBIC, false);
    check_pixels("wide.png", "llama4_wide",
                 (mx_image_spec){.size = 12, .max_tiles = 4, .in_bf16 = true}, MX_FILTER_BILINEAR,
                 false);
    check_pixels("plain.png", "llama4_small",
                 (mx_image_spec){.size = 20, .max_tiles = 6, .in_bf16 = true}, MX_FILTER_BILINEAR,
                 false);
    check_pixels("plain.png", "llama4_canvas",
                 (mx_image_spec){.size = 12, .max_tiles = 6, .in_bf16 = true}, MX_FILTER_BILINEAR,
                 true);
}

/* As Gemma 4's and Qwen3-VL's processors give them, the places of patches included. */
MX_TEST(image_pieces_equal_the_reference)
{
    mx_image_spec gemma = {.patch = 3, .side = 2, .frames = 1, .channels_last = true, .plain = true,
                           .max_pixels = 70 * 36};
    mx_image_spec qwen = {.patch = 4, .side = 2, .frames = 2, .min_pixels = 1024,
                          .max_pixels = 4096};
    check_pixels("wide.png", "gemma4_wide", gemma, MX_FILTER_BICUBIC, false);
    check_pixels("plain.png", "gemma4_small", gemma, MX_FILTER_BICUBIC, false);
    check_pixels("wide.png", "qwen3vl_wide", qwen, MX_FILTER_BICUBIC, false);
    check_pixels("plain.png", "qwen3vl_small", qwen, MX_FILTER_BICUBIC, false);
}

MX_TEST(image_sizes_in_pieces_equal_the_reference)
{
    FILE *f = fopen(EXPECTED "pieces.txt", "r");
    MX_CHECK(f != NULL);
    long w, h, patch, side, least, most, on_w, on_h;
    int n = 0, refused = 0;
    while (f && fscanf(f, "%ld %ld %ld %ld %ld %ld %ld %ld", &w, &h, &patch, &side, &least, &most,
                       &on_w, &on_h) == 8) {
        mx_image_processor p;
        mx_image_spec s = {.channels = 3, .patch = patch, .side = side, .frames = 1,
                           .min_pixels = least, .max_pixels = most};
        mx_image_cut c = {0};
        MX_CHECK_OK(mx_image_processor_open(&p, &s, NULL));
        mx_status st = mx_image_cut_of(&p, w, h, &c);
        MX_CHECK((st != NULL) == (on_w == 0), "%ld x %ld: %s", w, h, mx_status_text(st));
        MX_CHECK(st || (c.width == on_w && c.height == on_h), "line %d, %ld x %ld: %lld x %lld",
                 n + 1, w, h, (long long)c.width, (long long)c.height);
        MX_CHECK(st || c.images == on_w * on_h / (side * side * patch * patch), "line %d", n + 1);
        refused += st != NULL;
        mx_status_free(st);
        n++;
    }
    MX_CHECK(n == 400 && refused == 32, "%d lines, %d refused", n, refused);
    if (f)
        fclose(f);
}

static const char *const crop_texts[3] = {"[", "|", ","};

/* Gemma 3's pan and scan. */
MX_TEST(image_crops_equal_the_reference)
{
    FILE *f = fopen(EXPECTED "crops.txt", "r");
    MX_CHECK(f != NULL);
    long w, h, least, most, across, down;
    double ratio;
    int n = 0;
    while (f && fscanf(f, "%ld %ld %ld %ld %lf %ld %ld", &w, &h, &least, &most, &ratio, &across,
                       &down) == 7) {
        mx_image_processor p;
        mx_image_cut c;
        mx_image_spec s = {.channels = 3, .size = 20, .max_tiles = 1};
        memcpy(s.crop_texts, crop_texts, sizeof crop_texts);
        MX_CHECK_OK(mx_image_processor_open(&p, &s, NULL));
        p.min_crop = least;
        p.max_crops = most;
        p.min_ratio = ratio;
        MX_CHECK_OK(mx_image_cut_of(&p, w, h, &c));
        MX_CHECK(c.images == 1, "crops that were not asked for");
        MX_CHECK_OK(mx_image_processor_crops(&p));
        MX_CHECK_OK(mx_image_cut_of(&p, w, h, &c));
        bool cropped = across * down > 1;
        MX_CHECK(c.across == across && c.down == down && c.images == across * down + cropped,
                 "line %d, %ld x %ld: %lld x %lld crops", n + 1, w, h, (long long)c.across,
                 (long long)c.down);
        n++;
    }
    MX_CHECK(n == 200, "%d lines", n);
    if (f)
        fclose(f);
}

static mx_status cut_one(mx_image_spec s, int64_t w, int64_t h)
{
    mx_image_processor p;
    mx_image_cut c;
    s.channels = 3;
    MX_TRY(mx_image_processor_open(&p, &s, NULL));
    return mx_image_cut_of(&p, w, h, &c);
}

MX_TEST(image_proportions_that_a_model_does_not_take_are_refused)
{
    mx_image_spec gemma = {.patch = 4, .side = 2, .frames = 1, .max_pixels = 70 * 64,
                           .max_grid = 20};
    mx_image_spec qwen = {.patch = 4, .side = 2, .frames = 2, .min_pixels = 1024,
                          .max_pixels = 4096};
    MX_CHECK_OK(cut_one(gemma, 100, 80));
    MX_CHECK_ERROR(cut_one(gemma, 1000, 10), "places for 20");
    MX_CHECK_OK(cut_one(qwen, 200, 1));
    MX_CHECK_ERROR(cut_one(qwen, 1, 201), "more than 200 times the other");
}

MX_TEST(image_cuts_equal_the_reference)
{
    FILE *f = fopen(EXPECTED "cuts.txt", "r");
    MX_CHECK(f != NULL);
    long w, h, side, tiles, largest, across, down, on_w, on_h;
    int n = 0;
    while (f && fscanf(f, "%ld %ld %ld %ld %ld %ld %ld %ld %ld", &w, &h, &side, &tiles, &largest,
                       &across, &down, &on_w, &on_h) == 9) {
        mx_image_processor p;
        mx_image_spec s = {.channels = 3, .size = side, .max_tiles = tiles};
        MX_CHECK_OK(mx_image_processor_open(&p, &s, NULL));
        p.largest_canvas = largest;
        mx_image_cut c;
        MX_CHECK_OK(mx_image_cut_of(&p, w, h, &c));
        MX_CHECK(c.across == across && c.down == down, "%ld x %ld on %ld: %lld x %lld tiles", w, h,
                 side, (long long)c.across, (long long)c.down);
        MX_CHECK(c.width == on_w && c.height == on_h, "%ld x %ld on %ld, line %d: %lld x %lld", w,
                 h, side, n + 1, (long long)c.width, (long long)c.height);
        n++;
    }
    MX_CHECK(n == 300, "%d lines", n);
    if (f)
        fclose(f);
}

MX_TEST(image_layout_puts_tokens_where_the_processor_does)
{
    mx_image_spec s = {.size = 1, .tokens = 2, .mark = "<I>", .begin = "<b>", .piece = "p",
                       .between = ",", .row_end = ";", .whole = "<I>", .end = "<e>"};
    mx_image_cut cuts[2] = {{2, 2, 5, 0, 0}, {1, 1, 1, 0, 0}};
    mx_str out = {0};
    MX_CHECK_OK(mx_image_lay_out(&s, "a<I>b<I>", 8, cuts, 2, &out));
    MX_CHECK(strcmp(mx_str_text(&out), "a<b>pp,pp;pp,pp;<I>pp<e>b<b><I>pp<e>") == 0, "%s",
             mx_str_text(&out));
    MX_CHECK_ERROR(mx_image_lay_out(&s, "a<I>", 4, cuts, 2, &out), "1 places for images (<I>)");
    MX_CHECK_ERROR(mx_image_lay_out(&s, "a<I>", 4, NULL, 0, &out), "there are 0 images");
    out.len = 0;
    s.size = 0; /* pictures in pieces */
    cuts[0].images = 3;
    MX_CHECK_OK(mx_image_lay_out(&s, "a<I>b<I>", 8, cuts, 2, &out));
    MX_CHECK(strcmp(mx_str_text(&out), "a<b>ppp<e>b<b>p<e>") == 0, "%s", mx_str_text(&out));
    out.len = 0;
    s.size = 1; /* in crops */
    memcpy(s.crop_texts, crop_texts, sizeof crop_texts);
    MX_CHECK_OK(mx_image_lay_out(&s, "a<I>", 4, cuts, 1, &out));
    MX_CHECK(strcmp(mx_str_text(&out), "a[<b>pp<e>|<b>pp<e>,<b>pp<e>") == 0, "%s",
             mx_str_text(&out));
    mx_str_fini(&out);
}

MX_TEST(fuzz_image_corpus)
{
    int files = replay_corpus(CORPUS, 100, fuzz_image);
    MX_CHECK(files >= 20, "%d files in the corpus", files);
}
