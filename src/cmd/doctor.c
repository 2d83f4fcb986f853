/* doctor.c - maxc doctor: what hardware and libraries were found, what is missing, what installs
 * it.
 *
 * Libraries are those of base/library.h: what the program opens at run time. One that is missing is
 * a problem only where it would be used: without a GPU the libraries for it are not needed.
 */
#include "base/json_doc.h"
#include "base/library.h"
#include "base/machine.h"
#include "base/simd.h"
#include "cmd/verb.h"
#include "device/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    bool found;
    char version[128];
} finding;

/* ---- GPUs, through the driver's own interface ---- */

typedef struct {
    char name[128];
    size_t memory_bytes;
    int major, minor;
} gpu;

static int find_gpus(gpu *g, int cap)
{
    void *h = NULL;
    mx_status st = mx_library_open(MX_LIBRARY_CUDA_DRIVER, &h);
    mx_status_free(st);
    if (!h)
        return 0;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(h, "cuInit");
    int (*count)(int *) = (int (*)(int *))dlsym(h, "cuDeviceGetCount");
    int (*name)(char *, int, int) = (int (*)(char *, int, int))dlsym(h, "cuDeviceGetName");
    int (*memory)(size_t *, int) = (int (*)(size_t *, int))dlsym(h, "cuDeviceTotalMem_v2");
    int (*attribute)(int *, int, int) = (int (*)(int *, int, int))dlsym(h, "cuDeviceGetAttribute");
    int n = 0;
    if (!init || !count || !name || !memory || !attribute || init(0) != 0 || count(&n) != 0)
        return 0;
    n = n < cap ? n : cap;
    for (int i = 0; i < n; i++) {
        g[i] = (gpu){.name = "?"};
        name(g[i].name, sizeof g[i].name, i);
        memory(&g[i].memory_bytes, i);
        attribute(&g[i].major, 75, i); /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR */
        attribute(&g[i].minor, 76, i);
    }
    return n;
}

/* ---- what is printed ---- */

typedef struct {
    mx_machine machine;
    finding found[MX_LIBRARY_COUNT];
    gpu gpus[64];
    int n_gpus;
    char plugin[4096]; /* the CUDA plug-in; empty: none was built */
} report;

static bool is_missing(const report *r, int i)
{
    return !r->found[i].found && (!mx_libraries[i].needs_gpu || r->machine.nvidia_devices > 0);
}

/* Facts that will hurt, each with what to do. */
static json_t *advice(const report *r)
{
    const mx_machine *m = &r->machine;
    json_t *list = json_array();
    bool fma = strstr(m->features, "fma") || strstr(m->features, "asimd");
    if (!fma)
        json_array_append_new(list,
                              json_string("the CPU has no AVX2/FMA: training on it will be slow"));
    if (m->open_files < 1024)
        json_array_append_new(
            list, json_string("fewer than 1024 open files are allowed: ulimit -n 65536"));
    if (m->shm_bytes < 64 << 20)
        json_array_append_new(list,
                              json_string("/dev/shm has less than 64 MiB free; a run keeps its "
                                          "state there when it cannot save: mount it larger, "
                                          "or set local_checkpoint_directory"));
    for (int i = 0; i < MX_LIBRARY_COUNT; i++)
        if (is_missing(r, i))
            json_array_append_new(list, json_sprintf("%s is missing (%s): %s", mx_libraries[i].name,
                                                     mx_libraries[i].use, mx_libraries[i].install));
    if (!*r->plugin && m->nvidia_devices > 0)
        json_array_append_new(list, json_string("there is a GPU, but no CUDA plug-in was built: "
                                                "make cuda (needs nvcc)"));
    return list;
}

