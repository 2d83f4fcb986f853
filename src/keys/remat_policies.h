/* remat_policies.h - the policies of remat_policy: what is kept for the backward pass, and the
 * names of tensors that are kept besides, on the device or in host memory. The one table of them:
 * the key accepts their names, and the pass (compile/remat.c) does what they say.
 *
 *   WRITTEN      what the forward pass writes for a matmul anyway: the fastest
 *   ALL          everything but elementwise results
 *   MATMULS      results of matmuls and attention
 *   BOUNDARIES   what passes from layer to layer
 */
#ifndef MX_KEYS_REMAT_POLICIES_H
#define MX_KEYS_REMAT_POLICIES_H

#define MX_REMAT_QKV "query_proj,key_proj,value_proj"

/* name, what is kept, names saved, names offloaded */
#define MX_REMAT_POLICIES(X)                                                                       \
    X("none", WRITTEN, "", "")                                                                     \
    X("elementwise", ALL, "", "")                                                                  \
    X("full", BOUNDARIES, "", "")                                                                  \
    X("minimal", MATMULS, "", "")                                                                  \
    X("minimal_with_context", MATMULS, "", "")                                                     \
    X("save_dot_except_mlp", BOUNDARIES, MX_REMAT_QKV ",out_proj", "")                             \
    X("save_dot_except_mlpwi", BOUNDARIES, MX_REMAT_QKV ",out_proj,mlpwo", "")                     \
    X("save_dot_with_context_except_mlp", BOUNDARIES, MX_REMAT_QKV ",context,out_proj", "")        \
    X("save_qkv_proj", BOUNDARIES, MX_REMAT_QKV, "")                                               \
    X("save_out_proj", BOUNDARIES, "out_proj", "")                                                 \
    X("qkv_proj_offloaded", BOUNDARIES, "", MX_REMAT_QKV)                                          \
    X("minimal_offloaded", MATMULS, "",                                                            \
      MX_REMAT_QKV ",qkv_proj,out_proj,mlpwi_0,mlpwi_1,mlpwi,mlpwo,moe_mlpwi_0,moe_mlpwi_1,"       \
                   "moe_mlpwo")

/* What a key accepts: all of them, and `custom`, which the keys of single tensors describe. */
#define MX_REMAT_NAME(name, keep, save, offload) name "|"
#define MX_REMAT_CHOICES MX_REMAT_POLICIES(MX_REMAT_NAME) "custom"

#endif
