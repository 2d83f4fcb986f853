/* saved_programs.c - see saved_programs.h. */
#include "exec/saved_programs.h"

#include "base/file.h"
#include "base/io.h"
#include "exec/build_id.h"
#include "exec/programs_codec.h"
#include "store/digest.h"
#include <limits.h>
#include <string.h>

static const char magic[8] = {'M', 'A', 'X', 'C', 'S', 'T', 'E', 'P'};
enum { FORMAT = 2, HEAD_BYTES = 8 + 1 + 16 };
#define MOST_BYTES ((size_t)64 << 30)

/* One key that was read, or one kernel. */
typedef struct {
    const char *name, *value;
    const void *bytes;
    size_t n;
} entry;
typedef struct {
    entry *v;
    int n, cap;
} entries;

struct mx_saved_programs {
    mx_arena arena;
    char *file; /* owns, when it was opened; texts are borrowed from the arena */
    const char *built;
    mx_saved_for what;
    entries keys, kernels;
    mx_record_pool pool;
    entries kinds; /* bytes of each */
    int *like, n_like, cap_like; /* the rank that each kind was compiled for */
    int *kind;                   /* of each rank; -1: not known yet */
    double seconds;              /* of all kinds */
};

/* --- the parts of the file, in both directions --- */

static void code_mesh(mx_codec *c, mx_mesh *m)
{
    for (int a = 0; a < MX_AXIS_COUNT; a++) {
        mx_code_int(c, &m->ici[a], 0, INT_MAX);
        mx_code_int(c, &m->dcn[a], 0, INT_MAX);
    }
}

static void code_entries(mx_codec *c, entries *e, bool named, bool texts)
{
    mx_code_count(c, &e->n);
    if (mx_codec_reads(c))
        e->v = mx_realloc(e->v, sizeof *e->v * (size_t)((e->cap = e->n) + 1));
    for (int i = 0; i < e->n; i++) {
        entry *x = &e->v[i];
        if (mx_codec_reads(c))
            *x = (entry){"", "", NULL, 0};
        if (named)
            mx_code_text(c, &x->name);
        if (texts)
            mx_code_text(c, &x->value);
        else
            mx_code_bytes(c, &x->bytes, &x->n);
    }
}

static void add_like(mx_saved_programs *s, int rank)
{
    MX_GROW(s->like, s->n_like, s->cap_like);
    s->like[s->n_like++] = rank;
}

static void code_kinds(mx_codec *c, mx_saved_programs *s)
{
    bool reads = mx_codec_reads(c);
    int ranks = (int)s->what.ranks;
    for (int i = 0; i < s->kinds.n; i++) {
        if (reads)
            add_like(s, 0);
        mx_code_int(c, &s->like[i], 0, ranks - 1);
    }
    if (reads && ((size_t)ranks > mx_codec_left(c) || !s->kinds.n)) {
        mx_codec_refuse(c, "it does not have as many ranks as it says");
        return;
    }
    if (reads)
        s->kind = MX_NEW_N(&s->arena, int, ranks);
    for (int i = 0; i < ranks; i++)
        mx_code_int(c, &s->kind[i], 0, s->kinds.n - 1);
}

static void code_file(mx_codec *c, mx_saved_programs *s)
{
    mx_code_text(c, &s->built);
    mx_code_text(c, &s->what.device);
    mx_code_text(c, &s->what.chip);
    mx_code_text(c, &s->what.model);
    code_mesh(c, &s->what.mesh);
    mx_code_range(c, &s->what.ranks, 1, INT_MAX);
    mx_code_range(c, &s->what.data_ranks, 1, INT_MAX);
    mx_code_range(c, &s->what.images_per_row, 0, INT_MAX);
    mx_code_f64(c, &s->seconds);
    code_entries(c, &s->keys, true, true);
    code_entries(c, &s->kernels, true, false);
    mx_code_record_pool(c, &s->pool);
    code_entries(c, &s->kinds, false, false);
    code_kinds(c, s);
}

/* --- writing --- */

