/* chat_template_test.c - the interpreter against recorded results of transformers'
 * apply_chat_template, hostile templates against its limits, and where a directory keeps its
 * template.
 *
 * tests/fixtures/chat/GROUP.json: templates written for these tests, a conversation, tools and
 * variables, and for each what transformers gave: the text, spans in code points, or an error.
 */
#include "../test.h"

#include "../fuzz/corpus.h"
#include "text/jinja/chat_template.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NOON = 1722000000 - 1722000000 % 86400 + 13 * 3600 + 5 * 60 + 9 }; /* 2024-07-26 13:05:09 */

static size_t code_points(const char *s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += ((unsigned char)s[i] & 0xC0) != 0x80;
    return k;
}

static void check_spans(const json_t *want, const mx_chat_spans *got, const mx_str *text,
                        const char *name)
{
    MX_CHECK((size_t)got->n == json_array_size(want), "%s: %d spans", name, got->n);
    for (int i = 0; i < got->n && (size_t)i < json_array_size(want); i++) {
        const json_t *pair = json_array_get(want, (size_t)i);
        size_t a = code_points(mx_str_text(text), got->v[i].begin);
        size_t b = code_points(mx_str_text(text), got->v[i].end);
        MX_CHECK((json_int_t)a == json_integer_value(json_array_get(pair, 0)) &&
                     (json_int_t)b == json_integer_value(json_array_get(pair, 1)),
                 "%s: span %d is %zu..%zu", name, i, a, b);
    }
}

static void run_case(const json_t *doc, const json_t *c, const char *name)
{
    const json_t *messages = json_object_get(c, "messages"), *want = json_object_get(c, "output");
    const char *text = json_string_value(json_object_get(c, "template"));
    mx_chat_options o = {
        .add_generation_prompt = json_is_true(json_object_get(c, "add_generation_prompt")),
        .tools = json_object_get(c, "tools") ? json_object_get(doc, "tools") : NULL,
        .variables = json_object_get(doc, "variables"),
        .continue_final_message = json_is_true(json_object_get(c, "continue_final_message")),
        .now = NOON};
    mx_chat_template *t;
    mx_str out = {0};
    mx_chat_spans spans = {0};
    mx_status st = mx_chat_template_open(&t, text);
    if (!st)
        st = mx_chat_render(t, messages ? messages : json_object_get(doc, "messages"), &o, &out,
                            &spans);
    if (!want) {
        MX_CHECK(
            st && (strstr(mx_status_text(st), "line ") || strstr(mx_status_text(st), "continue_")),
            "%s: an error with a line was expected\n  %s\n  got %s", name, text,
            st ? mx_status_text(st) : mx_str_text(&out));
    } else {
        MX_CHECK(!st, "%s: %s\n  template: %s", name, mx_status_text(st), text);
        MX_CHECK(out.len == json_string_length(want) &&
                     memcmp(mx_str_text(&out), json_string_value(want), out.len) == 0,
                 "%s\n  template: %s\n  expected: %s\n  found:    %s", name, text,
                 json_string_value(want), mx_str_text(&out));
        check_spans(json_object_get(c, "spans"), &spans, &out, name);
    }
    mx_status_free(st);
    mx_chat_template_close(t);
    mx_str_fini(&out);
    mx_chat_spans_fini(&spans);
}

static void run_group(const char *group)
{
    char path[256], name[300];
    json_error_t e;
    setenv("TZ", "UTC", 1);
    tzset();
    snprintf(path, sizeof path, "tests/fixtures/chat/%s.json", group);
    json_t *doc = json_load_file(path, JSON_ALLOW_NUL, &e);
    MX_CHECK(doc != NULL, "%s: %s", path, e.text);
    const json_t *cases = json_object_get(doc, "cases"), *c;
    size_t i;
    MX_CHECK(json_array_size(cases) > 0, "%s has no cases", path);
    json_array_foreach((json_t *)cases, i, c)
    {
        snprintf(name, sizeof name, "%s %zu", group, i);
        run_case(doc, c, name);
    }
    json_decref(doc);
}

MX_TEST(chat_whitespace_as_transformers)
{
    run_group("whitespace");
}
MX_TEST(chat_values_as_transformers)
{
    run_group("values");
}
MX_TEST(chat_control_as_transformers)
{
    run_group("control");
}
MX_TEST(chat_macros_as_transformers)
{
    run_group("macros");
}
MX_TEST(chat_filters_as_transformers)
{
    run_group("filters");
}
MX_TEST(chat_tojson_as_transformers)
{
    run_group("tojson");
}
MX_TEST(chat_tests_as_transformers)
{
    run_group("tests");
}
MX_TEST(chat_methods_as_transformers)
{
    run_group("methods");
}
MX_TEST(chat_generation_spans_as_transformers)
{
    run_group("generation");
}
MX_TEST(chat_errors_as_transformers)
{
    run_group("errors");
}
MX_TEST(chat_continue_as_transformers)
{
    run_group("continue");
}

