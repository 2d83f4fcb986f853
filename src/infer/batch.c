/* batch.c - see batch.h. Tokens beyond those of a batch have position -1 and slot -1: they are
 * computed like the others and kept nowhere. */
#include "infer/batch.h"

#include "compile/panels.h"
#include "ops.h"
#include "ops/inputs.h"
#include "ops/panels.h"
#include <limits.h>
#include <string.h>

enum { MAX_SIZES = 40 };
enum { MX_SAMPLE_SETTINGS };

/* Inputs of a program that are written where they have changed: from one token of the same answers
 * to the next, few of them do, and a copy of a few bytes to a device takes as long as a kernel. */
typedef enum { TOKENS, POSITIONS, ROWS, SLOTS, LAST, SAMPLING, FROM, DRAWN_ROWS, N_INPUTS } input;
static const char *const input_names[N_INPUTS] = {
    "tokens", "positions", "page_rows", "page_slots", "last", "sampling", "tokens_from",
    "drawn_rows"};

typedef struct {
    mx_step step;
    int64_t tokens, last;
    int64_t table_changes;    /* that the program's table has seen */
    void *written[N_INPUTS]; /* what the program has of each */
    bool is_written[N_INPUTS];
} size;

struct mx_engine_batch {
    mx_session *session; /* borrows */
    mx_engine_batch_settings o;
    int64_t vocab, width;
    size sizes[MAX_SIZES];
    int n_sizes;
    size image; /* the largest once more, for batches with images */
    mx_engine_batch_input in;
    mx_readback logits;   /* (rows, vocab) */
    mx_readback drawn[2]; /* (rows), of two batches in turn */
    bool reads_logits[2]; /* whether that batch's logits are read, too */
    int turn, waited;     /* index into these: of the next batch, and of the last waited for */
    int32_t *drawn_rows;  /* (rows): the sequence of each sampled token */
    const size *ran;    /* the program of the last batch */
    float *mask;        /* (tokens, slots rank): which adapter a token has; NULL: there are none */
    float *hidden;      /* (rows, width) */
    float *after;       /* (tokens, width); NULL: not kept */
    int32_t *places;    /* (3, tokens) as a program has them; NULL: there are none */
    mx_arena arena;
};

/* Whether tokens can be taken from the batch before, on the device. Not with drafts: the host
 * accepts or rejects them. */
static bool follows(const mx_engine_batch_settings *o)
{
    return o->draw_vocab && !o->draft && o->rows == o->sequences;
}

static mx_step_options step_options(const mx_engine_batch_settings *o, int64_t tokens, bool images)
{
    int64_t last = tokens < o->rows ? tokens : o->rows;
    return (mx_step_options){
        .kind = MX_STEP_NEXT,
        .draw_vocab = o->draw_vocab,
        .compile = o->compile,
        .lora = o->adapters.slots ? &o->adapters : NULL,
        .shape = {.batch = tokens,
                  .seq = 1,
                  .last = last,
                  .pages = o->pages,
                  .page = o->page,
                  .page_rows = o->sequences,
                  .max_run = o->tokens,
                  .places = o->places,
                  .drawn = follows(o),
                  .draft = o->draft,
                  .keep_hidden = o->keep_hidden,
                  .image_width = images ? o->image_width : 0,
                  .cache_dtype = o->compile.compute,
                  .cache_quant = o->compile.quant.cache,
                  .cache_by_token = o->compile.quant.cache_by_token,
                  .cache_len = (o->max_length + o->page - 1) / o->page * o->page}};
}

mx_status mx_engine_batch_cache_bytes(const mx_model_spec *m, const mx_engine_batch_settings *o,
                                      mx_cache_bytes *out)
{
    mx_engine_batch_settings one = *o;
    mx_step s;
    one.pages = one.sequences = one.compile.n_threads = 1;
    mx_step_options so = step_options(&one, 1, false);
    MX_TRY(mx_step_plan(&s, m, &so));
    *out = (mx_cache_bytes){0};
    for (int i = 0; i < s.graph.n_nodes; i++) {
        const mx_node *n = s.graph.node[i];
        if (n->op->kind != MX_SOURCE || !n->name)
            continue;
        if (strstr(n->name, ".state_"))
            out->sequence += (int64_t)mx_type_bytes(&n->type);
        else if (strstr(n->name, ".cache_"))
            out->token += (int64_t)mx_type_bytes(&n->type);
    }
    out->token = (out->token + o->page - 1) / o->page;
    mx_step_close(&s);
    return MX_OK;
}

