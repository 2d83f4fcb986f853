/* generate.c - maxc generate MODEL prompt="...": the model writes. */
#include "base/file.h"
#include "base/shown.h"
#include "cmd/model_text.h"
#include "exec/quant_config.h"
#include "infer/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A prompt and the adapter that answers it: 0 the model's own, or as it is. */
typedef struct {
    const mx_prompt *prompt;
    int64_t adapter;
} question;

typedef struct {
    mx_model_text m;
    mx_pictures pictures;
    mx_prompt *prompts;
    mx_tokens *ids;
    int64_t n, cap;
    question *questions; /* of the prompts, each with one adapter or more; n_questions copies */
    int64_t n_questions;
    int64_t *adapter_of; /* by answer */
    mx_adapter *adapters; /* several that prompts choose among */
    const char **names;   /* theirs */
    int n_adapters;
} state;

static mx_prompt *new_prompt(state *s)
{
    MX_GROW(s->prompts, s->n, s->cap);
    s->prompts[s->n] = (mx_prompt){0};
    return &s->prompts[s->n++];
}

/* One prompt a line: see infer/prompt.h. */
static mx_status read_prompts(state *s)
{
    size_t most = mx_file_most_of_stdin(), sum = 0;
    mx_str line = {0};
    mx_status st = MX_OK;
    while (!st) {
        st = mx_status_wrap(mx_file_line(stdin, false, &line), "standard input, line %lld",
                            (long long)s->n + 1);
        if (st || !line.len)
            break;
        sum += line.len + sizeof(mx_prompt);
        if (sum > most)
            st = mx_fail(MX_INPUT, "standard input: %lld prompts are more than the free memory "
                         "holds beside a model; give them in several parts", (long long)s->n + 1);
        while (line.len > 0 && strchr("\r\n", line.text[line.len - 1]))
            line.len--;
        line.text[line.len] = 0;
        mx_prompt *p = new_prompt(s);
        if (!st)
            st = mx_status_wrap(mx_prompt_from_line(p, line.text, line.len),
                            "line %lld of standard input looks like a conversation (a text that "
                            "begins like one is written as a JSON string)",
                            (long long)s->n);
    }
    mx_str_fini(&line);
    if (!st && !s->n)
        st = mx_fail(MX_USAGE,
                     "there is no prompt: give prompt=\"...\", or prompts on standard input, one "
                     "a line");
    return st;
}

static void print_stream(void *ctx, const char *text, size_t n)
{
    (void)ctx;
    mx_print_shown(text, n);
    fflush(stdout);
}

static void print_answers(const state *s, const mx_answer *a, int64_t copies, bool json, bool echo,
                          bool streamed)
{
    for (int64_t i = 0; i < s->n_questions * copies; i++) {
        const question *q = &s->questions[i / copies];
        const char *prompt = q->prompt->text, *name = q->adapter ? s->names[q->adapter - 1] : "";
        if (json) {
            json_t *ids = json_array();
            for (int64_t k = 0; k < a[i].ids.n; k++)
                json_array_append_new(ids, json_integer(a[i].ids.ids[k]));
            json_t *o = json_pack("{s:s, s:s, s:o, s:f}", "prompt", prompt, "text",
                                  mx_str_text(&a[i].text), "ids", ids, "log_prob", a[i].log_prob);
            if (s->n_adapters)
                json_object_set_new(o, "adapter", json_string(name));
            char *line = o ? json_dumps(o, JSON_COMPACT) : NULL;
            puts(line ? line : "{}");
            mx_free(line);
            json_decref(o);
            if (!o)
                json_decref(ids);
        } else if (streamed && i == 0) {
            puts("");
        } else {
            if (s->n_questions * copies > 1)
                printf("--- %lld%s%s\n", (long long)(i + 1), *name ? " " : "", name);
            fputs(echo ? prompt : "", stdout);
            mx_print_shown(mx_str_text(&a[i].text), a[i].text.len);
            puts("");
        }
    }
}

