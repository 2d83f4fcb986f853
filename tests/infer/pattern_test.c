/* pattern_test.c - patterns allow what they should; whatever a schema's automaton lets through is a
 * document of that schema. */
#include "../test.h"

#include "base/rng.h"
#include "base/str.h"
#include "infer/constraint.h"
#include "infer/pattern_json.h"
#include <string.h>

static bool matches(mx_automaton *m, const char *text)
{
    int32_t at = 0;
    for (; *text && at >= 0; text++)
        at = mx_automaton_next(m, at, (uint8_t)*text);
    return at >= 0 && mx_automaton_accepts(m, at);
}

/* The text with its ' as "; valid until the next call. */
static const char *quote(mx_str *out, const char *text)
{
    mx_str_clear(out);
    mx_str_add(out, text);
    for (size_t i = 0; i < out->len; i++)
        out->text[i] = out->text[i] == '\'' ? '"' : out->text[i];
    return mx_str_text(out);
}

static json_t *read_quoted(mx_str *work, const char *text)
{
    return json_loads(quote(work, text), JSON_DECODE_ANY, NULL);
}

MX_TEST(patterns_of_regular_expressions)
{
    static const struct {
        const char *regex, *yes[4], *no[4];
    } cases[] = {
        {"abc", {"abc"}, {"", "ab", "abcd"}},
        {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
        {"(ab)*c+", {"c", "ababcc"}, {"ab", "aab"}},
        {"x{2,3}y?", {"xx", "xxx", "xxy"}, {"x", "xxxx", "xxyy"}},
        {"[a-c\\d_-]+", {"a", "9_-c"}, {"d", ""}},
        {"[^a\\s]", {"b", "é", "😀"}, {"a", " ", "bb"}},
        {"^\\w+\\.\\x41$", {"ab_1.A"}, {".A", "abA", "ab.a"}},
        {".",
         {"x", "\xdf\xbf", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"},
         {"\n", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"}},
        {"[α-ω]{2}", {"αω", "μν"}, {"α", "Ω", "ab"}},
        /* dialects differ in which letters and digits are \\w and \\d beyond ASCII */
        {"\\W+", {"- ", "#"}, {"a", "_", "é", "中"}},
        {"[^\\w]", {"-", " "}, {"a", "é"}},
        {"\\D+", {"é", "a中"}, {"5", "٣", "𝟘"}},
        {"[^\\d]", {"é", "x"}, {"5", "٣"}},
        {"(?:a(b|c){2})+?", {"abc", "acbabb"}, {"ab", "abca"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mx_arena a = {0};
        mx_pattern *p;
        mx_automaton *m = NULL;
        MX_CHECK_OK(mx_pattern_regex(&a, cases[i].regex, strlen(cases[i].regex), false, &p));
        MX_CHECK_OK(mx_automaton_open(&m, p));
        for (int k = 0; k < 4 && cases[i].yes[k]; k++)
            MX_CHECK(matches(m, cases[i].yes[k]), "%s: %s", cases[i].regex, cases[i].yes[k]);
        for (int k = 0; k < 4 && cases[i].no[k]; k++)
            MX_CHECK(!matches(m, cases[i].no[k]), "%s: not %s", cases[i].regex, cases[i].no[k]);
        mx_automaton_close(m);
        mx_arena_fini(&a);
    }
}

MX_TEST(patterns_that_cannot_be_followed)
{
    static const char *const bad[] = {"(",      "a)",      "[",     "[b-a]",     "*",
                                      "a{3,2}", "a{9999}", "(?=a)", "\\",        "\\q",
                                      "\\xg0",  "a^b",     "\xff",  "[^\\S\\s]", "(a)\\1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mx_arena a = {0};
        mx_pattern *p;
        MX_CHECK_ERROR(mx_pattern_regex(&a, bad[i], strlen(bad[i]), false, &p),
                       "cannot be followed");
        mx_arena_fini(&a);
    }
    mx_arena a = {0};
    mx_pattern *p;
    mx_automaton *m;
    const char huge[] = "((((a?){1000}){1000}){1000}){1000}";
    MX_CHECK_OK(mx_pattern_regex(&a, huge, strlen(huge), false, &p));
    MX_CHECK_ERROR(mx_automaton_open(&m, p), "make it simpler");
    mx_arena_fini(&a);
}

/* Patterns that are written short, or are one long row, cost no more than what a text reaches. */
MX_TEST(patterns_of_any_size_are_followed)
{
    static const char *const regexes[] = {"((((a{1000}){1000}){1000}){1000}){1000}",
                                          "(){1000}{1000}{1000}{1000}{1000}aaaa",
                                          "(((.|a|aa){1000}){1000}){1000}"};
    mx_str once = {0}, text = {0};
    for (int i = 0; i < 100000; i++)
        mx_str_add(&once, "{1}");
    mx_str_addf(&text, "(aaaa)%s", mx_str_text(&once));
    for (size_t i = 0; i < 4; i++) {
        mx_arena a = {0};
        mx_pattern *p;
        mx_automaton *m;
        const char *regex = i < 3 ? regexes[i] : mx_str_text(&text);
        MX_CHECK_OK(mx_pattern_regex(&a, regex, strlen(regex), false, &p));
        MX_CHECK_OK(mx_automaton_open(&m, p));
        int32_t at = 0;
        for (int k = 0; k < 4; k++)
            at = mx_automaton_next(m, at, 'a');
        MX_CHECK(at >= 0, "%.40s", regex);
        mx_automaton_close(m);
        mx_arena_fini(&a);
    }
    mx_str_fini(&once);
    mx_str_fini(&text);
}

static mx_pattern *or_of_texts(mx_arena *a, int n)
{
    mx_pattern *all = NULL;
    for (int i = 0; i < n; i++) {
        mx_pattern *p = mx_pattern_text(a, i % 2 ? "b" : "c", 1);
        all = all ? mx_pattern_or(a, all, p) : p;
    }
    return all;
}

/* What has grown is forgotten but for one state, and texts go on from it. */
MX_TEST(automata_are_trimmed)
{
    mx_arena a = {0};
    mx_automaton *m;
    mx_pattern *p, *q;
    MX_CHECK_OK(mx_pattern_regex(&a, "(x|y){1000}z", 12, false, &p));
    q = mx_pattern_or(&a, p, or_of_texts(&a, 150000)); /* more than half of what is held */
    MX_CHECK_OK(mx_automaton_open(&m, q));
    int32_t at = 0;
    for (int i = 0; i < 1000; i++) {
        at = mx_automaton_next(m, at, i % 3 ? 'x' : 'y');
        if (mx_automaton_trim(m, at))
            at = 0;
        MX_CHECK(at >= 0 && !mx_automaton_accepts(m, at), "%d", i);
    }
    MX_CHECK(at < 1000, "it was never trimmed");
    MX_CHECK(mx_automaton_next(m, at, 'x') < 0, "a thousand and one");
    at = mx_automaton_next(m, at, 'z');
    MX_CHECK(at >= 0 && mx_automaton_accepts(m, at) && mx_automaton_ends(m, at), "the end");
    mx_automaton_close(m);
    mx_arena_fini(&a);
}

/* A random text that the automaton lets through; after 200 bytes it takes any way to the end that
 * it finds first. */
static void walk(mx_automaton *m, uint64_t seed, mx_str *out)
{
    int32_t at = 0;
    for (uint64_t step = 0; step < 4000; step++) {
        uint8_t ways[256];
        int n = 0;
        mx_random4 r = mx_philox(seed, 3, step);
        if (mx_automaton_accepts(m, at) && (step > 200 || r.v[1] % 4 == 0))
            return;
        for (int b = 0; b < 256; b++)
            if (mx_automaton_next(m, at, (uint8_t)b) >= 0)
                ways[n++] = (uint8_t)b;
        if (!n)
            return;
        uint8_t b = ways[r.v[0] % (uint32_t)n];
        /* ends of strings and lists are rare among all bytes */
        for (const char *end = "\"]},:"; *end && (r.v[2] % 4 == 0 || step > 200); end++)
            if (memchr(ways, *end, (size_t)n)) {
                b = (uint8_t)*end;
                break;
            }
        at = mx_automaton_next(m, at, b);
        mx_str_add_n(out, (const char *)&b, 1);
    }
}

static void check_schema(const char *text, int rounds)
{
    mx_arena a = {0};
    mx_pattern *p;
    mx_automaton *m = NULL;
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    MX_CHECK_OK(mx_pattern_schema(&a, schema, &p));
    MX_CHECK_OK(mx_automaton_open(&m, p));
    for (int i = 0; i < rounds; i++) {
        mx_str doc = {0};
        walk(m, (uint64_t)i, &doc);
        json_error_t e;
        json_t *v = json_loadb(mx_str_text(&doc), doc.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        MX_CHECK(v, "%s: %.300s: %s", text, mx_str_text(&doc), e.text);
        const json_t *need = json_object_get(schema, "required");
        for (size_t k = 0; v && k < json_array_size(need); k++)
            MX_CHECK(json_object_get(v, json_string_value(json_array_get(need, k))), "%s: %.300s",
                     text, mx_str_text(&doc));
        json_decref(v);
        mx_str_fini(&doc);
    }
    json_decref(schema);
    mx_automaton_close(m);
    mx_arena_fini(&a);
}

MX_TEST(schemas_let_only_their_documents_through)
{
    check_schema("{\"type\":\"object\"}", 60);
    check_schema("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":"
                 "[\"integer\",\"null\"]},\"c\":{\"enum\":[1,\"x\",null]},\"d\":{\"const\":{\"e\":"
                 "1}}},\"required\":[\"b\",\"d\"]}",
                 60);
    check_schema("{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"},\"minItems\":2,"
                 "\"maxItems\":3,\"$defs\":{\"n\":{\"type\":\"number\",\"minimum\":0}}}",
                 40);
    check_schema("{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"object\",\"additionalProperties\":"
                 "{\"type\":\"string\",\"pattern\":\"^[a-f]\\\"?\",\"title\":\"t\"}}]}",
                 40);
}

/* Texts that a schema allows and texts that it does not. */
MX_TEST(schemas_hold_documents_to_their_keywords)
{
    static const struct {
        const char *schema, *yes[4], *no[4];
    } cases[] = {
        {"{'type':'integer','minimum':3,'maximum':17}", {"3", "9", "17"}, {"2", "18", "-3", "3.0"}},
        {"{'type':'integer','minimum':-5,'exclusiveMaximum':1}", {"-5", "0"}, {"-6", "1", "-05"}},
        {"{'type':'number','minimum':99.95,'exclusiveMaximum':100}",
         {"99.95", "99.951", "99.99"},
         {"100", "99.9", "99.949", "99"}},
        {"{'type':'number','exclusiveMinimum':0,'maximum':0.5}",
         {"0.5", "0.50", "0.01"},
         {"0", "0.0", "0.51", "-0.1"}},
        {"{'type':'string','minLength':2,'maxLength':2}",
         {"'ab'", "'\\ud83d\\ude00é'"},
         {"'a'", "'\\ud83d\\ude00'", "'a\\ud83d'"}},
        {"{'type':'string','format':'date'}", {"'2024-02-28'"}, {"'2024-02-30'", "'24-01-01'"}},
        {"{'$ref':'#/$defs/s','minLength':2,'$defs':{'s':{'type':'string','maxLength':3}}}",
         {"'ab'", "'abc'"},
         {"'a'", "'abcd'"}},
        {"{'enum':[1,'a',0.30000000000000004],'type':['string','number']}",
         {"1", "'a'", "0.30000000000000004"},
         {"0.3"}},
        {"{'enum':[1,'a'],'type':'string'}", {"'a'"}, {"1"}},
        {"{'type':'object','required':['z'],'additionalProperties':{'type':'null'}}",
         {"{'z':null}"},
         {"{}", "{'z':1}"}},
        {"{'type':'array','prefixItems':[{'const':1}],'items':{'const':2},'minItems':2}",
         {"[1,2]", "[1,2,2]"},
         {"[1]", "[]", "[2,1]"}},
        {"{'allOf':[{'type':'number','minimum':3},{'type':'integer','maximum':5}]}",
         {"3", "5"},
         {"6", "2", "3.5"}},
        {"{'type':'object','properties':{'v':{'const':1},'next':{'anyOf':[{'$ref':'#'},"
         "{'type':'null'}]}},'required':['next']}",
         {"{'next':null}", "{'v':1,'next':{'next':{'next':null}}}"},
         {"{'v':1}", "{'next':{}}"}},
        {"{'oneOf':[{'type':'string'},{'type':'null'}]}", {"null", "'x'"}, {"1"}},
        {"{'oneOf':[{'enum':['a',1]},{'type':'array'}]}", {"1", "[1]"}, {"'b'"}},
        {"{'type':'integer','format':'uint8','exclusiveMinimum':3}", {"4", "255"}, {"3", "256"}},
        {"{'type':'number','format':'double'}", {"-0.5", "1e9"}, {"x"}},
        {"{'title':'anything'}", {"1", "[{'a':null}]"}, {"[1", "x"}},
        {"{'allOf':[{'type':'array','prefixItems':[{'type':'integer'}],'maxItems':2},"
         "{'items':{'type':'number','minimum':5}}]}",
         {"[5]", "[7,5.5]"},
         {"[4]", "[5.5]", "[5,4]"}},
        {"{'type':'array','items':{'type':'integer'},'allOf':[{'prefixItems':[{'minimum':5}]}]}",
         {"[5]", "[6,-6]"},
         {"[4]", "[5.5]"}},
        {"{'allOf':[{'type':'array','prefixItems':[{'const':1},{'const':2}]},"
         "{'prefixItems':[{'type':'integer'}],'items':false}]}",
         {"[1]"},
         {"[1,2]", "[2]"}},
        {"{'oneOf':[{'properties':{'k':{'const':1}},'required':['k']},"
         "{'properties':{'k':{'const':2}},'required':['k']}]}",
         {"{'k':1}", "{'k':2}"},
         {"{'k':3}"}},
        {"{'type':'string','maxLength':2147483647}", {"'abc'"}, {"abc"}},
        {"{'allOf':[{'enum':[9007199254740993,1,[{'a':2,'b':[]}]]},"
         "{'enum':[[{'b':[],'a':2.0}],9007199254740992.0,1.0]}]}",
         {"1", "[{'a':2,'b':[]}]"},
         {"9007199254740993", "9007199254740992.0", "1.0"}},
        {"{'oneOf':[{'const':9007199254740993},{'const':9007199254740992.0}]}",
         {"9007199254740993", "9007199254740992.0"},
         {"9007199254740992"}},
        {"{'$ref':'#/$defs/a%20b','$defs':{'a b':{'const':1}}}", {"1"}, {"2"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mx_arena a = {0};
        mx_pattern *p;
        mx_automaton *m = NULL;
        mx_str text = {0};
        json_t *schema = read_quoted(&text, cases[i].schema);
        MX_CHECK_OK(mx_pattern_schema(&a, schema, &p));
        MX_CHECK_OK(mx_automaton_open(&m, p));
        for (int k = 0; k < 4 && cases[i].yes[k]; k++)
            MX_CHECK(matches(m, quote(&text, cases[i].yes[k])), "%s: %s", cases[i].schema,
                     cases[i].yes[k]);
        for (int k = 0; k < 4 && cases[i].no[k]; k++)
            MX_CHECK(!matches(m, quote(&text, cases[i].no[k])), "%s: not %s", cases[i].schema,
                     cases[i].no[k]);
        mx_str_fini(&text);
        json_decref(schema);
        mx_automaton_close(m);
        mx_arena_fini(&a);
    }
}

/* Integers and reals by their exact values, lists by their elements, objects by their members. */
MX_TEST(json_values_have_one_order)
{
    static const char *const groups[] = {
        "{'a':{'b':1},'c':2}|{'c':2.0,'a':{'b':1}}", "{'a':{'b':1}}", "{'a':{'b':2}}",
        "{'b':{'b':1}}", "{}", "[]", "[1]|[1.0]", "[1,2]", "[2]", "''", "'a'", "'ab'", "'b'",
        "-1e300", "-9223372036854775808|-9.223372036854775808e18", "-1.5", "-1|-1.0", "0|-0.0|0.0",
        "0.5", "9007199254740992|9007199254740992.0", "9007199254740993",
        "9100000000000000000|9.1e18", "9223372036854775807", "9223372036854775808.0",
        "1e300", "true", "false", "null",
    };
    enum { GROUPS = sizeof groups / sizeof *groups };
    json_t *v[2 * GROUPS + 2];
    int group[2 * GROUPS + 2], n = 0;
    mx_str text = {0};
    for (int g = 0; g < GROUPS; g++) {
        char copy[128], *rest = copy, *one;
        snprintf(copy, sizeof copy, "%s", groups[g]);
        while ((one = strsep(&rest, "|"))) {
            v[n] = json_loads(quote(&text, one), JSON_DECODE_ANY, NULL);
            MX_CHECK(v[n], "%s", one);
            group[n++] = g;
        }
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            int o = mx_json_order(v[i], v[k]), want = group[i] - group[k];
            MX_CHECK((o > 0) - (o < 0) == (want > 0) - (want < 0), "%s and %s", groups[group[i]],
                     groups[group[k]]);
        }
    for (int i = 0; i < n; i++)
        json_decref(v[i]);
    mx_str_fini(&text);
}

static json_t *numbered(const char *prefix, int n, bool keys)
{
    json_t *out = keys ? json_object() : json_array();
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%d", prefix, i);
        if (keys)
            json_object_set_new(out, name, json_pack("{s:i}", "const", i));
        else
            json_array_append_new(out, json_string(name));
    }
    return out;
}

static void check_large(json_t *schema, const char *yes)
{
    mx_arena a = {0};
    mx_pattern *p;
    mx_automaton *m;
    MX_CHECK_OK(mx_pattern_schema(&a, schema, &p));
    MX_CHECK_OK(mx_automaton_open(&m, p));
    MX_CHECK(matches(m, yes), "%s", yes);
    mx_automaton_close(m);
    mx_arena_fini(&a);
    json_decref(schema);
}

/* Large schemas, and such as lead back to themselves in many places, are followed, in little time
 * and without recursion. */
MX_TEST(schemas_of_any_size_are_followed)
{
    mx_str text = {0};
    check_large(json_pack("{s:o}", "enum", numbered("v", 100000, false)), "\"v99999\"");
    check_large(json_pack("{s:[{s:o}, {s:o}]}", "allOf", "enum", numbered("v", 100000, false),
                          "enum", numbered("v", 90000, false)),
                "\"v89999\"");
    check_large(json_pack("{s:o}", "properties", numbered("p", 5000, true)),
                "{\"p17\":17,\"p4999\": 4999}");
    check_large(json_pack("{s:{s:o}, s:[s,s]}", "properties", "p", numbered("q", 0, true),
                          "required", "p", "p"),
                "{\"p\":[{}]}");
    check_large(read_quoted(&text, "{'$ref':'#/$defs/n','$defs':{'n':{'type':'object','properties'"
                                   ":{'a':{'$ref':'#/$defs/n'},'b':{'$ref':'#/$defs/n'},"
                                   "'c':{'$ref':'#/$defs/n'},'d':{'$ref':'#/$defs/n'}}}}}"),
                "{\"a\":{\"b\":{\"c\":{\"d\":{\"a\":{\"d\":{\"a\":{}}},\"c\":{}}}}}}");
    check_large(read_quoted(&text, "{'$ref':'#/$defs/n','$defs':{'b':{'properties':{'v':{'const':1}"
                                   "}},'n':{'allOf':[{'$ref':'#/$defs/b'},{'properties':{'kids':{"
                                   "'type':'array','items':{'$ref':'#/$defs/n'}}}}]}}}"),
                "{\"v\":1,\"kids\":[{\"v\":1,\"kids\":[{\"kids\":[]}]},{}]}");
    check_large(read_quoted(&text, "{'items':{'items':{'type':'string','maxLength':1000},"
                                   "'maxItems':1000},'maxItems':1000}"),
                "[[\"a\",\"b\"],[]]");
    mx_str_fini(&text);
}

/* What cannot be followed is named, never passed over. */
MX_TEST(schemas_that_cannot_be_followed)
{
    static const struct {
        const char *schema, *why;
    } bad[] = {
        {"5", "schema"},
        {"{'type':'thing'}", "type"},
        {"{'type':'object','patternProperties':{}}", "patternProperties"},
        {"{'type':'integer','multipleOf':3}", "multipleOf"},
        {"{'$ref':'#/$defs/s','multipleOf':3,'$defs':{'s':{'type':'integer'}}}", "multipleOf"},
        {"{'anyOf':[{'type':'integer'}],'not':{}}", "not"},
        {"{'$ref':'#'}", "$ref"},
        {"{'$ref':'#/a/b'}", "$ref"},
        {"{'$ref':'http://x'}", "$ref"},
        {"{'type':'object','properties':{'a':{'$ref':'#'}},'required':['a']}", "$ref"},
        {"{'enum':[]}", "enum"},
        {"{'enum':[1],'type':'string'}", "enum"},
        {"{'type':'string','minLength':-1}", "minLength"},
        {"{'type':'string','pattern':'('}", "pattern"},
        {"{'type':'string','format':'iri'}", "format"},
        {"{'type':'integer','format':'date'}", "format"},
        {"{'type':'integer','minimum':3,'maximum':2}", "minimum"},
        {"{'type':'number','minimum':0.30000000000000004}", "digits"},
        {"{'type':'array','minItems':3,'maxItems':2}", "maxItems"},
        {"{'type':'array','uniqueItems':true}", "uniqueItems"},
        {"{'type':'object','properties':{'a':{}},'required':['b'],'additionalProperties':false}",
         "required"},
        {"{'oneOf':[{'type':'number'},{'type':'integer'}]}", "oneOf"},
        {"{'oneOf':[{'const':1},{'const':1.0}]}", "oneOf"},
        {"{'oneOf':[{'enum':[[1]]},{'enum':[[1.0],'x']}]}", "oneOf"},
        {"{'oneOf':[{'type':'object','properties':{'a':{}},'required':['a'],'anyOf':[{"
         "'properties':{'b':{}},'required':['b']}]},"
         "{'type':'object','properties':{'b':{}},'required':['b']}]}",
         "oneOf"},
        {"{'oneOf':[{'type':['object','string'],'properties':{'a':{'const':1}},'required':['a']},"
         "{'properties':{'a':{'const':2}},'required':['a']}]}",
         "oneOf"},
        {"{'type':'string','minLength':1000001}", "minLength"},
        {"{'allOf':[{'type':'string'},{'type':'null'}]}", "type"},
        {"{'':1}", "not supported"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mx_arena a = {0};
        mx_pattern *p;
        mx_str text = {0};
        json_t *schema = read_quoted(&text, bad[i].schema);
        MX_CHECK_ERROR(mx_pattern_schema(&a, schema, &p), bad[i].why);
        mx_str_fini(&text);
        json_decref(schema);
        mx_arena_fini(&a);
    }
}

/* Over the byte tokenizer, a mask is the automaton's next bytes, and stop ids where a text is
 * whole. */
MX_TEST(constraints_mask_tokens)
{
    mx_tokenizer *t;
    mx_token_bytes *b;
    mx_constraint *c;
    mx_pattern *p;
    mx_arena a = {0};
    int32_t end = 257;
    MX_CHECK_OK(mx_tokenizer_open(&t, NULL, NULL));
    MX_CHECK_OK(mx_token_bytes_open(&b, t, 259));
    MX_CHECK_OK(mx_pattern_regex(&a, "ab*", 3, false, &p));
    MX_CHECK_OK(mx_constraint_open(&c, b, p));
    const char *text = "abb";
    for (int i = 0; i <= 3; i++) {
        const uint32_t *mask = mx_constraint_mask(c, &end, 1);
        for (int id = 0; id < 259; id++) {
            bool want = id == (i ? 'b' : 'a') || (i && id == end);
            MX_CHECK((mask[id / 32] >> (id % 32) & 1) == want, "after %d: %d", i, id);
        }
        MX_CHECK(i == 3 || mx_constraint_take(c, text[i]), "%d", i);
    }
    MX_CHECK(!mx_constraint_take(c, 'c') && !mx_constraint_done(c), "c");
    mx_constraint_close(c);
    mx_token_bytes_close(b);
    mx_tokenizer_close(t);
    mx_arena_fini(&a);
}
