/* dropout.h - dropout of token embeddings and of what attention and MLP add to the residual stream,
 * and of attention's probabilities.
 *
 * Each element is dropped independently, with a counter-based number of (dropout_seed, the tensor's
 * name, the element's index in the whole tensor): neither mesh nor resumption changes it.
 */
#ifndef MX_EXEC_DROPOUT_H
#define MX_EXEC_DROPOUT_H

#include "ir/graph.h"

/* On a graph of a training step, before adapters; rate 0: nothing. The input dropout_seed, one
 * int64, is another one for every microbatch of a run. */
void mx_pass_dropout(mx_graph *g, double rate);
/* The same of the probabilities of a decoder's attention (attention_dropout.c). */
void mx_pass_attention_dropout(mx_graph *g, double rate);

#endif