/* --- several adapters --- */

/* adapter=A,B: each is called by the last part of its folder's name, or by the whole. */
static mx_status open_adapters(state *s, const char *list)
{
    mx_arena *a = &s->m.arena;
    int n = 0, most = 1;
    for (const char *p = list; *p; p++)
        most += *p == ',';
    s->adapters = MX_NEW_N(a, mx_adapter, most);
    s->names = MX_NEW_N(a, const char *, most);
    if (s->m.ref.has_adapter)
        return mx_fail(MX_USAGE, "%s is an adapter already; give the model it is for",
                       s->m.ref.adapter.dir.path);
    for (const char *p = list; *p; n++) {
        size_t k = strcspn(p, ",");
        s->names[n] = mx_arena_printf(a, "%.*s", (int)k, p);
        MX_TRY(mx_model_ref_adapter(&s->adapters[n], s->names[n]));
        s->n_adapters = n + 1;
        p += k + strspn(p + k, ",");
    }
    return MX_OK;
}

static bool is_called(const char *path, const char *name)
{
    size_t n = strlen(path), k = strlen(name);
    while (n > 1 && path[n - 1] == '/')
        n--;
    return k && k <= n && memcmp(path + n - k, name, k) == 0 && (k == n || path[n - k - 1] == '/');
}

/* The number of the adapter of this name, from 1 on. */
static mx_status choose(const state *s, const char *name, int64_t *out)
{
    int found = 0;
    *out = 0;
    for (int i = 0; i < s->n_adapters; i++)
        if (is_called(s->names[i], name)) {
            *out = i + 1;
            found++;
        }
    if (found == 1 || !*name)
        return MX_OK;
    if (!s->n_adapters)
        return mx_fail(MX_USAGE, "a prompt asks for the adapter %s, and there are none to choose "
                       "among; give adapter=A,B", name);
    return mx_fail(MX_USAGE,
                   "a prompt asks for the adapter %s, and adapter= has %d of that name; give the "
                   "folder as it is in adapter=",
                   name, found);
}

/* A prompt that names no adapter is answered with each. */
static mx_status ask_all(state *s)
{
    int64_t each = s->n_adapters ? s->n_adapters : 1;
    s->questions = MX_NEW_N(&s->m.arena, question, s->n * each);
    for (int64_t i = 0; i < s->n; i++) {
        const mx_prompt *p = &s->prompts[i];
        for (int64_t k = 0; k < (p->adapter ? 1 : each); k++) {
            question q = {p, s->n_adapters ? k + 1 : 0};
            if (p->adapter)
                MX_TRY(choose(s, p->adapter, &q.adapter));
            s->questions[s->n_questions++] = q;
        }
    }
    return MX_OK;
}

static mx_status open_all(state *s, mx_invocation *inv)
{
    const mx_config *c = inv->config;
    const char *adapter = mx_config_text(c, "lora.lora_restore_path");
    MX_TRY(mx_model_text_open(&s->m, inv));
    if (strchr(adapter, ',') && !mx_dir_exists(adapter))
        MX_TRY(open_adapters(s, adapter));
    else if (*adapter)
        MX_TRY(mx_model_ref_adapt(&s->m.ref, adapter));
    const char *prompt = mx_config_text(c, "prompt");
    if (*prompt || mx_config_is_set(c, "prompt"))
        mx_prompt_from_text(new_prompt(s), prompt, strlen(prompt));
    else
        MX_TRY(read_prompts(s));
    MX_TRY(ask_all(s));
    const char *const *images;
    int n = mx_config_list(c, "image_path", &images);
    return mx_pictures_open(&s->pictures, &s->m.ref.spec, s->m.ref.path, images, n,
                            n && mx_config_bool(c, "do_pan_and_scan"));
}

typedef void text_taker(void *ctx, const char *text, size_t n_bytes);