/* Powers of two, between them halves from 16 on and quarters from 128 on, where a GEMM's time grows
 * with its rows; up to the most. */
static int choose_sizes(size *s, int64_t most)
{
    int n = 0;
    for (int64_t k = 1; k < most; k *= 2)
        for (int64_t step = k < 16 ? k : k < 128 ? k / 2 : k / 4, at = k;
             at < 2 * k && at < most && n < MAX_SIZES - 1; at += step)
            s[n++].tokens = at;
    s[n++].tokens = most;
    return n;
}

mx_status mx_engine_batch_other_bytes(mx_session *s, const mx_model_spec *m,
                                      const mx_engine_batch_settings *o, int64_t *out)
{
    size sizes[MAX_SIZES] = {0};
    int n = choose_sizes(sizes, o->tokens);
    mx_engine_batch_settings one = *o;
    mx_step z;
    one.pages = 1;
    mx_step_options so = step_options(&one, o->tokens, false);
    so = mx_step_options_for(s, &so);
    so.compile.n_threads = mx_session_threads(s);
    MX_TRY(mx_step_plan(&z, m, &so));
    const mx_program *p = &z.program;
    *out = (int64_t)(mx_program_shared_bytes(p) + p->work_bytes + (size_t)n * p->given_bytes);
    for (int i = 0; i < z.graph.n_nodes; i++) {
        const mx_node *v = z.graph.node[i];
        bool variable = v->op == &mx_op_variable && v->name && !strstr(v->name, ".cache_");
        if (variable && !mx_session_find(s, v->name))
            *out += (int64_t)mx_type_bytes(&v->type);
    }
    mx_step_close(&z);
    return MX_OK;
}

/* Of the root `hidden`. */
static int64_t width_of(const mx_graph *g)
{
    for (int i = 0; i < g->n_roots; i++)
        if (g->root[i]->name && strcmp(g->root[i]->name, "hidden") == 0)
            return g->root[i]->type.dim[g->root[i]->type.ndim - 1];
    return 0;
}

static size_t input_bytes(const size *z, input i)
{
    if (i == SAMPLING)
        return sizeof(float) * N_SETTINGS * (size_t)z->last;
    return sizeof(int32_t) * (size_t)(i == LAST || i == DRAWN_ROWS ? z->last : z->tokens);
}

/* Raises *most to the memory that the program shares with the others of the session. */
static mx_status plan_size(mx_engine_batch *b, const mx_model_spec *m, size *z, size_t *most)
{
    mx_step_options so = step_options(&b->o, z->tokens, z == &b->image);
    so = mx_step_options_for(b->session, &so);
    so.compile.n_threads = mx_session_threads(b->session);
    z->last = so.shape.last;
    for (int i = 0; i < N_INPUTS; i++)
        z->written[i] = mx_arena_alloc(&b->arena, input_bytes(z, (input)i));
    MX_TRY(mx_step_plan(&z->step, m, &so));
    size_t bytes = mx_program_shared_bytes(&z->step.program);
    *most = bytes > *most ? bytes : *most;
    return MX_OK;
}

static mx_status open_programs(mx_engine_batch *b, const mx_model_spec *m)
{
    size_t most = 0;
    b->n_sizes = choose_sizes(b->sizes, b->o.tokens);
    for (int i = 0; i < b->n_sizes; i++)
        MX_TRY(plan_size(b, m, &b->sizes[i], &most));
    b->image.tokens = b->o.tokens;
    if (b->o.image_width)
        MX_TRY(plan_size(b, m, &b->image, &most));
    b->width = width_of(&b->sizes[0].step.graph);
    b->hidden = MX_NEW_N(&b->arena, float, b->o.rows * b->width);
    if (b->o.draft)
        b->in.before = MX_NEW_N(&b->arena, float, b->o.tokens * b->width);
    if (b->o.draft || b->o.keep_hidden)
        b->after = MX_NEW_N(&b->arena, float, b->o.tokens * b->width);
    if (!b->o.draft) /* the model's own programs have taken it */
        MX_TRY(mx_session_share(b->session, most, 0));
    for (int i = 0; i < b->n_sizes; i++)
        MX_TRY(mx_session_add(b->session, &b->sizes[i].step.program, &b->sizes[i].step.exec));
    if (!b->o.image_width)
        return MX_OK;
    return mx_session_add(b->session, &b->image.step.program, &b->image.step.exec);
}

