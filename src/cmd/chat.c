/* chat.c - maxc chat MODEL: a conversation in the terminal. */
#include "base/file.h"
#include "base/shown.h"
#include "base/signals.h"
#include "cmd/line_edit.h"
#include "cmd/model_text.h"
#include "exec/quant_config.h"
#include "infer/engine_mesh.h"
#include "infer/prompt.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    mx_model_text m;
    const char *name; /* of the model */
    mx_engine *engine;
    json_t *messages;
    mx_request_options o;
    const char *system;
    bool terminal;
    bool edits; /* keys edit the line that is being written */
    mx_line_history history;
    mx_status unread; /* why the input could not be read on; owns */
} talk;

static const char commands[] =
    "/help       this list\n"
    "/new        forget the conversation\n"
    "/retry      another answer to the last message\n"
    "/undo       take back the last message and its answer\n"
    "/system T   say T to the model before the conversation, and begin anew\n"
    "/set K=V    temperature, top_p, top_k, min_p, seed or max_new_tokens\n"
    "/save FILE  the conversation as JSON\n"
    "/quit       or Ctrl-D\n"
    "A line that ends in \\ goes on in the next; Ctrl-C ends an answer; arrows show lines "
    "before.\n";

static void begin_anew(talk *t)
{
    json_array_clear(t->messages);
    if (*t->system)
        json_array_append_new(t->messages,
                              json_pack("{s:s, s:s}", "role", "system", "content", t->system));
}

/* --- answers --- */

static mx_status encode(talk *t, mx_tokens *out)
{
    mx_str text = {0};
    mx_encode_options marks = {.special_in_text = MX_SPECIAL_PARSE};
    mx_chat_options o = {.add_generation_prompt = true};
    mx_status st = mx_messages_render(t->messages, t->m.chat, t->m.tok, o, &text);
    if (!st)
        st = mx_tokenizer_encode(t->m.tok, mx_str_text(&text), text.len, &marks, out);
    mx_str_fini(&text);
    return st;
}

/* Until it has ended, or Ctrl-C. */
static mx_status follow(talk *t, mx_request *r)
{
    size_t shown = 0;
    mx_stop_clear();
    while (!r->finish && !mx_stop_signal()) {
        MX_TRY(mx_engine_step(t->engine));
        while (mx_engine_take(t->engine))
            ;
        mx_print_shown(mx_str_text(&r->reply.text) + shown, r->reply.settled - shown);
        shown = r->reply.settled;
        fflush(stdout);
    }
    if (mx_stop_signal() != SIGTERM) /* that ends the conversation, too */
        mx_stop_clear();
    puts("");
    mx_status st = r->error;
    r->error = MX_OK;
    return st;
}

static mx_status answer(talk *t)
{
    mx_tokens prompt = {0};
    mx_request *r = NULL;
    mx_request_options o = t->o;
    mx_status st = encode(t, &prompt);
    int64_t room = mx_engine_max_length(t->engine) - prompt.n;
    o.max_new = o.max_new < room ? o.max_new : room;
    if (!st && room < 1)
        st = mx_fail(MX_USAGE,
                     "the conversation has %lld tokens and fills the context; /new begins "
                     "another",
                     (long long)prompt.n);
    if (!st)
        st = mx_engine_admit(t->engine, &prompt, &o, &r);
    if (!st)
        st = follow(t, r);
    if (!st)
        json_array_append_new(
            t->messages, json_pack("{s:s, s:o}", "role", "assistant", "content",
                                   json_stringn(mx_str_text(&r->reply.text), r->reply.text.len)));
    if (r)
        mx_engine_cancel(t->engine, r);
    t->o.sampling.seed++;
    mx_tokens_fini(&prompt);
    return st;
}

/* What was said last, with the answer to it, is taken back; false: nothing was. */
static bool take_back(talk *t, bool keep_question)
{
    size_t n = json_array_size(t->messages);
    while (n > 0) {
        const char *role =
            json_string_value(json_object_get(json_array_get(t->messages, --n), "role"));
        bool user = strcmp(role, "user") == 0;
        if (strcmp(role, "system") == 0)
            return false;
        if (!(user && keep_question))
            json_array_remove(t->messages, n);
        if (user)
            return true;
    }
    return false;
}

/* --- commands --- */

static void set(talk *t, char *what)
{
    mx_sampling *s = &t->o.sampling;
    char *equals = strchr(what, '=');
    double x;
    if (equals)
        *equals = 0;
    if (!equals || !mx_parse_f64(equals + 1, &x) || !(x >= 0 && x < 1e15)) {
        fprintf(stderr, "expected /set temperature=0.8 or the like\n");
        return;
    }
    if (strcmp(what, "temperature") == 0)
        s->temperature = x;
    else if (strcmp(what, "top_p") == 0)
        s->top_p = x;
    else if (strcmp(what, "min_p") == 0)
        s->min_p = x;
    else if (strcmp(what, "top_k") == 0)
        s->top_k = (int64_t)x;
    else if (strcmp(what, "seed") == 0)
        s->seed = (uint64_t)x;
    else if (strcmp(what, "max_new_tokens") == 0 && x >= 1)
        t->o.max_new = (int64_t)x;
    else
        fprintf(stderr, "%s cannot be set; /help says what can\n", what);
}

static void save(const talk *t, const char *path)
{
    if (json_dump_file(t->messages, path, JSON_INDENT(2)) != 0)
        fprintf(stderr, "%s cannot be written: %s\n", path, strerror(errno));
}

