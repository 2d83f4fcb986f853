/* device.h - what a device is, and the sessions in which programs run on one.
 *
 * A session holds variables by name and any number of programs that share them (a training step, an
 * evaluation, a decode step). Everything is allocated when a program is added; running allocates
 * nothing. Programs run one at a time and share one workspace, as large as the largest needs. A
 * process may have several sessions, each with a device of its own, even of one kind.
 *
 *     mx_session_open(&s, "cpu", 0);
 *     mx_session_add(s, &program, &exec);
 *     mx_session_init(s, seed);
 *     mx_exec_write(exec, "tokens", ids);
 *     mx_exec_run(exec);
 *     mx_exec_read(exec, "loss", &loss);
 */
#ifndef MX_DEVICE_DEVICE_H
#define MX_DEVICE_DEVICE_H

#include "base/memory_available.h"
#include "compile/device_traits.h"
#include "compile/program.h"

typedef struct mx_session mx_session;
typedef struct mx_exec mx_exec;
typedef struct mx_device mx_device;

/* --- memory --- */

/* A range of a device's memory. The handle is the device's own, and means nothing to others. */
typedef struct {
    void *handle;
    size_t offset, bytes;
} mx_device_buffer;

/* Collectives: how long they took, and for how much of that other steps waited. */
typedef struct {
    double all, waited;
} mx_comm_seconds;

/* A moment in a device's run: how many collectives were issued by then, or, on a device whose runs
 * are over when they return, the seconds they took. */
typedef struct {
    int64_t calls;
    mx_comm_seconds seconds;
} mx_comm_mark;

static inline mx_device_buffer mx_device_range(mx_device_buffer b, size_t at, size_t bytes)
{
    return (mx_device_buffer){b.handle, b.offset + at, bytes};
}

typedef enum {
    MX_MEMORY_DEVICE,
    MX_MEMORY_HOST, /* host memory that kernels of the device take like its own */
} mx_memory;

/* n values of an initial distribution, each a pure function of (seed, stream, its index). */
typedef struct {
    mx_init init;
    mx_dtype dtype;
    int64_t n;
    uint64_t seed, stream;
} mx_fill;

/* --- what a device offers --- */

/* Deferred (asynchronous) readback, for a device whose `run` returns before the work is done. */
typedef struct {
    /* Pinned host memory that the device can write, and a mark (on CUDA an event). */
    mx_status (*open)(mx_device *d, size_t bytes, void **host, void **mark);
    /* To that memory, after the work issued so far: a copy; the device's clock in seconds. */
    mx_status (*copy)(mx_device *d, void *dst, mx_device_buffer src);
    mx_status (*clock)(mx_device *d, double *dst);
    mx_status (*mark)(mx_device *d, void *mark); /* what was issued so far is one set */
    mx_status (*wait)(mx_device *d, void *mark); /* until the device has come past the mark */
    void (*close)(mx_device *d, void *host, void *mark);
} mx_device_readback;

/* n values in a staging buffer, on their way to the device, which keeps them as `to`. */
typedef struct {
    mx_device_buffer dst;
    mx_dtype to;
    const void *src;
    mx_dtype from;
    int64_t n;
} mx_upload;

/* Staged uploads of large data, through pinned buffers in host memory.
 * `staging` belongs to one thread; several work beside each other. */
typedef struct {
    mx_status (*open)(mx_device *d, size_t buffer_bytes, void **staging);
    /* A page-aligned buffer, once the copy that last used it is through. */
    mx_status (*next)(mx_device *d, void *staging, void **host);
    mx_status (*send)(mx_device *d, void *staging, const mx_upload *u); /* starts the copy */
    mx_status (*close)(mx_device *d, void *staging); /* waits for all copies; NULL is a no-op */
} mx_device_staging;

struct mx_device {
    const mx_device_traits *traits;

    /* Memory is zeroed when it is given. */
    mx_status (*alloc)(mx_device *d, mx_memory where, size_t bytes, const char *what,
                       mx_device_buffer *out);
    void (*release)(mx_device *d, mx_device_buffer b); /* as alloc gave it; no handle: a no-op */
    mx_status (*write)(mx_device *d, mx_device_buffer dst, const void *src);
    mx_status (*read)(mx_device *d, void *dst, mx_device_buffer src);
    /* What kernels of this device find as mx_tensor.data: an address, or what stands for one. */
    void *(*address)(mx_device *d, mx_device_buffer b);
    /* Chooses kernels for a program whose tensors are bound; `state` is the device's own. */
    mx_status (*prepare)(mx_device *d, mx_exec *e, void **state);
    mx_status (*run)(mx_device *d, mx_exec *e, void *state);
    void (*drop)(mx_device *d, void *state);
    void (*close)(mx_device *d);

