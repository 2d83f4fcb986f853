/* tool_calls_test.c - calls as families write them are found, whole and while an answer goes on. */
#include "../test.h"

#include "base/str.h"
#include "serve/tools.h"
#include <string.h>

static const char TOOLS[] =
    "[{'type': 'function', 'function': {'name': 'look', 'parameters': {'type': 'object', "
    "'properties': {'city': {'type': 'string'}, 'days': {'type': 'integer'}, 'more': {'type': "
    "['object', 'null']}}}}}, {'type': 'function', 'function': {'name': 'f'}}]";

/* The text with its ' as ". */
static void quote(mx_str *out, const char *text)
{
    mx_str_clear(out);
    mx_str_add(out, text);
    for (size_t i = 0; i < out->len; i++)
        out->text[i] = out->text[i] == '\'' ? '"' : out->text[i];
}

/* DeepSeek's marks. */
#define CALLS "<｜tool▁calls▁begin｜>"
#define CALL "<｜tool▁call▁begin｜>"
#define SEP "<｜tool▁sep｜>"
#define END "<｜tool▁call▁end｜>"

static void check(const char *sign, const char *answer, const char *expected, int n_text)
{
    const mx_call_form *form = mx_call_form_of(sign);
    mx_str text = {0}, found = {0}, want = {0};
    size_t n, i;
    quote(&text, TOOLS);
    json_t *tools = json_loads(mx_str_text(&text), 0, NULL), *call;
    quote(&text, answer);
    quote(&want, expected);
    json_t *calls = mx_calls_read(form, tools, mx_str_text(&text), text.len, &n);
    json_array_foreach(calls, i, call)
        mx_str_addf(&found, "%s%s;", json_string_value(json_object_get(call, "name")),
                    json_string_value(json_object_get(call, "arguments")));
    MX_CHECK(strcmp(mx_str_text(&found), mx_str_text(&want)) == 0, "%s: %s", answer,
             mx_str_text(&found));
    MX_CHECK((int)n == (n_text < 0 ? (int)text.len : n_text), "%s: %zu bytes of text", answer, n);
    /* nothing that turns out to be a call has been shown as text before */
    for (size_t k = 0; k <= text.len && *expected; k++)
        MX_CHECK(mx_calls_before(form, mx_str_text(&text), k) <= n, "%s: %zu", answer, k);
    json_decref(calls);
    json_decref(tools);
    mx_str_fini(&text);
    mx_str_fini(&found);
    mx_str_fini(&want);
}

