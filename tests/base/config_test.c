/* config_test.c - sources and their precedence, conflicts, all problems at once, the resolved file.
 */
#include "base/config.h"

#include "../test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SECTION_RUN, SECTION_NET, SECTION_COUNT };

#define EVERY .verbs = "test tokenize"
#define TEST .verbs = "test"

static const mx_key keys[] = {
    {"model_name", MX_KEY_STRING, SECTION_RUN, "default", 0, "the model", 0, 0, EVERY},
    {"base_config", MX_KEY_LIST, SECTION_RUN, "", 0, "files below", 0, 0, EVERY},
    {"steps", MX_KEY_INT, SECTION_RUN, "100", "1..", "number of steps", "max_steps", 0, EVERY},
    {"rate", MX_KEY_FLOAT, SECTION_RUN, "0.1", "0..", "learning rate", "=lr learning_speed", 0,
     EVERY},
    {"packing", MX_KEY_BOOL, SECTION_RUN, "true", 0, "pack", 0, 0, EVERY},
    {"name", MX_KEY_STRING, SECTION_RUN, "", 0, "a name", 0, 0, EVERY},
    {"token", MX_KEY_STRING, SECTION_RUN, "", 0, "a secret", 0, MX_KEY_SECRET, EVERY},
    {"folder", MX_KEY_STRING, SECTION_RUN, "", 0, "a folder", 0, MX_KEY_PATH, EVERY},
    {"files", MX_KEY_LIST, SECTION_RUN, "", 0, "some files", 0, MX_KEY_PATH, EVERY},
    {"scan_layers", MX_KEY_FOREIGN, SECTION_RUN, .help = "layers are unrolled"},
    {"dropout", MX_KEY_FLOAT, SECTION_RUN, "0", "0..1", "dropout", 0, MX_KEY_PLANNED},
    {"degree", MX_KEY_INT, SECTION_RUN, "1", "-1|1|!2..", "ranks", 0, MX_KEY_PLANNED},
    {"kind", MX_KEY_ENUM, SECTION_RUN, "a", "a=first|!b", "a kind", 0, 0, EVERY,
     .instead = "use a"},
    {"width", MX_KEY_INT, SECTION_NET, "8", "1..", "width", "hidden_size", MX_KEY_FIXED, TEST},
    {"acts", MX_KEY_LIST, SECTION_NET, "silu,linear", 0, "activations", 0, 0, TEST},
    {"lora.rank", MX_KEY_INT, SECTION_NET, "4", "1..", "rank", 0, 0, TEST},
    {0}};
static const mx_key own[] = {{"format", MX_KEY_ENUM, 0, "text", "text|json", "how to print", 0, 0},
                             {0}};
static const mx_key other[] = {{"golden", MX_KEY_STRING, 0, "", 0, "a file", 0, 0}, {0}};
static const mx_key *const elsewhere[] = {other, NULL};
static const mx_key *const tables[] = {keys, NULL};
static const mx_key_section sections[] = {{"run", "the run"}, {"net", "the net"}, {NULL, NULL}};

static void check(const mx_config *cfg, mx_problems *p)
{
    if (mx_config_int(cfg, "steps") == 13)
        mx_problem_add(p, "%s: thirteen", mx_config_where(cfg, "steps"));
}

static const mx_schema schema = {.tables = tables, .sections = sections, .check = check};

/* A scratch folder with base.yml and models/, removed at the end. */
typedef struct {
    char path[64], file[128];
} place;

static void put(const place *p, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", p->path, name);
    FILE *f = fopen(path, "w");
    MX_ASSERT(f, "%s", path);
    fputs(text, f);
    fclose(f);
}

static void place_make(place *p)
{
    snprintf(p->path, sizeof p->path, "/tmp/maxc_config_XXXXXX");
    MX_ASSERT(mkdtemp(p->path));
    char command[128];
    snprintf(command, sizeof command, "mkdir %s/models", p->path);
    MX_ASSERT(system(command) == 0);
    snprintf(p->file, sizeof p->file, "%s/user.yml", p->path);
}

static void place_remove(const place *p)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", p->path);
    MX_CHECK(system(command) == 0);
}

