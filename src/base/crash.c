/* crash.c - fault handlers and stack traces.
 *
 * The handler runs on a stack of its own, so that an overflowing stack can still be reported. Only
 * write(2) and libbacktrace (which allocates with mmap) are used in it. A second fault inside the
 * handler ends the process at once; other threads that fault meanwhile wait. An alarm bounds the
 * whole report.
 *
 * The stacks of other threads are taken by the threads themselves: each gets a real-time signal,
 * prints and says so. A thread that blocks the signal or hangs in the kernel is described from
 * /proc instead.
 */
#include "base/crash.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(MX_HAVE_BACKTRACE) && __has_include(<backtrace.h>)
#include <backtrace.h>
#define USE_LIBBACKTRACE 1
#endif

enum { ALT_STACK_BYTES = 256 * 1024, REPORT_SECONDS = 20, ANSWER_SECONDS = 2, MAX_FRAMES = 64 };

static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

/* Process-wide by nature: a signal handler has no argument of ours. */
static struct {
    _Atomic int64_t step;
    const char *_Atomic node;
    atomic_int log_fd;     /* descriptor + 1; 0 is none */
    atomic_int dying;      /* thread id of the first that faulted */
    atomic_int dump_fd;    /* where threads print when asked */
    atomic_int dumped;     /* the last thread that has printed */
    void *_Atomic symbols; /* libbacktrace's state */
} now = {.step = -1};

/* --- writing without stdio --- */
typedef struct {
    char text[512];
    size_t n;
} line;

static void put(line *l, const char *s)
{
    while (s && *s && l->n < sizeof l->text - 1)
        l->text[l->n++] = *s++;
}

static void put_number(line *l, uint64_t v, unsigned base)
{
    char digits[24];
    int k = sizeof digits;
    digits[--k] = 0;
    do {
        digits[--k] = "0123456789abcdef"[v % base];
        v /= base;
    } while (v);
    put(l, digits + k);
}

static void emit(line *l, int fd)
{
    l->text[l->n < sizeof l->text - 1 ? l->n : sizeof l->text - 2] = '\n';
    l->n += l->n < sizeof l->text - 1;
    for (size_t at = 0; at < l->n;) {
        ssize_t k = write(fd, l->text + at, l->n - at);
        if (k <= 0)
            break;
        at += (size_t)k;
    }
    l->n = 0;
}

/* --- one stack --- */
typedef struct {
    int fd, n;
    uintptr_t from; /* frames before this one are ours or the kernel's; 0: print all */
} printer;

/* Where the thread was when the signal came, so that the handler's own frames are left out. */
static uintptr_t interrupted(const void *context)
{
    const ucontext_t *u = context;
#if defined(__x86_64__)
    return u ? (uintptr_t)u->uc_mcontext.gregs[REG_RIP] : 0;
#elif defined(__aarch64__)
    return u ? (uintptr_t)u->uc_mcontext.pc : 0;
#else
    return 0 * (uintptr_t)u;
#endif
}

#ifdef USE_LIBBACKTRACE
static void ignore_error(void *data, const char *text, int code)
{
    (void)data, (void)text, (void)code;
}

static int print_frame(void *data, uintptr_t pc, const char *file, int number, const char *function)
{
    printer *p = data;
    line l = {.n = 0};
    if (pc == UINTPTR_MAX) /* the end mark of some unwinders */
        return 0;
    if (p->from && pc != p->from && pc + 1 != p->from)
        return 0;
    p->from = 0;
    put(&l, "  #");
    put_number(&l, (uint64_t)p->n++, 10);
    put(&l, " ");
    if (function) {
        put(&l, function);
    } else {
        put(&l, "0x");
        put_number(&l, pc, 16);
    }
    if (file) {
        const char *src = strstr(file, "/src/"), *tests = strstr(file, "/tests/");
        put(&l, " at ");
        put(&l, src ? src + 1 : tests ? tests + 1 : file);
        put(&l, ":");
        put_number(&l, (uint64_t)(number > 0 ? number : 0), 10);
    }
    emit(&l, p->fd);
    return p->n >= MAX_FRAMES;
}

