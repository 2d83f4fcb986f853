/* programs_codec.c - see programs_codec.h. */
#include "exec/programs_codec.h"

#include <limits.h>
#include <string.h>

static mx_status code_program(mx_programs_codec *k, mx_graph *g, mx_program *p, size_t slot_bytes)
{
    if (!mx_codec_reads(&k->c)) {
        mx_program_write(&k->c, p, k->pool);
        return MX_OK;
    }
    k->how.slot_bytes = slot_bytes;
    mx_graph_init(g);
    return mx_program_read(&k->c, g, p, &k->how);
}

static void code_bytes(mx_codec *c, size_t *n)
{
    int64_t wide = (int64_t)*n;
    mx_code_range(c, &wide, 0, INT64_MAX / 4);
    *n = (size_t)wide;
}

static void code_message(mx_codec *c, mx_stage_message *m, size_t slot_bytes)
{
    mx_code_range(c, &m->at, 0, (int64_t)slot_bytes);
    mx_code_range(c, &m->bytes, 0, (int64_t)slot_bytes - m->at);
}

static mx_status code_chunk(mx_programs_codec *k, mx_stage_chunk *c)
{
    code_bytes(&k->c, &c->slot_bytes);
    mx_stage_message *const messages[] = {&c->in, &c->out, &c->grad_in, &c->grad_out};
    for (int i = 0; i < 4; i++)
        code_message(&k->c, messages[i], c->slot_bytes);
    for (int i = 0; i < MX_STAGE_PARTS; i++) {
        mx_code_bool(&k->c, &c->has[i]);
        MX_TRY(code_program(k, &c->graph[i], &c->program[i], c->slot_bytes));
    }
    return MX_OK;
}

static mx_status code_shared(mx_programs_codec *k, mx_pipeline *p, mx_shared_weight *w)
{
    bool reads = mx_codec_reads(&k->c);
    if (reads)
        *w = (mx_shared_weight){.name = ""};
    mx_code_text(&k->c, &w->name);
    mx_code_int(&k->c, &w->tag, INT_MIN, -1);
    mx_code_int(&k->c, &w->n, 2, p->how.stages);
    if (reads)
        w->holder = MX_NEW_N(&p->arena, int, p->how.stages);
    for (int i = 0; i < w->n; i++)
        mx_code_int(&k->c, &w->holder[i], 0, p->how.stages - 1);
    return code_program(k, &w->graph, &w->program, p->others_bytes);
}

static mx_status code_pipeline(mx_programs_codec *k, mx_pipeline *p, const mx_pipeline_options *how)
{
    bool reads = mx_codec_reads(&k->c);
    if (reads) {
        mx_graph_init(&p->joint);
        MX_TRY(mx_pipeline_begin(p, how));
    }
    for (int i = 0; i < p->how.repeats; i++)
        MX_TRY(code_chunk(k, &p->chunk[i]));
    int n = p->n_shared;
    mx_code_f64(&k->c, &p->parameters);
    mx_code_f64(&k->c, &p->trainable);
    code_bytes(&k->c, &p->others_bytes);
    mx_code_count(&k->c, &n);
    if (reads)
        p->shared = MX_NEW_N(&p->arena, mx_shared_weight, n);
    for (int i = 0; i < n; i++) {
        p->n_shared = i + 1;
        k->c.arena = &p->arena;
        MX_TRY(code_shared(k, p, &p->shared[i]));
    }
    return MX_OK;
}

static void code_report(mx_codec *c, const mx_quantization *q)
{
    mx_quant_report *r = q ? q->report : NULL;
    if (!r)
        return;
    const char *kept = r->kept;
    mx_code_int(c, &r->n_quantized, 0, INT_MAX);
    mx_code_int(c, &r->n_high, 0, INT_MAX);
    mx_code_text(c, &kept);
    if (mx_codec_reads(c))
        strncpy(r->kept, kept, sizeof r->kept - 1);
}

mx_status mx_programs_code(mx_programs_codec *k, mx_programs *p, const mx_programs_request *q)
{
    mx_step *list[MX_PROGRAMS];
    int n = mx_programs_list(p, list);
    mx_pipeline_options train = q->pipeline;
    train.compile = q->options.compile;
    code_report(&k->c, q->options.compile.quantization);
    for (int i = 0; i < n; i++)
        MX_TRY(code_program(k, &list[i]->graph, &list[i]->program, 0));
    if (!p->pipelined)
        return MX_OK;
    MX_TRY(code_pipeline(k, &p->pipeline, &train));
    if (!p->evaluates)
        return MX_OK;
    mx_pipeline_options eval = mx_programs_eval_pipeline(p, q);
    eval.compile = q->options.compile;
    return code_pipeline(k, &p->eval_pipeline, &eval);
}
