/* tiny_run.c - see tiny_run.h. */
#include "tiny_run.h"

#include "../dist/ranks.h"
#include "../test.h"
#include "base/io.h"
#include "device/cpu/queue.h"
#include "store/checkpoint_read.h"
#include "store/safetensors.h"
#include "keys/keys.h"
#include "train/run/run.h"
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *tiny_folder(char *buf, size_t cap)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(buf, cap, "%s/maxc-tiny-XXXXXX", tmp ? tmp : "/tmp");
    char *p = mkdtemp(buf);
    MX_CHECK(p != NULL, "cannot make %s", buf);
    return p;
}

/* `extra` replaces a default of the same key; a checkpoint has its own sizes. */
static bool replaced(const char *argument, const char *const *extra)
{
    size_t n = strcspn(argument, "=") + 1;
    bool size = mx_starts_with(argument, "base_") || mx_starts_with(argument, "head_dim=") ||
                mx_starts_with(argument, "vocab_size=");
    for (; *extra; extra++)
        if (strncmp(argument, *extra, n) == 0 ||
            (size && mx_starts_with(*extra, "load_parameters_path=")))
            return true;
    return false;
}

mx_status tiny_run(const char *const *args, int n)
{
    mx_config *cfg = NULL;
    mx_config_request q = {
        .schema = &mx_keys, .user = "train", .args = args, .n_args = n};
    MX_TRY(mx_config_load(&cfg, &q));
    fflush(stdout);
    int keep = dup(1), null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    mx_status st = mx_run_train(cfg, "test");
    fflush(stdout);
    dup2(keep, 1);
    close(keep);
    close(null);
    mx_config_free(cfg);
    return st;
}

mx_status tiny_train(const char *folder, const char *name, const char *const *extra)
{
    static const char *const tiny[] = {
        "model_name=default",     "decoder_block=llama2",     "vocab_size=300",
        "base_emb_dim=32",        "base_num_query_heads=4",   "base_num_kv_heads=2",
        "head_dim=8",             "base_mlp_dim=64",          "base_num_decoder_layers=1",
        "max_target_length=32",   "dtype=float32",            "learning_rate=1e-2",
        "enable_tensorboard=false", "num_threads=1",          "per_device_batch_size=2",
        "warmup_steps_fraction=0.1"};
    char out[512], local[512];
    const char *args[64];
    int n = 0;
    for (size_t i = 0; i < sizeof tiny / sizeof *tiny; i++)
        if (!replaced(tiny[i], extra))
            args[n++] = tiny[i];
    snprintf(out, sizeof out, "base_output_directory=%s/%s", folder, name);
    args[n++] = out;
    args[n++] = "run_name=r";
    snprintf(local, sizeof local, "local_checkpoint_directory=%s/memory", folder);
    args[n++] = local;
    for (; *extra && n < 64; extra++)
        if (!mx_ends_with(*extra, "=")) /* "key=" leaves a default out */
            args[n++] = *extra;
    return tiny_run(args, n);
}

typedef struct {
    const char *folder, *name;
    const char *const *args;
} job;

static int train(int rank, void *ctx)
{
    const job *j = ctx;
    mx_status st = tiny_train(j->folder, j->name, j->args);
    if (st)
        printf("    rank %d: %s\n", rank, mx_status_text(st));
    int code = (int)mx_status_code(st);
    mx_status_free(st);
    return code;
}

void tiny_train_ranks(const char *folder, int size, const char *name, const char *const *args)
{
    job j = {folder, name, args};
    ranks_run(size, train, &j);
}

char *tiny_text(const char *folder, const char *name, const char *file)
{
    char path[1024], *text = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/%s/r/%s", folder, name, file);
    mx_status st = mx_io_read_file(NULL, path, 1 << 24, &text, &n);
    MX_CHECK(!st, "%s", mx_status_text(st));
    mx_status_free(st);
    return text ? text : strdup("");
}

