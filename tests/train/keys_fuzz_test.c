/* keys_fuzz_test.c - settings at random: every run ends with a finite loss or with a clear error.
 *
 * A case is a tiny model, a few steps, and one to seven keys of the tables at values of their type:
 * sensible ones, the limits of what is accepted, extremes, nonsense. It runs as a process of its
 * own under the sanitizers, with a time limit. Cases follow from a seed, which is printed:
 *
 *     make fuzz-keys N=3000 SEED=7
 * The test suite runs a few of them. */
#include "../test.h"

#include "base/io.h"
#include "base/rng.h"
#include "cmd/verb.h"
#include "keys_world.h"
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGS = 64, JOBS = 2, LIMIT_SECONDS = 120, MOST_KEYS = 7 };

/* ---- values ---- */

typedef struct {
    uint64_t seed, stream, n;
} dice;

static uint64_t roll(dice *d, uint64_t sides)
{
    return mx_philox(d->seed, d->stream, d->n++).v[0] % sides;
}

static const char *pick(dice *d, const char *const *words, size_t n)
{
    return words[roll(d, n)];
}
#define PICK(d, words) pick(d, words, sizeof words / sizeof *words)

static const char *nonsense(dice *d)
{
    static const char *const words[] = {
        "",
        "x",
        "-",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "0x10",
        "1,2",
        "[1,2]",
        "{a:1}",
        "null",
        "true",
        "%s%n",
        "../x",
        "\xff\xfe",
        "a b",
        "gs://b",
        "/dev/null",
        "1_0",
        "ünïcödé",
        "-0",
        "[[a,[b]]]",
        "~",
        "1e-9",
        "--",
        "\"",
        "'a",
        "#",
        ":",
        "[",
        "*",
        "99999999999999999999999999999999999999999999999999999999999999999999999999999999999999"};
    return PICK(d, words);
}

static const char *integer(dice *d)
{
    static const char *const small[] = {"0", "1", "2", "3", "4", "5", "8", "12", "16", "-1"};
    static const char *const extreme[] = {"-2",
                                          "2147483647",
                                          "2147483648",
                                          "4294967296",
                                          "1099511627776",
                                          "4611686018427387904",
                                          "-9223372036854775808",
                                          "9223372036854775807"};
    return roll(d, 5) ? PICK(d, small) : PICK(d, extreme);
}

static const char *number(dice *d)
{
    static const char *const words[] = {"0",    "1",    "0.5",    "0.1",     "2",      "-1",
                                        "1e-8", "1e30", "1e300",  "1e-300",  "0.99",   "3",
                                        "-0.5", "1e9",  "5e-324", "1.7e308", "0.0001", "100"};
    return PICK(d, words);
}

static const char *file(dice *d)
{
    static const char *const words[] = {
        "data.jsonl", "eval.jsonl",    "worse.jsonl",    "pairs.jsonl",
        "chat.jsonl", "tokenizer",     "model",          "hub",
        "nothere",    "photo.jpg",     "tfds",           "mixture.json",
        "new",        "data.tfrecord", "template.jinja", "."};
    return PICK(d, words);
}

/* One of the words of an enum. */
static void word(dice *d, const mx_key *k, char *out, size_t cap)
{
    int n = 1;
    for (const char *p = k->accept; (p = strchr(p, '|')); p++)
        n++;
    const char *p = k->accept;
    for (uint64_t i = roll(d, (uint64_t)n); i; i--)
        p = strchr(p, '|') + 1;
    p += *p == '!';
    snprintf(out, cap, "%.*s", (int)strcspn(p, "|=~"), p);
}

static void value(dice *d, const mx_key *k, char *out, size_t cap)
{
    bool path = k->flags & MX_KEY_PATH;
    if (k->example && roll(d, 5) == 0) { /* what the table itself shows */
        const char *v = strchr(k->example, '=') + 1;
        snprintf(out, cap, "%.*s", (int)strcspn(v, " "), v);
        return;
    }
    if (roll(d, 8) == 0 || k->type == MX_KEY_FOREIGN) {
        snprintf(out, cap, "%s", nonsense(d));
        return;
    }
    switch (k->type) {
    case MX_KEY_BOOL:
        snprintf(out, cap, "%s", roll(d, 2) ? "true" : "false");
        break;
    case MX_KEY_INT:
        snprintf(out, cap, "%s", integer(d));
        break;
    case MX_KEY_FLOAT:
        snprintf(out, cap, "%s", number(d));
        break;
    case MX_KEY_ENUM:
        word(d, k, out, cap);
        break;
    case MX_KEY_INTS:
        snprintf(out, cap, "%s,%s", integer(d), integer(d));
        break;
    default:
        snprintf(out, cap, "%s", path || roll(d, 3) == 0 ? file(d) : nonsense(d));
    }
}