    /* Optional; NULL where the host does it, or there is nothing to do. */
    const mx_device_readback *readback; /* NULL: a run is over when it returns */
    const mx_device_staging *staging;   /* NULL: the host writes large data like any other */
    /* How much `alloc` can still give; NULL where that is host memory. */
    mx_status (*free_bytes)(mx_device *d, size_t *bytes);
    /* The workspace of a program's steps has moved; NULL: nothing kept says where it was. */
    void (*forget)(mx_device *d, void *state);
    mx_status (*fill)(mx_device *d, mx_device_buffer dst, const mx_fill *f); /* may refuse some */
    mx_status (*convert)(mx_device *d, mx_device_buffer dst, mx_dtype to, mx_device_buffer src,
                         mx_dtype from);
    /* The moment now, and the seconds of all collectives before a moment, which are over; moments
     * are asked for in their order. NULL: it does not know. */
    mx_comm_mark (*comm_mark)(const mx_device *d);
    mx_comm_seconds (*comm_seconds)(mx_device *d, mx_comm_mark at);
    /* The rate of its arithmetic, measured in a moment, where the chip's is not in the traits. */
    double (*measure_flops)(mx_device *d, mx_dtype dtype, int n_threads);

    bool any_order; /* sums may be made in any order: faster in places, not the same bits twice */
    bool search; /* algorithms are timed and the fastest are kept, where the device can */
};

/* A kind of device, found by scanning for `const mx_device_kind`. */
typedef struct {
    const mx_device_traits *traits;
    const char *doc;
    int preference; /* device=auto takes the highest that is there */
    bool (*is_likely)(void); /* a quick look whether there could be one; NULL: always */
    mx_status (*open)(mx_device **out);
} mx_device_kind;
extern const mx_device_kind *const mx_device_kind_table[]; /* NULL-terminated */
extern const int mx_device_kind_count;
const mx_device_kind *mx_device_kind_find(const char *name); /* NULL: none */
/* "auto", or a kind's name. */
mx_status mx_device_open(mx_device **out, const char *name) MX_MUST_USE;

/* What a plug-in exports, under the name mx_plugin_table. The first member never moves: a plug-in
 * that was built with other headers is known by it and not used. */
typedef struct {
    const char *interface; /* MX_INTERFACE (tools/scan) */
    /* A device with these traits, its chip's description added. */
    mx_status (*open)(const mx_device_traits *traits, mx_device **out);
    mx_status (*compile_kernels)(const mx_program *p, const char *arch, const char *cache_dir,
                                 int *n_kernels);
} mx_plugin;

/* Compiles what the CUDA device would generate for this program, for an architecture ("sm_90a"),
 * into a folder: the cache that the device reads, or one that is laid there later. Needs the
 * plug-in and NVRTC, no GPU. Adds to *n_kernels. */
mx_status mx_device_compile_kernels(const mx_program *p, const char *arch, const char *dir,
                                    int *n_kernels) MX_MUST_USE;
/* Where compiled kernels and choices of algorithms (MX_CHOICES_FILE: a line each, by what is before
 * its tab) are kept; made when absent. */
#define MX_CHOICES_FILE "gemm_algorithms.txt"
void mx_device_cache_dir(char *path, size_t cap);

/* --- programs --- */

/* One node of a program with its memory bound. */
typedef struct {
    const mx_op *op;
    mx_call call;
    mx_cost cost;
    const char *scope; /* "model.layers.3.mlp" */
    const char *label; /* "model.layers.3.mlp matmul": for crash reports and profiles */
    bool beside;       /* a collective that later steps go on beside, up to the one that waits */
    int waits_for;     /* of a wait: 1 + the number of that collective's step; 0: for none */
    int64_t ticket;    /* the device's, of its last run */
} mx_exec_step;

