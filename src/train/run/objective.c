/* objective.c - the data of an objective, and the programs that it asks for. */
#include "train/run/objective.h"

#include "exec/forward.h"
#include "exec/programs.h"
#include <string.h>

/* loss_on, else what MaxText's key says if it was set, else TRL's default. */
static mx_loss_on loss_on(const mx_config *c)
{
    static const char *const names[] = {"all", "completion", "assistant"};
    const char *on = mx_config_text(c, "loss_on");
    for (int i = 0; i < 3; i++)
        if (strcmp(on, names[i]) == 0)
            return (mx_loss_on)i;
    if (mx_config_is_users(c, "sft_train_on_completion_only"))
        return mx_config_bool(c, "sft_train_on_completion_only") ? MX_LOSS_ASSISTANT : MX_LOSS_ALL;
    return strcmp(mx_config_text(c, "semantics"), "maxtext") == 0 ? MX_LOSS_ASSISTANT
                                                                  : MX_LOSS_COMPLETION;
}

void mx_beside_add(mx_beside *b, const char *name, double bytes)
{
    MX_ASSERT(b->n < MX_BESIDE, "%d things beside a run", b->n);
    b->v[b->n].name = name;
    b->v[b->n++].bytes = bytes;
}

mx_status mx_beside_step(mx_beside *b, const char *name, const mx_model_spec *m,
                         const mx_step_options *o, mx_beside_how how)
{
    mx_forward f;
    double added, by_itself;
    mx_status st = mx_forward_plan(&f, m, o, how.stages);
    if (!st) {
        mx_forward_bytes(&f, &added, &by_itself);
        mx_beside_add(b, name, how.own ? by_itself : added);
    }
    mx_forward_close(&f);
    return st;
}

double mx_beside_bytes(const mx_beside *b)
{
    double sum = 0;
    for (int i = 0; i < b->n; i++)
        sum += b->v[i].bytes;
    return sum;
}

void mx_objective_apply(const mx_objective *o, const void *settings, const mx_config *c,
                        mx_programs_request *q)
{
    mx_step_options *s = &q->options;
    if (o->rows != MX_ROWS_DOCUMENTS) { /* per_device_batch_size counts pairs, prompts */
        int64_t each = o->rows_each ? o->rows_each(settings) : 2;
        mx_batch_plan *b = &q->batch;
        b->microbatch *= each;
        b->global_microbatch *= each;
        b->global_sequences *= each;
        b->global_tokens *= each;
        q->eval_batch *= each;
        s->shape.batch = b->microbatch;
        s->shape.packed = false;
    }
    s->shape.balances = o->balances && strcmp(mx_config_text(c, "semantics"), "trl") == 0;
    s->loss = o->loss;
    s->settings = settings;
}

void mx_objective_request(const mx_objective *o, const mx_config *c, mx_train_data_request *r)
{
    r->post = o != NULL;
    r->no_loader = o && o->rows == MX_ROWS_SAMPLED;
    r->pairs = o && o->rows == MX_ROWS_PAIRS;
    r->sides_apart = o && o->sides_apart;
    r->drops_long = o && o->drops_long;
    r->takes_margins = o && o->takes_margins;
    r->answers_last = o && o->answers_last && o->answers_last(c);
    const char *cut = o ? mx_config_text(c, "truncation_mode") : "keep_start";
    r->keep_end = strcmp(cut, "keep_end") == 0 ||
                  (!*cut && r->answers_last && !mx_config_bool(c, "packing"));
    r->loss_on = !o ? MX_LOSS_ALL : r->pairs ? MX_LOSS_COMPLETION : loss_on(c);
}
