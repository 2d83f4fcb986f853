/* library.c - the table of libraries opened at run time. See library.h. */
#include "base/library.h"

#include "base/str.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* size_t f(void): 90501 is 9.5.1 */
static void print_digits(void *version, char *out, size_t cap)
{
    size_t v = ((size_t(*)(void))version)();
    snprintf(out, cap, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}

/* int f(int *): 12040 is 12.4 */
static void print_driver(void *version, char *out, size_t cap)
{
    int v = 0;
    ((int (*)(int *))version)(&v);
    snprintf(out, cap, "CUDA %d.%d", v / 1000, v % 1000 / 10);
}

/* int f(int *): 22809 is 2.28.9 */
static void print_nccl(void *version, char *out, size_t cap)
{
    int v = 0;
    ((int (*)(int *))version)(&v);
    snprintf(out, cap, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

/* int f(int *, int *) */
static void print_pair(void *version, char *out, size_t cap)
{
    int major = 0, minor = 0;
    ((int (*)(int *, int *))version)(&major, &minor);
    snprintf(out, cap, "%d.%d", major, minor);
}

/* const char *f(void): "0.9.75" */
static void print_text(void *version, char *out, size_t cap)
{
    snprintf(out, cap, "%s", ((const char *(*)(void))version)());
}

/* char *f(void): "libcurl/7.88.1 OpenSSL/3.0.11 ..." */
static void print_curl(void *version, char *out, size_t cap)
{
    const char *text = ((const char *(*)(void))version)(), *slash = strchr(text, '/');
    text = slash ? slash + 1 : text;
    snprintf(out, cap, "%.*s", (int)strcspn(text, " "), text);
}

const mx_library mx_libraries[MX_LIBRARY_COUNT] = {
    [MX_LIBRARY_CUDA_DRIVER] = {"CUDA driver",
                                "GPUs",
                                "apt-get install nvidia-driver",
                                true,
                                {"libcuda.so.1"},
                                "cuDriverGetVersion",
                                print_driver},
    [MX_LIBRARY_CUBLASLT] = {"cuBLASLt",
                             "GEMMs on GPUs",
                             "apt-get install libcublas-13-0",
                             true,
                             {"libcublasLt.so.13", "libcublasLt.so.12"},
                             "cublasLtGetVersion",
                             print_digits},
    [MX_LIBRARY_CUDNN] = {"cuDNN",
                          "fast attention on GPUs",
                          "apt-get install libcudnn9-cuda-13",
                          true,
                          {"libcudnn.so.9"},
                          "cudnnGetVersion",
                          print_digits},
    [MX_LIBRARY_NVRTC] = {"NVRTC",
                          "fused kernels on GPUs",
                          "apt-get install cuda-nvrtc-13-0",
                          true,
                          {"libnvrtc.so.13", "libnvrtc.so.12"},
                          "nvrtcVersion",
                          print_pair},
    [MX_LIBRARY_NCCL] = {"NCCL",
                         "ranks on several GPUs",
                         "apt-get install libnccl2",
                         true,
                         {"libnccl.so.2"},
                         "ncclGetVersion",
                         print_nccl},
    [MX_LIBRARY_CURL] = {"libcurl",
                         "downloads from the hub",
                         "apt-get install libcurl4",
                         false,
                         {"libcurl.so.4", "libcurl-gnutls.so.4"},
                         "curl_version",
                         print_curl},
    [MX_LIBRARY_MICROHTTPD] = {"libmicrohttpd",
                               "maxc serve",
                               "apt-get install libmicrohttpd12",
                               false,
                               {"libmicrohttpd.so.12"},
                               "MHD_get_version",
                               print_text},
};

static void *open_file(const mx_library *lib, const char *file, mx_str *tried)
{
    const char *folders[] = {lib->needs_gpu ? getenv("MX_CUDA_LIBS") : NULL, "",
                             lib->needs_gpu ? "/usr/local/cuda/lib64" : NULL};
    for (int i = 0; i < 3; i++) {
        char path[4096];
        if (!folders[i])
            continue;
        snprintf(path, sizeof path, "%s%s%s", folders[i], *folders[i] ? "/" : "", file);
        void *so = dlopen(path, RTLD_NOW | (lib->needs_gpu ? RTLD_GLOBAL : RTLD_LOCAL));
        if (so)
            return so;
        mx_str_addf(tried, "\n  %s", dlerror());
    }
    return NULL;
}

static void *open_any(const mx_library *lib, mx_str *tried)
{
    void *so = NULL;
    for (int i = 0; !so && lib->files[i]; i++)
        so = open_file(lib, lib->files[i], tried);
    return so;
}

mx_status mx_library_open(mx_library_id id, void **out)
{
    const mx_library *lib = &mx_libraries[id];
    mx_str tried = {0};
    mx_status st = MX_OK;
    *out = open_any(lib, &tried);
    if (!*out)
        st = mx_fail(MX_DEVICE, "%s, needed for %s, cannot be opened:%s\nInstall it: %s%s",
                     lib->name, lib->use, mx_str_text(&tried), lib->install,
                     lib->needs_gpu ? ", or let MX_CUDA_LIBS name its folder" : "");
    mx_str_fini(&tried);
    return st;
}

mx_status mx_library_find(mx_library_id id, void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    if (!symbol)
        return mx_fail(MX_DEVICE, "the %s that was found has no function %s: it is too old; %s",
                       mx_libraries[id].name, name, mx_libraries[id].install);
    memcpy(function, &symbol, sizeof symbol);
    return MX_OK;
}

bool mx_library_version(mx_library_id id, char *out, size_t cap)
{
    const mx_library *lib = &mx_libraries[id];
    mx_str tried = {0};
    void *so = open_any(lib, &tried), *version = so ? dlsym(so, lib->version) : NULL;
    mx_str_fini(&tried);
    if (version)
        lib->print(version, out, cap);
    return version != NULL;
}

void mx_plugin_path(const char *variable, const char *file, char *path, size_t cap)
{
    const char *given = getenv(variable);
    if (given && *given) {
        snprintf(path, cap, "%s", given);
        return;
    }
    char self[3000];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    int folder = slash ? (int)(slash - self + 1) : 0;
    snprintf(path, cap, "%.*s../lib/maxc/%s", folder, self, file);
    if (access(path, R_OK) != 0)
        snprintf(path, cap, "%.*s%s", folder, self, file);
}
