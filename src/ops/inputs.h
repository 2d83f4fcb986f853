/* inputs.h - the order of inputs of ops that devices have kernels of their own for. Both sides make
 * their names from the same list: enum { MX_INPUTS_MAX_LOGITS }. Attention's are in attention.h. */
#ifndef MX_OPS_INPUTS_H
#define MX_OPS_INPUTS_H

#define MX_INPUTS_ADAMW ADAMW_W, ADAMW_G, ADAMW_M, ADAMW_V, ADAMW_HYPER, ADAMW_COPY
#define MX_INPUTS_SGD SGD_W, SGD_G, SGD_HYPER, SGD_COPY
#define MX_INPUTS_EMBED_GRAD EMBED_GRAD_IDS, EMBED_GRAD_DY, EMBED_GRAD_BASE
#define MX_INPUTS_UNPERMUTE UNPERMUTE_X, UNPERMUTE_ORDER, UNPERMUTE_PLACE, UNPERMUTE_ALSO
#define MX_INPUTS_ADAMW8                                                                           \
    ADAMW8_W, ADAMW8_G, ADAMW8_M, ADAMW8_V, ADAMW8_M_MOST, ADAMW8_V_MOST, ADAMW8_HYPER,            \
        ADAMW8_MAP, ADAMW8_COPY
#define MX_INPUTS_LINEAR_XENT X, W, LABELS, DLOSS
#define MX_INPUTS_PAGED_ATTENTION Q, K, V, POSITIONS, ROW, TABLE, SINKS, SELECTED, UNTIL
#define MX_INPUTS_MAX_LOGITS Q, K, SEG
#define MX_INPUTS_SELECT_KEYS Q, W, K, Q_POS, K_POS, Q_SEG, K_SEG, ROW, TABLE
#define MX_INPUTS_DELTA_RULE Q, K, V, G, BETA, SEGMENTS, STATE, POSITIONS, ROW
#define MX_INPUTS_DELTA_GRAD DOUT = 6 /* behind the first six of these */
#define MX_INPUTS_CAUSAL_CONV \
    CONV_X, CONV_W, CONV_SEGMENTS, CONV_STATE, CONV_POSITIONS, CONV_ROW
#define MX_INPUTS_CONV_GRAD CONV_DY = 3 /* behind the first three of these */
/* What sample_token is told about a row. */
#define MX_SAMPLE_SETTINGS TEMPERATURE, TOP_K, TOP_P, UNIFORM, N_SETTINGS

#endif