/* ---- cases ---- */

/* Settings, separated by spaces, and the command line that they make. */
typedef struct {
    const char *verb;
    mx_str settings;
    mx_arena arena;
    char *argv[MAX_ARGS + 1];
    int n;
} command;

static bool is_set(const command *c, const char *key)
{
    char begin[128];
    snprintf(begin, sizeof begin, " %s=", key);
    return strstr(mx_str_text(&c->settings), begin) != NULL;
}

static void set(command *c, const char *key, const char *to)
{
    if (!is_set(c, key))
        mx_str_addf(&c->settings, " %s=%s", key, to);
}

/* What a run could only be long with, not wrong, and what would write outside its folder. */
static bool is_left_alone(const mx_key *k)
{
    static const char names[] = "steps base_output_directory run_name num_threads model_name "
                                "local_checkpoint_directory load_full_state_path";
    return mx_word_among(names, k->name);
}

static int count_keys(void)
{
    int n = 0;
    for (const mx_key *const *t = mx_keys.tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++)
            n++;
    return n;
}

static const mx_key *key_at(uint64_t i)
{
    for (const mx_key *const *t = mx_keys.tables; *t; t++)
        for (const mx_key *k = *t; k->name; k++)
            if (i-- == 0)
                return k;
    return NULL;
}

/* Most of what is planned or foreign ends at once: a few of those are enough. */
static const mx_key *any_key(dice *d)
{
    for (;;) {
        const mx_key *k = key_at(roll(d, (uint64_t)count_keys()));
        bool done = mx_key_state_of(k) == MX_KEY_IS_DONE;
        bool taken = !done || mx_word_among(k->verbs, "train") || roll(d, 20) == 0;
        if (!is_left_alone(k) && taken && (done || roll(d, 8) == 0))
            return k;
    }
}

