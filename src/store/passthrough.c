/* passthrough.c - see passthrough.h. */
#include "store/passthrough.h"

#include "base/io.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

/* Is the tensor a weight of the session, under its own name or the family's other one? */
static bool is_loaded(mx_session *s, const mx_model *family, const char *name)
{
    char other[512];
    for (int i = 0; i < mx_session_count(s); i++) {
        const mx_var *v = mx_session_var(s, i);
        if (v->attr.kind != MX_VAR_WEIGHT)
            continue;
        const char *also =
            family->other_name ? family->other_name(v->name, other, sizeof other) : NULL;
        if (strcmp(v->name, name) == 0 || (also && strcmp(also, name) == 0))
            return true;
    }
    return false;
}

mx_status mx_passthrough_open(mx_passthrough *c, const char *path, const mx_model_spec *m,
                              mx_session *s)
{
    *c = (mx_passthrough){.session = s};
    if (!m->family->unused && !m->family->not_built)
        return MX_OK;
    MX_TRY(mx_hf_dir_open(&c->dir, path, MX_HF_WEIGHTS_ONLY));
    c->tensors = MX_NEW_N(&c->dir.arena, mx_st_tensor, c->dir.n_tensors);
    for (int64_t i = 0; i < c->dir.n_tensors; i++) {
        const mx_st_tensor *t = c->dir.tensors[i];
        bool kept = mx_glob_any(m->family->unused, t->name) ||
                    mx_glob_any(m->family->not_built, t->name);
        if (kept && !is_loaded(s, m->family, t->name))
            c->tensors[c->n++] = *t;
    }
    return MX_OK;
}

void mx_passthrough_close(mx_passthrough *c)
{
    mx_hf_dir_close(&c->dir);
    *c = (mx_passthrough){0};
}

mx_st_source mx_passthrough_source(const mx_passthrough *c, int64_t i)
{
    mx_st_tensor *t = &c->tensors[i];
    mx_st_source s = {.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .user = t};
    for (int k = 0; k < t->ndim; k++)
        s.dim[k] = t->dim[k];
    return s;
}

mx_status mx_passthrough_fetch(void *ctx, const mx_st_source *s, uint64_t at, void *dst, size_t n)
{
    const mx_passthrough *c = ctx;
    const mx_st_tensor *t = s->user;
    if (t >= c->tensors && t < c->tensors + c->n)
        return mx_io_read_at(NULL, t->file->fd, dst, n, t->at + at, t->file->path);
    return mx_var_read_part(c->session, s->user, at, dst, n);
}