MX_TEST(chat_whole_templates_as_transformers)
{
    run_group("templates");
}

/* --- messages of errors --- */
static mx_status render(const char *text, const mx_chat_options *o, mx_str *out)
{
    mx_chat_template *t;
    json_t *messages = json_loads("[{\"role\": \"user\", \"content\": \"hi\"}]", 0, NULL);
    mx_status st = mx_chat_template_open(&t, text);
    if (!st)
        st = mx_chat_render(t, messages, o, out, NULL);
    mx_chat_template_close(t);
    json_decref(messages);
    return st;
}

static mx_status fails(const char *text)
{
    mx_str out = {0};
    mx_status st = render(text, NULL, &out);
    mx_str_fini(&out);
    return st;
}

MX_TEST(chat_errors_say_line_and_reason)
{
    MX_CHECK_ERROR(fails("a\nb\n{% if x %}\nc\n"), "line 3: {% if %} is never closed");
    MX_CHECK_ERROR(fails("a\n{% for x in y %}\n{% endif %}"), "line 3: {% endif %} closes nothing");
    MX_CHECK_ERROR(fails("a\n\n{{ 'x }}"), "line 3: a string is opened here");
    MX_CHECK_ERROR(fails("\n{{ (1 + 2 }}"), "line 2: '}' closes nothing");
    MX_CHECK_ERROR(fails("\n\n{{ raise_exception('roles must alternate') }}"),
                   "line 3: the template refuses this conversation: roles must alternate");
    MX_CHECK_ERROR(fails("x\n{{ nobody.name }}"), "line 2: 'nobody' is undefined");
    MX_CHECK_ERROR(fails("x\n{{ 1|shout }}"), "line 2: no filter named 'shout'");
    MX_CHECK_ERROR(fails("{% frobnicate %}"), "unknown tag {% frobnicate %}");
    MX_CHECK_ERROR(fails("\xff"), "not UTF-8: byte 0");
    mx_str out = {0};
    mx_chat_template *t;
    MX_CHECK_OK(mx_chat_template_open(&t, "x"));
    json_t *bad = json_loads("[3]", 0, NULL);
    MX_CHECK_ERROR(mx_chat_render(t, bad, NULL, &out, NULL), "message 0 is not a JSON object");
    const mx_chat_options both = {.add_generation_prompt = true, .continue_final_message = true};
    MX_CHECK_ERROR(mx_chat_render(t, bad, &both, &out, NULL), "exclude each other");
    json_decref(bad);
    mx_chat_template_close(t);
    mx_str_fini(&out);
}

/* --- hostile templates: bounded time and memory --- */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *repeated(const char *head, const char *unit, int n, const char *tail)
{
    mx_str s = {0};
    mx_str_add(&s, head);
    for (int i = 0; i < n; i++)
        mx_str_add(&s, unit);
    mx_str_add(&s, tail);
    return s.text;
}

static void hostile(const char *text, const char *part)
{
    const mx_chat_options o = {
        .limits = {.steps = 5000000, .memory_bytes = 64 << 20, .output_bytes = 1 << 20}};
    mx_str out = {0};
    double start = seconds();
    mx_status st = render(text, &o, &out);
    MX_CHECK(st && strstr(mx_status_text(st), part) && strstr(mx_status_text(st), "line "),
             "%.60s: expected \"%s\", got \"%s\"", text, part, st ? mx_status_text(st) : "success");
    MX_CHECK(seconds() - start < 20, "%.60s took %.1f s", text, seconds() - start);
    mx_status_free(st);
    mx_str_fini(&out);
}

static void hostile_repeated(const char *head, const char *unit, const char *tail, const char *part)
{
    char *text = repeated(head, unit, 20000, tail);
    hostile(text, part);
    free(text);
}

