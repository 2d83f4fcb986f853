/* small_state.h - a tiny run's state whose every value is a function of the step. */
#ifndef MX_TEST_SMALL_STATE_H
#define MX_TEST_SMALL_STATE_H

#include "store/checkpoint.h"

enum { SMALL_STATE_MAX = 1 << 16 };

typedef struct {
    int n; /* elements of a weight */
    float w[SMALL_STATE_MAX], bias[8], m[SMALL_STATE_MAX];
    int64_t count;
    mx_st_source weights[2], optimizer[2];
    mx_hf_extra extras[1];
    char state[64];
    mx_ckpt_request request;
} small_state;

void small_state_fill(small_state *s, int n, int64_t step); /* n <= SMALL_STATE_MAX */
/* Whether the checkpoint at `path` verifies and holds exactly what its step says. */
bool small_state_matches(small_state *scratch, int n, const char *path, int64_t step);

#endif