mx_status mx_engine_batch_open(mx_engine_batch **out, mx_session *s, const mx_model_spec *m,
                               const mx_engine_batch_settings *o)
{
    *out = NULL;
    mx_engine_batch *b = mx_realloc(NULL, sizeof *b);
    *b = (mx_engine_batch){.session = s, .o = *o, .vocab = m->summary.vocab};
    int64_t n = o->tokens, columns = (o->max_length + o->page - 1) / o->page;
    b->in = (mx_engine_batch_input){.columns = columns, .table_changes = 1};
    int32_t **const lists[] = {&b->in.token, &b->in.position,     &b->in.row, &b->in.slot,
                               &b->in.last,  &b->in.adapter_slot, &b->in.from, &b->drawn_rows};
    for (int i = 0; i < 8; i++)
        *lists[i] = MX_NEW_N(&b->arena, int32_t, n);
    b->in.sampling = MX_NEW_N(&b->arena, float, n * N_SETTINGS);
    b->in.wants_logits = MX_NEW_N(&b->arena, bool, n);
    b->in.table = MX_NEW_N(&b->arena, int32_t, o->sequences * columns);
    if (o->adapters.slots)
        b->mask = MX_NEW_N(&b->arena, float, n * o->adapters.slots * o->adapters.rank);
    b->in.until = MX_NEW_N(&b->arena, int32_t, n);
    if (o->places) {
        b->in.place = (int32_t(*)[3])MX_NEW_N(&b->arena, int32_t, 3 * n);
        b->places = MX_NEW_N(&b->arena, int32_t, 3 * n);
    }
    mx_status st = MX_OK;
    if (o->compile.quant.cache != MX_F32 && !mx_session_traits(s)->host_memory)
        st = mx_fail(MX_USAGE, "quantize_kvcache=true: this device has no kernel that reads a "
                     "cache of 8 bits in pages; use device=cpu, or leave it out");
    if (!st && o->image_width)
        st = mx_alloc((void **)&b->in.image, sizeof(float) * (size_t)(n * o->image_width),
                      "the images of a batch");
    if (!st && o->rows > INT_MAX / (b->vocab + 1))
        st = mx_fail(MX_USAGE,
                     "%lld sequences of a vocabulary of %lld are too many at once; lower "
                     "batch",
                     (long long)o->rows, (long long)b->vocab);
    if (!st)
        st = mx_readback_open(&b->logits, s, (int)(o->rows * b->vocab));
    for (int i = 0; i < 2 && !st; i++)
        st = mx_readback_open(&b->drawn[i], s, (int)o->rows);
    if (!st)
        st = open_programs(b, m);
    if (st)
        mx_engine_batch_close(b);
    else
        *out = b;
    return st;
}

static mx_status lay_weight(mx_session *s, const mx_node *w,
                            mx_status (*lay)(void *w, const mx_type *t))
{
    const mx_var *v = mx_session_find(s, w->name);
    return v ? lay(mx_var_host(s, v), &v->type) : MX_OK;
}

/* The weights that g has and `but` has not. */
static mx_status lay_weights(mx_session *s, const mx_graph *g, const mx_graph *but)
{
    mx_arena scratch = {0};
    bool *done = MX_NEW_N(&scratch, bool, g->n_nodes); /* several matmuls may read one weight */
    mx_status st = MX_OK;
    for (int i = 0; i < g->n_nodes && !st; i++) {
        const mx_node *w = mx_panel_weight(g->node[i]), *scale = mx_panel_scale(g->node[i]);
        bool theirs = w && but && mx_graph_find(but, w->name);
        if (!w || theirs || done[w->id])
            continue;
        done[w->id] = true;
        st = lay_weight(s, w, scale ? mx_code_panels_lay : mx_panels_lay);
        if (!st && scale)
            st = lay_weight(s, scale, mx_code_panels_lay);
    }
    mx_arena_fini(&scratch);
    return st;
}

const mx_graph *mx_engine_batch_graph(const mx_engine_batch *b)
{
    return &b->sizes[0].step.graph;
}

mx_status mx_engine_batch_lay_weights(mx_engine_batch *b)
{
    return lay_weights(b->session, mx_engine_batch_graph(b), NULL);
}

mx_status mx_engine_batch_lay_more(mx_engine_batch *b, const mx_graph *more)
{
    return lay_weights(b->session, more, mx_engine_batch_graph(b));
}

void mx_engine_batch_close(mx_engine_batch *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->n_sizes; i++)
        mx_step_close(&b->sizes[i].step);
    mx_step_close(&b->image.step);
    mx_readback_close(&b->logits);
    for (int i = 0; i < 2; i++)
        mx_readback_close(&b->drawn[i]);
    mx_free(b->in.image);
    mx_arena_fini(&b->arena);
    mx_free(b);
}