mx_saved_programs *mx_saved_programs_new(const mx_saved_for *what)
{
    mx_saved_programs *s = mx_realloc(NULL, sizeof *s);
    *s = (mx_saved_programs){.what = *what};
    s->kind = MX_NEW_N(&s->arena, int, what->ranks);
    for (int i = 0; i < what->ranks; i++)
        s->kind[i] = -1;
    s->built = mx_build_id(&s->arena);
    return s;
}

static entry *add_entry(entries *e)
{
    MX_GROW(e->v, e->n, e->cap);
    e->v[e->n] = (entry){"", "", NULL, 0};
    return &e->v[e->n++];
}

static void write_programs(mx_record_pool *pool, mx_programs *p, const mx_programs_request *q,
                           mx_str *out)
{
    mx_arena scratch = {0};
    mx_programs_codec k = {.c = {.out = out, .arena = &scratch}, .pool = pool};
    mx_status_free(mx_programs_code(&k, p, q)); /* writing cannot fail */
    mx_arena_fini(&scratch);
}

int mx_saved_programs_add(mx_saved_programs *s, const mx_saved_kind *k)
{
    mx_str out = {0};
    write_programs(&s->pool, k->programs, k->request, &out);
    entry *e = add_entry(&s->kinds);
    e->bytes = mx_arena_copy(&s->arena, mx_str_text(&out), out.len + 1);
    e->n = out.len;
    add_like(s, k->rank);
    s->seconds += k->seconds;
    s->kind[k->rank] = s->kinds.n - 1;
    mx_str_fini(&out);
    return s->kinds.n - 1;
}

void mx_saved_programs_share(mx_saved_programs *s, int rank, int kind)
{
    s->kind[rank] = kind;
}

/* The programs of a kind, read as those of k's rank, and written again. */
static mx_status reread(mx_saved_programs *s, int kind, const mx_saved_kind *k,
                        mx_record_pool *pool, mx_str *out)
{
    int was = s->kind[k->rank];
    const mx_compile_options *o = &k->request->options.compile;
    mx_programs read = {0};
    s->kind[k->rank] = kind;
    mx_status st = mx_saved_programs_take(
        s, &read, k->request, (mx_saved_rank){k->rank, o->n_threads, o->device});
    if (!st)
        write_programs(pool, &read, k->request, out);
    s->kind[k->rank] = was;
    mx_programs_close(&read);
    return st;
}

/* Both are read before they are compared: what reading does not restore is no difference. */
mx_status mx_saved_programs_stand_for(mx_saved_programs *s, int kind, const mx_saved_kind *k,
                                      bool *out)
{
    mx_saved_programs *own = mx_saved_programs_new(&s->what);
    mx_record_pool pool = {0};
    mx_str a = {0}, b = {0};
    mx_status st;
    MX_TRY_OUT(st, reread(s, kind, k, &pool, &a));
    MX_TRY_OUT(st, reread(own, mx_saved_programs_add(own, k), k, &pool, &b));
    *out = a.len == b.len && memcmp(mx_str_text(&a), mx_str_text(&b), a.len) == 0;
out:
    mx_saved_programs_free(own);
    mx_record_pool_fini(&pool);
    mx_str_fini(&a);
    mx_str_fini(&b);
    return st;
}

/* "0123...cdef.cubin", or choices of algorithms, as the cache has them; nothing that leads to
 * another folder. */
static bool is_kernel_name(const char *name)
{
    size_t digits = strspn(name, "0123456789abcdef");
    return (digits == 32 && strcmp(name + digits, ".cubin") == 0) ||
           strcmp(name, MX_CHOICES_FILE) == 0;
}

mx_status mx_saved_programs_add_kernel(mx_saved_programs *s, const char *dir, const char *name)
{
    char *text;
    size_t n;
    for (int i = 0; i < s->kernels.n; i++)
        if (strcmp(s->kernels.v[i].name, name) == 0)
            return MX_OK;
    if (!is_kernel_name(name))
        return MX_OK;
    MX_TRY(mx_file_read(&s->arena, mx_arena_printf(&s->arena, "%s/%s", dir, name), MOST_BYTES,
                        &text, &n));
    entry *e = add_entry(&s->kernels);
    *e = (entry){mx_arena_strdup(&s->arena, name), "", text, n};
    return MX_OK;
}