static void print_stack(int fd, int skip, uintptr_t from)
{
    struct backtrace_state *state = atomic_load(&now.symbols);
    printer p = {.fd = fd, .from = from};
    if (!state) {
        state = backtrace_create_state(NULL, 1, ignore_error, NULL);
        atomic_store(&now.symbols, state);
    }
    if (!state)
        return;
    backtrace_full(state, skip, print_frame, ignore_error, &p);
    if (p.from) { /* the frame was not met, as after a jump to 0: print all */
        p.from = 0;
        backtrace_full(state, skip, print_frame, ignore_error, &p);
    }
}
#else
static void print_stack(int fd, int skip, uintptr_t from)
{
    void *frames[MAX_FRAMES];
    int n = backtrace(frames, MAX_FRAMES), first = from ? 0 : skip;
    for (int i = 0; from && i < n; i++)
        if ((uintptr_t)frames[i] == from)
            first = i;
    if (n > first)
        backtrace_symbols_fd(frames + first, n - first, fd);
}
#endif

/* The calling thread's stack, one "  #n function at file:line" a line; `skip` innermost frames left
 * out. */
static __attribute__((noinline)) void stack_print(int fd, int skip)
{
    print_stack(fd, skip + 1, 0);
}

/* --- dying --- */
static const char *signal_name(int sig)
{
    return sig == SIGSEGV   ? "SIGSEGV"
           : sig == SIGBUS  ? "SIGBUS"
           : sig == SIGFPE  ? "SIGFPE"
           : sig == SIGILL  ? "SIGILL"
           : sig == SIGABRT ? "SIGABRT"
                            : "signal";
}

static int thread_id(void)
{
    return (int)syscall(SYS_gettid);
}

static void thread_name(int tid, char name[32])
{
    char path[64];
    line l = {.n = 0};
    put(&l, "/proc/self/task/");
    put_number(&l, (uint64_t)tid, 10);
    put(&l, "/comm");
    memcpy(path, l.text, l.n);
    path[l.n] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, name, 31) : 0;
    if (fd >= 0)
        close(fd);
    n = n > 0 && name[n - 1] == '\n' ? n - 1 : n;
    name[n > 0 ? n : 0] = 0;
}

static void put_where(line *l)
{
    const char *node = atomic_load(&now.node);
    int64_t step = atomic_load(&now.step);
    if (step >= 0) {
        put(l, ", step ");
        put_number(l, (uint64_t)step, 10);
    }
    if (node) {
        put(l, ", node ");
        put(l, node);
    }
}

static void report(int fd, int sig, const siginfo_t *info, const void *context)
{
    char name[32];
    line l = {.n = 0};
    int tid = thread_id();
    thread_name(tid, name);
    put(&l, "\nmaxc: ");
    put(&l, signal_name(sig));
    if (sig == SIGSEGV || sig == SIGBUS || sig == SIGFPE) {
        put(&l, " (address 0x");
        put_number(&l, (uint64_t)(uintptr_t)info->si_addr, 16);
        put(&l, ")");
    }
    put(&l, " in thread ");
    put_number(&l, (uint64_t)tid, 10);
    put(&l, " (");
    put(&l, name);
    put(&l, ")");
    put_where(&l);
    emit(&l, fd);
    print_stack(fd, 0, interrupted(context));
}

static void on_fatal(int sig, siginfo_t *info, void *context)
{
    int expected = 0, tid = thread_id();
    if (!atomic_compare_exchange_strong(&now.dying, &expected, tid)) {
        if (expected == tid)
            _exit(128 + sig); /* the report itself faulted */
        for (;;)
            pause(); /* another thread is reporting and will end the process */
    }
    alarm(REPORT_SECONDS);
    int log = atomic_load(&now.log_fd) - 1;
    report(STDERR_FILENO, sig, info, context);
    if (log >= 0 && log != STDERR_FILENO) {
        report(log, sig, info, context);
        fsync(log);
    }
    alarm(0);
    signal(sig, SIG_DFL);
    raise(sig); /* pending until this handler returns, then fatal with the right status */
}

static void on_dump(int sig, siginfo_t *info, void *context)
{
    int saved = errno, fd = atomic_load(&now.dump_fd) - 1;
    (void)sig, (void)info;
    if (fd >= 0)
        print_stack(fd, 0, interrupted(context));
    atomic_store(&now.dumped, thread_id());
    errno = saved;
}

