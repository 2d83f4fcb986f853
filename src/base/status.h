/* status.h - how the outside world's failures travel.
 *
 * A function that can fail because of a file, a configuration, a device or user-sized memory
 * returns an mx_status: NULL when all is well, otherwise an owned error with a code and a message.
 * The caller must look at it (the compiler warns), pass it on (MX_TRY), or drop it
 * (mx_status_free). A bug of ours is not a status: MX_ASSERT prints the values and aborts.
 *
 * A message says what was expected, what was found, where, and what to do next.
 */
#ifndef MX_BASE_STATUS_H
#define MX_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

/* The codes are the program's exit statuses. */
typedef enum {
    MX_CHECK_FAILED = 1, /* a comparison is out of tolerance */
    MX_USAGE = 2,        /* command line or configuration */
    MX_INPUT = 3,        /* bad or missing input file */
    MX_MEMORY = 4,       /* would not fit */
    MX_DEVICE = 5,       /* device, communicator or I/O failure */
    MX_STOPPED = 75,     /* stopped on request, durable checkpoint written */
} mx_code;

typedef struct mx_error mx_error;
typedef mx_error *mx_status;

#define MX_OK ((mx_status)0)
#define MX_MUST_USE __attribute__((warn_unused_result))
#define MX_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

mx_status mx_fail(mx_code code, const char *fmt, ...) MX_PRINTF(2, 3) MX_MUST_USE
    __attribute__((returns_nonnull));
/* The same, with strerror(errno) appended. */
mx_status mx_fail_errno(mx_code code, const char *fmt, ...) MX_PRINTF(2, 3) MX_MUST_USE
    __attribute__((returns_nonnull));
/* Takes `s`, gives an error whose message starts with the formatted text and ": ". OK stays OK. */
mx_status mx_status_wrap(mx_status s, const char *fmt, ...) MX_PRINTF(2, 3) MX_MUST_USE;
/* Takes both; messages are joined by a newline. Used to report all problems at once. */
mx_status mx_status_join(mx_status a, mx_status b) MX_MUST_USE;

mx_code mx_status_code(mx_status s);        /* 0 for MX_OK */
const char *mx_status_text(mx_status s);    /* "" for MX_OK; borrowed */
void mx_status_free(mx_status s);           /* MX_OK is a no-op */

#define MX_TRY(expr)                                                                               \
    do {                                                                                           \
        mx_status try_status_ = (expr);                                                            \
        if (try_status_)                                                                           \
            return try_status_;                                                                    \
    } while (0)

/* With resources to release: `MX_TRY_OUT(st, expr)` jumps to the function's one `out:` label. */
#define MX_TRY_OUT(st, expr)                                                                       \
    do {                                                                                           \
        (st) = (expr);                                                                             \
        if (st)                                                                                    \
            goto out;                                                                              \
    } while (0)

/* Test builds verify the graph between passes. */
#ifdef MX_TEST_BUILD
enum { MX_VERIFY_PASSES = 1 };
#else
enum { MX_VERIFY_PASSES = 0 };
#endif

void mx_assert_failed(const char *file, int line, const char *cond, const char *fmt, ...)
    MX_PRINTF(4, 5) __attribute__((noreturn));

/* MX_ASSERT(n > 0, "n=%d", n): always on. */
#define MX_ASSERT(cond, ...)                                                                       \
    ((cond) ? (void)0 : mx_assert_failed(__FILE__, __LINE__, #cond, "" __VA_ARGS__))

#endif