static mx_status command(talk *t, char *line, bool *quit)
{
    char *rest = line + strcspn(line, " ");
    if (*rest)
        *rest++ = 0;
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) {
        *quit = true;
    } else if (strcmp(line, "/new") == 0) {
        begin_anew(t);
    } else if (strcmp(line, "/undo") == 0) {
        if (!take_back(t, false))
            fprintf(stderr, "there is nothing to take back\n");
    } else if (strcmp(line, "/retry") == 0) {
        if (take_back(t, true))
            return answer(t);
        fprintf(stderr, "there is nothing to answer\n");
    } else if (strcmp(line, "/system") == 0) {
        t->system = mx_arena_strdup(&t->m.arena, rest);
        begin_anew(t);
    } else if (strcmp(line, "/set") == 0) {
        set(t, rest);
    } else if (strcmp(line, "/save") == 0 && *rest) {
        save(t, rest);
    } else {
        fputs(commands, stderr);
    }
    return MX_OK;
}

/* --- the conversation --- */

/* A line without its break; false: the end of input. */
static bool read_line(talk *t, const char *prompt, mx_str *out)
{
    if (t->unread)
        return false;
    if (t->edits)
        return mx_line_read(&t->history, prompt, out);
    if (t->terminal)
        fputs(prompt, stderr);
    t->unread = mx_file_line(stdin, false, out);
    bool any = !t->unread && out->len > 0;
    while (out->len > 0 && strchr("\r\n", out->text[out->len - 1]))
        out->text[--out->len] = 0;
    return any;
}

/* A message: lines that end in \ go on. False at the end of the input. */
static bool read_message(talk *t, mx_str *out)
{
    mx_str line = {0};
    bool more = true, any = true;
    mx_str_clear(out);
    while (more && (any = read_line(t, out->len ? ". " : "> ", &line))) {
        more = line.len > 0 && line.text[line.len - 1] == '\\';
        mx_str_add_n(out, mx_str_text(&line), line.len - more);
        if (more)
            mx_str_add(out, "\n");
    }
    mx_str_fini(&line);
    return any;
}

/* An error in one message is printed, and the conversation goes on. */
static mx_status say(talk *t, const char *text)
{
    json_t *m = json_pack("{s:s, s:s}", "role", "user", "content", text);
    if (!m)
        return mx_fail(MX_INPUT, "the message is not valid UTF-8");
    json_array_append_new(t->messages, m);
    mx_status st = answer(t);
    if (st)
        take_back(t, false);
    return st;
}

static mx_status converse(talk *t)
{
    mx_str message = {0};
    bool quit = false;
    while (!quit && mx_stop_signal() != SIGTERM && read_message(t, &message)) {
        char *text = message.text;
        if (!text || !*text)
            continue;
        mx_status st = *text == '/' ? command(t, text, &quit) : say(t, text);
        if (mx_status_code(st) == MX_DEVICE || (st && !t->terminal)) {
            mx_str_fini(&message);
            return st;
        }
        if (st)
            fprintf(stderr, "%s\n", mx_status_text(st));
        mx_status_free(st);
    }
    mx_str_fini(&message);
    return t->unread;
}

/* On an open engine, until the other side has no more to say. */
static mx_status talk_on(void *ctx, mx_engine *e)
{
    talk *t = ctx;
    t->engine = e;
    MX_TRY(mx_signals_install(NULL)); /* Ctrl-C ends an answer, SIGTERM the conversation */
    if (!t->edits)
        (void)signal(SIGTERM, SIG_DFL);
    if (t->terminal)
        fprintf(stderr, "%s. /help lists commands.\n", t->name);
    return converse(t);
}

static mx_status run_talk(talk *t, mx_invocation *inv)
{
    const mx_config *c = inv->config;
    MX_TRY(mx_model_text_open(&t->m, inv));
    if (!t->m.chat)
        return mx_fail(MX_USAGE,
                       "%s has no chat template; give chat_template_path=FILE, or let it continue "
                       "a text: maxc generate",
                       inv->args[0]);
    mx_engine_options eo = {.model = &t->m.ref,
                            .tokenizer = t->m.tok,
                            .device = mx_config_text(c, "device"),
                            .n_threads = (int)mx_config_int(c, "num_threads"),
                            .compute = t->m.compute,
                            .sequences = 1,
                            .stop_ids = t->m.stop_ids,
                            .n_stop_ids = t->m.n_stop_ids};
    t->o = (mx_request_options){.max_new = mx_config_int(c, "max_new_tokens"),
                                .sampling = mx_sampling_of(c)};
    t->system = mx_config_text(c, "system");
    t->terminal = isatty(0) && isatty(1);
    const char *kind = getenv("TERM");
    t->edits = t->terminal && isatty(2) && kind && strcmp(kind, "dumb") != 0;
    t->messages = json_array();
    begin_anew(t);
    MX_TRY(mx_weight_quant_configure(&eo.quant, c, t->m.ref.dir.config));
    return mx_engine_run(&(mx_engine_use){c, &eo, "chat", talk_on, t});
}

static mx_status run(mx_invocation *inv)
{
    talk t = {.name = inv->args[0]};
    mx_status st = run_talk(&t, inv);
    json_decref(t.messages);
    mx_line_history_fini(&t.history);
    mx_model_text_close(&t.m);
    return st;
}

const mx_verb mx_verb_chat = {
    .name = "chat",
    .doc = "talk to a model in the terminal",
    .usage = "MODEL [system=\"...\"] [temperature=0.8] [max_new_tokens=256]",
    .help = "MODEL as in `maxc help generate`; it needs a chat template. Messages are lines of\n"
            "standard input, answers go to standard output; /help lists commands. Greedy unless a\n"
            "temperature or a cut is given.",
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
