/* library.h - libraries that are opened when they are first needed and are not linked.
 *
 * One table says what each is for, by which names it is looked for and what installs it: the code
 * that opens a library and `maxc doctor` read the same lines, so doctor names what is used and
 * nothing else.
 */
#ifndef MX_BASE_LIBRARY_H
#define MX_BASE_LIBRARY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    MX_LIBRARY_CUDA_DRIVER,
    MX_LIBRARY_CUBLASLT,
    MX_LIBRARY_CUDNN,
    MX_LIBRARY_NVRTC,
    MX_LIBRARY_NCCL,
    MX_LIBRARY_CURL,
    MX_LIBRARY_MICROHTTPD,
    MX_LIBRARY_COUNT
} mx_library_id;

typedef struct {
    const char *name, *use, *install;
    bool needs_gpu;                                      /* of no use where there is no GPU */
    const char *files[3];                                /* tried in order; ends with NULL */
    const char *version;                                 /* the function that says the version */
    void (*print)(void *version, char *out, size_t cap); /* calls it */
} mx_library;

extern const mx_library mx_libraries[MX_LIBRARY_COUNT];

/* Libraries of CUDA are looked for in the folder that MX_CUDA_LIBS names, then where the loader
 * looks (LD_LIBRARY_PATH, ld.so.cache), then in /usr/local/cuda/lib64; others where the loader
 * looks. The error names what was tried and what to install. A library stays open: some do not
 * survive being unloaded. */
mx_status mx_library_open(mx_library_id id, void **out) MX_MUST_USE;
/* A function of an open library. */
mx_status mx_library_find(mx_library_id id, void *library, const char *name,
                          void *function) MX_MUST_USE;
/* False where it cannot be opened. */
bool mx_library_version(mx_library_id id, char *out, size_t cap);

/* Where a plug-in of the program is: the file that the environment variable names, else beside the
 * program (build tree) or in ../lib/maxc (installed). */
void mx_plugin_path(const char *variable, const char *file, char *path, size_t cap);

#endif