MX_TEST(chat_hostile_templates_are_stopped)
{
    hostile("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "deep");
    hostile("{% for i in range(1000000000) %}{% endfor %}", "too big");
    hostile("{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
            "stopped");
    hostile("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "stopped");
    hostile("{{ 'a' * 1000000000 }}", "memory");
    hostile("{{ [1] * 1000000000000 }}", "memory");
    hostile("{{ 'x'.center(10000000000) }}", "memory");
    hostile("{{ 'x'.zfill(9223372036854775807) }}", "memory");
    hostile("{{ '%2000d' % 1 }}", "width");
    hostile("{{ 'x'|indent(999999999999) }}{{ 'a\nb'|indent(99999999999) }}", "memory");
    hostile("{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
            "endfor %}",
            "stopped");
    hostile("{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
            "endfor %}",
            "stopped");
    hostile("{% set ns = namespace(l=[1]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% "
            "endfor %}{{ ns.l }}",
            "nested more than");
    hostile("{% set s = 'ab' * 1000000 %}{{ s.replace('', s) }}", "memory");
    hostile("{% set s = 'é' * 100000 %}{% for i in range(99999) %}{% set c = s[i] %}{% endfor %}",
            "stopped");
    hostile("{{ 9223372036854775807 + 1 }}", "64 bits");
    hostile("{{ 99999999999999999999 }}", "out of range");
    hostile("{{ 2 ** 9999999 }}", "64 bits");
    hostile("{% for n in [[1]] recursive %}{{ loop([n]) }}{% endfor %}", "deep");
    hostile("{% set d = namespace(x=1) %}{% set d.y = d %}{{ d }}", "nested more than");
    hostile_repeated("{{ ", "(", "", "nested more than");
    hostile_repeated("{{ ", "[", "", "nested more than");
    hostile_repeated("{{ ", "not ", "1 }}", "nested more than");
    hostile_repeated("{{ ", "-", "1 }}", "nested more than");
    hostile_repeated("{{ 1", " + 1", " }}", "deep");
    hostile_repeated("{{ 1", " if 1 else 1", " }}", "nested more than");
    hostile_repeated("{{ x", "|trim", " }}", "deep");
    hostile_repeated("", "{% if 1 %}", "", "nested more than");
    hostile_repeated("", "{% for x in y %}", "", "nested more than");
    hostile_repeated("{{ 1", " and 1", " }}", "deep");
    hostile_repeated("{% set x ", "|trim", "%}{% endset %}{{ x }}{{ y.z }}", "line ");
}

#define MANY "{% for i in range(99999) %}"
#define DOUBLED                                                                                    \
    "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"         \
    "{% endfor %}"
#define LONG "{% set s = 'a' * 9000000 %}{% set t = 'a' * 4500000 ~ 'b' %}"

/* What a builtin does in one step is paid for by its bytes and items. */
MX_TEST(chat_templates_pay_for_what_builtins_do)
{
    hostile("{{ ('ab' * 5000000).split('a')|length }}", "stopped");
    hostile(DOUBLED "{{ ns.a }}", "steps of work");
    hostile(DOUBLED "{{ ns.a|tojson|length }}", "steps of work");
    hostile(LONG "{{ s.find(t) }}", "steps of work");
    hostile(LONG "{{ s.rfind(t) }}", "steps of work");
    hostile(LONG "{{ s.count(t) }}", "steps of work");
    hostile(LONG "{{ t in s }}", "steps of work");
    hostile(LONG "{{ s.replace(t, '') }}", "steps of work");
    hostile(LONG "{{ s.rsplit(t, 3) }}", "steps of work");
    hostile(LONG MANY "{% if s ~ 'b' == s ~ 'c' %}{% endif %}{% endfor %}", "stopped");
    hostile(LONG "{% set u = s[:-1] ~ 'c' %}" MANY "{% if s == u %}{% endif %}{% endfor %}",
            "steps of work");
    hostile(LONG MANY "{% if s.startswith(s) %}{% endif %}{% endfor %}", "steps of work");
    hostile(LONG MANY "{% if s.endswith((s, s)) %}{% endif %}{% endfor %}", "steps of work");
    hostile(LONG MANY "{% set x = s.removeprefix('a') %}{% endfor %}", "steps of work");
    hostile(LONG MANY "{% set x = s|int %}{% endfor %}", "steps of work");
    hostile(LONG MANY "{% set x = [1]|tojson(separators=(s, s)) %}{% endfor %}", "steps of work");
    hostile(MANY "{% set x = [0.1, 0.3]|tojson ~ strftime_now('%Y') %}{% endfor %}",
            "steps of work");
    hostile("{% for i in [0] * 3000000 %}{% endfor %}", "stopped");
    hostile("{{ ([{'a': 1}] * 1000000)|map(attribute='a')|list|length }}", "stopped");
    hostile("{{ ([{'a': 1}] * 1000000)|groupby('a')|length }}", "stopped");
}

MX_TEST(chat_templates_of_strangers_are_stopped_by_default)
{
    mx_str out = {0};
    double start = seconds();
    MX_CHECK_ERROR(render("{{ ('ab' * 5000000).split('a')|length }}", NULL, &out), "stopped");
    MX_CHECK_ERROR(render(LONG "{{ s.rfind(t) }}", NULL, &out), "which is the limit");
    MX_CHECK(seconds() - start < 60, "%.1f s", seconds() - start);
    mx_str_fini(&out);
}

MX_TEST(chat_limits_leave_honest_work_alone)
{
    mx_str out = {0};
    char *text = repeated("{% set x = 1 %}", "{{ x }}{% if x %}a{% endif %}\n", 5000, "");
    MX_CHECK_OK(render(text, NULL, &out));
    MX_CHECK(out.len == 10000, "%zu bytes", out.len);
    free(text);
    mx_str_clear(&out);
    MX_CHECK_OK(
        render("{% for i in range(20000) %}{{ messages[0].content }}{% endfor %}", NULL, &out));
    MX_CHECK(out.len == 40000, "%zu bytes", out.len);
    mx_str_fini(&out);
}

/* --- where templates are found --- */
static void write_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    MX_CHECK(f != NULL, "%s", path);
    if (f) {
        fputs(text, f);
        fclose(f);
    }
}

static void expect(const char *dir, const char *name, const char *want)
{
    mx_chat_template *t;
    mx_str out = {0};
    json_t *none = json_array();
    MX_CHECK_OK(mx_chat_template_open_dir(&t, dir, name));
    if (t)
        MX_CHECK_OK(mx_chat_render(t, none, &(mx_chat_options){.bos_token = "<s>"}, &out, NULL));
    MX_CHECK(strcmp(mx_str_text(&out), want) == 0, "expected %s, found %s", want,
             mx_str_text(&out));
    mx_chat_template_close(t);
    mx_str_fini(&out);
    json_decref(none);
}

MX_TEST(chat_template_is_found_in_a_directory)
{
    char dir[] = "/tmp/maxc-chat-XXXXXX", sub[300];
    mx_chat_template *t;
    MX_CHECK(mkdtemp(dir) != NULL);
    MX_CHECK_ERROR(mx_chat_template_open_dir(&t, dir, NULL),
                   "has no chat template named \"default\"");
    write_file(dir, "tokenizer_config.json", "{\"chat_template\": \"one {{ bos_token }}\"}");
    expect(dir, NULL, "one <s>");
    MX_CHECK_ERROR(mx_chat_template_open_dir(&t, dir, "rag"), "\"rag\"");
    write_file(dir, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"default\", \"template\": \"d\"}, "
               "{\"name\": \"tool_use\", \"template\": \"t{{ eos_token }}\"}]}");
    expect(dir, NULL, "d");
    expect(dir, "tool_use", "t");
    MX_CHECK_ERROR(mx_chat_template_open_dir(&t, dir, "rag"), "only: default tool_use");
    write_file(dir, "chat_template.jinja", "file {{ bos_token }}\n");
    expect(dir, "default", "file <s>");
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", dir);
    mkdir(sub, 0700);
    write_file(sub, "rag.jinja", "rag");
    expect(dir, "rag", "rag");
    write_file(dir, "chat_template.jinja", "\n{% if %}");
    MX_CHECK_ERROR(mx_chat_template_open_dir(&t, dir, NULL),
                   "chat_template.jinja: chat template line 2");
    write_file(dir, "tokenizer_config.json", "{");
    MX_CHECK_ERROR(mx_chat_template_open_dir(&t, dir, "tool_use"), "not valid JSON");
    snprintf(sub, sizeof sub, "%s/chat_template.jinja", dir);
    unlink(sub);
    MX_CHECK(mkfifo(sub, 0600) == 0); /* nobody writes: to open it must not wait */
    MX_CHECK_ERROR(mx_chat_template_open_dir(&t, dir, NULL), "found a special file");
    char command[400];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    MX_CHECK(system(command) == 0);
}

/* --- every file of the fuzz corpus: any result, no crash --- */

static void replay(void *ctx, uint8_t *p, size_t n)
{
    mx_chat_template *t;
    mx_str out = {0};
    (void)ctx;
    mx_status st = mx_chat_template_open_n(&t, (const char *)p, n);
    json_t *messages = json_loads("[{\"role\": \"user\", \"content\": \"hi\"}]", 0, NULL);
    const mx_chat_options o = {
        .limits = {.steps = 200000, .memory_bytes = 8 << 20, .output_bytes = 1 << 16}};
    if (!st)
        st = mx_chat_render(t, messages, &o, &out, NULL);
    mx_status_free(st);
    mx_chat_template_close(t);
    mx_str_fini(&out);
    json_decref(messages);
}

MX_TEST(chat_fuzz_corpus_replays)
{
    int files = corpus_each("tests/fuzz/corpus/chat_template", replay, NULL);
    MX_CHECK(files >= 20, "only %d files", files);
}
