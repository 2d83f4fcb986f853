/* op.h - what an op is: one const struct beside its kernels.
 *
 * The table mx_op_table is scanned out of src/ops at build time; adding an op means adding a file.
 * A kernel never sees the graph: it gets an mx_call, which is tensors, attributes and workspace.
 *
 * Index notation (`dims`) gives shapes and sharding from one string, for example "*!d,!d->*!d":
 *   a letter binds a size; the same letter elsewhere must have the same size;
 *   a letter that is missing on the right is summed, so splitting it leaves a partial sum;
 *   `*` stands for any number of leading dims; `!` before a letter: the dim must stay whole;
 *   a digit 1 is a dim of size one; inputs and outputs are separated by commas; `-` is an input
 *   that notation says nothing about.
 */
#ifndef MX_IR_OP_H
#define MX_IR_OP_H

#include "ir/type.h"

typedef struct mx_graph mx_graph;
typedef struct mx_node mx_node;
typedef struct mx_op mx_op;
struct mx_partition_call;
struct mx_process_group;

enum { MX_MAX_IN = 16, MX_MAX_OUT = 8 };

/* --- kernels --- */

typedef struct {
    void *data; /* NULL: an optional input that is absent */
    mx_type type;
    /* A strided view of another tensor: runs of contiguous elements, `pitch` elements from start to
     * start. Both 0: dense. Only where the op says that it takes strided views. */
    int64_t run, pitch;
    bool fixed;  /* a variable or constant that no node of the program writes */
    size_t readable_bytes; /* from data on, zeros after the tensor's own; 0: its own alone */
} mx_tensor;

typedef struct {
    int n_in, n_out;
    const mx_tensor *in;
    mx_tensor *out;
    const void *attr;
    void *work; /* work_bytes(node) bytes, 64-byte aligned */
    struct mx_process_group *group; /* of a collective; NULL: this rank is alone */
    mx_status *status;              /* where a collective enters its error; NULL: nowhere */
} mx_call;

typedef void (*mx_kernel)(const mx_call *c);

/* A tile is a run of n contiguous elements, already converted to the arithmetic type (float or
 * double). Elementwise ops, row reductions and row maps are written as tile functions; the device
 * calls them for whole tensors or, inside a fused group, for one row after another in cache.
 *   elementwise: out[i] = f(in0[i], in1[i], ...)        n: any length
 *   row reduce:  out[0] = f(in0[0..n))                  n: the whole last dim
 *   row map:     out[i] = f(in0[0..n))                  n: the whole last dim
 * An elementwise op may write over one of its operands, and one with two operands may be given
 * either as a single number for all i. */
typedef struct {
    int64_t n;
    const void *in[4];
    void *out;
    const void *attr;
    unsigned single; /* 1, 2: in[0], in[1] is a single number; only elementwise with two operands */
    void *sibling_out; /* of an mx_sibling: the result of the op `of` */
} mx_tile;
typedef void (*mx_tile_fn)(const mx_tile *t);

/* Sibling fusion: two elementwise ops of one operand a that share their expensive part, this op of
 * (a, b) and `of` (a). The tile function makes both, without single operands. */
typedef struct {
    const mx_op *of;
    mx_tile_fn tile_f32;
} mx_sibling;

typedef enum {
    MX_PLAIN,       /* its kernel does the whole tensor */
    MX_ELEMENTWISE, /* broadcasts like numpy; tile functions */
    MX_ROW_REDUCE,  /* last dim becomes 1; tile functions */
    MX_ROW_MAP,     /* last dim is seen whole; tile functions */
    MX_VIEW,        /* output is input 0's memory under another shape */
    MX_PROJECT,     /* output k of its input (see mx_output): no memory of its own */
    MX_SOURCE,      /* input, variable, constant: has no kernel */
} mx_op_kind;

/* Has tile functions, so it can be a step of a fused group. */
static inline bool mx_op_kind_is_tiled(mx_op_kind k)
{
    return k == MX_ELEMENTWISE || k == MX_ROW_REDUCE || k == MX_ROW_MAP;
}

/* --- attributes: an op's own struct, described field by field, all that a kernel reads: for
 * printing, and for programs that are kept in files (compile/program_file.h) --- */

typedef enum {
    MX_ATTR_INT, MX_ATTR_F64, MX_ATTR_BOOL, MX_ATTR_DTYPE, MX_ATTR_TEXT, MX_ATTR_DIMS,
    MX_ATTR_TABLE, MX_ATTR_LIST,
    MX_ATTR_INTS,  /* int64_t[] */
    MX_ATTR_INT32, /* int32_t */
    MX_ATTR_ENUM,  /* of an enum, below `n` */
    MX_ATTR_NAME,  /* const char *, or NULL */
    MX_ATTR_BOX,   /* const struct mx_box *, or NULL */
    MX_ATTR_GROUP, /* const struct mx_group * (ops/group.h) */
} mx_attr_kind;

