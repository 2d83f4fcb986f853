/* curve_test.c - curves drawn where they should be, spikes kept, odd values left out. */
#include "train/report/curve_impl.h"

#include "../test.h"
#include "base/progress.h"
#include "train/report/font.h"
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1000 };

static void fill(double *x, double *y, int n)
{
    for (int i = 0; i < n; i++) {
        x[i] = i;
        y[i] = 2 + 8 * exp(-i / 150.0);
    }
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)); p += strlen(part))
        n++;
    return n;
}

MX_TEST(curve_text_is_exact_for_a_line)
{
    const double x[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, *y = x;
    const mx_curve_series s = {"y", x, y, 14};
    const mx_curve c = {.series = &s, .n_series = 1, .ascii = true, .x_label = "step"};
    mx_str out = {0};
    mx_curve_text(&c, 24, 9, &out);
    const char *want = "         |            **\n"
                       "      10 +          **\n"
                       "         |        **\n"
                       "         |      **\n"
                       "       5 +    **\n"
                       "         |  **\n"
                       "       0 +**\n"
                       "         +--------------\n"
                       "          0      13 step\n";
    MX_CHECK(strcmp(mx_str_text(&out), want) == 0, "\n%s", mx_str_text(&out));
    mx_str_fini(&out);
}

MX_TEST(curve_text_fits_its_box)
{
    static double x[N], y[N];
    fill(x, y, N);
    const mx_curve_series s = {"loss", x, y, N};
    for (int ascii = 0; ascii < 2; ascii++)
        for (int w = 24; w < 130; w += 7)
            for (int h = 6; h < 40; h += 5) {
                mx_str out = {0};
                const mx_curve c = {.title = "loss",
                                    .series = &s,
                                    .n_series = 1,
                                    .ascii = ascii,
                                    .x_label = "step"};
                mx_curve_text(&c, w, h, &out);
                int lines = 0;
                for (char *p = out.text, *e; (e = strchr(p, '\n')); p = e + 1, lines++) {
                    *e = 0;
                    MX_CHECK(mx_text_columns(p) <= w, "%dx%d: %d columns: %s", w, h,
                             mx_text_columns(p), p);
                }
                MX_CHECK(lines == h, "%dx%d: %d lines", w, h, lines);
                mx_str_fini(&out);
            }
}

MX_TEST(curve_text_keeps_a_spike_of_one_step)
{
    static double x[100000], y[100000];
    for (int i = 0; i < 100000; i++) {
        x[i] = i;
        y[i] = 1;
    }
    y[50000] = 9;
    const mx_curve_series s = {"loss", x, y, 100000};
    mx_str out = {0};
    mx_curve_text(&(mx_curve){.series = &s, .n_series = 1, .ascii = true}, 70, 12, &out);
    char *eol = strchr(out.text, '\n');
    *eol = 0;
    MX_CHECK(strchr(out.text, '*') && (strchr(out.text, '*') - out.text - 10) / 30 == 1, "%s",
             out.text);
    mx_str_fini(&out);
}

MX_TEST(curve_handles_odd_values)
{
    const double x[] = {0, 1, 2, 3}, bad[] = {NAN, INFINITY, -INFINITY, NAN},
                 one[] = {NAN, 5, NAN, NAN};
    const double mixed[] = {-1, 0, 10, 100};
    mx_str out = {0};
    mx_curve_text(&(mx_curve){.series = &(mx_curve_series){"a", x, bad, 4}, .n_series = 1}, 60, 10,
                  &out);
    MX_CHECK(strstr(out.text, "no finite values") != NULL, "%s", out.text);
    mx_curve_svg(&(mx_curve){.series = &(mx_curve_series){"a", x, bad, 4}, .n_series = 1}, 600, 300,
                 &out);
    mx_curve_text(&(mx_curve){.series = &(mx_curve_series){"a", x, one, 4}, .n_series = 1}, 60, 10,
                  &out);
    mx_curve_svg(&(mx_curve){.series = &(mx_curve_series){"a", x, one, 4, .window = 2},
                             .n_series = 1},
                 600, 300, &out);
    mx_curve_text(&(mx_curve){.n_series = 0}, 60, 10, &out);
    mx_curve_text(
        &(mx_curve){.series = &(mx_curve_series){"a", x, mixed, 4}, .n_series = 1, .log_y = true},
        60, 10, &out);
    MX_CHECK(!strstr(out.text, "nan") && !strstr(out.text, "inf,"), "%s", out.text);
    mx_str_fini(&out);
}

MX_TEST(curve_svg_is_well_formed_and_small)
{
    static double x[100000], y[100000];
    fill(x, y, 100000);
    y[500] = NAN; /* one gap: the pen goes up once */
    const mx_curve_series s[] = {{"train <loss> & \"co\"", x, y, 100000, .window = 50},
                                 {"eval", x, y, 100, .dots = true}};
    mx_str out = {0};
    const mx_curve c = {.title = "a < b & c",
                        .x_label = "step",
                        .y_label = "loss",
                        .series = s,
                        .n_series = 2};
    mx_curve_svg(&c, 900, 420, &out);
    MX_CHECK(strncmp(out.text, "<svg xmlns=", 11) == 0 &&
             strcmp(out.text + out.len - 7, "</svg>\n") == 0);
    MX_CHECK(strstr(out.text, "a &lt; b &amp; c") && strstr(out.text, "train &lt;loss> &amp;"),
             "escapes");
    MX_CHECK(count(out.text, "<text") == count(out.text, "</text>"), "text tags");
    MX_CHECK(count(out.text, "class=\"raw") == 1 && count(out.text, "<circle") == 100 &&
                 count(out.text, "class=\"mean c0\" d=\"M62") == 1 &&
                 count(out.text, "class=\"mean c1\" d=\"M62") == 1,
             "lines");
    MX_CHECK(!strstr(out.text, "nan") && !strstr(out.text, "inf"), "numbers");
    MX_CHECK(out.len < 200000, "%zu bytes for 100,000 points", out.len);
    mx_str_fini(&out);
}

MX_TEST(curve_ticks_are_round_and_inside)
{
    const double lows[] = {0, -3, 1e-9, 2.71, 1e6, -1e-4}, spans[] = {1, 7, 0.003, 12345, 1e-7};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 5; k++) {
            double first, step, high = lows[i] + spans[k];
            int n;
            if (high - lows[i] < 1e-9 * fabs(high))
                continue;
            mx_curve_ticks(lows[i], high, 7, &first, &step, &n);
            double digit = step / pow(10, floor(log10(step) + 1e-9));
            MX_CHECK(n >= 2 && n <= 8, "%g..%g: %d ticks", lows[i], high, n);
            MX_CHECK(first >= lows[i] - 1e-6 * step && first + (n - 1) * step <= high + 1e-6 * step,
                     "inside");
            MX_CHECK(fabs(digit - 1) < 1e-6 || fabs(digit - 2) < 1e-6 || fabs(digit - 5) < 1e-6,
                     "step %g", step);
        }
}

