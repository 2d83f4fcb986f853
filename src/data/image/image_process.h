/* image_process.h - pictures as a family's model takes them: what its processor makes of them.
 *
 * A picture is resized to the model's size, its numbers 0..255 are scaled and shifted per channel,
 * and channels become planes: (3, size, size). Families that cut pictures (max_tiles > 1) choose a
 * canvas of w x h tiles, place the picture on it with its proportions kept, and add the whole
 * picture as a last tile when there is more than one. Families without one size (spec.size 0) keep
 * a picture's proportions and take it in pieces (image_pieces.c).
 */
#ifndef MX_DATA_IMAGE_PROCESS_H
#define MX_DATA_IMAGE_PROCESS_H

#include "base/str.h"
#include "data/image/image.h"
#include "models/model.h"
#include <jansson.h>

typedef struct {
    mx_image_spec spec;
    mx_filter filter;
    double factor, mean[3], std[3]; /* (x factor - mean) / std */
    bool rescale, normalize;
    bool largest_canvas; /* not the smallest canvas that shrinks nothing, but the largest */
    bool crops;          /* long pictures are shown in crops as well */
    int64_t min_crop, max_crops; /* pixels along a crop at least, crops at most */
    double min_ratio;            /* of the longer side to the shorter, for crops */
} mx_image_processor;

/* The family's processor, with what DIR/processor_config.json ("image_processor") or
 * DIR/preprocessor_config.json says. `dir` may be NULL. */
mx_status mx_image_processor_open(mx_image_processor *p, const mx_image_spec *s,
                                  const char *dir) MX_MUST_USE;

/* Crops as do_pan_and_scan asks for them; an error where the family has none. */
mx_status mx_image_processor_crops(mx_image_processor *p) MX_MUST_USE;

/* How a picture is cut. */
typedef struct {
    int64_t across, down;  /* tiles, or crops */
    int64_t images;        /* to the model: these, and the whole when there is more than one */
    int64_t width, height; /* of the picture on its canvas; what is left over is black */
} mx_image_cut;
/* Fails for proportions that the family does not take. */
mx_status mx_image_cut_of(const mx_image_processor *p, int64_t width, int64_t height,
                          mx_image_cut *out) MX_MUST_USE;
/* As many images as mx_image_cut_of says, of mx_image_floats each. */
mx_status mx_image_process(const mx_image_processor *p, const mx_image *m,
                           float *pixels) MX_MUST_USE;
/* What each of the 256 values of a channel becomes. */
void mx_image_values(const mx_image_processor *p, int channel, float *table);

/* image_pieces.c: the same two for families whose pictures keep their proportions. */
mx_status mx_pieces_of(const mx_image_processor *p, int64_t width, int64_t height,
                       mx_image_cut *out) MX_MUST_USE;
/* m has the size that the cut says. */
void mx_pieces_take(const mx_image_processor *p, const mx_image *m, float *pixels);
/* What DIR's file says of them: the model's own patches, and how many pieces a picture may have. */
mx_status mx_pieces_read_config(mx_image_processor *p, const json_t *o,
                                const char *where) MX_MUST_USE;
/* Of the picture whose first image to the model begins at `pixels`: how many images to the model it
 * is fed as in one run, and their tokens. */
int64_t mx_image_run(const mx_image_spec *s, const float *pixels);
int64_t mx_image_run_tokens(const mx_image_spec *s, const float *pixels);
/* The most tokens of a run among n images to the model. */
int64_t mx_image_longest(const mx_image_spec *s, const float *pixels, int64_t n);
/* The places of n tokens in time, height and width (spec.places), whose n_images images to the
 * model are at `pixels`: out[i], out[i + step] and out[i + 2 step] of token i. Text counts on from
 * *next, which is left where the next token will be, and from 0 in a new segment (NULL: there is
 * one). */
void mx_image_places(const mx_image_spec *s, const int32_t *tokens, const int32_t *segments,
                     int64_t n, const float *pixels, int64_t n_images, int64_t *next, int32_t *out,
                     int64_t step);
/* Marks n places of pieces as not used. */
void mx_pieces_clear(const mx_image_spec *s, float *pixels, int64_t n);

/* image_layout.c: how many times the family's mark stands in a text. */
int64_t mx_image_marks(const mx_image_spec *s, const char *text, size_t n);
/* The text with each mark replaced by the tokens of a picture, in order. There must be as many
 * marks as pictures. */
mx_status mx_image_lay_out(const mx_image_spec *s, const char *text, size_t n,
                           const mx_image_cut *cuts, int64_t n_cuts, mx_str *out) MX_MUST_USE;

#endif
