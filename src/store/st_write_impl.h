/* st_write_impl.h - the layout of tensors in a file: what st_write.c and st_boxes.c share. */
#ifndef MX_STORE_ST_WRITE_IMPL_H
#define MX_STORE_ST_WRITE_IMPL_H

#include "base/arena.h"
#include "store/st_write.h"

typedef struct {
    const mx_st_source *const *t;
    const int64_t *order; /* of the tensors in the file */
    int64_t n;
    uint64_t body_bytes;
    const char *image;  /* the body in memory, when it lies there as in the file; else NULL */
    mx_digest *digests; /* may be NULL */
} mx_st_layout;

/* Fills order, body_bytes and image; order lives in the arena. */
void mx_st_layout_plan(mx_arena *a, mx_st_layout *l);
/* The length and the header, padded with spaces so that the data begins on 64 bytes, or on a disk
 * block for an image. */
mx_status mx_st_layout_header(const char *path, const mx_st_layout *l, const mx_st_writer *w,
                              mx_str *out) MX_MUST_USE;

#endif
