/* pictures.h - the pictures of a prompt, and the prompt's tokens with their places in it. */
#ifndef MX_INFER_PICTURES_H
#define MX_INFER_PICTURES_H

#include "data/image/image_process.h"
#include "text/tokenizer/tokenizer.h"

/* Zero-initialise; closing a zero object is a no-op. */
typedef struct {
    mx_image_processor processor;
    int n;              /* pictures */
    mx_image_cut *cuts; /* (n); owns */
    int64_t n_images;   /* to the model: tiles of all pictures */
    float *pixels;      /* (n_images, channels, size, size); owns */
} mx_pictures;

/* Reads the files, of which there may be none. `dir` has the model's processor_config.json, if any
 * (NULL: none); crops: as do_pan_and_scan. Files for a family without images are refused. */
mx_status mx_pictures_open(mx_pictures *p, const mx_model_spec *m, const char *dir,
                           const char *const *paths, int n, bool crops) MX_MUST_USE;
/* One more, from a file's bytes, of at most max_pixels pixels. The processor must be there. */
mx_status mx_pictures_add(mx_pictures *p, const void *data, size_t n, int64_t max_pixels,
                          const char *where) MX_MUST_USE;
void mx_pictures_close(mx_pictures *p);

/* Appends the tokens of a prompt. Pictures stand where the family's mark does; in a text without
 * marks they come first. Special tokens in the text are recognised, as the processor does. */
mx_status mx_pictures_encode(const mx_pictures *p, const mx_tokenizer *t, const char *text,
                             size_t n, bool add_special, mx_tokens *out) MX_MUST_USE;
/* Whether a text says where its pictures stand. */
bool mx_pictures_marked(const mx_pictures *p, const char *text, size_t n);

/* A prompt must have as many image tokens as its images ask for: n_images of them, perhaps none. */
mx_status mx_pictures_check(const mx_model_spec *m, const mx_tokens *prompt,
                            int64_t n_images) MX_MUST_USE;

#endif