mx_engine_batch_input *mx_engine_batch_input_of(mx_engine_batch *b)
{
    return &b->in;
}

/* Padding: rows of the program beyond the batch. */
static void pad(mx_engine_batch_input *in, const size *z)
{
    for (int64_t i = in->n; i < z->tokens; i++) {
        in->token[i] = in->row[i] = 0;
        in->position[i] = in->slot[i] = in->adapter_slot[i] = in->until[i] = in->from[i] = -1;
    }
    for (int64_t i = in->n_last; i < z->last; i++) {
        in->last[i] = 0;
        in->sampling[i * N_SETTINGS + TEMPERATURE] = 0;
    }
}

/* One at the columns of a token's adapter. */
static mx_status write_mask(mx_engine_batch *b, mx_exec *e, int64_t tokens)
{
    int64_t rank = b->o.adapters.rank, width = b->o.adapters.slots * rank;
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t k = 0; k < width; k++)
            b->mask[i * width + k] = b->in.adapter_slot[i] == k / rank;
    return mx_exec_write_whole(e, MX_LORA_MASK, b->mask);
}

/* Features of image tokens, and M-RoPE positions. */
static mx_status write_images(mx_engine_batch *b, mx_exec *e, const size *z)
{
    mx_engine_batch_input *in = &b->in;
    for (int64_t i = 0; b->places && i < 3 * z->tokens; i++)
        b->places[i] = i % z->tokens < in->n ? in->place[i % z->tokens][i / z->tokens] : 0;
    if (b->places)
        MX_TRY(mx_exec_write_whole(e, "places", b->places));
    if (!in->has_images)
        return MX_OK;
    int64_t width = b->o.image_width;
    memset(in->image + in->n * width, 0, sizeof *in->image * (size_t)((z->tokens - in->n) * width));
    MX_TRY(mx_exec_write_whole(e, "image_rows", in->image));
    return mx_exec_write_whole(e, "image_until", in->until);
}

/* Logits where they are wanted, and the sampled tokens. */
static mx_status start_readback(mx_engine_batch *b, mx_exec *e, int turn)
{
    bool logits = !b->o.draw_vocab;
    if (logits)
        MX_TRY(mx_readback_copy(&b->logits, e, "logits", 0));
    for (int64_t i = 0; i < b->in.n_last && b->o.draw_vocab; i++) {
        mx_readback_part row = {i * b->vocab, b->vocab, i * b->vocab};
        logits |= b->in.wants_logits[i];
        if (b->in.wants_logits[i])
            MX_TRY(mx_readback_copy_part(&b->logits, e, "logits", &row));
    }
    b->reads_logits[turn] = logits;
    if (logits)
        MX_TRY(mx_readback_mark(&b->logits));
    if (b->o.draw_vocab)
        MX_TRY(mx_readback_copy_part(&b->drawn[turn], e, "drawn",
                                     &(mx_readback_part){0, b->in.n_last, 0}));
    return mx_readback_mark(&b->drawn[turn]);
}

mx_status mx_engine_batch_wait(mx_engine_batch *b, int turn)
{
    b->waited = turn;
    if (b->reads_logits[turn])
        MX_TRY(mx_readback_wait(&b->logits));
    return mx_readback_wait(&b->drawn[turn]);
}

static mx_status write_input(size *z, input i, const void *data)
{
    size_t bytes = input_bytes(z, i);
    if (z->is_written[i] && memcmp(z->written[i], data, bytes) == 0)
        return MX_OK;
    memcpy(z->written[i], data, bytes);
    z->is_written[i] = true;
    return mx_exec_write_whole(z->step.exec, input_names[i], data);
}

/* Where input tokens come from, and whose tokens the batch samples. */
static mx_status write_drawn_rows(mx_engine_batch *b, size *z)
{
    const mx_engine_batch_input *in = &b->in;
    for (int64_t i = 0; i < z->last; i++)
        b->drawn_rows[i] = i < in->n_last ? in->row[in->last[i]] : -1;
    MX_TRY(write_input(z, FROM, in->from));
    return write_input(z, DRAWN_ROWS, b->drawn_rows);
}