static json_t *to_json(const report *r)
{
    const mx_machine *m = &r->machine;
    json_t *libraries = json_array(), *gpus = json_array();
    for (int i = 0; i < MX_LIBRARY_COUNT; i++)
        json_array_append_new(
            libraries, json_pack("{s:s, s:s, s:b, s:s, s:b}", "name", mx_libraries[i].name, "use",
                                 mx_libraries[i].use, "found", r->found[i].found, "version",
                                 r->found[i].version, "missing", is_missing(r, i)));
    for (int i = 0; i < r->n_gpus; i++)
        json_array_append_new(gpus, json_pack("{s:s, s:I, s:i, s:i}", "name", r->gpus[i].name,
                                              "memory_bytes", (json_int_t)r->gpus[i].memory_bytes,
                                              "compute_major", r->gpus[i].major, "compute_minor",
                                              r->gpus[i].minor));
    return json_pack(
        "{s:{s:s, s:s, s:i, s:i, s:f}, s:{s:I, s:I, s:I}, s:s, s:I, s:I, s:s, s:s, s:o, s:o, s:o}",
        "cpu", "name", m->cpu, "features", m->features, "cores_online", m->cores_online,
        "cores_usable", m->cores_usable, "quota", m->cpu_quota, "memory", "total_bytes",
        (json_int_t)m->memory_bytes, "free_bytes", (json_int_t)m->free_bytes, "limit_bytes",
        (json_int_t)m->limit_bytes, "kernel", m->kernel, "open_files", (json_int_t)m->open_files,
        "shm_bytes", (json_int_t)m->shm_bytes, "kernels", mx_simd_name(mx_simd_level()),
        "cuda_plugin", r->plugin, "libraries", libraries, "gpus", gpus, "advice", advice(r));
}

static void print_text(const report *r)
{
    const mx_machine *m = &r->machine;
    char a[32], b[32], c[32];
    printf("cpu       %s, %d of %d cores usable", m->cpu, m->cores_usable, m->cores_online);
    printf(m->cpu_quota > 0 ? ", quota %.1f cores\n" : "\n", m->cpu_quota);
    printf("          %s\n", m->features);
    printf("memory    %s, %s free", mx_format_bytes(a, sizeof a, (double)m->memory_bytes),
           mx_format_bytes(b, sizeof b, (double)m->free_bytes));
    printf(m->limit_bytes ? ", limit %s\n" : "\n",
           mx_format_bytes(c, sizeof c, (double)m->limit_bytes));
    printf("system    %s, %lld open files\n", m->kernel, (long long)m->open_files);
    printf("kernels   %s\n", mx_simd_name(mx_simd_level()));
    for (int i = 0; i < r->n_gpus; i++)
        printf("gpu %-3d   %s, %s, compute %d.%d\n", i, r->gpus[i].name,
               mx_format_bytes(a, sizeof a, (double)r->gpus[i].memory_bytes), r->gpus[i].major,
               r->gpus[i].minor);
    if (r->n_gpus == 0)
        printf("gpu       none\n");
    printf("plug-in   %s\n", *r->plugin ? r->plugin : "none for CUDA");
    for (int i = 0; i < MX_LIBRARY_COUNT; i++)
        printf("%-13s %-9s %-10s for %s\n", mx_libraries[i].name,
               r->found[i].found  ? "found"
               : is_missing(r, i) ? "missing"
                                  : "no need",
               r->found[i].version, mx_libraries[i].use);
    json_t *list = advice(r), *line;
    size_t i;
    if (json_array_size(list))
        printf("\n");
    json_array_foreach(list, i, line) printf("- %s\n", json_string_value(line));
    json_decref(list);
}

static mx_status run(mx_invocation *inv)
{
    report r = {0};
    mx_machine_read(&r.machine);
    for (int i = 0; i < MX_LIBRARY_COUNT; i++)
        r.found[i].found = mx_library_version(i, r.found[i].version, sizeof r.found[i].version);
    mx_device_cuda_plugin(r.plugin, sizeof r.plugin);
    if (access(r.plugin, R_OK) != 0)
        *r.plugin = 0;
    r.n_gpus = find_gpus(r.gpus, (int)(sizeof r.gpus / sizeof *r.gpus));
    if (strcmp(mx_config_text(inv->config, "format"), "json") != 0) {
        print_text(&r);
        return MX_OK;
    }
    json_t *all = to_json(&r);
    char *text = mx_json_text(all, 2);
    printf("%s\n", text);
    mx_free(text);
    json_decref(all);
    return MX_OK;
}

static const mx_key keys[] = {MX_KEY_FORMAT, {0}};

const mx_verb mx_verb_doctor = {
    .name = "doctor",
    .doc = "what hardware and libraries were found, what is missing, what installs it",
    .usage = "[format=json]",
    .keys = keys,
    .run = run,
};