/* Those of this machine, or that are compared as what they lead to. */
static bool is_compared(const mx_config *c, const char *name)
{
    static const char *const otherwise[] = {"device", "num_threads", "mesh", "virtual_ranks",
                                            "compiled_trainstep_file", "dump_ir", NULL};
    for (int i = 0; otherwise[i]; i++)
        if (strcmp(name, otherwise[i]) == 0)
            return false;
    return mx_config_has(c, name) && !mx_starts_with(name, "ici_") && !mx_starts_with(name, "dcn_");
}

static void take_keys(mx_saved_programs *s, const mx_config *c)
{
    const char **names;
    int n = mx_config_asked(c, MX_KEY_PATH, &s->arena, &names);
    for (int i = 0; i < n; i++) {
        mx_str value = {0};
        if (!is_compared(c, names[i]))
            continue;
        mx_config_print(c, names[i], &value);
        entry *e = add_entry(&s->keys);
        e->name = names[i];
        e->value = mx_arena_strdup(&s->arena, mx_str_text(&value));
        mx_str_fini(&value);
    }
}

mx_status mx_saved_programs_write(mx_saved_programs *s, const mx_config *c, const char *path,
                                  size_t *bytes)
{
    mx_str body = {0}, file = {0};
    mx_codec k = {.out = &body, .arena = &s->arena};
    take_keys(s, c);
    code_file(&k, s);
    mx_digest d = mx_digest_of(body.text, body.len);
    char version = FORMAT;
    mx_str_add_n(&file, magic, sizeof magic);
    mx_str_add_n(&file, &version, 1);
    mx_str_add_n(&file, (const char *)&d, sizeof d);
    mx_str_add_n(&file, body.text, body.len);
    *bytes = file.len;
    mx_status st = mx_io_write_output(path, file.text, file.len);
    mx_str_fini(&body);
    mx_str_fini(&file);
    return st;
}

/* --- reading --- */

static int degree(int n)
{
    return n > 1 ? n : 1; /* 0 means 1 */
}

/* How many ranks it has; 0: more than can be. */
static int64_t mesh_ranks(const mx_mesh *m)
{
    int64_t n = 1;
    for (int a = 0; a < MX_AXIS_COUNT; a++) {
        n *= degree(m->ici[a]);
        n = n > INT_MAX ? 0 : n * degree(m->dcn[a]);
        n = n > INT_MAX ? 0 : n;
    }
    return n;
}

static mx_status parse(mx_saved_programs *s, const uint8_t *p, size_t n, bool checked)
{
    mx_digest d;
    if (n < HEAD_BYTES || memcmp(p, magic, sizeof magic) != 0)
        return mx_fail(MX_INPUT, "this is not a file of compiled programs: it does not begin with "
                       "%.8s", magic);
    if (p[8] != FORMAT)
        return mx_fail(MX_INPUT, "its format is version %d, and this program reads %d; write it "
                       "again with maxc plan", p[8], FORMAT);
    memcpy(&d, p + 9, sizeof d);
    if (!checked && !mx_digest_equal(d, mx_digest_of(p + HEAD_BYTES, n - HEAD_BYTES)))
        return mx_fail(MX_INPUT, "it is damaged: its bytes do not have the checksum that it names; "
                       "write it again with maxc plan");
    mx_codec c = {.at = p + HEAD_BYTES, .end = p + n, .arena = &s->arena};
    code_file(&c, s);
    if (!c.bad && (mx_codec_left(&c) ||
                   (s->what.ranks > 1 && mesh_ranks(&s->what.mesh) != s->what.ranks)))
        c.bad = "it has more or less than it says";
    return c.bad ? mx_fail(MX_INPUT, "it cannot be read: %s", c.bad) : MX_OK;
}

mx_status mx_saved_programs_parse(mx_saved_programs **out, const void *bytes, size_t n,
                                  bool checked)
{
    mx_saved_programs *s = *out = mx_realloc(NULL, sizeof *s);
    *s = (mx_saved_programs){0};
    s->built = s->what.device = s->what.chip = s->what.model = "";
    mx_status st = parse(s, bytes, n, checked);
    if (!st)
        return MX_OK;
    mx_saved_programs_free(s);
    *out = NULL;
    return st;
}

