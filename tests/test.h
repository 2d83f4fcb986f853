/* test.h - the test runner's side of a test.
 *
 *     MX_TEST(arena_gives_zeroed_memory)
 *     {
 *         mx_arena a = {0}; ...
 *         MX_CHECK(p[0] == 0, "p[0]=%d", p[0]);
 *     }
 *
 * Tests are scanned out of tests/ at build time and each runs in a process of its own with a
 * time limit, so a crash or a hang is one failed test. A failed check prints and the test goes on.
 */
#ifndef MX_TEST_H
#define MX_TEST_H

#include "base/status.h"

typedef struct {
    const char *name;
    void (*run)(void);
} mx_test_entry;
extern const mx_test_entry mx_test_table[];

#define MX_TEST(name)                                                                              \
    void mx_test_##name(void);                                                                     \
    void mx_test_##name(void)

void mx_check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
    MX_PRINTF(4, 5);
#define MX_CHECK(cond, ...)                                                                        \
    ((cond) ? (void)0 : mx_check_failed(__FILE__, __LINE__, #cond, "" __VA_ARGS__))
/* A status that must be OK (frees it, and prints it when it is not). */
#define MX_CHECK_OK(expr) mx_check_ok(__FILE__, __LINE__, (expr))
void mx_check_ok(const char *file, int line, mx_status s);
/* A status that must be an error whose text contains `part`. */
#define MX_CHECK_ERROR(expr, part) mx_check_error(__FILE__, __LINE__, (expr), (part))
void mx_check_error(const char *file, int line, mx_status s, const char *part);

#endif
