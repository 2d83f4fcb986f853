/* device.h - where programs run.
 *
 * A session holds variables by name and any number of programs that share them (a training step, an
 * evaluation, a decode step). Everything is allocated when a program is added; running allocates
 * nothing. Programs run one at a time and share one workspace, as large as the largest needs.
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

#include "base/memory_room.h"
#include "compile/program.h"

typedef struct mx_session mx_session;
typedef struct mx_exec mx_exec;

/* n values of an initial distribution, each a pure function of (seed, stream, its index). */
typedef struct {
    mx_init init;
    mx_dtype dtype;
    int64_t n;
    uint64_t seed, stream;
} mx_fill;

/* n values in host memory on their way to the device, which keeps them as `to`. */
typedef struct {
    void *dst;
    mx_dtype to;
    const void *src;
    mx_dtype from;
    int64_t n;
} mx_freight;

/* What a device must offer. Handles are opaque to the caller. */
typedef struct mx_device {
    const char *name;
    mx_status (*alloc)(struct mx_device *d, void **out, size_t bytes, const char *what);
    /* Host memory, zeroed, that everything here takes like the device's own; NULL where that is
     * host memory anyway. */
    mx_status (*alloc_host)(struct mx_device *d, void **out, size_t bytes, const char *what);
    void (*release)(struct mx_device *d, void *p);
    /* How much `alloc` can still give; NULL where that is host memory. */
    mx_status (*free_bytes)(struct mx_device *d, size_t *bytes);
    mx_status (*write)(struct mx_device *d, void *dst, const void *src, size_t bytes);
    mx_status (*read)(struct mx_device *d, void *dst, const void *src, size_t bytes);
    /* Chooses kernels for a program whose tensors are bound; `state` is the device's own. */
    mx_status (*prepare)(struct mx_device *d, mx_exec *e, void **state);
    mx_status (*run)(struct mx_device *d, mx_exec *e, void *state);
    /* The workspace of a program's steps has moved; NULL: nothing kept says where it was. */
    void (*forget)(struct mx_device *d, void *state);
    void (*drop)(struct mx_device *d, void *state);
    void (*close)(struct mx_device *d);
    /* Copies that wait for nothing, for devices whose `run` returns before the work is done; all
     * NULL where it does not. `late_open` gives host memory that the device can write by itself,
     * `late_take` puts a copy into it behind the work asked for so far, `late_mark` ends the set,
     * `late_clock` the device's clock in seconds, and `late_wait` returns once the device has come
     * past the mark. */
    mx_status (*late_open)(struct mx_device *d, size_t bytes, void **host, void **late);
    mx_status (*late_take)(struct mx_device *d, void *dst, const void *src, size_t bytes);
    mx_status (*late_clock)(struct mx_device *d, double *dst);
    mx_status (*late_mark)(struct mx_device *d, void *late);
    mx_status (*late_wait)(struct mx_device *d, void *late);
    void (*late_close)(struct mx_device *d, void *host, void *late);
    /* The first values of a variable, and a copy in another float type, made on the device itself;
     * NULL where the host does it. `fill` may refuse what it cannot make. */
    mx_status (*fill)(struct mx_device *d, void *dst, const mx_fill *f);
    mx_status (*convert)(struct mx_device *d, void *dst, mx_dtype to, const void *src,
                         mx_dtype from, int64_t n);
    /* Lanes bring large data into device memory; all NULL where the host writes that itself. A lane
     * belongs to one thread, and lanes work beside each other. `lane_slot` gives slot_bytes of host
     * memory that the device reads by itself, page-aligned, once the copy that last used it is
     * through; `lane_send` starts the copy of values that lie in it. `lane_close` waits for all
     * copies; NULL is a no-op. */
    mx_status (*lane_open)(struct mx_device *d, size_t slot_bytes, void **lane);
    mx_status (*lane_slot)(struct mx_device *d, void *lane, void **host);
    mx_status (*lane_send)(struct mx_device *d, void *lane, const mx_freight *f);
    mx_status (*lane_close)(struct mx_device *d, void *lane);
    bool gpu_work;  /* workspace is what GPU kernels need, not the CPU's */
    bool any_order; /* sums may be made in any order: faster in places, not the same bits twice */
    bool search; /* algorithms are timed and the fastest are kept, where the device can */
} mx_device;

/* Compiles what the CUDA device would generate for this program, for an architecture ("sm_90a"),
 * into the cache that the device reads. Needs the plug-in and NVRTC, no GPU. Adds to *n_kernels. */
mx_status mx_device_compile_kernels(const mx_program *p, const char *arch,
                                    int *n_kernels) MX_MUST_USE;
/* Where compiled kernels and choices of algorithms are kept; made when absent. */
void mx_device_cache_dir(char *path, size_t cap);

/* One node of a program with its memory bound. */
typedef struct {
    const mx_node *node;
    mx_call call;
    const char *label; /* "model.layers.3.mlp matmul": for crash reports and profiles */
} mx_exec_step;