static mx_status load(mx_config **cfg, const place *p, const char *file, const char *const *args,
                      char *const *environment)
{
    int n = 0;
    while (args && args[n])
        n++;
    mx_config_request r = {.schema = &schema,
                           .extra = own,
                           .elsewhere = elsewhere,
                           .user = "test",
                           .home = p ? p->path : NULL,
                           .file = file,
                           .args = args,
                           .n_args = n,
                           .environment = environment};
    return mx_config_load(cfg, &r);
}

/* The error text of a load that must fail; free with mx_status_free. */
static mx_status fails(const char *const *args, char *const *environment)
{
    mx_config *cfg = NULL;
    mx_status st = load(&cfg, NULL, NULL, args, environment);
    MX_CHECK(st && !cfg && mx_status_code(st) == MX_USAGE);
    return st;
}

#define HAS(st, part)                                                                              \
    MX_CHECK(strstr(mx_status_text(st), part), "expected `%s` in:\n%s", part, mx_status_text(st))

MX_TEST(config_precedence_of_all_sources)
{
    place p;
    place_make(&p);
    put(&p, "base.yml",
        "steps: 1\nrate: 1\nname: base\nwidth: 1\nacts: [base]\nlora:\n  rank: 1\n");
    put(&p, "models/small.yml", "rate: 2\nname: model\nwidth: 2\nacts: [model]\nlora: {rank: 2}\n");
    put(&p, "below.yml", "name: below\nwidth: 3\nacts: [below]\nlora.rank: 3\n");
    put(&p, "user.yml",
        "base_config: below.yml\nmodel_name: small\nwidth: 4\nacts: [user]\nlora.rank: 4\n");
    char *environment[] = {"MAXC_ACTS=env", "MAXC_GOLDEN=x", "MAXC_CONFIGS=/x", "PATH=/bin", NULL};
    const char *args[] = {"lora.rank=6", NULL};
    mx_config *cfg = NULL;
    MX_CHECK_OK(load(&cfg, &p, p.file, args, environment));
    if (cfg) {
        const char *const *acts;
        MX_CHECK(mx_config_int(cfg, "steps") == 1);
        MX_CHECK(mx_config_float(cfg, "rate") == 2);
        MX_CHECK(strcmp(mx_config_text(cfg, "name"), "below") == 0, "%s",
                 mx_config_text(cfg, "name"));
        MX_CHECK(mx_config_int(cfg, "width") == 4);
        MX_CHECK(mx_config_list(cfg, "acts", &acts) == 1 && strcmp(acts[0], "env") == 0);
        MX_CHECK(mx_config_int(cfg, "lora.rank") == 6);
        MX_CHECK(mx_config_bool(cfg, "packing"));
        MX_CHECK(!mx_config_is_set(cfg, "steps") && mx_config_is_set(cfg, "rate"));
        MX_CHECK(strstr(mx_config_where(cfg, "width"), "user.yml:3"), "%s",
                 mx_config_where(cfg, "width"));
        MX_CHECK(strcmp(mx_config_where(cfg, "acts"), "environment MAXC_ACTS") == 0);
        MX_CHECK(strcmp(mx_config_where(cfg, "lora.rank"), "argument lora.rank=6") == 0);
        MX_CHECK(strcmp(mx_config_where(cfg, "packing"), "default") == 0);
    }
    mx_config_free(cfg);
    place_remove(&p);
}

