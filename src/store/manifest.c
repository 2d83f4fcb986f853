/* manifest.c - writing, reading and checking the manifest.
 *
 * Checking goes from cheap to dear: the manifest, the sizes, the headers, then every tensor's hash,
 * in parallel over tensors. A file's header is compared before it is parsed, so a damaged header is
 * called that and not whatever it happens to say.
 */
#include "store/manifest.h"

#include "base/arena.h"
#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

enum { VERSION = 1, MAX_LISTED = 10 };
/* A trillion parameters in 140,000 tensors with two moments each make a manifest of some 50 MB. */
static const mx_json_limits LIMITS = {
    .max_bytes = (size_t)512 << 20, .max_depth = 8, .max_values = 8000000};
static const char NAME[] = "manifest.json";
static const char FORMAT[] = "maxc-checkpoint";

/* --- building ------------------------------------------------------------------------------- */
static json_t *digest_json(mx_digest d)
{
    char text[MX_DIGEST_TEXT];
    return json_string(mx_digest_text(d, text));
}

void mx_manifest_add_file(json_t *files, const char *name, uint64_t size_bytes, mx_digest digest)
{
    json_object_set_new(
        files, name,
        json_pack("{s:I, s:o}", "bytes", (json_int_t)size_bytes, "xxh3", digest_json(digest)));
}

void mx_manifest_add_shards(json_t *files, const mx_hf_saved *saved, const mx_st_source *tensors)
{
    for (int i = 0; i < saved->n_shards; i++) {
        const mx_hf_shard *s = &saved->shards[i];
        json_t *map = json_object();
        for (int64_t j = s->first; j < s->first + s->count; j++)
            json_object_set_new(map, tensors[j].name, digest_json(saved->digests[j]));
        json_object_set_new(files, s->name,
                            json_pack("{s:I, s:o, s:I, s:o}", "bytes", (json_int_t)s->st.size_bytes,
                                      "header", digest_json(s->st.header), "header_bytes",
                                      (json_int_t)s->st.header_bytes, "tensors", map));
    }
    if (saved->index_name)
        mx_manifest_add_file(files, saved->index_name, saved->index_bytes, saved->index_digest);
}

static void seal(json_t *root)
{
    char *text = mx_json_text(root, 1);
    json_object_set_new(root, "digest", digest_json(mx_digest_of(text, strlen(text))));
    mx_free(text);
}

mx_status mx_manifest_write(const mx_io *io, const char *dir, const mx_manifest_head *head,
                            json_t *files)
{
    json_t *root =
        json_pack("{s:s, s:i, s:[], s:s, s:I, s:o}", "format", FORMAT, "version", VERSION,
                  "requires", "run", head->run, "step", (json_int_t)head->step, "files", files);
    if (!root)
        return mx_fail(MX_USAGE, "%s: the run's name is not valid UTF-8", dir);
    if (isfinite(head->metric))
        json_object_set_new(root, "metric", json_real(head->metric));
    seal(root);
    char *text = mx_json_text(root, 1);
    mx_str path = {0};
    mx_str_addf(&path, "%s/%s", dir, NAME);
    mx_status st = mx_io_write_file(io, path.text, text, strlen(text));
    mx_str_fini(&path);
    mx_free(text);
    json_decref(root);
    return st;
}

/* --- reading -------------------------------------------------------------------------------- */
static mx_status check_digest(const char *path, const char *text, json_t *root)
{
    char *canonical = mx_json_text(root, 1);
    bool same = strcmp(canonical, text) == 0;
    mx_free(canonical);
    const char *stored = json_string_value(json_object_get(root, "digest"));
    mx_digest want = {0};
    bool known = stored && mx_digest_parse(stored, &want);
    json_t *body = json_copy(root);
    json_object_del(body, "digest");
    char *bare = mx_json_text(body, 1);
    bool sealed = known && mx_digest_equal(want, mx_digest_of(bare, strlen(bare)));
    mx_free(bare);
    json_decref(body);
    if (!same || !sealed)
        return mx_fail(MX_INPUT, "%s: damaged or edited: it does not match its own digest", path);
    return MX_OK;
}

