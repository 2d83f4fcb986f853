/* reward_schema.c - reward=json_schema: is an answer a document of a JSON schema?
 *
 * The schema is the pattern that constrained answers follow (infer/pattern_schema.c), so that what
 * `maxc serve` can force is what can be rewarded, to the keyword. A pattern knows one order of
 * properties and little white space; schema and answer are therefore both rewritten with their
 * properties sorted before they are compared. Properties that the schema does not name are wrong,
 * as they are in constrained answers.
 */
#include "post/reward.h"

#include "base/json_doc.h"
#include "infer/pattern.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Reals in as many digits as patterns have, and in the shortest form of those. */
#define SORTED (JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15))

typedef struct {
    mx_arena arena; /* of the pattern */
    mx_automaton *m;
} compiled;

struct mx_schemas {
    compiled all; /* reward_schema's; zero: none */
    compiled one; /* of the last record that has its own; zero: none */
    char *text;   /* owns: the schema of `one` */
};

static void drop(compiled *c)
{
    mx_automaton_close(c->m);
    mx_arena_fini(&c->arena);
    *c = (compiled){0};
}

static mx_status compile(const json_t *schema, compiled *out)
{
    mx_pattern *p = NULL;
    char *text = json_dumps(schema, SORTED);
    json_t *sorted = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    mx_status st = mx_pattern_schema(&out->arena, sorted, &p);
    if (!st)
        st = mx_automaton_open(&out->m, p);
    json_decref(sorted);
    free(text);
    if (st)
        drop(out);
    return st;
}

mx_status mx_schemas_open(mx_schemas **out, const mx_config *c)
{
    const char *path = mx_config_text(c, "reward_schema");
    mx_schemas *s = mx_realloc(NULL, sizeof *s);
    *s = (mx_schemas){0};
    *out = s;
    if (!*path)
        return MX_OK;
    json_t *schema = NULL;
    mx_status st = mx_json_load(path, NULL, &schema);
    if (!st)
        st = compile(schema, &s->all);
    json_decref(schema);
    return mx_status_wrap(st, "%s", mx_config_where(c, "reward_schema"));
}

void mx_schemas_close(mx_schemas *s)
{
    if (!s)
        return;
    drop(&s->all);
    drop(&s->one);
    free(s->text);
    mx_free(s);
}

/* The automaton of the record's own schema; answers to one prompt come one after the other. */
static mx_status own(mx_schemas *s, const json_t *schema, mx_automaton **out)
{
    json_t *parsed = NULL;
    if (json_is_string(schema)) /* columns of text files are texts */
        MX_TRY(mx_json_parse(json_string_value(schema), json_string_length(schema),
                             "the record's json_schema", NULL, &parsed));
    char *text = json_dumps(parsed ? parsed : schema, SORTED);
    mx_status st = MX_OK;
    if (!s->text || !text || strcmp(text, s->text) != 0) {
        drop(&s->one);
        free(s->text);
        s->text = NULL;
        st = compile(parsed ? parsed : schema, &s->one);
        s->text = st ? NULL : text;
        text = st ? text : NULL;
    }
    free(text);
    json_decref(parsed);
    *out = s->one.m;
    return mx_status_wrap(st, "the record's json_schema");
}

static bool follows(mx_automaton *m, const mx_reward_input *j)
{
    const char *answer;
    size_t n;
    mx_extracted_answer(j, &answer, &n);
    json_t *v = json_loadb(answer, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    char *text = v ? json_dumps(v, SORTED) : NULL;
    mx_automaton_trim(m, 0);
    int32_t state = text ? 0 : -1;
    for (const char *p = text; state >= 0 && *p; p++)
        state = mx_automaton_next(m, state, (uint8_t)*p);
    bool good = state >= 0 && mx_automaton_accepts(m, state);
    free(text);
    json_decref(v);
    return good;
}

static double json_schema(mx_reward_context *c, const mx_reward_input *j)
{
    const json_t *schema = json_object_get(j->record, "json_schema");
    mx_automaton *m = c->schemas->all.m;
    if (schema && !json_is_null(schema))
        c->error = own(c->schemas, schema, &m);
    else if (!m)
        c->error = mx_fail(MX_USAGE, "reward=json_schema: neither reward_schema is set nor has the "
                           "record a column json_schema");
    return c->error ? NAN : follows(m, j);
}

const mx_reward mx_reward_json_schema = {
    .name = "json_schema",
    .doc = "1 where the answer (what <answer> holds, else all of it) is a document of "
           "reward_schema, or of the record's json_schema",
    .score = json_schema,
};