/* All settings of a key's example, which together make sense. */
static void add_example(command *c, dice *d)
{
    const mx_key *k = any_key(d);
    char text[512];
    snprintf(text, sizeof text, "%s", k->example ? k->example : "");
    char *save = NULL;
    for (char *p = strtok_r(text, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(p, '=');
        *equals = 0;
        set(c, p, equals + 1);
    }
}

static void make_case(command *c, uint64_t seed, int64_t index)
{
    dice d = {.seed = seed, .stream = (uint64_t)index};
    bool sensible = roll(&d, 3) != 0;
    *c = (command){.verb = roll(&d, 8) ? "train" : "plan"};
    for (uint64_t i = sensible ? 1 + roll(&d, 3) : 0; i; i--)
        add_example(c, &d);
    for (uint64_t i = sensible ? roll(&d, 3) : 1 + roll(&d, MOST_KEYS); i; i--) {
        const mx_key *k = any_key(&d);
        char text[128];
        value(&d, k, text, sizeof text);
        set(c, k->name, text);
    }
    c->n = world_command(c->verb, mx_str_text(&c->settings), &c->arena, c->argv, MAX_ARGS);
}

static void drop_case(command *c)
{
    mx_str_fini(&c->settings);
    mx_arena_fini(&c->arena);
}

/* ---- running ---- */

typedef struct {
    command c;
    pid_t pid;
    double deadline;
    char folder[64];
} job;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void start(job *j, const char *world, const char *program, int64_t index)
{
    char path[512];
    snprintf(j->folder, sizeof j->folder, "case-%lld", (long long)index);
    world_copy(world, j->folder);
    snprintf(path, sizeof path, "%.200s/%.60s", world, j->folder);
    j->deadline = now() + LIMIT_SECONDS;
    j->pid = fork();
    if (j->pid)
        return;
    int null = open("/dev/null", O_RDONLY);
    if (chdir(path) != 0 || dup2(null, 0) < 0)
        _exit(99);
    int out = open(".out", O_CREAT | O_RDWR | O_TRUNC, 0644);
    dup2(out, 1);
    dup2(out, 2);
    execv(program, j->c.argv);
    _exit(99);
}

static char *read_text(const char *world, const job *j, const char *name)
{
    char path[600], *text = NULL;
    size_t n;
    snprintf(path, sizeof path, "%.200s/%s/%s", world, j->folder, name);
    mx_status_free(mx_io_read_file(NULL, path, 1 << 24, &text, &n));
    return text ? text : strdup("");
}

/* The loss of the last step, as metrics.jsonl has it; NAN when there is none. */
static double last_loss(const char *metrics)
{
    double loss = NAN;
    for (const char *p = metrics; (p = strstr(p, "\"loss\":")); p++)
        loss = strtod(p + 8, NULL);
    return loss;
}

static bool is_clear(const char *said)
{
    static const char *const faults[] = {"AddressSanitizer", "LeakSanitizer", "runtime error",
                                         "assertion failed", "This is a bug"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (strstr(said, faults[i]))
            return false;
    return true;
}

/* What is wrong with how the case ended, or NULL. */
static const char *judge(const char *world, const job *j, int status, bool late)
{
    char *said = read_text(world, j, ".out"),
         *metrics = read_text(world, j, "runs/first/metrics.jsonl");
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    bool trains = strcmp(j->c.verb, "train") == 0;
    bool lets_pass = is_set(&j->c, "abort_on_nan_loss") || is_set(&j->c, "abort_on_inf_loss");
    const char *wrong = NULL;
    if (late)
        wrong = "it was not over in time";
    else if (code < 0)
        wrong = "it was ended by a signal";
    else if (!is_clear(said))
        wrong = "a fault was found";
    else if (code == 0 && trains && !isfinite(last_loss(metrics)) && !lets_pass)
        wrong = "the loss is not finite";
    else if (code > 5 && code != 75)
        wrong = "an exit status that means nothing";
    else if (code && !strstr(said, "maxc "))
        wrong = "an error that says nothing";
    if (wrong) {
        mx_str line = {0};
        for (int i = 0; i < j->c.n; i++)
            mx_str_addf(&line, " '%s'", j->c.argv[i]);
        size_t n = strlen(said);
        printf("    %s: %s (status %d):%s\n%s\n", j->folder, wrong, code, mx_str_text(&line),
               said + (n > 3000 ? n - 3000 : 0));
        fflush(stdout);
        mx_str_fini(&line);
    }
    free(said);
    free(metrics);
    return wrong;
}

/* Waits for a job; gives what is wrong, or NULL. Counts those that had nothing to object to. */
static const char *finish(job *j, const char *world, int64_t *worked)
{
    int status = 0;
    bool late = false;
    while (waitpid(j->pid, &status, WNOHANG) == 0) {
        if (!late && now() > j->deadline) {
            late = true;
            kill(j->pid, SIGKILL);
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    const char *wrong = judge(world, j, status, late);
    *worked += status == 0;
    char path[512];
    snprintf(path, sizeof path, "%.200s/%s", world, j->folder);
    mx_status_free(mx_io_remove_tree(NULL, path));
    drop_case(&j->c);
    return wrong;
}

static int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    int64_t v = otherwise;
    return text && *text && mx_parse_i64(text, &v) ? v : otherwise;
}

MX_TEST(keys_at_random_end_in_a_loss_or_an_error)
{
    int64_t cases = setting("MX_KEY_CASES", 20), seed = setting("MX_KEY_SEED", 1);
    int64_t bad = 0, worked = 0;
    int64_t first = setting("MX_KEY_FIRST", 0);
    char world[256], program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    MX_ASSERT(n > 0);
    program[n] = 0;
    snprintf(strrchr(program, '/'), 16, "/maxc");
    MX_ASSERT(access(program, X_OK) == 0, "%s", program);
    setenv("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=1500",
           1);
    printf("    %lld cases, seed %lld\n", (long long)cases, (long long)seed);
    fflush(stdout);
    world_make(world, sizeof world);
    job jobs[JOBS] = {0};
    for (int64_t i = 0; i < cases + JOBS; i++) {
        job *j = &jobs[i % JOBS];
        if (j->pid)
            bad += finish(j, world, &worked) != NULL;
        j->pid = 0;
        if (i >= cases)
            continue;
        make_case(&j->c, (uint64_t)seed, first + i);
        start(j, world, program, first + i);
    }
    printf("    %lld ran, %lld were refused, %lld are wrong\n", (long long)worked,
           (long long)(cases - worked - bad), (long long)bad);
    MX_CHECK(bad == 0, "%lld of %lld cases", (long long)bad, (long long)cases);
    world_remove(world);
}