typedef struct {
    const char *name; /* NULL ends the list */
    mx_attr_kind kind; /* int64_t, double, bool, mx_dtype, char[], mx_shape,
                          const double * with a value for each element, or NULL,
                          uint8_t[] up to a 0 */
    size_t offset;
    const char *(*label)(uint8_t item); /* of a list's items */
    size_t size; /* of the member, bytes */
    int n;       /* of an enum: how many values it has */
    bool quiet;  /* not printed */
} mx_attr_field;
#define MX_FIELD(T, KIND, member)                                                                  \
    {#member, KIND, offsetof(T, member), .size = sizeof(((T *)0)->member)}
/* One that a reader of graphs need not see. */
#define MX_QUIET_FIELD(T, KIND, member)                                                            \
    {#member, KIND, offsetof(T, member), .size = sizeof(((T *)0)->member), .quiet = true}
#define MX_ENUM_FIELD(T, member, count)                                                            \
    {#member, MX_ATTR_ENUM, offsetof(T, member), .size = sizeof(((T *)0)->member), .n = (count),   \
     .quiet = true}

/* --- cost --- */

typedef struct {
    double flops;
    double bytes; /* read + written, each once */
} mx_cost;

/* --- test cases: the table-driven tests need nothing else --- */

typedef struct {
    int ndim;
    int64_t dim[MX_MAX_DIMS];
    mx_dtype dtype;    /* a case's floats are run as float64 and float32 */
    double lo, hi;     /* values drawn from [lo, hi); both 0: floats from [-1, 1), ints 0 */
    bool absent;       /* an optional input that is not given */
    bool no_grad;      /* a float input without a gradient */
    bool fixed;        /* a float input whose dtype is always this one */
} mx_case_in;

typedef struct {
    int n_in; /* 0 ends the list */
    mx_case_in in[MX_MAX_IN];
    const void *attr;
    double tolerance; /* of the gradient check; 0: 1e-6 */
    double on_device; /* allowed of a device whose matrix units keep fewer bits of a sum than
                         float32 has, relative to the largest value; 0: as everywhere */
    int n_out;        /* outputs of this case, for an op without a fixed number */
} mx_case;

/* --- dtypes: sets, bit d for dtype d --- */

typedef uint32_t mx_dtypes;
#define MX_REALS ((mx_dtypes)(1u << MX_F32 | 1u << MX_F64 | 1u << MX_BF16)) /* are computed with */
#define MX_F32_ONLY ((mx_dtypes)(1u << MX_F32))
#define MX_INDICES ((mx_dtypes)(1u << MX_I32))
/* What tiles take: int32 is computed with as float and truncated, exact up to 2^24. */
#define MX_NUMBERS (MX_REALS | MX_INDICES)
#define MX_ANY_DTYPE ((mx_dtypes)((1u << MX_DTYPE_COUNT) - 1)) /* moved, or converted by load.h */

struct mx_op {
    const char *name, *doc;
    /* What its inputs may be: every kernel of the op knows all of these, and no others. */
    mx_dtypes dtypes;
    mx_dtypes dtypes_at[MX_MAX_IN]; /* of input i; 0: as dtypes */
    mx_dtypes gives; /* what an attribute may make of output 0; 0: it follows from the inputs */
    unsigned alike; /* bit i: these inputs are of one dtype, once the precision pass has run */
    mx_op_kind kind;
    const char *dims; /* index notation; NULL where infer says everything */
    size_t attr_size;
    const mx_attr_field *fields;
    int n_out;                   /* 0 means 1; -1: each node has its own number */
    unsigned saved;              /* bit k: output k serves the backward pass and has no gradient */
    int alias[MX_MAX_OUT]; /* 1 + index of the input whose memory output k overwrites; 0 none */
    bool keep_f32;               /* 16-bit float inputs give a float32 output */
    bool costly;                 /* elementwise, but not worth recomputing (sin, cos) */
    bool no_cast;                /* the precision pass leaves its float inputs as they are */
    bool same_value; /* input 0's values, moved or cast: a gradient keeps the dtype it has there */
    /* Bit i: on devices that take strided views, input (output) i may be one whose runs are its
     * last two dims. */
    unsigned strided_in, strided_out;
    unsigned hosted;             /* bit k: output k lies in host memory */

    int n_cast;                  /* it casts its first n inputs only; 0: all */

    /* Ranks run it together; its attributes are an mx_collective_attr (ops/collective.h). */
    bool collective;
    /* Partial sums of all float inputs give a partial sum; the callback where attributes decide. */
    bool linear;
    bool (*is_linear)(const mx_node *n);
    /* Where its inputs must lie and its outputs then do, for what notation cannot say; and the node
     * of one rank, where attributes have global sizes. See ir/partition.h. NULL: by notation, and
     * the same attributes. */
    void (*place)(const mx_node *n, struct mx_partition_call *p);
    mx_node *(*local)(mx_graph *g, const mx_node *n, mx_node *const *in,
                      struct mx_partition_call *p);

    /* After notation: dtypes, extra shapes, checks. Errors through mx_graph_fail. */
    void (*infer)(mx_graph *g, mx_node *n);
    /* The notation of this node where it depends on attributes (einsum); overrides dims. */
    const char *(*notation)(const mx_node *n);
    /* Builds din[i] from dout[k]; either may stay NULL (no gradient). */
    void (*grad)(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din);
    mx_cost (*cost)(const mx_node *n);
    size_t (*work_bytes)(const mx_node *n, int n_threads);
    /* The same for the GPU's kernels (ops/gpu_work.h). most: what an op that could use any amount
     * may take; one that cannot do with so little takes what it needs. */
    size_t (*gpu_work_bytes)(const mx_node *n, size_t most);
    bool gpu_work_adds; /* neighbours of this op are launched at once, each with its own */

    mx_kernel cpu;                /* required unless there are tiles: the specification */
    mx_tile_fn tile_f32, tile_f64;
    /* For generated GPU kernels, as C text; $name stands for an attribute. Elementwise: of a, b, c.
     * Row reduce: how two values combine. Row map: of x(i) and the index i. */
    const char *expr;
    double identity;              /* row reduce: what combining starts from */
    const mx_sibling *sibling;    /* for the CPU's groups; NULL: none */

    const mx_case *cases;
};

extern const mx_op *const mx_op_table[]; /* NULL-terminated, sorted by name */
extern const int mx_op_count;

#endif
