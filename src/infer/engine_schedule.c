/* engine_schedule.c - which tokens go into the next batch, and where their entries go.
 *
 * First decoding: the next token of every running answer, the oldest first; when no page is left
 * for one, the request that began last is preempted. Then prefill of running requests, as far as
 * the batch and the cache allow; then waiting requests, each once the cache has pages for its whole
 * prompt.
 */
#include "infer/engine_impl.h"

#include <string.h>

void mx_engine_wait(mx_engine *e, mx_seq *s, bool first)
{
    s->next_waiting = first ? e->waiting : NULL;
    if (first)
        e->waiting = s;
    else
        *(e->waiting ? &e->last_waiting->next_waiting : &e->waiting) = s;
    if (!s->next_waiting)
        e->last_waiting = s;
}

void mx_engine_evict(mx_engine *e, mx_seq *s)
{
    if (s->row < 0)
        return;
    int64_t i = 0;
    while (e->running[i] != s)
        i++;
    memmove(e->running + i, e->running + i + 1, sizeof *e->running * (size_t)(--e->n_running - i));
    e->free_rows[e->n_free_rows++] = s->row;
    s->row = -1;
    /* the last pages of a shared prefix are evicted first */
    while (s->n_pages > 0)
        mx_pages_release(e->pages, s->page[--s->n_pages]);
    s->computed = s->n_named = s->take = s->n_mtp_drafts = s->n_pending = 0;
    for (int k = 0; k < 2; k++)
        for (int64_t j = 0; j < e->inflight[k].n; j++)
            if (e->inflight[k].part[j].s == s)
                e->inflight[k].part[j].s = NULL;
}

static void preempt(mx_engine *e, mx_seq *s)
{
    mx_engine_evict(e, s);
    mx_engine_wait(e, s, true);
    e->counts.preemptions++;
}

/* The sequence's next page, into its row of the page table. */
static void append_page(mx_engine *e, mx_seq *s, int32_t page)
{
    mx_engine_batch_input *in = mx_engine_batch_input_of(e->batch);
    in->table[s->row * in->columns + s->n_pages] = page;
    in->table_changes++;
    s->page[s->n_pages++] = page;
}

int64_t mx_engine_reserve(mx_engine *e, mx_seq *s, int64_t n)
{
    while (s->n_pages * MX_ENGINE_PAGE < n) {
        int32_t page = mx_pages_take(e->pages);
        if (page < 0)
            break;
        append_page(e, s, page);
    }
    int64_t has = s->n_pages * MX_ENGINE_PAGE;
    return has < n ? has : n;
}

/* What sets the request's pages apart: its salt, and what its adapter's slot holds. */
static mx_page_name chain_start(const mx_engine *e, const mx_seq *s)
{
    const char *salt = s->o.salt ? s->o.salt : "";
    mx_page_name name = *salt ? mx_pages_salted(salt, strlen(salt)) : 0;
    uint64_t both[2] = {name, s->o.adapter ? e->slot_contents[s->o.adapter - 1] : 0};
    return both[1] ? mx_pages_salted((const char *)both, sizeof both) : name;
}

/* The prefix that is in the cache already, as long as its last token is computed again: its
 * logits are not kept. Log-probabilities of the prompt need all of it. */
static void share_prefix(mx_engine *e, mx_seq *s)
{
    s->name = chain_start(e, s);
    s->n_named = 0;
    if (e->o.no_prefix_cache || s->scored < s->r.n_prompt)
        return;
    const int32_t *ids = s->r.tokens.ids;
    while ((s->n_pages + 1) * MX_ENGINE_PAGE < s->r.tokens.n) {
        mx_page_name before = mx_engine_before_page(s, s->n_pages, s->name);
        int32_t page = mx_pages_find(e->pages, before, ids + s->n_pages * MX_ENGINE_PAGE, &s->name);
        if (page < 0)
            break;
        append_page(e, s, page);
    }
    s->n_named = s->n_pages;
    s->computed = s->n_pages * MX_ENGINE_PAGE;
}

void mx_engine_publish(mx_engine *e, mx_seq *s)
{
    if (e->o.no_prefix_cache)
        return;
    for (; (s->n_named + 1) * MX_ENGINE_PAGE <= s->computed; s->n_named++)
        s->name = mx_pages_publish(e->pages, s->page[s->n_named],
                                   mx_engine_before_page(s, s->n_named, s->name),
                                   s->r.tokens.ids + s->n_named * MX_ENGINE_PAGE);
}

/* Tokens [computed, computed + n) go into the batch. */
static void put(mx_seq *s, int64_t n, mx_engine_batch_input *in)
{
    s->take = n;
    s->first_in = in->n;
    s->first_row = in->n_last;
    for (int64_t t = s->computed; t < s->computed + n; t++) {
        int64_t i = in->n++;
        bool known = !s->n_pending || t < s->r.tokens.n; /* drafts stand after the last token */
        in->token[i] = known ? s->r.tokens.ids[t] : 0;
        in->from[i] = known ? -1 : s->row;
        in->position[i] = (int32_t)t;
        in->row[i] = s->row;
        in->adapter_slot[i] = (int32_t)s->o.adapter - 1;
        in->slot[i] = s->page[t / MX_ENGINE_PAGE] * MX_ENGINE_PAGE + (int32_t)(t % MX_ENGINE_PAGE);
        /* the logits of a token are for the one after it */
        bool next = t + 1 >= mx_seq_length(s) && (s->o.max_new > 0 || s->o.embedding);
        if (next || (t + 1 >= s->scored && t + 1 < s->r.n_prompt))
            in->last[in->n_last++] = (int32_t)i;
    }
    s->n_rows = in->n_last - s->first_row;
}