struct mx_exec {
    mx_session *session;       /* borrows */
    const mx_program *program; /* borrows */
    char *given;               /* owns; inputs and constants */
    char *scratch;             /* other values; owns it, unless `shares` */
    char *stowed;              /* for values that wait in host memory; NULL: none. Likewise */
    bool shares;               /* they are the session's */
    char *slot;                /* borrows; for values shared with other programs (mx_kept) */
    size_t work_bytes;         /* of the session's workspace, what this program was planned with */
    mx_exec_step *step;        /* nodes that do something, in order */
    int n_steps;
    mx_arena arena;
    void *state;
    mx_status failed; /* of a collective during a run */
    double *took; /* borrows; begin and end of every step in seconds; NULL: not measured */
    mx_exec *next;
};

/* device: cpu, cuda, or auto: a GPU where the plug-in and a driver find one, else the CPU.
 * n_threads 0: what OpenMP offers. */
mx_status mx_session_open(mx_session **out, const char *device, int n_threads) MX_MUST_USE;
void mx_session_close(mx_session *s);
int mx_session_threads(const mx_session *s);
mx_device *mx_session_device(mx_session *s);
/* Programs added from now on need not give the same bits twice. */
void mx_session_allow_any_order(mx_session *s);
/* Programs added from now on time the algorithms of their products. */
void mx_session_search(mx_session *s);

/* Where collectives of programs added from now on find their group: of these axes (ir/mesh.h), for
 * this rank. Without it they are alone. */
typedef struct mx_process_group *(*mx_group_finder)(void *ctx, unsigned axes);
void mx_session_set_groups(mx_session *s, mx_group_finder find, void *ctx);

mx_status mx_session_add(mx_session *s, const mx_program *p, mx_exec **out) MX_MUST_USE;
/* Memory that programs added from now on work in, where they fit, instead of having their own: what
 * one has computed there is gone when another runs. Once a session. */
mx_status mx_session_share(mx_session *s, size_t scratch_bytes, size_t host_bytes) MX_MUST_USE;
/* What a program takes of it. */
size_t mx_program_shared_bytes(const mx_program *p);
/* The same as mx_session_add with values in a slot, device memory of the caller's. A program is
 * added once for each of its slots. */
mx_status mx_session_add_slot(mx_session *s, const mx_program *p, void *slot,
                              mx_exec **out) MX_MUST_USE;
void mx_exec_close(mx_exec *e); /* before its session is; variables stay. NULL is a no-op */
/* Gives every variable that has not been written its initial value:
 * a pure function of (seed, name). */
mx_status mx_session_init(mx_session *s, uint64_t seed) MX_MUST_USE;

/* Variables: by name, whole. Types are the variable's own. */
typedef struct {
    const char *name;
    mx_type type;
    mx_var_attr attr;
    const char *axes;
    const struct mx_box *box; /* the part of the whole tensor that this is; NULL: the whole */
    void *data; /* device memory */
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
/* Does mx_var.data lie in memory that the host can read? */
bool mx_session_on_host(const mx_session *s);
/* What its device can still give; on the CPU what the process can. */
mx_memory_room mx_session_room(const mx_session *s);
/* Copies in the compute dtype follow their weights; call after writing weights. */
mx_status mx_session_refresh_copies(mx_session *s) MX_MUST_USE;

/* Inputs and named roots of one program. */
mx_status mx_exec_write(mx_exec *e, const char *name, const void *src) MX_MUST_USE;
/* The same from the whole tensor, of which a rank of a mesh may have a part. */
mx_status mx_exec_write_whole(mx_exec *e, const char *name, const void *src) MX_MUST_USE;
mx_status mx_exec_read(mx_exec *e, const char *name, void *dst) MX_MUST_USE;
/* The tensor itself (host memory on the CPU device); data NULL when there is no such name. */
mx_tensor mx_exec_tensor(mx_exec *e, const char *name);
mx_status mx_exec_run(mx_exec *e) MX_MUST_USE;

/* Numbers of a run that are read while the next one goes on: taken right after it was started,
 * waited for later. On a device that works by itself the host never stands still for them.
 *
 *     mx_exec_run(e); mx_exec_take(e, "loss", &t, 0); mx_late_mark(&t);
 *     ... the next run is started ...
 *     mx_late_wait(&t);  t.value[0] is the loss of the first
 */
typedef struct {
    mx_session *session; /* borrows */
    float *value;        /* owns, n of them */
    int n;
    double *clock; /* behind the values: what mx_late_clock asked for */
    void *late;    /* the device's own; NULL: values are there at once */
} mx_late;
mx_status mx_late_open(mx_late *t, mx_session *s, int n) MX_MUST_USE;
/* float32, to value[i] and, where it is more than a scalar, those behind it. */
mx_status mx_exec_take(mx_exec *e, const char *name, mx_late *t, int i) MX_MUST_USE;
/* The device's clock when it comes by, for differences between two runs; nothing where values are
 * there at once. */
mx_status mx_late_clock(mx_late *t) MX_MUST_USE;
mx_status mx_late_mark(mx_late *t) MX_MUST_USE;
mx_status mx_late_wait(mx_late *t) MX_MUST_USE;
void mx_late_close(mx_late *t); /* before the session; a zero object is a no-op */

/* The devices. */
mx_status mx_device_open_cpu(mx_device **out) MX_MUST_USE;
/* Through the plug-in: an error when it, a driver or a GPU is not there. */
mx_status mx_device_open_cuda_plugin(mx_device **out) MX_MUST_USE;
/* Where the plug-in is looked for; there may be none. */
void mx_device_cuda_plugin(char *path, size_t cap);
bool mx_device_has_driver(void);

#endif