static mx_status check_version(const char *path, const json_t *root)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, FORMAT) != 0)
        return mx_fail(MX_INPUT, "%s: not the manifest of a maxc checkpoint", path);
    const json_t *v = json_object_get(root, "version");
    if (!json_is_integer(v) || json_integer_value(v) < 1)
        return mx_fail(MX_INPUT, "%s: no version", path);
    if (json_integer_value(v) > VERSION)
        return mx_fail(MX_INPUT,
                       "%s: version %lld, written by a newer maxc; this one reads up to "
                       "version %d: update maxc",
                       path, (long long)json_integer_value(v), VERSION);
    const json_t *needs = json_object_get(root, "requires");
    if (!json_is_array(needs) || json_array_size(needs))
        return mx_fail(MX_INPUT,
                       "%s: requires the feature \"%s\", which this maxc does not know: "
                       "update maxc",
                       path,
                       json_is_array(needs) && json_is_string(json_array_get(needs, 0))
                           ? json_string_value(json_array_get(needs, 0))
                           : "?");
    if (!json_is_object(json_object_get(root, "files")) ||
        !json_is_integer(json_object_get(root, "step")) ||
        !json_is_string(json_object_get(root, "run")))
        return mx_fail(MX_INPUT, "%s: lacks files, step or run", path);
    return MX_OK;
}

mx_status mx_manifest_read(const char *dir, json_t **out)
{
    mx_str path = {0};
    mx_str_addf(&path, "%s/%s", dir, NAME);
    char *text = NULL;
    size_t n = 0;
    *out = NULL;
    mx_status st = MX_OK;
    MX_TRY_OUT(st, mx_io_read_file(NULL, path.text, LIMITS.max_bytes, &text, &n));
    if (strlen(text) != n)
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: damaged: a zero byte", path.text));
    MX_TRY_OUT(st, mx_json_parse(text, n, path.text, &LIMITS, out));
    if (!json_is_object(*out))
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: not an object", path.text));
    /* The version first: a future version may well seal itself in another way. */
    MX_TRY_OUT(st, check_version(path.text, *out));
    st = check_digest(path.text, text, *out);
out:
    if (st) {
        json_decref(*out);
        *out = NULL;
    }
    mx_free(text);
    mx_str_fini(&path);
    return st;
}

void mx_manifest_get_head(const json_t *manifest, mx_manifest_head *head)
{
    const json_t *metric = json_object_get(manifest, "metric");
    head->run = json_string_value(json_object_get(manifest, "run"));
    head->step = json_integer_value(json_object_get(manifest, "step"));
    head->metric = json_is_number(metric) ? json_number_value(metric) : NAN;
}

/* --- checking ------------------------------------------------------------------------------- */
typedef struct {
    mx_str text;
    int n;
    bool unknown; /* memory was short: whether it is damaged is not known */
} damage;

static void add_damage(damage *d, mx_status st)
{
    d->unknown |= mx_status_code(st) == MX_MEMORY;
    if (st && d->n++ < MAX_LISTED)
        mx_str_addf(&d->text, "%s%s", d->text.len ? "\n" : "", mx_status_text(st));
    mx_status_free(st);
}

static mx_status take_damage(damage *d)
{
    mx_status st = MX_OK;
    if (d->n)
        st = mx_fail(d->unknown ? MX_MEMORY : MX_INPUT, "%s%s", d->text.text,
                     d->n > MAX_LISTED ? "\n(and more)" : "");
    mx_str_fini(&d->text);
    *d = (damage){0};
    return st;
}

static bool get_digest(const json_t *entry, const char *key, mx_digest *out)
{
    const char *text = json_string_value(json_object_get(entry, key));
    return text && mx_digest_parse(text, out);
}