MX_TEST(config_reports_all_problems_at_once)
{
    place p;
    place_make(&p);
    put(&p, "user.yml",
        "steps: ten\nrat: 1\nhidden_size: 3\npacking: [1]\nname: {a: 1}\nscan_layers: true\n"
        "lora: {rnk: 3}\nacts: {a: b}\nsteps: 12\n");
    char *environment[] = {"MAXC_STPES=3", "MAXC_RATE=-1", NULL};
    const char *args[] = {"width=0",   "format=xml", "frmat=json", "name",
                          "packing=1", "packing=0",  NULL};
    mx_config *cfg = NULL;
    mx_status st = load(&cfg, &p, p.file, args, environment);
    MX_CHECK(st && mx_status_code(st) == MX_USAGE && !cfg);
    HAS(st, "user.yml:9: duplicate key `steps`, first set in line 1");
    HAS(st, "15 problems");
    HAS(st, "user.yml:1: `steps` takes an integer, at least 1; found `ten`");
    HAS(st, "user.yml:2: unknown key `rat`; did you mean `rate` (learning rate)?");
    HAS(st, "user.yml:3: unknown key `hidden_size`; did you mean `width`");
    HAS(st, "user.yml:4: `packing` takes true or false; found a list");
    HAS(st, "user.yml:5: `name` takes text in UTF-8; found a map");
    HAS(st, "user.yml:7: unknown key `lora.rnk`; did you mean `lora.rank`");
    HAS(st, "user.yml:8: `acts` takes a list of names; found a map");
    HAS(st, "environment MAXC_STPES: unknown key `stpes`; did you mean `steps`");
    HAS(st, "environment MAXC_RATE: `rate` takes a number, at least 0; found `-1`");
    HAS(st, "argument width=0: `width` takes an integer, at least 1");
    HAS(st, "argument format=xml: `format` takes one of text, json; found `xml`");
    HAS(st, "argument frmat=json: unknown key `frmat`; did you mean `format`");
    HAS(st, "argument name: `name` needs a value: name=VALUE");
    HAS(st, "argument packing=0: `packing` is given twice (argument packing=1)");
    const char *text = mx_status_text(st); /* in the order of the file */
    MX_CHECK(strstr(text, "user.yml:1:") < strstr(text, "user.yml:2:"), "%s", text);
    mx_status_free(st);
    place_remove(&p);
}

MX_TEST(config_environment_and_argument_conflict)
{
    char *environment[] = {"MAXC_STEPS=3", NULL};
    const char *args[] = {"steps=4", NULL};
    mx_status st = fails(args, environment);
    HAS(st, "argument steps=4: `steps` is also set by environment MAXC_STEPS; keep one");
    mx_status_free(st);
}

MX_TEST(config_alias_beside_its_key)
{
    const char *twice[] = {"lr=1", "rate=2", NULL}, *once[] = {"lr=0.5", NULL};
    mx_status st = fails(twice, NULL);
    HAS(st, "`rate` is given twice");
    mx_status_free(st);
    mx_config *cfg = NULL;
    MX_CHECK_OK(load(&cfg, NULL, NULL, once, NULL));
    MX_CHECK(cfg && mx_config_float(cfg, "rate") == 0.5);
    mx_config_free(cfg);
    place p;
    place_make(&p);
    put(&p, "user.yml", "rate: 1\nlr: 2\n");
    st = load(&cfg, &p, p.file, NULL, NULL);
    HAS(st, "user.yml:2: `lr` is another name of `rate`");
    mx_status_free(st);
    place_remove(&p);
}

MX_TEST(config_verbs_limit_arguments_not_files)
{
    place p;
    place_make(&p);
    put(&p, "user.yml", "width: 3\n");
    const char *args[] = {"width=5"};
    mx_config *cfg = NULL;
    mx_config_request r = {.schema = &schema,
                           .user = "tokenize",
                           .file = p.file,
                           .args = args,
                           .n_args = 1};
    MX_CHECK_ERROR(mx_config_load(&cfg, &r),
                   "argument width=5: `maxc tokenize` does not use `width`");
    r.n_args = 0;
    MX_CHECK_OK(mx_config_load(&cfg, &r));
    mx_config_free(cfg);
    place_remove(&p);
}

MX_TEST(config_relations_are_checked_last)
{
    const char *args[] = {"steps=13", NULL};
    mx_status st = fails(args, NULL);
    HAS(st, "argument steps=13: thirteen");
    mx_status_free(st);
}

