/* golden_images.h - the images of a golden file, as the model takes them. */
#ifndef MX_TRAIN_GOLDEN_IMAGES_H
#define MX_TRAIN_GOLDEN_IMAGES_H

#include "data/image/image_process.h"
#include "store/safetensors.h"

/* Zero: the file has no images. */
typedef struct {
    mx_image_spec spec;
    int64_t n;        /* images to the model, in the order of their tokens */
    float *pixels;    /* of them; in the arena */
    int64_t *first;   /* (rows + 1): those of row r are first[r] to first[r + 1] */
    int64_t per_row;  /* the most of a row */
} mx_golden_images;

/* `tokens` (rows, length) are the file's input_ids. Images must be the family's, as many as the
 * tokens ask for, and token_type_ids, where they are given, say the same as the tokens: which of
 * them see each other follows from these. */
mx_status mx_golden_images_read(mx_golden_images *out, const mx_st_file *golden,
                                const mx_model_spec *m, const int32_t *tokens, int64_t rows,
                                int64_t length, mx_arena *a) MX_MUST_USE;
/* What the program of `rows` rows takes: the images one after the other, or the pieces of each row
 * per_row apart. */
const float *mx_golden_images_laid(const mx_golden_images *g, int64_t rows, mx_arena *a);
/* (3, rows, length): the places of the tokens, where the family has them. */
const int32_t *mx_golden_images_places(const mx_golden_images *g, const int32_t *tokens,
                                       int64_t rows, int64_t length, mx_arena *a);

#endif
