/* run_config.c - config.yml and command.txt of a run folder. */
#include "train/run/run_config.h"

#include "base/version.h"
#include "store/checkpoint_read.h"
#include "keys/keys.h"
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *mx_run_folder(const mx_config *cfg, mx_arena *a)
{
    const char *root = mx_config_text(cfg, "base_output_directory");
    const char *name = mx_config_text(cfg, "run_name");
    if (!*name) {
        time_t now = time(NULL);
        struct tm t;
        char stamp[32];
        localtime_r(&now, &t);
        strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &t);
        name = mx_arena_printf(a, "%s-%s", mx_config_text(cfg, "model_name"), stamp);
    }
    const char *slash = *root && !mx_ends_with(root, "/") ? "/" : "";
    return mx_arena_printf(a, "%s%s%s", root, slash, name);
}

/* Has the folder anything that was made with its configuration: steps, checkpoints? */
static bool has_begun(const char *folder)
{
    mx_arena a = {0};
    mx_ckpt_entry *all = NULL;
    struct stat s;
    int n = 0;
    mx_status_free(mx_ckpt_list(mx_arena_printf(&a, "%s/checkpoints", folder), &a, &all, &n));
    bool steps = stat(mx_arena_printf(&a, "%s/metrics.jsonl", folder), &s) == 0 && s.st_size > 0;
    mx_arena_fini(&a);
    return steps || n > 0;
}

/* Keys that say how a run is started, not what it is: their differences are not reported. */
static const char *const of_the_start[] = {"allow_config_change", "base_config",
                                           "base_output_directory", "run_name", NULL};

mx_status mx_run_config_compare(const mx_config *cfg, const char *folder, mx_str *report)
{
    mx_str path = {0};
    mx_config *old = NULL;
    mx_status st = MX_OK;
    mx_str_addf(&path, "%s/config.yml", folder);
    if (access(path.text, F_OK) == 0 && has_begun(folder)) {
        mx_config_request r = {.schema = &mx_keys,
                               .file = path.text,
                               .is_resolved = true};
        st = mx_status_wrap(mx_config_load(&old, &r), "the run's own configuration");
    }
    int refused = 0;
    bool allowed = mx_config_bool(cfg, "allow_config_change");
    if (old)
        mx_config_diff(old, cfg, of_the_start, report, &refused);
    if (refused && !allowed)
        st = mx_fail(
            MX_USAGE,
            "%s was begun with another configuration:\n%suse another run_name, restore these "
            "values, or give allow_config_change=true",
            folder, mx_str_text(report));
    mx_config_free(old);
    mx_str_fini(&path);
    return st;
}

static mx_status write_text(const mx_io *io, const char *folder, const char *name,
                            const mx_str *text)
{
    mx_str path = {0};
    mx_str_addf(&path, "%s/%s", folder, name);
    mx_status st = mx_io_write_file(io, path.text, mx_str_text(text), text->len);
    mx_str_fini(&path);
    return st;
}

void mx_run_config_text(const mx_config *cfg, mx_str *out)
{
    mx_str_addf(out,
                "# The resolved configuration of this run, written by maxc %s. It can be given\n"
                "# back as it is: maxc train config.yml\n\n",
                MX_VERSION);
    mx_config_write(cfg, out);
}

mx_status mx_run_config_save(const mx_config *cfg, const char *folder, const char *command_line,
                             const mx_io *io)
{
    mx_str config = {0}, command = {0};
    mx_run_config_text(cfg, &config);
    mx_str_addf(&command, "%s\n", command_line);
    mx_status st = write_text(io, folder, "config.yml", &config);
    if (!st)
        st = write_text(io, folder, "command.txt", &command);
    if (!st)
        st = mx_io_sync_dir(io, folder);
    mx_str_fini(&config);
    mx_str_fini(&command);
    return st;
}