/* What every rank of a mesh is asked to do. */
typedef struct {
    const state *s;
    int64_t n;
    const mx_generate_options *o;
    text_taker *give;
    mx_answer *answers; /* rank 0's; those of the others are the same */
    mx_generate_counts *counts;
} job;

static mx_status answer_as(void *ctx, const mx_mesh_rank *mesh_rank)
{
    const job *j = ctx;
    mx_generate_options o = *j->o;
    mx_generate_counts counts, *own = mesh_rank && mesh_rank->rank ? &counts : j->counts;
    mx_answer *answers = j->answers;
    size_t bytes = sizeof *answers * (size_t)j->n;
    o.mesh_rank = mesh_rank;
    if (mesh_rank && mesh_rank->rank) {
        answers = mx_realloc(NULL, bytes);
        memset(answers, 0, bytes);
    }
    mx_status st = mx_generate(&j->s->m.ref, j->s->m.tok, j->s->ids, j->n, &o,
                               answers == j->answers ? j->give : NULL, NULL, answers, own);
    for (int64_t i = 0; i < j->n && answers != j->answers; i++)
        mx_answer_fini(&answers[i]);
    if (answers != j->answers)
        mx_free(answers);
    return st;
}

static mx_status answer(job *j, const mx_config *c)
{
    mx_mesh_plan mesh = {0};
    mx_status st = mx_mesh_configure(&mesh, c, 1);
    if (!mx_config_is_users(c, "sharding_tolerance"))
        mesh.how.sharding_tolerance = 1; /* nothing is trained: copies cost memory and no more */
    if (!st)
        st = mesh.ranks > 1 ? mx_virtual_ranks(&mesh, j->o->n_threads, answer_as, j)
                            : answer_as(j, NULL);
    mx_mesh_plan_fini(&mesh);
    return st;
}

/* As many tokens as the key says. Where it is not set, no more than the model's positions leave
 * room for: the default is not a requirement. */
static int64_t room_for_answers(const state *s, const mx_config *c, int64_t total)
{
    int64_t most = mx_config_int(c, "max_new_tokens"), longest = 0;
    int64_t positions = s->m.ref.spec.summary.max_positions;
    for (int64_t i = 0; i < total; i++)
        longest = s->ids[i].n > longest ? s->ids[i].n : longest;
    if (mx_config_is_users(c, "max_new_tokens") || positions <= longest ||
        most <= positions - longest)
        return most;
    fprintf(stderr,
            "note: at most %lld tokens are written: the model was made for %lld positions\n",
            (long long)(positions - longest), (long long)positions);
    return positions - longest;
}