/* As much of a prompt as the batch takes; where all its log-probabilities are asked for, each of
 * its tokens needs a row of logits. */
static void put_prompt(mx_engine *e, mx_seq *s, mx_engine_batch_input *in)
{
    int64_t left = mx_seq_length(s) - s->computed, room = e->o.step_tokens - in->n, n = left;
    int64_t rows = e->n_rows - in->n_last;
    n = n < room ? n : room;
    if (s->scored < s->r.n_prompt)
        n = n < rows ? n : rows;
    else if (rows < 1)
        n = n < left ? n : n - 1;
    n = mx_engine_whole_images(e, s, n);
    n = n > 0 ? mx_engine_reserve(e, s, s->computed + n) - s->computed : 0;
    n = mx_engine_whole_images(e, s, n);
    if (n > 0)
        put(s, n, in);
}

static bool is_answering(const mx_seq *s)
{
    return s->computed + 1 >= mx_seq_length(s);
}

/* Its last token is in flight, or all of a prompt that is only read. */
static bool is_ending(const mx_seq *s)
{
    bool last = s->n_pending && mx_seq_length(s) - s->r.n_prompt >= s->o.max_new;
    return last || s->computed >= mx_seq_length(s);
}

/* What the MTP layer has drafted, at most n tokens of it. */
static int64_t take_mtp_drafts(mx_seq *s, int64_t n)
{
    mx_tokens *t = &s->r.tokens;
    n = n < s->n_mtp_drafts ? n : s->n_mtp_drafts;
    memcpy(t->ids + t->n, s->mtp_draft, sizeof *s->mtp_draft * (size_t)n);
    return n;
}

/* Drafts the next tokens of an answer, after its last one: at most `spare`, and only as many as
 * free pages hold, without preemption. Under a constraint what may come is only known token by
 * token. */
static void draft(mx_engine *e, mx_seq *s, int64_t spare)
{
    const mx_request *r = &s->r;
    int64_t n = e->o.draft_tokens < spare ? e->o.draft_tokens : spare;
    int64_t left = r->n_prompt + s->o.max_new - r->tokens.n - 1; /* one token comes anyway */
    n = n < left ? n : left;
    if (n <= 0 || s->o.constraint)
        return;
    n = e->mtp ? take_mtp_drafts(s, n)
               : mx_draft_lookup(r->tokens.ids, r->tokens.n, n, r->tokens.ids + r->tokens.n);
    s->n_drafted = mx_engine_reserve(e, s, s->computed + 1 + n) - s->computed - 1;
}

/* The next token of running answers, and the drafts after it. */
static void put_answers(mx_engine *e, mx_engine_batch_input *in)
{
    int64_t spare = e->o.step_tokens;
    for (int64_t i = 0; i < e->n_running; i++)
        spare -= is_answering(e->running[i]);
    for (int64_t i = 0; i < e->n_running; i++) {
        mx_seq *s = e->running[i];
        if (!is_answering(s) || is_ending(s))
            continue;
        while (s->row >= 0 && mx_engine_reserve(e, s, s->computed + 1) <= s->computed)
            preempt(e, e->running[e->n_running - 1]);
        if (s->row < 0)
            continue;
        draft(e, s, spare);
        spare -= s->n_drafted;
        put(s, 1 + s->n_drafted, in);
    }
}

static bool admit_next(mx_engine *e)
{
    mx_seq *s = e->waiting;
    int64_t need = (s->r.tokens.n + MX_ENGINE_PAGE) / MX_ENGINE_PAGE;
    if (!e->n_free_rows)
        return false;
    s->row = e->free_rows[--e->n_free_rows];
    share_prefix(e, s);
    e->running[e->n_running++] = s;
    if (need - s->n_pages > mx_pages_count(e->pages) - mx_pages_held(e->pages)) {
        mx_engine_evict(e, s); /* it stays the first of those that wait */
        return false;
    }
    e->waiting = s->next_waiting;
    e->counts.prefix_queries += s->r.tokens.n;
    e->counts.prefix_hits += s->computed;
    if (s->r.tokens.n == s->r.n_prompt)
        s->r.n_cached = s->computed;
    return true;
}

void mx_engine_schedule(mx_engine *e)
{
    mx_engine_batch_input *in = mx_engine_batch_input_of(e->batch);
    in->n = in->n_last = 0;
    for (int64_t i = 0; i < e->n_running; i++)
        e->running[i]->take = e->running[i]->n_rows = e->running[i]->n_drafted = 0;
    put_answers(e, in);
    for (int64_t i = 0; i < e->n_running && in->n < e->o.step_tokens; i++)
        if (!e->running[i]->take && !is_ending(e->running[i]))
            put_prompt(e, e->running[i], in);
    while (e->waiting && in->n < e->o.step_tokens && admit_next(e))
        put_prompt(e, e->running[e->n_running - 1], in);
    /* prompts hold all pages, and none can go on */
    while (!in->n && e->n_running > 1 && !e->inflight[0].n) {
        preempt(e, e->running[e->n_running - 1]);
        put_prompt(e, e->running[0], in);
    }
}

bool mx_engine_has_room_ahead(const mx_engine *e)
{
    return mx_pages_count(e->pages) - mx_pages_held(e->pages) >= e->n_running;
}
