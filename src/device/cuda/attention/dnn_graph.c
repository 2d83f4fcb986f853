/* dnn_graph.c - see dnn_graph.h. Unique ids given to cuDNN are the tensor's index in the list. */
#include "device/cuda/attention/dnn_graph.h"

#include <stdio.h>
#include <string.h>

static void fail(mx_dnn_graph *g, cudnnStatus_t s, const char *what)
{
    if (g->error)
        return;
    char detail[512] = "";
    g->libs->dnn.cudnnGetLastErrorString(detail, sizeof detail);
    g->error = mx_fail(MX_DEVICE, "cuDNN %zu: %s: %s%s%s", g->libs->dnn.cudnnGetVersion(), what,
                       g->libs->dnn.cudnnGetErrorString(s), *detail ? ": " : "", detail);
}

static void check(mx_dnn_graph *g, cudnnStatus_t s, const char *what)
{
    if (s != CUDNN_STATUS_SUCCESS)
        fail(g, s, what);
}

static cudnnBackendDescriptor_t create(mx_dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;
    if (!g->error)
        check(g, g->libs->dnn.cudnnBackendCreateDescriptor(type, &d), "creating a descriptor");
    return d;
}

static void set(mx_dnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *v)
{
    if (g->error)
        return;
    cudnnStatus_t s = g->libs->dnn.cudnnBackendSetAttribute(d, name, type, n, v);
    if (s != CUDNN_STATUS_SUCCESS) {
        char what[64];
        snprintf(what, sizeof what, "setting attribute %d", (int)name);
        fail(g, s, what);
    }
}

static void set_desc(mx_dnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnBackendDescriptor_t v)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v);
}

static void set_tensor(mx_dnn_graph *g, cudnnBackendDescriptor_t d,
                       cudnnBackendAttributeName_t name, int tensor)
{
    if (tensor)
        set_desc(g, d, name, g->tensors[tensor].desc);
}

static void finalize(mx_dnn_graph *g, cudnnBackendDescriptor_t d, const char *what)
{
    if (!g->error)
        check(g, g->libs->dnn.cudnnBackendFinalize(d), what);
}

static cudnnBackendDescriptor_t new_op(mx_dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    MX_ASSERT(g->n_ops < MX_DNN_OPS, "n_ops=%d", g->n_ops);
    return g->ops[g->n_ops++] = create(g, type);
}

static cudnnBackendDescriptor_t new_attr(mx_dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    MX_ASSERT(g->n_attrs < MX_DNN_OPS, "n_attrs=%d", g->n_attrs);
    return g->op_attrs[g->n_attrs++] = create(g, type);
}

void mx_dnn_init(mx_dnn_graph *g, mx_cuda_libs *libs, cudnnHandle_t handle)
{
    memset(g, 0, sizeof *g);
    g->libs = libs;
    g->handle = handle;
    g->n_tensors = 1;
}

void mx_dnn_fini(mx_dnn_graph *g)
{
    if (!g->libs)
        return;
    cudnnBackendDescriptor_t last[] = {g->pack, g->plan, g->heuristics, g->graph};
    for (int i = 0; i < 4; i++)
        if (last[i])
            g->libs->dnn.cudnnBackendDestroyDescriptor(last[i]);
    for (int i = 0; i < 8; i++)
        if (g->configs[i])
            g->libs->dnn.cudnnBackendDestroyDescriptor(g->configs[i]);
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i])
            g->libs->dnn.cudnnBackendDestroyDescriptor(g->ops[i]);
    for (int i = 0; i < g->n_attrs; i++)
        if (g->op_attrs[i])
            g->libs->dnn.cudnnBackendDestroyDescriptor(g->op_attrs[i]);
    for (int i = 1; i < g->n_tensors; i++)
        if (g->tensors[i].desc)
            g->libs->dnn.cudnnBackendDestroyDescriptor(g->tensors[i].desc);
    mx_status_free(g->error);
    memset(g, 0, sizeof *g);
}

/* --- tensors --- */

