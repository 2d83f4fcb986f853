/* images.h - the images of prompts in the engine.
 *
 * A set is the images of a prompt as the model takes them. It may be shared by several requests;
 * the features of its tokens are computed once by the tower, and stay with it. A run is what the
 * model takes as one picture: a tile or the pieces of a picture (models/model.h).
 */
#ifndef MX_INFER_IMAGES_H
#define MX_INFER_IMAGES_H

#include "exec/step.h"
#include "text/tokenizer/tokenizer.h"

typedef struct {
    int64_t first, images; /* the first of its images to the model, and their number */
    int64_t row, tokens;   /* where the features of its first token are, and how many tokens */
    uint64_t digest[2];
} mx_image_run_of_set;

typedef struct {
    mx_image_spec spec;
    float *pixels; /* (n, mx_image_floats); owns */
    int64_t n, n_runs, n_tokens;
    mx_image_run_of_set *run;
    float *features; /* (n_tokens, width); owns; NULL: not computed yet */
    int held;        /* reference count */
} mx_image_set;

/* Copies the pixels of n > 0 images; held once. */
mx_status mx_image_set_new(mx_image_set **out, const mx_model_spec *m, const float *pixels,
                           int64_t n) MX_MUST_USE;
mx_image_set *mx_image_set_hold(mx_image_set *s); /* NULL is a no-op, here and below; any thread */
void mx_image_set_release(mx_image_set *s);

/* Where the images of a set stand in a prompt. */
typedef struct {
    int64_t *first;     /* (n_runs): a run's first token */
    int32_t *places;    /* (3, n) of the prompt's tokens, where the family has places; else NULL */
    int64_t n, n_runs;
    int64_t next_place; /* of the token after the prompt */
} mx_image_spots;
/* The prompt must have as many image tokens as the set. */
mx_status mx_image_spots_find(mx_image_spots *out, const mx_image_set *s, const mx_tokens *prompt,
                              mx_arena *a) MX_MUST_USE;
/* The run that token t lies in; -1: none. */
int64_t mx_image_run_at(const mx_image_set *s, const mx_image_spots *p, int64_t t);

/* --- the vision tower: from images to the features of their tokens --- */

typedef struct mx_tower mx_tower;
/* Plans the smallest of its programs. */
mx_status mx_tower_open(mx_tower **out, mx_session *s, const mx_model_spec *m,
                        const mx_compile_options *o) MX_MUST_USE;
/* Adds it to the session: its weights are variables then. */
mx_status mx_tower_add(mx_tower *t) MX_MUST_USE;
void mx_tower_close(mx_tower *t); /* before the session */
const mx_graph *mx_tower_graph(const mx_tower *t);
int64_t mx_tower_width(const mx_tower *t); /* of a token's features */
int64_t mx_tower_bytes(const mx_tower *t); /* that its first program takes of the session */
/* Computes the set's features, where it has none yet. A picture that has more pieces than any
 * before is a new program. */
mx_status mx_tower_run(mx_tower *t, mx_image_set *s) MX_MUST_USE;

#endif
