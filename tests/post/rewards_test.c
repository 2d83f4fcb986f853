/* rewards_test.c - rewards by a JSON schema and from a shared library, on recorded answers. */
#include "post_run.h"

#include "../test.h"
#include "base/str.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDED "num_generations=2 max_completion_length=150 max_target_length=200 steps=1 "     \
                 "per_device_batch_size=1 gradient_accumulation_steps=1 "

static void put(const char *folder, const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    MX_CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

/* A group of one answer, given twice; `columns` are further ones of the record. */
static void put_group(const char *folder, const char *answer, const char *columns)
{
    mx_str line = {0};
    json_t *text = json_string(answer);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    mx_str_addf(&line, "{\"prompt\": \"a\", \"completions\": [{\"text\": %s}, {\"text\": %s}]%s}\n",
                quoted, quoted, columns);
    put(folder, "groups.jsonl", mx_str_text(&line));
    free(quoted);
    json_decref(text);
    mx_str_fini(&line);
}

/* What `settings` say that the group is worth; an error is the test's. */
static mx_status judge(const char *folder, const char *settings, const char *metric, double *reward)
{
    static int number;
    char name[32], all[2000];
    snprintf(name, sizeof name, "r%d", number++);
    snprintf(all, sizeof all, RECORDED "rollout_path=%s/groups.jsonl %s", folder, settings);
    MX_TRY(post_run("grpo", folder, name, all));
    json_t *m = post_metrics(folder, name);
    *reward = post_number(m, 0, metric);
    json_decref(m);
    return MX_OK;
}

#define CITY                                                                                       \
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"minLength\": 1}, " \
    "\"size\": {\"type\": \"number\"}, \"kind\": {\"enum\": [\"old\", 0.1]}, \"at\": {\"type\": "  \
    "\"array\", \"items\": {\"$ref\": \"#/$defs/n\"}, \"maxItems\": 2}}, \"required\": "           \
    "[\"name\", \"at\"], \"$defs\": {\"n\": {\"type\": \"integer\"}}}"

/* reward=json_schema, reward_schema */
MX_TEST(post_json_schemas_judge)
{
    static const struct {
        const char *answer;
        double worth;
    } rows[] = {
        {"{\"name\": \"Ulm\", \"at\": [1, 2]}", 1},
        {"{\"at\": [], \"size\": 0.1, \"name\": \"Ulm\"}", 1}, /* any order */
        {" {\n  \"at\" : [ 3 ],\n\t\"name\" : \"\\u00fc\"\n}\n", 1},
        {"I think so. <answer>{\"name\":\"x\",\"at\":[]}</answer>", 1},
        {"{\"name\": \"x\", \"at\": [], \"kind\": 0.1}", 1},
        {"{\"name\": \"x\", \"at\": [], \"kind\": 0.2}", 0},
        {"{\"name\": \"\", \"at\": []}", 0},
        {"{\"name\": \"x\"}", 0},
        {"{\"name\": \"x\", \"at\": [1, 2, 3]}", 0},
        {"{\"name\": \"x\", \"at\": [1.5]}", 0},
        {"{\"name\": \"x\", \"at\": [], \"more\": 1}", 0},
        {"{\"name\": \"x\", \"name\": \"y\", \"at\": []}", 0},
        {"{\"name\": \"x\", \"at\": []", 0},
        {"", 0},
    };
    char folder[300], settings[700];
    double worth = NAN;
    post_folder(folder, sizeof folder);
    put(folder, "city.json", CITY);
    snprintf(settings, sizeof settings, "reward=json_schema reward_schema=%s/city.json", folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_group(folder, rows[i].answer, "");
        MX_CHECK_OK(judge(folder, settings, "rewards/json_schema/mean", &worth));
        MX_CHECK(worth == rows[i].worth, "%s is worth %g", rows[i].answer, worth);
    }
    /* A record's own is taken before it. */
    put_group(folder, "[true]", ", \"json_schema\": {\"type\": \"array\"}");
    MX_CHECK_OK(judge(folder, settings, "reward", &worth));
    MX_CHECK(worth == 1, "%g", worth);
    MX_CHECK_OK(judge(folder, "reward=json_schema", "reward", &worth));
    put_group(folder, "1", ", \"json_schema\": {\"type\": \"number\", \"multipleOf\": 2}");
    MX_CHECK_ERROR(judge(folder, "reward=json_schema", "reward", &worth),
                   "the record's json_schema: the schema cannot be followed: \"multipleOf\"");
    put_group(folder, "1", "");
    MX_CHECK_ERROR(judge(folder, "reward=json_schema", "reward", &worth),
                   "neither reward_schema is set nor has the record a column json_schema");
    put(folder, "city.json", "{\"type\": \"nothing\"}");
    MX_CHECK_ERROR(judge(folder, settings, "reward", &worth), "reward_schema");
    post_remove(folder);
}

static void build(const char *folder, const char *name, const char *source)
{
    char command[1200];
    snprintf(command, sizeof command,
             "cc -shared -fPIC -Wall -Wextra -Werror -Iinclude -o %s/%s %s > %s/said 2>&1 || "
             "{ cat %s/said; exit 1; }", folder, name, source, folder, folder);
    MX_CHECK(system(command) == 0, "%s", command);
}

#define LIBRARY(version, score)                                                                    \
    "#include <maxc_reward.h>\n#include <stdio.h>\n#include <math.h>\n"                            \
    "static int judge(void *s, const maxc_reward_answer *a, size_t n, double *x, char *e, size_t " \
    "m) { (void)s; (void)a; (void)x; (void)n; (void)e; (void)m; " score " }\n"                     \
    "const maxc_reward maxc_reward_library = {.version = " version ", .name = \"own\", "           \
    ".score = judge};\n"

/* reward_library: the example, and libraries that fail. */
MX_TEST(post_shared_libraries_judge)
{
    static const struct {
        const char *source, *error;
        double worth;
    } rows[] = {
        {LIBRARY("MAXC_REWARD_VERSION", "for (size_t i = 0; i < n; i++) x[i] = (double)a[i].tokens "
                 "/ (double)a[i].max_tokens + !a[i].truncated; return 0;"), NULL, 1 + 2.0 / 150},
        {LIBRARY("MAXC_REWARD_VERSION", "return 0;"), NULL, NAN}, /* judges nothing */
        {LIBRARY("MAXC_REWARD_VERSION", "x[0] = INFINITY; return 0;"), "is infinite", 0},
        {LIBRARY("MAXC_REWARD_VERSION", "snprintf(e, m, \"no paper left\"); return 7;"),
         "it could not judge an answer: no paper left; nothing was updated", 0},
        {LIBRARY("MAXC_REWARD_VERSION + 1", "return 0;"), "has version 2 of the interface, "
         "expected 1", 0},
        {"int nothing;\n", "does not define maxc_reward_library", 0},
    };
    char folder[300], settings[700], source[400];
    double worth = NAN;
    post_folder(folder, sizeof folder);
    snprintf(settings, sizeof settings, "reward_library=%s/judge.so", folder);
    put_group(folder, "one and two", ", \"words\": [\"two\", \"three\"]");
    build(folder, "judge.so", "examples/reward.c");
    MX_CHECK_OK(judge(folder, settings, "rewards/words/mean", &worth));
    MX_CHECK(worth == 0.5, "%g", worth);
    put_group(folder, "x", "");
    MX_CHECK_ERROR(judge(folder, settings, "reward", &worth), "the record has no list \"words\"");
    snprintf(source, sizeof source, "%s/judge.c", folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put(folder, "judge.c", rows[i].source);
        build(folder, "judge.so", source);
        mx_status st = judge(folder, settings, "reward", &worth);
        if (rows[i].error)
            MX_CHECK(st && strstr(mx_status_text(st), rows[i].error), "%zu: %s", i,
                     st ? mx_status_text(st) : "it went on");
        else
            MX_CHECK(!st && (isnan(rows[i].worth) ? isnan(worth)
                                                  : fabs(worth - rows[i].worth) < 1e-9),
                     "%zu: %g %s", i, worth, st ? mx_status_text(st) : "");
        mx_status_free(st);
    }
    put(folder, "judge.so", "not a library");
    MX_CHECK_ERROR(judge(folder, settings, "reward", &worth), "it cannot be opened");
    post_remove(folder);
}
