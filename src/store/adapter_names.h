/* adapter_names.h - what PEFT's files call tensors, and what a session calls its adapters.
 *
 * They are called the same, but for experts: their modules are one variable with a `*`
 * (X.experts.*.up_proj), and of stacked parameters (target_parameters) the files leave the name
 * out: X.experts.lora_A is the one that has an adapter, or, of two, the second (down_proj), and
 * X.experts.base_layer.lora_A the first (gate_up_proj).
 */
#ifndef MX_STORE_ADAPTER_NAMES_H
#define MX_STORE_ADAPTER_NAMES_H

#include "store/adapter.h"

#define MX_LORA_A ".lora_A.weight"
#define MX_LORA_B ".lora_B.weight"
#define MX_LORA_M ".lora_magnitude_vector"
#define MX_LORA_TABLE_A ".lora_embedding_A"
#define MX_LORA_TABLE_B ".lora_embedding_B"

/* The module of a tensor of the files, MX_LORA_PREFIX MODULE END, as the session calls it. */
const char *mx_adapter_module(mx_adapter *a, const char *tensor, const char *end);
/* The session's variable for a tensor of the files; NULL: it has none. */
mx_var *mx_adapter_variable(mx_session *s, const char *tensor);

/* The variables of one weight's adapter. */
typedef struct {
    char module[512];
    mx_var *w, *a, *b, *m; /* m NULL: no DoRA */
    bool table;            /* of an embedding: W (vocab, dim), A (r, vocab), B (dim, r) */
    bool stacked;          /* experts' A (E r, in), B (rows, r E); else (E, r, in), (E, out, r) */
    int64_t experts;       /* 0: one matrix */
    int64_t from;          /* stacked: the first of B's rows */
    int64_t rank, in, out;
} mx_adapter_parts;
/* false: variable i is no weight with an adapter. */
bool mx_adapter_parts_of(mx_session *s, int i, mx_adapter_parts *p);

#endif