static mx_status launch_size(mx_engine_batch *b, size *z, int *turn)
{
    mx_engine_batch_input *in = &b->in;
    mx_exec *e = z->step.exec;
    pad(in, z);
    MX_TRY(write_input(z, TOKENS, in->token));
    MX_TRY(write_input(z, POSITIONS, in->position));
    MX_TRY(write_input(z, ROWS, in->row));
    MX_TRY(write_input(z, SLOTS, in->slot));
    if (z->table_changes != in->table_changes)
        MX_TRY(mx_exec_write_whole(e, "page_table", in->table));
    z->table_changes = in->table_changes;
    MX_TRY(write_input(z, LAST, in->last));
    MX_TRY(write_input(z, SAMPLING, in->sampling));
    if (follows(&b->o))
        MX_TRY(write_drawn_rows(b, z));
    if (b->mask)
        MX_TRY(write_mask(b, e, z->tokens));
    MX_TRY(write_images(b, e, z));
    if (in->before)
        MX_TRY(mx_exec_write_whole(e, "before", in->before));
    b->ran = z;
    MX_TRY(mx_exec_run(e));
    *turn = b->turn;
    b->turn ^= 1;
    return start_readback(b, e, *turn);
}

mx_status mx_engine_batch_launch(mx_engine_batch *b, int *turn)
{
    mx_engine_batch_input *in = &b->in;
    size *z = b->sizes;
    if (in->has_images)
        return launch_size(b, &b->image, turn);
    while (z < b->sizes + b->n_sizes && (z->tokens < in->n || z->last < in->n_last))
        z++;
    MX_ASSERT(z < b->sizes + b->n_sizes, "%lld tokens, %lld rows of logits", (long long)in->n,
              (long long)in->n_last);
    return launch_size(b, z, turn);
}

void mx_engine_batch_copy_input(mx_engine_batch *b, const mx_engine_batch_input *from)
{
    mx_engine_batch_input *in = &b->in;
    size_t n = (size_t)from->n, n_last = (size_t)from->n_last;
    int32_t *const to[] = {in->token, in->position, in->row, in->slot, in->adapter_slot, in->from};
    const int32_t *const list[] = {from->token, from->position,     from->row,
                                   from->slot,  from->adapter_slot, from->from};
    MX_ASSERT(!from->has_images && !from->before && in->columns == from->columns,
              "%d columns of a table of %d", (int)from->columns, (int)in->columns);
    in->n = from->n;
    in->n_last = from->n_last;
    for (int i = 0; i < 6; i++)
        memcpy(to[i], list[i], sizeof **to * n);
    memcpy(in->last, from->last, sizeof *in->last * n_last);
    memcpy(in->sampling, from->sampling, sizeof *in->sampling * n_last * N_SETTINGS);
    memset(in->wants_logits, 0, sizeof *in->wants_logits * n_last);
    if (in->table_changes != from->table_changes)
        memcpy(in->table, from->table,
               sizeof *in->table * (size_t)(b->o.sequences * in->columns));
    in->table_changes = from->table_changes;
}

mx_status mx_engine_batch_run(mx_engine_batch *b)
{
    int turn;
    MX_TRY(mx_engine_batch_launch(b, &turn));
    return mx_engine_batch_wait(b, turn);
}

/* Twice: the first run chooses kernels, the second captures them (on CUDA, as a graph). */
mx_status mx_engine_batch_warm_up(mx_engine_batch *b)
{
    if (mx_session_traits(b->session)->host_memory)
        return MX_OK;
    b->in.n = b->in.n_last = 0;
    for (int i = 0; i < 2 * b->n_sizes; i++) {
        int turn;
        MX_TRY(launch_size(b, &b->sizes[i / 2], &turn));
        MX_TRY(mx_engine_batch_wait(b, turn));
    }
    return MX_OK;
}

const float *mx_engine_batch_logits(const mx_engine_batch *b, int64_t i)
{
    return b->logits.value + i * b->vocab;
}

int32_t mx_engine_batch_drawn(const mx_engine_batch *b, int64_t i)
{
    return ((const int32_t *)b->drawn[b->waited].value)[i];
}

mx_status mx_engine_batch_hidden(mx_engine_batch *b, float *out)
{
    MX_TRY(mx_exec_read(b->ran->step.exec, "hidden", b->hidden));
    memcpy(out, b->hidden, sizeof *out * (size_t)(b->in.n_last * b->width));
    return MX_OK;
}

mx_status mx_engine_batch_after(mx_engine_batch *b, const float **out)
{
    *out = b->after;
    return mx_exec_read(b->ran->step.exec, "after", b->after);
}

int64_t mx_engine_batch_width(const mx_engine_batch *b)
{
    return b->width;
}