MX_TEST(calls_of_tools_are_found)
{
    static const struct {
        const char *sign, *answer, *calls;
        int n_text; /* -1: all of it */
    } cases[] = {
        {"<tool_call>", "ok <tool_call>\n{'name': 'look', 'arguments': {'city': 'Łódź', 'x': "
                        "0.1}}\n</tool_call>\n"
                        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
         "look{'city':'Łódź','x':0.1};f{};", 3},
        {NULL, "<tool_call>{'name': 'f', 'arguments': '{}'}", "f{};", 0},
        {"<tool_call>", "<tool_call>\n<function=look>\n<parameter=city>\n12\n</parameter>\n"
                        "<parameter=days>\n3\n</parameter>\n<parameter=more>\n{'a': [1]}\n"
                        "</parameter>\n</function>\n</tool_call>",
         "look{'city':'12','days':3,'more':{'a':[1]}};", 0},
        {"<tool_call>", "<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>a\nb</arg_value>\n"
                        "<arg_key>days</arg_key>\n<arg_value>many</arg_value>\n</tool_call>",
         "look{'city':'a\\nb','days':'many'};", 0},
        {"<tool_call>", "a <tool_ b", "", -1},
        {"<tool_call>", "<tool_call>nothing</tool_call>", "", -1},
        {"<tool_call>", "<tool_call>{'name': 'f', 'arguments': {'q': 1", "", -1},
        {"<tool_call>", "<tool_call>{'name': 'f', 'arguments': 5}</tool_call>", "", -1},
        {"[TOOL_CALLS]", "[TOOL_CALLS] [{'name': 'look', 'arguments': {'city': ']'}}, {'name': "
                         "'f', 'arguments': {}}]",
         "look{'city':']'};f{};", 0},
        {"[TOOL_CALLS]", "yes[TOOL_CALLS]look[ARGS]{'city': 'P'}[TOOL_CALLS]f[CALL_ID]abcdefghi"
                         "[ARGS]{}",
         "look{'city':'P'};f{};", 3},
        {"[TOOL_CALLS]", "[TOOL_CALLS]f", "", -1},
        {"\"parameters\": dictionary", "{'name': 'look', 'parameters': {'city': 'P'}}",
         "look{'city':'P'};", 0},
        {"\"parameters\": dictionary",
         "<|python_tag|>{'name': 'f', 'parameters': {}}; {'name': 'f', 'parameters': {'a': 1}}",
         "f{};f{'a':1};", 0},
        {"\"parameters\": dictionary", "{'name': 'Bob', 'parameters': {}}", "", -1},
        {"\"parameters\": dictionary", "{'name': 'f', 'parameters': {}} or so", "", -1},
        {"\"parameters\": dictionary", "it is {'name': 'f', 'parameters': {}}", "", -1},
        {CALLS,
         "x" CALLS CALL "function" SEP "look\n```json\n{'city': 'P'}\n```" END "\n" CALL
         "function" SEP "f\n```json\n{}\n```" END "<｜tool▁calls▁end｜>",
         "look{'city':'P'};f{};", 1},
        {CALLS, CALLS CALL "f" SEP "{'a': 1}" END, "f{'a':1};", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(cases[i].sign, cases[i].answer, cases[i].calls, cases[i].n_text);
    const mx_call_form *tags = mx_call_form_of(NULL), *whole;
    MX_CHECK(mx_calls_before(tags, "a <tool_", 8) == 2, "the beginning of a mark is held back");
    MX_CHECK(mx_calls_before(tags, "a <tools", 8) == 8, "what is no mark is not");
    whole = mx_call_form_of("\"parameters\": dictionary");
    MX_CHECK(mx_calls_before(whole, " {", 2) == 0 && mx_calls_before(whole, "a {", 3) == 3,
             "an answer that begins like JSON is held back");
}

/* What a stream gives of a forced call's arguments, where its answer grows by `step` characters;
 * `whole`: it ends by itself. */
static void stream(const char *answer, int step, bool whole, mx_str *out)
{
    mx_served served = {.calls = mx_call_form_of(NULL)};
    mx_api_call c = {.served = &served, .api = &mx_api_chat, .forced = true};
    mx_request r = {.reply = {.stopped_by = -1}};
    mx_part p = {.call = &c, .r = &r};
    mx_str text = {0};
    quote(&text, answer);
    for (size_t n = 0; n < text.len;) {
        size_t from = n;
        for (int k = 0; k < step && n < text.len; k++)
            do
                n++;
            while (n < text.len && (text.text[n] & 0xc0) == 0x80);
        mx_str_add_n(&r.reply.text, text.text + from, n - from);
        r.reply.settled = n;
        r.finish = n < text.len ? MX_FINISH_NOT : whole ? MX_FINISH_STOP : MX_FINISH_LENGTH;
        json_t *delta = mx_tools_delta(&p, n == text.len);
        const char *piece =
            json_string_value(json_object_get(json_object_get(delta, "function"), "arguments"));
        mx_str_add(out, piece ? piece : "");
        json_decref(delta);
    }
    mx_str_fini(&r.reply.text);
    mx_str_fini(&text);
}

/* Characters of several bytes are whole in every piece. */
MX_TEST(forced_calls_stream_all_of_their_arguments)
{
    static const char head[] = "{'name': 'look', 'arguments': ";
    static const char *const arguments[] = {"{'city': 'Zürich'}",
                                            "{'a': {'ä': {}}, '日本': '😀'}", "{}"};
    mx_str answer = {0}, want = {0}, got = {0};
    for (size_t i = 0; i < 3; i++)
        for (int step = 1; step < 50; step++)
            for (int whole = 0; whole < 2; whole++) {
                mx_str_clear(&answer);
                mx_str_clear(&got);
                mx_str_addf(&answer, "%s%s%s", head, arguments[i], whole ? "}" : "");
                quote(&want, arguments[i]);
                stream(mx_str_text(&answer), step, whole, &got);
                MX_CHECK(strcmp(mx_str_text(&got), mx_str_text(&want)) == 0, "%s by %d: %s",
                         mx_str_text(&answer), step, mx_str_text(&got));
            }
    mx_str_fini(&answer);
    mx_str_fini(&want);
    mx_str_fini(&got);
}
