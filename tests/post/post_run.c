/* post_run.c - see post_run.h. */
#include "post_run.h"

#include "../test.h"
#include "base/arena.h"
#include "base/str.h"
#include "cmd/verb.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *post_folder(char *buf, size_t cap)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(buf, cap, "%s/maxc-post-XXXXXX", tmp ? tmp : "/tmp");
    char *p = mkdtemp(buf);
    MX_CHECK(p != NULL, "cannot make %s", buf);
    return p;
}

void post_remove(const char *folder)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    MX_CHECK(system(command) == 0, "%s", command);
}

static bool given(const char *setting, const char *settings)
{
    char name[80];
    snprintf(name, sizeof name, "%.*s=", (int)strcspn(setting, "="), setting);
    for (const char *at = strstr(settings, name); at; at = strstr(at + 1, name))
        if (at == settings || at[-1] == ' ')
            return true;
    return false;
}

mx_status post_run(const char *verb, const char *folder, const char *name, const char *settings)
{
    static const char *const tiny[] = {
        "load_parameters_path=" POST "model", "steps=3", "learning_rate=1e-3", "dtype=float32",
        "enable_data_shuffling=false", "enable_tensorboard=false", "log_config=false",
        "num_epoch=-1", "num_threads=1", "device=cpu", "per_device_batch_size=2",
        "gradient_accumulation_steps=2", "max_target_length=64"};
    mx_arena a = {0};
    char *argv[80], *words = mx_arena_strdup(&a, settings), *rest = NULL;
    int argc = 0;
    argv[argc++] = "maxc";
    argv[argc++] = mx_arena_strdup(&a, verb);
    argv[argc++] = mx_arena_printf(&a, "base_output_directory=%s", folder);
    argv[argc++] = mx_arena_printf(&a, "run_name=%s", name);
    for (size_t i = 0; i < sizeof tiny / sizeof *tiny; i++)
        if (!given(tiny[i], settings))
            argv[argc++] = mx_arena_strdup(&a, tiny[i]);
    for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    argv[argc] = NULL;
    fflush(stdout);
    int keep = dup(1), null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    mx_status st = mx_dispatch(argc, argv, NULL);
    fflush(stdout);
    dup2(keep, 1);
    close(keep);
    close(null);
    mx_arena_fini(&a);
    return st;
}

json_t *post_metrics(const char *folder, const char *name)
{
    char path[600], *line = NULL;
    size_t cap = 0;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", folder, name);
    json_t *out = json_array();
    FILE *f = fopen(path, "r");
    MX_CHECK(f != NULL, "%s", path);
    while (f && getline(&line, &cap, f) > 0) {
        json_t *one = json_loads(line, 0, NULL);
        if (json_object_get(one, "loss"))
            json_array_append(out, one);
        json_decref(one);
    }
    free(line);
    if (f)
        fclose(f);
    return out;
}

double post_number(const json_t *metrics, size_t step, const char *name)
{
    const json_t *v = json_object_get(json_array_get(metrics, step), name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}
