/* run_summary.c - see run_summary.h. */
#include "cmd/run_summary.h"

#include "base/json_doc.h"
#include "keys/keys.h"
#include "train/run/schedule.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TAIL_BYTES = 1 << 16, BEAT_SECONDS = 120 };

static bool has(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, R_OK) == 0;
}

bool mx_is_run_folder(const char *path)
{
    return has(path, "config.yml") && (has(path, "checkpoints") || has(path, "metrics.jsonl"));
}

const char *mx_format_time(char *buf, size_t cap, double seconds)
{
    time_t t = (time_t)seconds;
    struct tm tm;
    snprintf(buf, cap, "-");
    if (seconds > 0 && localtime_r(&t, &tm))
        strftime(buf, cap, "%Y-%m-%d %H:%M:%S", &tm);
    return buf;
}

static void take(const json_t *o, const char *name, double *to)
{
    const json_t *v = json_object_get(o, name);
    if (isnan(*to) && json_is_number(v))
        *to = json_number_value(v);
}

/* One line, from the last to the first: what is known already came later. */
static void take_line(mx_run_summary *g, const char *line)
{
    json_t *o = NULL;
    mx_status st = mx_json_parse(line, strlen(line), "metrics.jsonl", NULL, &o);
    bool step = json_object_get(o, "loss") != NULL;
    take(o, "step", &g->step);
    take(o, "time", &g->time);
    take(o, "eval/loss", &g->eval_loss);
    if (step) {
        take(o, "loss", &g->loss);
        take(o, "learning_rate", &g->learning_rate);
        take(o, "tokens", &g->tokens);
        take(o, "tokens_per_second", &g->tokens_per_second);
        take(o, "skipped_steps", &g->skipped);
        take(o, "rollbacks", &g->rollbacks);
    }
    mx_status_free(st);
    json_decref(o);
}

static void read_metrics(mx_run_summary *g, mx_arena *a)
{
    char *buf = mx_arena_alloc(a, TAIL_BYTES);
    FILE *f = fopen(mx_arena_printf(a, "%s/metrics.jsonl", g->path), "rb");
    long size = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : 0;
    long at = size > TAIL_BYTES - 1 ? size - TAIL_BYTES + 1 : 0;
    size_t n = f && fseek(f, at, SEEK_SET) == 0 ? fread(buf, 1, TAIL_BYTES - 1, f) : 0;
    if (f)
        fclose(f);
    while (n && buf[n - 1] != '\n')
        n--;
    while (n && (isnan(g->loss) || isnan(g->eval_loss))) {
        buf[--n] = 0;
        while (n && buf[n - 1] != '\n')
            n--;
        if (n || at == 0) /* the first line of the tail is cut off */
            take_line(g, buf + n);
    }
}

mx_config *mx_run_summary_config(const char *path)
{
    char file[4096];
    mx_config *c = NULL;
    snprintf(file, sizeof file, "%s/config.yml", path);
    mx_config_request r = {.schema = &mx_keys, .file = file, .is_resolved = true};
    mx_status_free(mx_config_load(&c, &r)); /* of another version, perhaps */
    return c;
}

/* A lock that was let go of is empty; one whose owner is alive was touched lately. */
static bool is_running(const char *path, mx_arena *a)
{
    struct stat s;
    return stat(mx_arena_printf(a, "%s/run.lock", path), &s) == 0 && s.st_size > 0 &&
           time(NULL) - s.st_mtime < BEAT_SECONDS;
}

static const char *without_slashes(const char *path, mx_arena *a)
{
    char *p = mx_arena_strdup(a, path);
    for (size_t n = strlen(p); n > 1 && p[n - 1] == '/';)
        p[--n] = 0;
    return p;
}

/* The last `parts` parts of a path. */
static const char *last_parts(const char *path, int parts)
{
    const char *p = path + strlen(path);
    while (p > path && (p[-1] != '/' || --parts > 0))
        p--;
    return p;
}

void mx_run_summaries_at(mx_run_summary *g, const char *const *paths, int n, mx_arena *a)
{
    enum { MOST_PARTS = 16 };
    const char **path = MX_NEW_N(a, const char *, n);
    for (int i = 0; i < n; i++) {
        mx_run_summary_at(&g[i], paths[i], a);
        path[i] = without_slashes(paths[i], a);
    }
    for (int i = 0; i < n; i++)
        for (int k = 1, j = 0; k <= MOST_PARTS && j < n; k++) {
            g[i].name = last_parts(path[i], k);
            for (j = 0; j < n && (j == i || strcmp(g[i].name, last_parts(path[j], k)) != 0);)
                j++;
        }
}

void mx_run_summary_at(mx_run_summary *g, const char *path, mx_arena *a)
{
    *g = (mx_run_summary){.path = path, .step = NAN, .steps = NAN, .loss = NAN, .eval_loss = NAN,
                         .learning_rate = NAN, .tokens = NAN, .tokens_per_second = NAN,
                         .skipped = NAN, .rollbacks = NAN, .time = NAN};
    g->name = last_parts(without_slashes(path, a), 1);
    read_metrics(g, a);
    mx_config *c = mx_run_summary_config(path);
    if (c)
        g->steps = (double)mx_schedule_run_steps(c);
    mx_config_free(c);
    g->state = is_running(path, a) ? "running" : g->step >= g->steps ? "finished" : "stopped";
}