/* What the keys say of `total` answers; texts and lists are borrowed from s and c. */
static mx_generate_options options_of(const state *s, const mx_config *c, int64_t total)
{
    mx_generate_options o = {.sampling = mx_sampling_of(c),
                             .max_new_tokens = room_for_answers(s, c, total),
                             .batch = mx_config_int(c, "batch"), .stop_ids = s->m.stop_ids,
                             .n_stop_ids = mx_config_bool(c, "ignore_eos") ? 0 : s->m.n_stop_ids,
                             .compute = s->m.compute,
                             .step_tokens = mx_config_int(c, "prefill_chunk_size"),
                             .draft_tokens = mx_config_int(c, "speculative_tokens"),
                             .mtp = mx_drafts_by_mtp(c),
                             .no_prefix_cache = !mx_config_bool(c, "enable_prefix_caching"),
                             .pixels = s->pictures.pixels,
                             .n_images = s->pictures.n_images,
                             .device = mx_config_text(c, "device"),
                             .n_threads = (int)mx_config_int(c, "num_threads"),
                             .adapters = s->adapters, .n_adapters = s->n_adapters,
                             .adapter_of = s->adapter_of};
    o.n_stop = mx_config_list(c, "stop", &o.stop);
    return o;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    state s = {0};
    mx_answer *answers = NULL;
    mx_generate_counts counts;
    int64_t copies = mx_config_int(c, "n"), total = 0;
    mx_status st;
    MX_TRY_OUT(st, open_all(&s, inv));
    total = s.n_questions * copies;
    s.adapter_of = MX_NEW_N(&s.m.arena, int64_t, total);
    s.ids = mx_realloc(NULL, sizeof *s.ids * (size_t)total);
    answers = mx_realloc(NULL, sizeof *answers * (size_t)total);
    memset(s.ids, 0, sizeof *s.ids * (size_t)total);
    memset(answers, 0, sizeof *answers * (size_t)total);
    mx_prompt_setup way = {s.m.tok, s.m.chat, &s.pictures, mx_config_text(c, "system")};
    for (int64_t i = 0; i < total; i++) {
        s.adapter_of[i] = s.questions[i / copies].adapter;
        MX_TRY_OUT(st, mx_prompt_encode(s.questions[i / copies].prompt, &way, &s.ids[i]));
    }
    mx_generate_options o = options_of(&s, c, total);
    MX_TRY_OUT(st, mx_weight_quant_configure(&o.quant, c, s.m.ref.dir.config));
    bool json = strcmp(mx_config_text(c, "format"), "json") == 0;
    bool echo = mx_config_bool(c, "echo"), streamed = !json && total == 1;
    if (streamed && echo)
        fputs(s.questions[0].prompt->text, stdout);
    job j = {.s = &s, .n = total, .o = &o, .give = streamed ? print_stream : NULL,
             .answers = answers, .counts = &counts};
    MX_TRY_OUT(st, answer(&j, c));
    print_answers(&s, answers, copies, json, echo, streamed);
    if (isatty(2))
        fprintf(stderr, "prompt: %.0f tokens in %.2f s; answer: %.0f tokens, %.1f tokens/s\n",
                counts.prompt_tokens, counts.prompt_s, counts.new_tokens,
                counts.decode_s > 0 ? counts.new_tokens / counts.decode_s : 0);
out:
    for (int64_t i = 0; answers && i < total; i++) {
        mx_answer_fini(&answers[i]);
        mx_tokens_fini(&s.ids[i]);
    }
    for (int64_t i = 0; i < s.n; i++)
        mx_prompt_close(&s.prompts[i]);
    for (int i = 0; i < s.n_adapters; i++)
        mx_adapter_close(&s.adapters[i]);
    mx_free(s.prompts);
    mx_free(s.ids);
    mx_free(answers);
    mx_pictures_close(&s.pictures);
    mx_model_text_close(&s.m);
    return st;
}

static const mx_key keys[] = {MX_KEY_FORMAT, {0}};

const mx_verb mx_verb_generate = {
    .name = "generate",
    .doc = "let a model write",
    .usage = "MODEL prompt=\"...\" [image=FILE] [temperature=0.8] [max_new_tokens=256]",
    .help =
        "MODEL is a Hugging Face directory, a run or checkpoint folder, org/name of the hub, or a\n"
        "name from configs/models (random weights). Without prompt=, prompts are read from\n"
        "standard input, one a line: plain text, a JSON string, a list of messages\n"
        "[{\"role\": \"user\", \"content\": \"...\"}], {\"messages\": [...], \"tools\": [...]}.\n"
        "A model with a chat template gets a plain text as the user's message, after system=;\n"
        "use_chat_template=false gives it the text as it is. Greedy unless a temperature or a\n"
        "cut is given. stop=A,B ends an answer before the first of these texts.\n"
        "adapter=DIR puts a PEFT adapter, or a run of one, beside the model. Of several,\n"
        "adapter=A,B, a line chooses: {\"prompt\": \"...\", \"adapter\": \"A\"}, with messages\n"
        "likewise, and \"\" for the model as it is; one that does not is answered with each.\n"
        "image=FILE (JPEG, PNG, WebP; several with commas) shows the model pictures: before the\n"
        "prompt, or where its image mark stands.",
    .min_args = 1,
    .max_args = 1,
    .keys = keys,
    .run = run,
};