mx_status mx_saved_programs_open(mx_saved_programs **out, const char *path)
{
    char *file = NULL;
    size_t n = 0;
    *out = NULL;
    if (!mx_file_exists(path))
        return mx_fail(MX_INPUT, "compiled_trainstep_file: there is no file %s; `maxc plan "
                       "compiled_trainstep_file=%s` with the keys of the run writes it", path,
                       path);
    MX_TRY(mx_io_read_file(NULL, path, MOST_BYTES, &file, &n));
    mx_status st = mx_saved_programs_parse(out, file, n, false);
    if (st)
        mx_free(file);
    else
        (*out)->file = file;
    return mx_status_wrap(st, "compiled_trainstep_file: %s", path);
}

void mx_saved_programs_free(mx_saved_programs *s)
{
    if (!s)
        return;
    mx_record_pool_fini(&s->pool);
    mx_free(s->keys.v);
    mx_free(s->kernels.v);
    mx_free(s->kinds.v);
    mx_free(s->like);
    mx_free(s->file);
    mx_arena_fini(&s->arena);
    mx_free(s);
}

int mx_saved_programs_kinds(const mx_saved_programs *s)
{
    return s->kinds.n;
}

double mx_saved_programs_seconds(const mx_saved_programs *s)
{
    return s->seconds / (s->kinds.n ? s->kinds.n : 1);
}

mx_status mx_saved_programs_take(mx_saved_programs *s, mx_programs *p,
                                 const mx_programs_request *q, mx_saved_rank by)
{
    MX_ASSERT(by.rank >= 0 && by.rank < s->what.ranks, "rank %d of %lld", by.rank,
              (long long)s->what.ranks);
    int kind = s->kind[by.rank];
    const entry *e = &s->kinds.v[kind];
    mx_programs_codec k = {.c = {.at = e->bytes, .end = (const uint8_t *)e->bytes + e->n,
                              .arena = &s->arena},
                        .pool = &s->pool,
                        .how = {&s->pool, by.device, by.n_threads, 0}};
    k.c.rank = by.rank;
    if (s->like[kind] != by.rank)
        k.c.mesh = &s->what.mesh;
    mx_programs_begin(p, q);
    MX_TRY(mx_programs_code(&k, p, q));
    if (!k.c.bad && mx_codec_left(&k.c))
        k.c.bad = "a rank has more than its programs";
    return k.c.bad ? mx_fail(MX_INPUT, "it cannot be read: %s", k.c.bad) : MX_OK;
}

/* Lines that the file does not have, by what is before their tabs. */
static void lines_missing(mx_str *out, const char *there, const entry *e)
{
    const char *p = e->bytes, *end = p + e->n;
    for (const char *stop; p < end && (stop = memchr(p, '\n', (size_t)(end - p))); p = stop + 1) {
        const char *tab = memchr(p, '\t', (size_t)(stop - p));
        mx_str key = {0};
        if (tab)
            mx_str_add_n(&key, p, (size_t)(tab + 1 - p));
        if (tab && !strstr(there, key.text))
            mx_str_add_n(out, p, (size_t)(stop + 1 - p));
        mx_str_fini(&key);
    }
}

static mx_status add_choices(const char *path, const entry *e)
{
    mx_arena a = {0};
    mx_str text = {0};
    char *there = "";
    size_t n = 0;
    mx_status st = MX_OK;
    if (mx_file_exists(path))
        st = mx_file_read(&a, path, MOST_BYTES, &there, &n);
    if (!st) {
        mx_str_add_n(&text, there, n);
        lines_missing(&text, there, e);
        if (text.len > n)
            st = mx_io_write_file(NULL, path, text.text, text.len);
    }
    mx_str_fini(&text);
    mx_arena_fini(&a);
    return st;
}

