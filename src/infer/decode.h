/* decode.h - a model with a cache: feed tokens, get the next token's logits.
 *
 * A decoder holds a batch of sequences that grow independently. Programs are compiled when it is
 * opened: one for single tokens, one for runs of a prompt, one for images; all share the session's
 * weights and caches. An image's tokens are one run, so that they can see each other both ways.
 */
#ifndef MX_INFER_DECODE_H
#define MX_INFER_DECODE_H

#include "exec/forward.h"

typedef struct mx_decode mx_decode;

typedef struct {
    int64_t batch;       /* sequences decoded together */
    int64_t max_length;  /* positions, prompt included */
    int64_t prompt_hint; /* length of the longest prompt, to size the prompt program; 0: unknown */
    int64_t image_tokens; /* of the longest image that prompts hold (mx_image_longest); 0: none */
    mx_compile_options compile;
    const struct mx_lora *lora; /* adapters; NULL: none */
    double temperature; /* that logits are divided by; 0 means 1 */
    bool one_path;      /* a token's bits are those of a training step */
    const mx_forward_stages *stages; /* that it goes through; NULL: there are none */
    int64_t draw_vocab; /* ids that the device samples from; 0: logits are given */
} mx_decode_settings;

/* Adds programs to the session. Weights are loaded by the caller, before or after. */
mx_status mx_decode_open(mx_decode **out, mx_session *s, const mx_model_spec *m,
                         const mx_decode_settings *o) MX_MUST_USE;
void mx_decode_close(mx_decode *d);
/* What it adds to a session that has the weights, and scratch memory enough: caches and inputs. */
mx_status mx_decode_bytes(const mx_model_spec *m, const mx_decode_settings *o,
                          double *bytes) MX_MUST_USE;

/* Feeds n[b] tokens to sequence b, tokens[b][0..n[b]). A sequence with n[b] = 0 stays as it is.
 * Afterwards mx_decode_logits gives, for each fed sequence, the logits after its last token. An
 * error when a sequence would outgrow max_length. */
mx_status mx_decode_feed(mx_decode *d, const int32_t *const *tokens, const int64_t *n) MX_MUST_USE;
/* The same where tokens of images stand for pixels: pixels[b] are sequence b's images, as many as
 * its tokens ask for, one after the other. Fails when an image's tokens are not all there. */
mx_status mx_decode_feed_images(mx_decode *d, const int32_t *const *tokens, const int64_t *n,
                                const float *const *pixels) MX_MUST_USE;
const float *mx_decode_logits(const mx_decode *d, int64_t b); /* (vocab); borrowed */
/* With draw_vocab instead: before a feed, the uniform number in [0, 1) that the next token is
 * sampled with; after it, the token, -1 where the logits are not numbers, and its
 * log-probability. */
void mx_decode_decide(mx_decode *d, int64_t b, double uniform);
int32_t mx_decode_drawn(const mx_decode *d, int64_t b, float *logp);
int64_t mx_decode_length(const mx_decode *d, int64_t b);
/* With one_path: are a token's bits a training step's? On the CPU, unless attention is decoded in
 * another form than it is trained in (MLA), or a layer keeps something else than keys and values.
 * */
bool mx_decode_is_exact(const mx_decode *d);
/* Forgets sequence b, below 0 all of them: the next tokens fed to it start at position 0. */
mx_status mx_decode_reset(mx_decode *d, int64_t b) MX_MUST_USE;

#endif