/* The mean of a falling curve is on it from the first value on, and is not the last value's. */
MX_TEST(curve_means_have_no_bias)
{
    static double x[N], y[N];
    mx_arena a = {0};
    fill(x, y, N);
    y[600] = NAN;
    const mx_curve_series s = {"loss", x, y, N, .window = 20};
    const double *m = mx_curve_means(&s, false, &a);
    MX_CHECK(m[0] == y[0] && isnan(m[600]));
    for (int i = 0; i < N; i++)
        MX_CHECK(i == 600 || fabs(m[i] - y[i]) < 0.03, "%d: %g, of %g", i, m[i], y[i]);
    y[N - 1] = 100; /* noise at the end is divided by the window, too */
    m = mx_curve_means(&s, false, &a);
    MX_CHECK(m[N - 1] < 8, "%g", m[N - 1]);
    const mx_curve_series plain = {"eval", x, y, N};
    m = mx_curve_means(&plain, false, &a);
    MX_CHECK(m[500] == y[500] && m[N - 1] == 100, "an evaluation is not smoothed");
    mx_arena_fini(&a);
}

static uint32_t big_endian(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Decoded by libpng: the size, and where the line must and must not be. */
MX_TEST(curve_as_png_shows_the_line)
{
    double x[200], y[200];
    for (int i = 0; i < 200; i++) {
        x[i] = i;
        y[i] = i < 100 ? 1 : 2; /* a step */
    }
    mx_curve_series s = {"loss", x, y, 200};
    mx_curve c = {.title = "loss", .x_label = "step", .series = &s, .n_series = 1};
    mx_str out = {0};
    mx_curve_png(&c, 400, 300, &out);
    const unsigned char *p = (const unsigned char *)out.text;
    MX_CHECK(out.len > 100 && big_endian(p + 16) == 400 && big_endian(p + 20) == 300, "the head");
    png_image image = {.version = PNG_IMAGE_VERSION};
    unsigned char *rgb = calloc(400 * 300, 3);
    bool read = png_image_begin_read_from_memory(&image, out.text, out.len);
    image.format = PNG_FORMAT_RGB;
    read = read && png_image_finish_read(&image, NULL, rgb, 0, NULL);
    MX_CHECK(read && image.width == 400 && image.height == 300, "libpng: %s", image.message);
    int low = 0, high = 0, elsewhere = 0; /* pixels of the series' blue, by half of the picture */
    for (int v = 0; v < 300; v++)
        for (int u = 0; u < 400; u++) {
            const unsigned char *q = rgb + 3 * (v * 400 + u);
            if (q[2] < 0xd0 || q[0] > 0xa0 || u > 330) /* the legend is on the right */
                continue;
            low += u < 222 && v > 200;
            high += u > 226 && v < 72;
            elsewhere += (u < 219 && v < 200) || (u > 232 && v > 72);
        }
    MX_CHECK(low > 140 && high > 90 && elsewhere == 0, "%d low, %d high, %d where nothing is",
             low, high, elsewhere);
    int ink = 0; /* dark pixels of the title's letters */
    for (int i = 0; i < 400 * 40; i++)
        ink += rgb[3 * i] < 0x60;
    MX_CHECK(ink > 40 && ink < 1000, "%d pixels of the title", ink);
    mx_str_clear(&out);
    c.dark = true;
    mx_curve_png(&c, 400, 300, &out);
    image = (png_image){.version = PNG_IMAGE_VERSION};
    read = png_image_begin_read_from_memory(&image, out.text, out.len);
    image.format = PNG_FORMAT_RGB;
    read = read && png_image_finish_read(&image, NULL, rgb, 0, NULL);
    MX_CHECK(read && rgb[0] == 0x16 && rgb[1] == 0x18 && rgb[2] == 0x1d, "the dark ground");
    free(rgb);
    mx_str_clear(&out);
    y[0] = NAN;
    s.n = 1;
    mx_curve_png(&c, 10, 10, &out);
    MX_CHECK(out.len > 100 && big_endian((const unsigned char *)out.text + 16) == 200, "smallest");
    mx_str_fini(&out);
}

/* Letters of a run's name beyond ASCII are drawn; what the font lacks is a sign of its own. */
MX_TEST(letters_of_pictures)
{
    const mx_font *f = &mx_font_small;
    MX_CHECK(mx_font_find(f, 'A')->code == 'A' && mx_font_find(f, 0xdf)->code == 0xdf);
    MX_CHECK(mx_font_find(f, 0x1f600)->code == 0xfffd && mx_font_find(f, 1)->code == 0xfffd);
    for (int i = 1; i < f->n; i++)
        MX_CHECK(f->glyph[i].code > f->glyph[i - 1].code, "glyph %d", i);
    MX_CHECK(mx_font_width(f, "mm") == 2 * mx_font_width(f, "m") &&
             mx_font_width(f, "i") < mx_font_width(f, "m") && mx_font_width(f, "") == 0);
    MX_CHECK(mx_font_width(f, "\xff") == mx_font_width(f, "\xef\xbf\xbd"), "no text");
    MX_CHECK(mx_font_large.pixels > f->pixels);
    mx_str out = {0};
    double x[] = {0, 1}, y[] = {1, 2};
    mx_curve_series s = {"größe 名前", x, y, 2};
    mx_curve c = {.title = "a title that does not fit into the picture: größe 名前 größe",
                  .series = &s,
                  .n_series = 1};
    mx_curve_png(&c, 300, 200, &out);
    MX_CHECK(out.len > 100);
    mx_str_fini(&out);
}