mx_status mx_saved_programs_install(const mx_saved_programs *s, const char *dir, int *n)
{
    *n = 0;
    for (int i = 0; i < s->kernels.n; i++) {
        const entry *e = &s->kernels.v[i];
        mx_str path = {0};
        mx_status st = MX_OK;
        if (!is_kernel_name(e->name))
            return mx_fail(MX_INPUT, "it has a kernel with the name %s, which is not valid",
                           e->name);
        mx_str_addf(&path, "%s/%s", dir, e->name);
        if (strcmp(e->name, MX_CHOICES_FILE) == 0)
            st = add_choices(path.text, e);
        else if (!mx_file_exists(path.text))
            st = mx_io_write_file(NULL, path.text, e->bytes, e->n);
        mx_str_fini(&path);
        MX_TRY(st);
        ++*n;
    }
    return MX_OK;
}

/* --- does it fit? --- */

static mx_status differs(const char *what, const char *is, const char *here)
{
    return mx_fail(MX_USAGE, "it was compiled for %s %s, and this run has %s; write it again with "
                   "maxc plan, or leave compiled_trainstep_file out", what, is, here);
}

static void print_mesh(mx_str *out, const mx_saved_for *w)
{
    mx_mesh_print(out, &w->mesh);
    mx_str_addf(out, " on %lld ranks, of which %lld have rows of their own", (long long)w->ranks,
                (long long)w->data_ranks);
}

static bool same_mesh(const mx_saved_for *a, const mx_saved_for *b)
{
    for (int i = 0; i < MX_AXIS_COUNT; i++)
        if (degree(a->mesh.ici[i]) != degree(b->mesh.ici[i]) ||
            degree(a->mesh.dcn[i]) != degree(b->mesh.dcn[i]))
            return false;
    return a->ranks == b->ranks && a->data_ranks == b->data_ranks;
}

static mx_status check_mesh(const mx_saved_for *is, const mx_saved_for *run)
{
    mx_str a = {0}, b = {0};
    if (same_mesh(is, run))
        return MX_OK;
    print_mesh(&a, is);
    print_mesh(&b, run);
    mx_status st = differs("the mesh", mx_str_text(&a), mx_str_text(&b));
    mx_str_fini(&a);
    mx_str_fini(&b);
    return st;
}

static mx_status check_keys(const mx_saved_programs *s, const mx_config *c)
{
    mx_str lines = {0}, value = {0};
    for (int i = 0; i < s->keys.n; i++) {
        const entry *e = &s->keys.v[i];
        mx_str_clear(&value);
        if (!mx_config_has(c, e->name))
            continue; /* of the verb that wrote it */
        mx_config_print(c, e->name, &value);
        if (strcmp(mx_str_text(&value), e->value) != 0)
            mx_str_addf(&lines, "  %s: compiled for %s, here %s (%s)\n", e->name, e->value,
                        mx_str_text(&value), mx_config_where(c, e->name));
    }
    mx_status st = MX_OK;
    if (lines.len)
        st = mx_fail(MX_USAGE, "it was compiled with other values of keys:\n%swrite it again with "
                     "maxc plan, restore these values, or leave compiled_trainstep_file out",
                     lines.text);
    mx_str_fini(&lines);
    mx_str_fini(&value);
    return st;
}

mx_status mx_saved_programs_fit(const mx_saved_programs *s, const mx_config *c,
                                const mx_saved_for *run)
{
    const mx_saved_for *is = &s->what;
    mx_arena a = {0};
    const char *built = mx_build_id(&a);
    mx_status st = MX_OK;
    if (strcmp(s->built, built) != 0)
        st = differs("the build", s->built, built);
    else if (strcmp(is->device, run->device) != 0)
        st = differs("the device", is->device, run->device);
    else if (*is->chip && *run->chip && strcmp(is->chip, run->chip) != 0)
        st = differs("the chip", is->chip, run->chip);
    if (!st)
        st = check_keys(s, c);
    if (!st)
        st = check_mesh(is, run);
    if (!st && is->images_per_row != run->images_per_row)
        st = mx_fail(MX_USAGE, "it was compiled for %lld images in a row, and the data has %lld",
                     (long long)is->images_per_row, (long long)run->images_per_row);
    if (!st && strcmp(is->model, run->model) != 0)
        st = differs("the model with the configuration", is->model, run->model);
    mx_arena_fini(&a);
    return st;
}