MX_TEST(config_unknown_model_names_the_nearest)
{
    place p;
    place_make(&p);
    put(&p, "models/llama3.1-8b.yml", "width: 2\n");
    const char *args[] = {"model_name=llama3-8b", NULL}, *up[] = {"model_name=../user", NULL};
    mx_config *cfg = NULL;
    MX_CHECK_ERROR(
        load(&cfg, &p, NULL, args, NULL),
        "argument model_name=llama3-8b: no model `llama3-8b`; did you mean `llama3.1-8b`?");
    put(&p, "user.yml", "width: 3\n");
    MX_CHECK_ERROR(load(&cfg, &p, NULL, up, NULL), "no model `../user`");
    put(&p, "models/llama3.1-8b.yml", "wdth: 2\n");
    args[0] = "model_name=llama3.1-8b";
    MX_CHECK_ERROR(load(&cfg, &p, NULL, args, NULL), "llama3.1-8b.yml:1: unknown key `wdth`");
    place_remove(&p);
}

MX_TEST(config_base_config_chain_and_circle)
{
    place p;
    place_make(&p);
    put(&p, "a.yml", "steps: 1\nwidth: 1\nname: a\n");
    put(&p, "b.yml", "base_config: [a.yml]\nwidth: 2\nname: b\n");
    put(&p, "user.yml", "base_config: b.yml\nname: c\n");
    mx_config *cfg = NULL;
    MX_CHECK_OK(load(&cfg, &p, p.file, NULL, NULL));
    if (cfg) {
        MX_CHECK(mx_config_int(cfg, "steps") == 1 && mx_config_int(cfg, "width") == 2);
        MX_CHECK(strcmp(mx_config_text(cfg, "name"), "c") == 0);
    }
    mx_config_free(cfg);
    put(&p, "a.yml", "base_config: user.yml\n");
    MX_CHECK_ERROR(load(&cfg, &p, p.file, NULL, NULL), "a.yml:1: base_config goes round");
    put(&p, "user.yml", "base_config: missing.yml\n");
    mx_status st = load(&cfg, &p, p.file, NULL, NULL);
    MX_CHECK(mx_status_code(st) == MX_INPUT, "%s", mx_status_text(st));
    HAS(st, "user.yml:1: base_config: ");
    HAS(st, "missing.yml: cannot open");
    mx_status_free(st);
    place_remove(&p);
}

/* Each file names the next eight times, fifteen deep: read once each, in no time. */
MX_TEST(config_a_file_named_twice_is_an_error)
{
    place p;
    place_make(&p);
    for (int i = 0; i < 16; i++) {
        char name[32], text[256] = "steps: 1\n";
        snprintf(name, sizeof name, "f%d.yml", i);
        for (int k = 0; i < 15 && k < 8; k++) {
            char next[32];
            snprintf(next, sizeof next, "%sf%d.yml", k ? ", " : "base_config: [", i + 1);
            strcat(k ? text : strcpy(text, ""), next);
        }
        strcat(text, i < 15 ? "]\n" : "");
        put(&p, name, text);
    }
    snprintf(p.file, sizeof p.file, "%s/f0.yml", p.path);
    mx_config *cfg = NULL;
    MX_CHECK_ERROR(load(&cfg, &p, p.file, NULL, NULL),
                   "f15.yml a second time (first in ");
    put(&p, "a.yml", "steps: 1\n");
    put(&p, "b.yml", "base_config: a.yml\n");
    put(&p, "user.yml", "base_config: [a.yml, b.yml]\n");
    snprintf(p.file, sizeof p.file, "%s/user.yml", p.path);
    MX_CHECK_ERROR(load(&cfg, &p, p.file, NULL, NULL), "b.yml:1: base_config names");
    for (int i = 0; i < 20; i++) {
        char name[32], text[64];
        snprintf(name, sizeof name, "f%d.yml", i);
        snprintf(text, sizeof text, "base_config: f%d.yml\n", i + 1);
        put(&p, name, text);
    }
    snprintf(p.file, sizeof p.file, "%s/f0.yml", p.path);
    MX_CHECK_ERROR(load(&cfg, &p, p.file, NULL, NULL), "a chain of more than 16 files");
    place_remove(&p);
}

