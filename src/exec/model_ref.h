/* model_ref.h - what MODEL on the command line means.
 *
 *   a Hugging Face directory (config.json)         its weights
 *   a run folder (checkpoints/ inside)             its newest whole checkpoint
 *   a checkpoint folder                            its weights
 *   a name from configs/models                     that size with random weights
 *   org/name                                       that model of the hub, through its cache
 *   an adapter's directory, or the run of one      the model it is for, and it
 */
#ifndef MX_EXEC_MODEL_REF_H
#define MX_EXEC_MODEL_REF_H

#include "base/config.h"
#include "device/device.h"
#include "models/model.h"
#include "store/adapter.h"

typedef struct {
    mx_hf_dir dir;      /* open when has_weights */
    bool has_weights;
    mx_model_spec spec;
    const char *path;   /* the directory weights come from; NULL: random */
    mx_adapter adapter; /* beside them, with has_adapter */
    bool has_adapter;
    mx_arena arena;
} mx_model_ref;

/* `home` is the configuration folder (NULL: names are not looked up); c, which may be NULL, has the
 * hub's token. Notes, such as a damaged checkpoint that was passed over, go to standard error. */
mx_status mx_model_ref_open(mx_model_ref *r, const char *what, const char *home,
                            const mx_config *c) MX_MUST_USE;
void mx_model_ref_close(mx_model_ref *r); /* a zero object is a no-op */

/* The folder of a model: the path itself, or, where nothing is called so here and it is org/name,
 * the snapshot of that repository, of which `what` is fetched if need be. In the arena. */
typedef enum { MX_FETCH_CONFIG, MX_FETCH_MODEL } mx_fetch_what;
mx_status mx_model_place(const char *given, mx_fetch_what what, const mx_config *c, mx_arena *a,
                         const char **dir) MX_MUST_USE;

/* An adapter from its directory, or a checkpoint or run of one. */
mx_status mx_model_ref_adapter(mx_adapter *out, const char *path) MX_MUST_USE;
/* The same beside the model; before the weights. */
mx_status mx_model_ref_adapt(mx_model_ref *r, const char *path) MX_MUST_USE;

/* The session's weights from the reference, or random ones by seed. */
mx_status mx_model_ref_weights(const mx_model_ref *r, mx_session *s, uint64_t seed) MX_MUST_USE;

#endif