static int add_tensor(mx_dnn_graph *g, cudnnDataType_t type, const mx_dnn_shape *shape,
                      bool is_virtual, bool by_value)
{
    MX_ASSERT(g->n_tensors < MX_DNN_TENSORS, "n_tensors=%d", g->n_tensors);
    int id = g->n_tensors++;
    mx_dnn_tensor *t = &g->tensors[id];
    t->shape = *shape;
    t->is_virtual = is_virtual;
    t->by_value = by_value;
    t->desc = create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t uid = id, align = 16;
    set(g, t->desc, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, t->desc, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape->dim);
    set(g, t->desc, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape->stride);
    set(g, t->desc, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(g, t->desc, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (is_virtual)
        set(g, t->desc, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    if (by_value)
        set(g, t->desc, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(g, t->desc, "describing a tensor");
    return id;
}

int mx_dnn_tensor_in(mx_dnn_graph *g, cudnnDataType_t type, const mx_dnn_shape *shape)
{
    return add_tensor(g, type, shape, false, false);
}

int mx_dnn_virtual(mx_dnn_graph *g, cudnnDataType_t type, const mx_dnn_shape *shape)
{
    return add_tensor(g, type, shape, true, false);
}

static const mx_dnn_shape scalar_shape = {{1, 1, 1, 1}, {1, 1, 1, 1}};

int mx_dnn_scalar_f32(mx_dnn_graph *g, float v)
{
    int id = add_tensor(g, CUDNN_DATA_FLOAT, &scalar_shape, false, true);
    g->tensors[id].value.f = v;
    return id;
}

int mx_dnn_scalar_i32(mx_dnn_graph *g, int32_t v)
{
    int id = add_tensor(g, CUDNN_DATA_INT32, &scalar_shape, false, true);
    g->tensors[id].value.i = v;
    return id;
}

/* --- operations --- */

static cudnnBackendDescriptor_t pointwise_attr(mx_dnn_graph *g, cudnnPointwiseMode_t mode,
                                               cudnnDataType_t compute, int axis)
{
    cudnnBackendDescriptor_t d = new_attr(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (axis >= 0) {
        int64_t a = axis;
        set(g, d, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &a);
    }
    finalize(g, d, "describing a pointwise operation");
    return d;
}

static void pointwise_op(mx_dnn_graph *g, cudnnBackendDescriptor_t attr, int x, int b, int t, int y)
{
    cudnnBackendDescriptor_t d = new_op(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, attr);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finalize(g, d, "adding a pointwise operation");
}

int mx_dnn_unary(mx_dnn_graph *g, cudnnPointwiseMode_t mode, int x, int y)
{
    if (!y)
        y = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &g->tensors[x].shape);
    pointwise_op(g, pointwise_attr(g, mode, CUDNN_DATA_FLOAT, -1), x, 0, 0, y);
    return y;
}

int mx_dnn_binary(mx_dnn_graph *g, cudnnPointwiseMode_t mode, int x, int b, int y)
{
    if (!y)
        y = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &g->tensors[x].shape);
    pointwise_op(g, pointwise_attr(g, mode, CUDNN_DATA_FLOAT, -1), x, b, 0, y);
    return y;
}

int mx_dnn_binary_typed(mx_dnn_graph *g, cudnnPointwiseMode_t mode, int x, int b,
                        cudnnDataType_t type, cudnnDataType_t compute)
{
    int y = mx_dnn_virtual(g, type, &g->tensors[x].shape);
    pointwise_op(g, pointwise_attr(g, mode, compute, -1), x, b, 0, y);
    return y;
}

int mx_dnn_select(mx_dnn_graph *g, int x, int otherwise, int condition)
{
    int y = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &g->tensors[x].shape);
    pointwise_op(g, pointwise_attr(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1), x,
                 otherwise, condition, y);
    return y;
}

int mx_dnn_index(mx_dnn_graph *g, int like, int axis, cudnnDataType_t compute)
{
    int y = mx_dnn_virtual(g, CUDNN_DATA_INT32, &g->tensors[like].shape);
    pointwise_op(g, pointwise_attr(g, CUDNN_POINTWISE_GEN_INDEX, compute, axis), like, 0, 0, y);
    return y;
}

int mx_dnn_tanh_backward(mx_dnn_graph *g, int dy, int x)
{
    int dx = mx_dnn_virtual(g, CUDNN_DATA_FLOAT, &g->tensors[x].shape);
    cudnnBackendDescriptor_t attr =
        pointwise_attr(g, CUDNN_POINTWISE_TANH_BWD, CUDNN_DATA_FLOAT, -1);
    cudnnBackendDescriptor_t d = new_op(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, attr);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dy);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, dx);
    finalize(g, d, "adding a pointwise gradient");
    return dx;
}

