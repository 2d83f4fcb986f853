/* dnn_graph.h - a small builder over cuDNN's backend descriptors, in plain C.
 *
 * cuDNN describes a computation as tensors (dims, strides, type, a unique id) joined by operations;
 * it matches the whole graph against the fused kernels it has. This builder keeps every descriptor
 * in one list, remembers the first failure and turns later calls into no-ops, so that a graph reads
 * as a list of formulas: `e = mx_dnn_unary(g, CUDNN_POINTWISE_EXP, x, 0)`. Tensors are named by
 * their index in the list; a virtual tensor lives only inside the fused kernel. Scalars are given
 * by value and kept in the graph.
 */
#ifndef MX_DEVICE_CUDA_DNN_GRAPH_H
#define MX_DEVICE_CUDA_DNN_GRAPH_H

#include "device/cuda/core/libs.h"
#include <stdint.h>

enum { MX_DNN_TENSORS = 96, MX_DNN_OPS = 64 };

typedef struct {
    int64_t dim[4], stride[4];
} mx_dnn_shape;

typedef struct {
    cudnnBackendDescriptor_t desc;
    mx_dnn_shape shape;
    bool is_virtual, by_value;
    union {
        float f;
        int32_t i;
    } value;
    void *pointer; /* bound before each execution; by-value tensors point at `value` */
} mx_dnn_tensor;

typedef struct {
    mx_cuda_libs *libs;
    mx_status error;                       /* owns the first failure */
    mx_dnn_tensor tensors[MX_DNN_TENSORS]; /* id 0 is "no tensor" */
    int n_tensors;
    cudnnBackendDescriptor_t ops[MX_DNN_OPS], op_attrs[MX_DNN_OPS];
    int n_ops, n_attrs;
    cudnnBackendDescriptor_t graph, heuristics, configs[8], plan, pack;
    cudnnHandle_t handle;
    int64_t workspace_bytes;
    int first_choice, choice, n_choices; /* wanted, taken, and offered engine configurations */
} mx_dnn_graph;

/* Sequence-length tensors a matmul may carry; 0 means none. */
typedef struct {
    int m, n, k;
} mx_dnn_override;

void mx_dnn_init(mx_dnn_graph *g, mx_cuda_libs *libs, cudnnHandle_t handle);
void mx_dnn_fini(mx_dnn_graph *g);

/* A tensor that will be bound to memory. */
int mx_dnn_tensor_in(mx_dnn_graph *g, cudnnDataType_t type, const mx_dnn_shape *shape);
int mx_dnn_virtual(mx_dnn_graph *g, cudnnDataType_t type, const mx_dnn_shape *shape);
int mx_dnn_scalar_f32(mx_dnn_graph *g, float v);
int mx_dnn_scalar_i32(mx_dnn_graph *g, int32_t v);

/* Pointwise: y gets x's shape as a virtual tensor unless `y` names one. */
int mx_dnn_unary(mx_dnn_graph *g, cudnnPointwiseMode_t mode, int x, int y);
int mx_dnn_binary(mx_dnn_graph *g, cudnnPointwiseMode_t mode, int x, int b, int y);
int mx_dnn_binary_typed(mx_dnn_graph *g, cudnnPointwiseMode_t mode, int x, int b,
                        cudnnDataType_t type, cudnnDataType_t compute);
int mx_dnn_select(mx_dnn_graph *g, int x, int otherwise, int condition);
int mx_dnn_index(mx_dnn_graph *g, int like, int axis, cudnnDataType_t compute);
int mx_dnn_tanh_backward(mx_dnn_graph *g, int dy, int x);
/* y names an existing tensor (its shape says which axes are reduced). */
void mx_dnn_reduce(mx_dnn_graph *g, cudnnReduceTensorOp_t op, int x, int y);
void mx_dnn_reshape(mx_dnn_graph *g, int x, int y);
/* padding: fill rows beyond the overridden lengths with zero. */
void mx_dnn_matmul(mx_dnn_graph *g, int a, int b, int c, mx_dnn_override over, bool padding);

/* Matches the graph, takes the first engine that can be planned, and prepares the variant pack. */
mx_status mx_dnn_build(mx_dnn_graph *g) MX_MUST_USE;
/* Runs with the pointers bound in tensors[]. */
mx_status mx_dnn_run(mx_dnn_graph *g, void *workspace, cudaStream_t stream) MX_MUST_USE;

#endif