static int dump_signal(void)
{
    return SIGRTMIN + 5;
}

mx_status mx_crash_install(void)
{
    /* mapped, not static: a page of it may be unmapped by a sanitizer's thread exit */
    void *stack =
        mmap(NULL, ALT_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED)
        return mx_fail_errno(MX_MEMORY, "no memory for the stack of the crash handler");
    if (sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = ALT_STACK_BYTES}, NULL))
        return mx_fail_errno(MX_DEVICE, "cannot set the stack of the crash handler");
    struct sigaction act = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&act.sa_mask);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        if (sigaction(fatal[i], &act, NULL))
            return mx_fail_errno(MX_DEVICE, "cannot handle signal %d", fatal[i]);
#ifdef USE_LIBBACKTRACE
    if (!atomic_load(&now.symbols))
        atomic_store(&now.symbols, backtrace_create_state(NULL, 1, ignore_error, NULL));
#else
    void *frame;
    backtrace(&frame, 1); /* loads libgcc now, as a handler must not */
#endif
    return MX_OK;
}

void mx_crash_set_log(int fd)
{
    atomic_store(&now.log_fd, fd + 1);
}

void mx_crash_set_step(int64_t step)
{
    atomic_store_explicit(&now.step, step, memory_order_relaxed);
}

void mx_crash_set_node(const char *node)
{
    atomic_store_explicit(&now.node, node, memory_order_relaxed);
}

const char *mx_crash_node(void)
{
    return atomic_load(&now.node);
}

/* --- every thread --- */
static bool wait_for(int tid, int seconds)
{
    for (int i = 0; i < seconds * 1000; i++) {
        if (atomic_load(&now.dumped) == tid)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

/* What the kernel says of a thread that does not answer: its state and where it sleeps. */
static void describe_silent(int fd, int tid)
{
    char path[64], text[256] = "", wchan[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    int f = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = f >= 0 ? read(f, text, sizeof text - 1) : 0;
    if (f >= 0)
        close(f);
    text[n > 0 ? n : 0] = 0;
    const char *paren = strrchr(text, ')');
    snprintf(path, sizeof path, "/proc/self/task/%d/wchan", tid);
    f = open(path, O_RDONLY | O_CLOEXEC);
    n = f >= 0 ? read(f, wchan, sizeof wchan - 1) : 0;
    if (f >= 0)
        close(f);
    wchan[n > 0 ? n : 0] = 0;
    line l = {.n = 0};
    put(&l, "  does not answer; the kernel says: state ");
    put(&l, paren && paren[1] == ' ' ? (char[2]){paren[2], 0} : "?");
    put(&l, ", in ");
    put(&l, *wchan && strcmp(wchan, "0") != 0 ? wchan : "user code");
    emit(&l, fd);
}

static bool print_thread(int fd, int tid)
{
    char name[32];
    line l = {.n = 0};
    thread_name(tid, name);
    put(&l, "thread ");
    put_number(&l, (uint64_t)tid, 10);
    put(&l, " (");
    put(&l, name);
    put(&l, tid == thread_id() ? "), this one:" : "):");
    emit(&l, fd);
    if (tid == thread_id()) {
        stack_print(fd, 1);
        return true;
    }
    atomic_store(&now.dumped, 0);
    if (syscall(SYS_tgkill, getpid(), tid, dump_signal()) == 0 && wait_for(tid, ANSWER_SECONDS))
        return true;
    describe_silent(fd, tid);
    return false;
}

int mx_stack_print_all(int fd)
{
    struct sigaction act = {.sa_sigaction = on_dump, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigemptyset(&act.sa_mask);
    atomic_store(&now.dump_fd, fd + 1);
    sigaction(dump_signal(), &act, NULL);
    int answered = 0;
    print_stack(-1, 0, 0); /* prints nowhere: reads the debug information, about a second */
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));) {
        long tid = strtol(e->d_name, NULL, 10);
        if (tid > 0)
            answered += print_thread(fd, (int)tid);
    }
    if (d)
        closedir(d);
    /* the handler stays: a thread that was silent may still receive the signal, whose default is
     * death */
    atomic_store(&now.dump_fd, 0);
    return answered;
}