void mx_dnn_reduce(mx_dnn_graph *g, cudnnReduceTensorOp_t op, int x, int y)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t a = new_attr(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, a, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set(g, a, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    finalize(g, a, "describing a reduction");
    cudnnBackendDescriptor_t d = new_op(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, a);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    finalize(g, d, "adding a reduction");
}

void mx_dnn_reshape(mx_dnn_graph *g, int x, int y)
{
    cudnnBackendDescriptor_t d = new_op(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    finalize(g, d, "adding a reshape");
}

void mx_dnn_matmul(mx_dnn_graph *g, int a, int b, int c, mx_dnn_override over, bool padding)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t m = new_attr(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, m, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (padding) {
        double zero = 0;
        set(g, m, CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, 1, &zero);
    }
    finalize(g, m, "describing a matmul");
    cudnnBackendDescriptor_t d = new_op(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, over.m);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, over.n);
    set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, over.k);
    set_desc(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, m);
    finalize(g, d, "adding a matmul");
}

/* --- planning and running --- */

static void query_heuristics(mx_dnn_graph *g, int64_t *found)
{
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    g->heuristics = create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(g, g->heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g->graph);
    set(g, g->heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(g, g->heuristics, "looking for an engine");
    for (int i = 0; i < 8; i++)
        g->configs[i] = create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    *found = 0;
    if (!g->error)
        check(g,
              g->libs->dnn.cudnnBackendGetAttribute(g->heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 8, found,
                                                    g->configs),
              "reading the engines found");
    if (!g->error && *found == 0)
        fail(g, CUDNN_STATUS_NOT_SUPPORTED, "no engine matches this attention");
}

static cudnnStatus_t try_config(mx_dnn_graph *g, int i)
{
    cudnnBackendDescriptor_t plan = NULL;
    cudnnStatus_t s =
        g->libs->dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);
    if (s == CUDNN_STATUS_SUCCESS)
        s = g->libs->dnn.cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                                                  CUDNN_TYPE_HANDLE, 1, &g->handle);
    if (s == CUDNN_STATUS_SUCCESS)
        s = g->libs->dnn.cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->configs[i]);
    if (s == CUDNN_STATUS_SUCCESS)
        s = g->libs->dnn.cudnnBackendFinalize(plan);
    if (s == CUDNN_STATUS_SUCCESS)
        g->plan = plan;
    else if (plan)
        g->libs->dnn.cudnnBackendDestroyDescriptor(plan);
    return s;
}

static void prepare_pack(mx_dnn_graph *g)
{
    g->pack = create(g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    int64_t n = 0;
    if (!g->error)
        check(g,
              g->libs->dnn.cudnnBackendGetAttribute(g->plan,
                                                    CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                    CUDNN_TYPE_INT64, 1, &n, &g->workspace_bytes),
              "asking for the workspace size");
}

mx_status mx_dnn_build(mx_dnn_graph *g)
{
    g->graph = create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops,
        g->ops);
    finalize(g, g->graph, "joining the operations");
    int64_t found = 0;
    if (!g->error)
        query_heuristics(g, &found);
    cudnnStatus_t s = CUDNN_STATUS_NOT_SUPPORTED;
    g->n_choices = (int)found;
    for (int i = g->first_choice; i < found && !g->error && !g->plan; i++) {
        s = try_config(g, i);
        g->choice = i;
    }
    if (!g->error && !g->plan)
        fail(g, s, "none of the engines found could be planned");
    if (!g->error)
        prepare_pack(g);
    mx_status st = g->error;
    g->error = MX_OK;
    return st;
}

mx_status mx_dnn_run(mx_dnn_graph *g, void *workspace, cudaStream_t stream)
{
    int64_t uids[MX_DNN_TENSORS];
    void *pointers[MX_DNN_TENSORS];
    int64_t n = 0;
    for (int i = 1; i < g->n_tensors; i++) {
        mx_dnn_tensor *t = &g->tensors[i];
        if (t->is_virtual)
            continue;
        uids[n] = i;
        pointers[n++] = t->by_value ? (void *)&t->value : t->pointer;
    }
    /* A fresh pack each run: a finalized one cannot be changed. */
    g->libs->dnn.cudnnBackendDestroyDescriptor(g->pack);
    g->pack = create(g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(g, g->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers);
    set(g, g->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids);
    set(g, g->pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(g, g->pack, "binding memory");
    if (!g->error)
        check(g, g->libs->dnn.cudnnSetStream(g->handle, stream), "setting the stream");
    if (!g->error)
        check(g, g->libs->dnn.cudnnBackendExecute(g->handle, g->plan, g->pack),
              "running attention");
    mx_status st = g->error;
    g->error = MX_OK;
    return st;
}
