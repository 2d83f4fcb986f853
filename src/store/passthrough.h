/* passthrough.h - tensors that a checkpoint has and a run has no use for, but must not lose: the
 * vision tower of a model that is trained on text.
 *
 * They stay in their file, which is kept open, and go from there into every checkpoint, byte for
 * byte. That the file may be removed meanwhile (an old checkpoint of the run itself) does not
 * matter.
 */
#ifndef MX_STORE_PASSTHROUGH_H
#define MX_STORE_PASSTHROUGH_H

#include "device/device.h"
#include "models/model.h"
#include "store/hf_dir.h"
#include "store/st_write.h"

/* Zero-initialise; closing a zero object is a no-op. */
typedef struct {
    mx_hf_dir dir;
    mx_st_tensor *tensors;
    int64_t n;
    mx_session *session; /* borrows */
} mx_passthrough;

/* Of the directory at `path`, all tensors that the family may leave unused and that no weight of
 * the session stands for. */
mx_status mx_passthrough_open(mx_passthrough *c, const char *path, const mx_model_spec *m,
                          mx_session *s) MX_MUST_USE;
void mx_passthrough_close(mx_passthrough *c);
/* What a writer is given for tensor i; `fetch` with `c` as its context gives the bytes, of
 * variables of the session as well. */
mx_st_source mx_passthrough_source(const mx_passthrough *c, int64_t i);
mx_status mx_passthrough_fetch(void *c, const mx_st_source *s, uint64_t at, void *dst, size_t n);

#endif
