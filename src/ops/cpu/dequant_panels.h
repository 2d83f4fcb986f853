/* dequant_panels.h - matrices of int8 and int4 codes in panels, times any number of rows of x.
 *
 * A panel is 32 rows of w (n, k). It lies where they do, word of k after word of k, each for all
 * rows; a word is 4 bytes. Of int4 the low halves of a word are the first four of its 8 numbers,
 * the high halves the others. Scales lie as [panel][group][32 rows].
 *
 *     y (m, n) = x (m, k) w^T
 *
 * x is rounded to 16 bits with one scale a row, and a group's products are added as integers. So a
 * row of y has the same bits whatever rows are with it, and rows go together in whatever tiles are
 * fastest: up to 6, whose sums stay in registers while a panel is read.
 */
#ifndef MX_OPS_CPU_DEQUANT_PANELS_H
#define MX_OPS_CPU_DEQUANT_PANELS_H

#include "ops/cpu/dequant.h"

enum { MX_CODE_COLS = 32, MX_CODE_ROWS = 6 };

/* Is this a CPU that multiplies bytes, and are the sizes of codes (n, bytes of k) whole panels? */
bool mx_code_panels_fit(mx_codes_kind kind, int64_t n, int64_t bytes);
/* The same of the groups of a row. */
bool mx_code_panels_take(mx_codes_kind kind, int64_t k, int64_t groups);

/* A panel that lies in rows of `length` words each, laid out in `to`; of int4: reorders halves. */
void mx_code_panel_lay(const uint32_t *rows, int64_t length, bool int4, uint32_t *to);

/* Tiles of m rows, and the first row of one. */
int64_t mx_code_tiles(int64_t m);
int64_t mx_code_tile_row(int64_t m, int64_t tile);

/* Bytes of one row of prepared x, 64 bytes aligned; tiles lie one after the other. */
int64_t mx_code_row_bytes(int64_t k);
/* One row of x, of the m that are prepared. */
void mx_code_prepare(const mx_codes *w, const float *x, int64_t row, int64_t m, void *prepared);
/* y (rows of the tile, 32): the tile times one panel. */
void mx_code_multiply(const mx_codes *w, const void *prepared, int64_t m, int64_t tile,
                      int64_t panel, float *y);

#endif