struct mx_exec {
    mx_session *session;        /* borrows */
    const mx_program *program;  /* borrows */
    mx_device_buffer given;     /* owns; inputs and constants */
    mx_device_buffer scratch;   /* other values; owns it, unless `shares` */
    mx_device_buffer offloaded; /* for values that wait in host memory. Likewise */
    mx_device_buffer *own;      /* by storage, where the device plans memory itself; else NULL */
    bool shares;                /* they are the session's */
    mx_device_buffer slot;      /* borrows; for values shared with other programs (mx_kept) */
    size_t work_bytes;          /* of the session's workspace, what this program needs */
    mx_exec_step *step;         /* nodes that do something, in order */
    int n_steps;
    mx_arena arena;
    char *part;                 /* owns; a rank's part of an input is put together here */
    size_t part_bytes;
    void *state;
    mx_status failed; /* of a collective during a run */
    double *took; /* borrows; begin and end of every step in seconds; NULL: not measured */
    mx_exec *next;
};

/* device: auto (a GPU where the plug-in and a driver find one, else the CPU), or a kind's name.
 * n_threads 0: what OpenMP offers. */
mx_status mx_session_open(mx_session **out, const char *device, int n_threads) MX_MUST_USE;
/* The same on a device that is open; takes it. */
mx_status mx_session_open_on(mx_session **out, mx_device *d, int n_threads) MX_MUST_USE;
void mx_session_close(mx_session *s);
int mx_session_threads(const mx_session *s);
mx_device *mx_session_device(mx_session *s);
const mx_device_traits *mx_session_traits(const mx_session *s);
/* FLOP/s of dense matmuls of this dtype: the chip's, or measured now; 0: not known. */
double mx_session_peak_flops(mx_session *s, mx_dtype dtype);
/* Programs added from now on need not give the same bits twice. */
void mx_session_allow_any_order(mx_session *s);
/* Programs added from now on time the algorithms of their GEMMs. */
void mx_session_search(mx_session *s);

/* The seconds of its programs' collectives between two moments, once both are past; zeros where the
 * device does not know. */
mx_comm_mark mx_session_comm_mark(const mx_session *s);
mx_comm_seconds mx_session_comm_seconds(mx_session *s, mx_comm_mark from, mx_comm_mark to);
/* Where collectives of programs added from now on find their group: of these axes (ir/mesh.h), for
 * this rank; NULL: it is alone. Without it all are. */
typedef struct mx_process_group *(*mx_group_finder)(void *ctx, unsigned axes);
void mx_session_set_groups(mx_session *s, mx_group_finder find, void *ctx);
/* The same groups as another session's, for one that runs beside it. */
void mx_session_share_groups(mx_session *s, const mx_session *other);
/* It has the weights of one stage only, and passes over the others in a model's files. */
void mx_session_set_stage(mx_session *s);
bool mx_session_is_stage(const mx_session *s);

mx_status mx_session_add(mx_session *s, const mx_program *p, mx_exec **out) MX_MUST_USE;
/* The same with values in a slot, memory of the caller's. A program is added once for each of its
 * slots. */
mx_status mx_session_add_slot(mx_session *s, const mx_program *p, mx_device_buffer slot,
                              mx_exec **out) MX_MUST_USE;
/* Memory that programs added from now on work in, where they fit, instead of having their own: what
 * one has computed there is gone when another runs. Once a session. */
mx_status mx_session_share(mx_session *s, size_t scratch_bytes, size_t host_bytes) MX_MUST_USE;
/* What a program takes of it. */
size_t mx_program_shared_bytes(const mx_program *p);
void mx_exec_close(mx_exec *e); /* before its session is; variables stay. NULL is a no-op */
/* Gives every variable that has not been written its initial value:
 * a pure function of (seed, name). */
mx_status mx_session_init(mx_session *s, uint64_t seed) MX_MUST_USE;

/* --- variables: by name, whole. Types are the variable's own. --- */

typedef struct {
    const char *name;
    mx_type type;
    mx_var_attr attr;
    const char *axes;
    const struct mx_box *box; /* the part of the whole tensor that this is; NULL: the whole */
    mx_device_buffer buffer;
    size_t readable_bytes; /* from its beginning on; zeros after its own */
    bool written;
} mx_var;
const mx_type *mx_var_whole(const mx_var *v); /* the type of the whole tensor */
int mx_session_count(const mx_session *s);
mx_var *mx_session_var(mx_session *s, int i);             /* in the order of declaration */
mx_var *mx_session_find(mx_session *s, const char *name); /* NULL: none */
mx_status mx_var_write(mx_session *s, mx_var *v, const void *src) MX_MUST_USE;
mx_status mx_var_read(mx_session *s, const mx_var *v, void *dst) MX_MUST_USE;
/* Elements [at, at + n) of it; `written` is the caller's to set. */
mx_status mx_var_write_part(mx_session *s, mx_var *v, int64_t at, int64_t n,
                            const void *src) MX_MUST_USE;