/* base.yml stands below the model's file wherever it is named, as MaxText's does. */
MX_TEST(config_base_yml_as_the_users_file)
{
    place p;
    place_make(&p);
    put(&p, "base.yml", "steps: 1\nwidth: 8\n");
    put(&p, "models/small.yml", "width: 2\n");
    snprintf(p.file, sizeof p.file, "%s/base.yml", p.path);
    const char *args[] = {"model_name=small", NULL};
    mx_config *cfg = NULL;
    MX_CHECK_OK(load(&cfg, &p, p.file, args, NULL)); /* the program's own */
    MX_CHECK(cfg && mx_config_int(cfg, "width") == 2 && !mx_config_is_set(cfg, "steps"));
    mx_config_free(cfg);
    put(&p, "models/base.yml", "steps: 5\nwidth: 8\n"); /* a copy that was changed */
    snprintf(p.file, sizeof p.file, "%s/models/base.yml", p.path);
    MX_CHECK_OK(load(&cfg, &p, p.file, args, NULL));
    MX_CHECK(cfg && mx_config_int(cfg, "width") == 2 && mx_config_int(cfg, "steps") == 5);
    MX_CHECK(cfg && mx_config_is_users(cfg, "steps"));
    mx_config_free(cfg);
    snprintf(p.file, sizeof p.file, "/src/maxtext/configs/base.yml"); /* not on this machine */
    MX_CHECK_OK(load(&cfg, &p, p.file, args, NULL));
    MX_CHECK(cfg && mx_config_int(cfg, "width") == 2);
    MX_CHECK(cfg && strstr(mx_config_notes(cfg), "base.yml is not there"));
    mx_config_free(cfg);
    place_remove(&p);
}

MX_TEST(config_planned_is_refused_from_every_source)
{
    place p;
    place_make(&p);
    mx_config *cfg = NULL;
    char *environment[] = {"MAXC_DROPOUT=0.1", NULL};
    const char *args[] = {"dropout=0.2", NULL}, *degree[] = {"degree=2", NULL};
    const char *usual[] = {"dropout=0.0", "degree=-1", "kind=first", NULL};
    const char *kind[] = {"kind=b", NULL}, *model[] = {"model_name=small", NULL};
    MX_CHECK_ERROR(load(&cfg, NULL, NULL, NULL, environment),
                   "environment MAXC_DROPOUT: `dropout` (dropout) cannot be 0.1 yet");
    MX_CHECK_ERROR(load(&cfg, NULL, NULL, args, NULL), "leave it at its default, 0");
    MX_CHECK_ERROR(load(&cfg, NULL, NULL, degree, NULL), "cannot be 2 yet; accepted: -1 or 1");
    MX_CHECK_ERROR(load(&cfg, NULL, NULL, kind, NULL), "cannot be \"b\" yet; use a");
    put(&p, "user.yml", "dropout: 0.3\n");
    MX_CHECK_ERROR(load(&cfg, &p, p.file, NULL, NULL), "user.yml:1: `dropout` (dropout) cannot");
    put(&p, "models/small.yml", "dropout: 0.4\n");
    MX_CHECK_ERROR(load(&cfg, &p, NULL, model, NULL), "small.yml:1: `dropout` (dropout) cannot");
    const char *without[] = {"model_name=small", "dropout=0", NULL};
    MX_CHECK_OK(load(&cfg, &p, p.file, without, NULL)); /* nobody asks for it any more */
    mx_config_free(cfg);
    MX_CHECK_OK(load(&cfg, NULL, NULL, usual, NULL));
    MX_CHECK(cfg && strcmp(mx_config_text(cfg, "kind"), "a") == 0);
    mx_config_free(cfg);
    place_remove(&p);
}

MX_TEST(config_foreign_keys_are_noted_once)
{
    place p;
    place_make(&p);
    put(&p, "user.yml", "scan_layers: [anything, 1]\n");
    put(&p, "models/small.yml", "scan_layers: false\n");
    mx_config *cfg = NULL;
    const char *model[] = {"model_name=small", NULL};
    MX_CHECK_OK(load(&cfg, &p, p.file, NULL, NULL));
    const char *note = "note: without a meaning here: scan_layers (layers are unrolled)\n";
    MX_CHECK(cfg && strcmp(mx_config_notes(cfg), note) == 0, "%s", cfg ? mx_config_notes(cfg) : "");
    mx_config_free(cfg);
    MX_CHECK_OK(load(&cfg, &p, NULL, model, NULL)); /* the program's own files need no note */
    MX_CHECK(cfg && !*mx_config_notes(cfg));
    mx_config_free(cfg);
    place_remove(&p);
}

