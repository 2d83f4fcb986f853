/* codec.h - values to bytes and back, by one description for both directions.
 *
 *     static void code_point(mx_codec *c, point *p)
 *     {
 *         mx_code_i64(c, &p->x);
 *         mx_code_i64(c, &p->y);
 *     }
 *
 * writes a point with a codec that has `out`, and reads it into *p with one that reads bytes. So
 * what is written and what is read cannot drift apart. Integers are varints (zigzag), numbers eight
 * bytes, texts their length and bytes.
 *
 * Reading never goes past the end and never fails visibly: the first thing that cannot be sticks
 * (`bad`), and everything read after it is zero, so loops over what was read end at once. Whatever
 * counts or indexes is read with its limits.
 */
#ifndef MX_IR_CODEC_H
#define MX_IR_CODEC_H

#include "base/arena.h"
#include "base/str.h"
#include "ir/mesh.h"

typedef struct {
    mx_str *out;              /* where it writes; NULL: it reads */
    const uint8_t *at, *end;  /* what is left to be read; borrows */
    mx_arena *arena;          /* where texts that are read live */
    const char *bad;          /* what cannot be, of the bytes read; NULL: nothing */
    /* Programs that are read become those of another rank of the mesh (compile/program_file.h);
     * NULL: they stay those of the rank they were written for. */
    const mx_mesh *mesh;
    int rank;
} mx_codec;

static inline bool mx_codec_reads(const mx_codec *c)
{
    return !c->out;
}
/* Marks what is read as damaged. */
void mx_codec_refuse(mx_codec *c, const char *why);
size_t mx_codec_left(const mx_codec *c); /* bytes to be read */

void mx_code_i64(mx_codec *c, int64_t *v);
/* lo <= v <= hi */
void mx_code_range(mx_codec *c, int64_t *v, int64_t lo, int64_t hi);
void mx_code_int(mx_codec *c, int *v, int lo, int hi);
/* A number of things, each of which takes at least one byte. */
void mx_code_count(mx_codec *c, int *n);
void mx_code_bool(mx_codec *c, bool *v);
void mx_code_f64(mx_codec *c, double *v);
/* Never NULL when it was read. */
void mx_code_text(mx_codec *c, const char **text);
/* The same where NULL is a value. */
void mx_code_name(mx_codec *c, const char **text);
/* n bytes as they are; what is read is borrowed from the bytes it was read from. */
void mx_code_bytes(mx_codec *c, const void **p, size_t *n);

#endif