/* Bytes [at, at + n) of it. */
mx_status mx_var_read_part(mx_session *s, const mx_var *v, size_t at, void *dst,
                           size_t n) MX_MUST_USE;
/* Elements [at, at + n) of it, as a range of the device's memory. */
mx_device_buffer mx_var_range(const mx_var *v, int64_t at, int64_t n);
/* Where the host itself finds it; NULL on a device with memory of its own. */
void *mx_var_host(const mx_session *s, const mx_var *v);
/* What its device can still give; on the CPU what the process can. */
mx_memory_available mx_session_memory_available(const mx_session *s);
/* Copies in the compute dtype follow their weights; call after writing weights. */
mx_status mx_session_refresh_copies(mx_session *s) MX_MUST_USE;

/* --- inputs and named roots of one program --- */

mx_status mx_exec_write(mx_exec *e, const char *name, const void *src) MX_MUST_USE;
/* The same from the whole tensor, of which a rank of a mesh may have a part. */
mx_status mx_exec_write_whole(mx_exec *e, const char *name, const void *src) MX_MUST_USE;
/* The same from the rows (dim 0) that the rank has, whole in the other dims. */
mx_status mx_exec_write_rows(mx_exec *e, const char *name, const void *rows) MX_MUST_USE;
/* The same where rows are another dim. */
mx_status mx_exec_write_rows_at(mx_exec *e, const char *name, int dim,
                                const void *rows) MX_MUST_USE;
mx_status mx_exec_read(mx_exec *e, const char *name, void *dst) MX_MUST_USE;
/* The type of an input or result; NULL when the program has no use for such a name. */
const mx_type *mx_exec_type(const mx_exec *e, const char *name);
mx_status mx_exec_run(mx_exec *e) MX_MUST_USE;

/* Numbers of a run that are read while the next one goes on: copied right after it was started,
 * waited for later. On an asynchronous device the host never waits for the run it has just started.
 *
 *     mx_exec_run(e); mx_readback_copy(&r, e, "loss", 0); mx_readback_mark(&r);
 *     ... the next run is started ...
 *     mx_readback_wait(&r);  r.value[0] is the loss of the first
 */
typedef struct {
    mx_session *session; /* borrows */
    float *value;        /* owns, n of them */
    int n;
    double *clock; /* after the values: what mx_readback_clock asked for */
    void *mark;    /* the device's own; NULL: values are there at once */
} mx_readback;
mx_status mx_readback_open(mx_readback *r, mx_session *s, int n) MX_MUST_USE;
/* float32, to value[i] and, where it is more than a scalar, those after it. */
mx_status mx_readback_copy(mx_readback *r, mx_exec *e, const char *name, int i) MX_MUST_USE;
/* Of a value of float32 or int32: n of its elements from `from` on, as value[to..]. */
typedef struct {
    int64_t from, n, to;
} mx_readback_part;
mx_status mx_readback_copy_part(mx_readback *r, mx_exec *e, const char *name,
                                const mx_readback_part *p) MX_MUST_USE;
/* The device's clock when it comes by, for differences between two runs; nothing where values are
 * there at once. */
mx_status mx_readback_clock(mx_readback *r) MX_MUST_USE;
mx_status mx_readback_mark(mx_readback *r) MX_MUST_USE;
mx_status mx_readback_wait(mx_readback *r) MX_MUST_USE;
void mx_readback_close(mx_readback *r); /* before the session; a zero object is a no-op */

/* --- devices --- */

mx_status mx_device_open_cpu(mx_device **out) MX_MUST_USE;
extern const mx_device_traits mx_cpu_traits, mx_cuda_traits;
/* Of a machine's GPUs this process uses the one at this place, of those that CUDA_VISIBLE_DEVICES
 * names; one that is named alone stays. Before a GPU is opened. */
mx_status mx_device_choose_gpu(int place) MX_MUST_USE;
/* Where the CUDA plug-in is looked for; there may be none. */
void mx_device_cuda_plugin(char *path, size_t cap);

#endif