/* Size, and for safetensors the header, else (at the hash level) the whole of a plain file. */
static mx_status check_file(const char *path, const json_t *entry, mx_check_level level)
{
    const json_t *bytes = json_object_get(entry, "bytes"),
                 *hb = json_object_get(entry, "header_bytes");
    mx_digest want, found;
    bool plain = !json_object_get(entry, "tensors");
    if (!json_is_integer(bytes) || !get_digest(entry, plain ? "xxh3" : "header", &want) ||
        (!plain && !json_is_integer(hb)))
        return mx_fail(MX_INPUT, "%s: its entry in the manifest is incomplete", path);
    int fd;
    uint64_t size;
    mx_status st = mx_io_open_read(NULL, path, &fd, &size);
    if (st)
        return mx_status_wrap(st, "missing from the checkpoint");
    uint64_t wanted = (uint64_t)json_integer_value(bytes);
    uint64_t head = plain ? wanted : (uint64_t)json_integer_value(hb);
    if (size != wanted)
        st = mx_fail(MX_INPUT, "%s: %" PRIu64 " bytes were written and %" PRIu64 " are there", path,
                     wanted, size);
    else if (head > size)
        st = mx_fail(MX_INPUT, "%s: its entry in the manifest is wrong", path);
    else if (!plain || level == MX_CHECK_HASHES)
        st = mx_digest_of_file(fd, path, 0, head, &found);
    else
        found = want;
    if (!st && !mx_digest_equal(want, found))
        st = mx_fail(MX_INPUT, "%s: damaged%s: its hash is not the one in the manifest", path,
                     plain ? "" : " in its header");
    mx_io_system.close(NULL, fd);
    return st;
}

static mx_status check_tensor(const mx_st_tensor *t, const json_t *digests)
{
    const char *text = json_string_value(json_object_get(digests, t->name));
    mx_digest want, found;
    if (!text || !mx_digest_parse(text, &want))
        return mx_fail(MX_INPUT, "%s: tensor %s is not in the manifest", t->file->path, t->name);
    MX_TRY(mx_digest_of_file(t->file->fd, t->file->path, t->at, t->n_bytes, &found));
    if (!mx_digest_equal(want, found))
        return mx_fail(MX_INPUT,
                       "%s: tensor %s is damaged: its hash is not the one in the manifest",
                       t->file->path, t->name);
    return MX_OK;
}

static void check_tensors(const char *path, const json_t *entry, int n_threads, damage *bad)
{
    const json_t *digests = json_object_get(entry, "tensors");
    mx_st_file f;
    mx_status st = mx_st_open(&f, path);
    if (!st && (size_t)f.n_tensors != json_object_size(digests))
        st = mx_fail(MX_INPUT, "%s: %" PRId64 " tensors, and the manifest lists %zu", path,
                     f.n_tensors, json_object_size(digests));
    add_damage(bad, st);
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads < 1 ? 1 : n_threads)
    for (int64_t i = 0; i < f.n_tensors; i++) {
        mx_status one = check_tensor(&f.tensors[i], digests);
        if (one) {
#pragma omp critical(mx_manifest_damage)
            add_damage(bad, one);
        }
    }
    mx_st_close(&f);
}

/* Weights beside the listed ones would be loaded instead of them. */
static mx_status check_strays(const char *dir, const json_t *files)
{
    DIR *d = opendir(dir);
    if (!d)
        return mx_fail_errno(MX_INPUT, "%s: cannot list", dir);
    mx_status st = MX_OK;
    for (struct dirent *e; !st && (e = readdir(d));)
        if ((mx_ends_with(e->d_name, ".safetensors") ||
             mx_ends_with(e->d_name, ".safetensors.index.json")) &&
            !json_object_get(files, e->d_name))
            st = mx_fail(MX_INPUT,
                         "%s/%s does not belong to this checkpoint (the manifest does not "
                         "list it); move it away",
                         dir, e->d_name);
    closedir(d);
    return st;
}

mx_status mx_manifest_check(const char *dir, const json_t *manifest, mx_check_level level,
                            int n_threads)
{
    json_t *files = json_object_get(manifest, "files"), *entry;
    damage bad = {0};
    mx_str path = {0};
    const char *name;
    add_damage(&bad, check_strays(dir, files));
    json_object_foreach(files, name, entry)
    {
        mx_str_clear(&path);
        mx_str_addf(&path, "%s/%s", dir, name);
        mx_status st = strchr(name, '/')
                           ? mx_fail(MX_INPUT, "%s: the manifest names a file elsewhere", path.text)
                           : check_file(path.text, entry, level);
        bool intact = !st;
        add_damage(&bad, st);
        if (intact && level == MX_CHECK_HASHES && json_object_get(entry, "tensors"))
            check_tensors(path.text, entry, n_threads, &bad);
    }
    mx_str_fini(&path);
    return take_damage(&bad);
}