MX_TEST(config_paths_of_other_machines_are_refused)
{
    static const struct {
        const char *arg, *advice;
    } bad[] = {{"folder=gs://bucket/a", "gcsfuse"},
               {"folder=S3://bucket", "mount-s3"},
               {"files=a.txt,hf://org/b", "hf download"},
               {"folder=file:///a", "without file://"},
               {"folder=~/a", "write the whole path"},
               {"folder=https://a/b.zip", "download it"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mx_status st = fails((const char *[]){bad[i].arg, NULL}, NULL);
        HAS(st, "takes paths of this machine");
        HAS(st, bad[i].advice);
        mx_status_free(st);
    }
    mx_config *cfg = NULL;
    const char *fine[] = {"folder=a://", "files=/x,c:/y", "name=gs://is/text", NULL};
    fine[0] = "folder=./gs:/x/~";
    MX_CHECK_OK(load(&cfg, NULL, NULL, fine, NULL));
    mx_config_free(cfg);
}

/* base_config acts on files alone; as an argument it would change nothing. */
MX_TEST(config_base_config_is_no_argument)
{
    mx_status st = fails((const char *[]){"base_config=a.yml", NULL}, NULL);
    HAS(st, "base_config belongs in a configuration file");
    mx_status_free(st);
}

MX_TEST(config_resolved_file_reads_back_the_same)
{
    place p;
    place_make(&p);
    put(&p, "models/small.yml", "width: 2\n");
    put(&p, "below.yml", "rate: 0.3\n");
    put(&p, "user.yml",
        "base_config: below.yml\nmodel_name: small\nname: 'no: \"q\" # x'\ntoken: sesame\n");
    const char *args[] = {"rate=0.1", "acts=[]", "lora.rank=9", NULL};
    mx_config *first = NULL, *second = NULL;
    MX_CHECK_OK(load(&first, &p, p.file, args, NULL));
    if (!first)
        return;
    mx_str text = {0}, again = {0}, report = {0};
    mx_config_write(first, &text);
    MX_CHECK(!strstr(text.text, "sesame"), "%s", text.text);
    put(&p, "resolved.yml", text.text);
    char path[128];
    snprintf(path, sizeof path, "%s/resolved.yml", p.path);
    snprintf(p.file, sizeof p.file, "%s/below.yml", p.path);
    unlink(p.file);
    MX_CHECK_OK(load(&second, &p, path, NULL, NULL));
    if (second) {
        int refused = 0;
        mx_config_write(second, &again);
        MX_CHECK(strcmp(text.text, again.text) == 0, "first:\n%s\nagain:\n%s", text.text,
                 again.text);
        MX_CHECK(mx_config_diff(first, second, NULL, &report, &refused) <= 1, "%s",
                 mx_str_text(&report));
    }
    mx_str_fini(&text);
    mx_str_fini(&again);
    mx_str_fini(&report);
    mx_config_free(first);
    mx_config_free(second);
    place_remove(&p);
}

MX_TEST(config_diff_says_what_cannot_change)
{
    const char *a[] = {"steps=10", "token=x", NULL},
               *b[] = {"steps=20", "width=9", "token=y", NULL};
    mx_config *x = NULL, *y = NULL;
    MX_CHECK_OK(load(&x, NULL, NULL, a, NULL));
    MX_CHECK_OK(load(&y, NULL, NULL, b, NULL));
    mx_str report = {0};
    int refused = 0;
    MX_CHECK(mx_config_diff(x, y, NULL, &report, &refused) == 2 && refused == 1);
    MX_CHECK(strstr(mx_str_text(&report), "steps: 10 -> 20\n"), "%s", mx_str_text(&report));
    MX_CHECK(strstr(mx_str_text(&report), "width: 8 -> 9 (argument width=9: cannot change"), "%s",
             mx_str_text(&report));
    mx_str_fini(&report);
    mx_config_free(x);
    mx_config_free(y);
}