char *tiny_metrics(const char *folder, const char *name)
{
    static const char *const timed[] = {"time", "tokens_per_second", "tflops", "mfu",
                                        "step_seconds", "data_wait_seconds", "host_memory_bytes",
                                        "communication_seconds", "communication_hidden"};
    char *text = tiny_text(folder, name, "metrics.jsonl");
    json_t *all = json_array();
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *o = json_loadb(line, (size_t)(end - line), 0, NULL);
        MX_CHECK(json_is_object(o), "%.*s", (int)(end - line), line);
        for (size_t i = 0; i < sizeof timed / sizeof *timed; i++)
            json_object_del(o, timed[i]);
        json_array_append_new(all, o);
    }
    free(text);
    char *out = json_dumps(all, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(all);
    return out;
}

char *tiny_checkpoint(const char *path)
{
    mx_ckpt_view v = {0};
    mx_status st = mx_ckpt_open(&v, path, MX_CHECK_HASHES, 1);
    MX_CHECK(!st, "%s", mx_status_text(st));
    mx_status_free(st);
    /* the weights and moments; state.json has the loader's position, which is compared too */
    json_t *files = st ? NULL : json_object_get(v.manifest, "files");
    json_object_del(files, "maxc_config.yml"); /* names the run's folder */
    char *text = st ? NULL : json_dumps(files, JSON_SORT_KEYS);
    mx_ckpt_close(&v);
    return text ? text : strdup("");
}

char *tiny_tensors(const char *folder, const char *name, int step)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/r/checkpoints/%d", folder, name, step);
    return tiny_checkpoint(path);
}

int tiny_count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; p && (p = strstr(p, what)); p++)
        n++;
    return n;
}

int64_t tiny_train_queued(const char *folder, const char *name, const char *const *extra)
{
    setenv("MX_TEST_QUEUE", "1", 1);
    int64_t before = mx_queue_report().hosted_bytes;
    MX_CHECK_OK(tiny_train(folder, name, extra));
    unsetenv("MX_TEST_QUEUE");
    return mx_queue_report().hosted_bytes - before;
}

void tiny_same(const char *folder, const char *a, const char *b, int step)
{
    char *x = tiny_tensors(folder, a, step), *y = tiny_tensors(folder, b, step);
    MX_CHECK(strlen(x) > 100 && strcmp(x, y) == 0, "the checkpoints of %s and %s differ", a, b);
    free(x), free(y);
    x = tiny_metrics(folder, a), y = tiny_metrics(folder, b);
    MX_CHECK(strlen(x) > 100 && strcmp(x, y) == 0, "the metrics differ:\n%s\n%s", x, y);
    free(x), free(y);
}

double tiny_difference(const char *folder, const char *a, const char *b, int step)
{
    char path[1024];
    mx_st_file f[2] = {0};
    mx_arena mem = {0};
    double worst = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s/r/checkpoints/%d/model.safetensors", folder, i ? b : a,
                 step);
        MX_CHECK_OK(mx_st_open(&f[i], path));
    }
    MX_CHECK(f[0].n_tensors == f[1].n_tensors && f[0].n_tensors > 5);
    for (int64_t t = 0; t < f[0].n_tensors && t < f[1].n_tensors; t++) {
        const mx_st_tensor *x = &f[0].tensors[t], *y = mx_st_find(&f[1], x->name);
        float *v = MX_NEW_N(&mem, float, 2 * x->n);
        MX_CHECK_OK(mx_st_read(x, 0, x->n, MX_ST_F32, v, NULL));
        MX_CHECK_OK(mx_st_read(y, 0, x->n, MX_ST_F32, v + x->n, NULL));
        double most = 0, off = 0;
        for (int64_t i = 0; i < x->n; i++) {
            most = fmax(most, fabs(v[i]));
            off = fmax(off, fabs(v[i] - v[x->n + i]));
        }
        worst = fmax(worst, off / most);
    }
    mx_st_close(&f[0]);
    mx_st_close(&f[1]);
    mx_arena_fini(&mem);
    return worst;
}
