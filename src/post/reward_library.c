/* reward_library.c - see reward_library.h. */
#include "post/reward_library.h"

#include "maxc_reward.h"
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

enum { ERROR_BYTES = 400 };

struct mx_reward_library {
    const char *path;
    const maxc_reward *of;
    void *handle, *state;
    bool is_open;
};

static mx_status failed(const mx_reward_library *r, const char *what, char *said)
{
    said[ERROR_BYTES - 1] = 0;
    return mx_fail(MX_INPUT, "reward_library=%s: %s%s%s; nothing was updated", r->path, what,
                   *said ? ": " : "", said);
}

static mx_status check(const mx_reward_library *r)
{
    if (!r->of)
        return mx_fail(MX_INPUT, "reward_library=%s: it does not define maxc_reward_library; "
                       "include/maxc_reward.h says what a reward is", r->path);
    if (r->of->version != MAXC_REWARD_VERSION)
        return mx_fail(MX_INPUT, "reward_library=%s: it has version %d of the interface, expected "
                       "%d; build it again with this program's maxc_reward.h", r->path,
                       r->of->version, MAXC_REWARD_VERSION);
    if (!r->of->score || !r->of->name || !*r->of->name)
        return mx_fail(MX_INPUT, "reward_library=%s: its maxc_reward_library has no %s", r->path,
                       r->of->score ? "name" : "score");
    return MX_OK;
}

static mx_status open_library(mx_reward_library *r)
{
    char whole[PATH_MAX], said[ERROR_BYTES] = "";
    /* Without a slash dlopen would look in the system's folders. */
    r->handle = dlopen(realpath(r->path, whole) ? whole : r->path, RTLD_NOW | RTLD_LOCAL);
    if (!r->handle)
        return mx_fail(MX_INPUT, "reward_library=%s: it cannot be opened: %s", r->path, dlerror());
    r->of = dlsym(r->handle, "maxc_reward_library");
    MX_TRY(check(r));
    if (r->of->open && r->of->open(&r->state, said, sizeof said))
        return failed(r, "its open failed", said);
    r->is_open = true;
    return MX_OK;
}

mx_status mx_reward_library_open(mx_reward_library **out, const mx_config *c)
{
    mx_reward_library *r = mx_realloc(NULL, sizeof *r);
    *r = (mx_reward_library){.path = mx_config_text(c, "reward_library")};
    *out = r;
    return open_library(r);
}

void mx_reward_library_close(mx_reward_library *r)
{
    if (!r)
        return;
    if (r->is_open && r->of->close)
        r->of->close(r->state);
    if (r->handle)
        dlclose(r->handle);
    mx_free(r);
}

const char *mx_reward_library_name(const mx_reward_library *r)
{
    return r->of->name;
}

mx_status mx_reward_library_judge(mx_reward_library *r, const mx_reward_input *answers, int64_t n,
                                  double *score, int64_t stride)
{
    char said[ERROR_BYTES] = "";
    maxc_reward_answer *a = mx_realloc(NULL, sizeof *a * (size_t)(n + 1));
    double *one = mx_realloc(NULL, sizeof *one * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) {
        const mx_reward_input *j = &answers[i];
        bool same = i > 0 && j->record == answers[i - 1].record;
        one[i] = NAN;
        a[i] = (maxc_reward_answer){
            .prompt = j->prompt, .completion = j->answer, .completion_bytes = j->n_answer,
            .record = same ? a[i - 1].record : json_dumps(j->record, JSON_COMPACT),
            .tokens = j->tokens, .max_tokens = j->max_tokens, .truncated = j->truncated};
    }
    int wrong = r->of->score(r->state, a, (size_t)n, one, said, sizeof said);
    for (int64_t i = 0; i < n; i++) {
        if (i == n - 1 || a[i + 1].record != a[i].record)
            mx_free((char *)a[i].record);
        score[i * stride] = one[i];
    }
    mx_free(a);
    mx_free(one);
    return wrong ? failed(r, "it could not judge an answer", said) : MX_OK;
}
