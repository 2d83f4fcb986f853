/* checkpoint_read.c - listing, choosing, verifying and opening checkpoints. */
#include "store/checkpoint_read.h"

#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* "0", "300": digits without a leading zero, so that a step has one name. */
static bool parse_step(const char *name, int64_t *step)
{
    size_t n = strlen(name);
    if (!n || n > 18 || strspn(name, "0123456789") != n || (n > 1 && name[0] == '0'))
        return false;
    return mx_parse_i64(name, step);
}

static int by_step(const void *a, const void *b)
{
    int64_t x = ((const mx_ckpt_entry *)a)->step, y = ((const mx_ckpt_entry *)b)->step;
    return (x > y) - (x < y);
}

mx_status mx_ckpt_list(const char *root, mx_arena *a, mx_ckpt_entry **out, int *n)
{
    mx_ckpt_entry *list = NULL;
    int cap = 0;
    *n = 0;
    *out = NULL;
    DIR *d = opendir(root);
    if (!d)
        return errno == ENOENT ? MX_OK : mx_fail_errno(MX_INPUT, "%s: cannot list", root);
    for (struct dirent *e; (e = readdir(d));) {
        int64_t step;
        struct stat s;
        if (!parse_step(e->d_name, &step))
            continue;
        const char *path = mx_arena_printf(a, "%s/%s", root, e->d_name);
        if (stat(path, &s) || !S_ISDIR(s.st_mode))
            continue;
        MX_GROW(list, *n, cap);
        list[(*n)++] = (mx_ckpt_entry){step, path};
    }
    closedir(d);
    if (*n) {
        qsort(list, (size_t)*n, sizeof *list, by_step);
        *out = mx_arena_copy(a, list, sizeof *list * (size_t)*n);
    }
    mx_free(list);
    return MX_OK;
}

/* Reads the manifest (kept in *out) and checks the directory and the step its name claims. */
static mx_status verify(const char *path, mx_check_level level, int n_threads, json_t **out)
{
    MX_TRY(mx_manifest_read(path, out));
    mx_status st = mx_manifest_check(path, *out, level, n_threads);
    const char *base = strrchr(path, '/');
    int64_t step;
    mx_manifest_head head;
    mx_manifest_get_head(*out, &head);
    if (!st && parse_step(base ? base + 1 : path, &step) && step != head.step)
        st = mx_fail(MX_INPUT,
                     "%s holds step %" PRId64 ": the folder was renamed or copied over "
                     "another; give it its own step's name",
                     path, head.step);
    if (st) {
        json_decref(*out);
        *out = NULL;
    }
    return st;
}

mx_status mx_ckpt_verify(const char *path, mx_check_level level, int n_threads)
{
    json_t *manifest = NULL;
    mx_status st = verify(path, level, n_threads, &manifest);
    json_decref(manifest);
    return st;
}

mx_status mx_ckpt_newest(const char *root, mx_check_level level, int n_threads, mx_arena *a,
                         mx_ckpt_entry *out, mx_str *notes)
{
    mx_ckpt_entry *list;
    int n;
    *out = (mx_ckpt_entry){0};
    MX_TRY(mx_ckpt_list(root, a, &list, &n));
    mx_str bad = {0};
    for (int i = n - 1; i >= 0 && !out->path; i--) {
        mx_status st = mx_ckpt_verify(list[i].path, level, n_threads);
        if (mx_status_code(st) == MX_MEMORY) { /* this says nothing about the checkpoint */
            mx_str_fini(&bad);
            return st;
        }
        if (!st)
            *out = list[i];
        else
            mx_str_addf(&bad, "%scheckpoint %" PRId64 " is damaged: %s", bad.len ? "\n" : "",
                        list[i].step, mx_status_text(st));
        mx_status_free(st);
    }
    mx_status st = MX_OK;
    if (bad.len && out->path && notes)
        mx_str_addf(notes, "%s%s\nusing checkpoint %" PRId64 " instead", notes->len ? "\n" : "",
                    bad.text, out->step);
    else if (bad.len && !out->path)
        st = mx_fail(MX_INPUT,
                     "%s: no checkpoint is whole:\n%s\nMove the damaged folders away to "
                     "start afresh",
                     root, bad.text);
    mx_str_fini(&bad);
    return st;
}

static mx_status open_view(mx_ckpt_view *v, const char *path, mx_check_level level, int n_threads)
{
    mx_str name = {0};
    mx_str_addf(&name, "%s/manifest.json", path);
    v->lease_fd = open(name.text, O_RDONLY | O_CLOEXEC);
    v->has_lease = v->lease_fd >= 0;
    /* Advisory: a file system without locks still lets the checkpoint be read. */
    if (v->has_lease)
        (void)flock(v->lease_fd, LOCK_SH | LOCK_NB);
    mx_str_fini(&name);
    MX_TRY(verify(path, level, n_threads, &v->manifest));
    mx_manifest_get_head(v->manifest, &v->head);
    json_t *files = json_object_get(v->manifest, "files");
    if (json_object_get(files, "adapter_config.json"))
        MX_TRY(mx_hf_dir_open_set(&v->model, path, "adapter_model"));
    else
        MX_TRY(mx_hf_dir_open(&v->model, path, json_object_get(files, "config.json")
                                                   ? MX_HF_ALL
                                                   : MX_HF_WEIGHTS_ONLY));
    v->has_optimizer = json_object_get(files, "optimizer.safetensors") ||
                       json_object_get(files, "optimizer.safetensors.index.json");
    if (v->has_optimizer)
        MX_TRY(mx_hf_dir_open_set(&v->optimizer, path, "optimizer"));
    return mx_hf_dir_json(&v->model, "state.json", true, &v->state);
}

mx_status mx_ckpt_open(mx_ckpt_view *v, const char *path, mx_check_level level, int n_threads)
{
    *v = (mx_ckpt_view){0};
    mx_status st = open_view(v, path, level, n_threads);
    if (st)
        mx_ckpt_close(v);
    return st;
}

void mx_ckpt_close(mx_ckpt_view *v)
{
    mx_hf_dir_close(&v->model);
    mx_hf_dir_close(&v->optimizer);
    json_decref(v->manifest);
    json_decref(v->state);
    if (v->has_lease)
        close(v->lease_fd);
    *v = (mx_ckpt_view){0};
}
