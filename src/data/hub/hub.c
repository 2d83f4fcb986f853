/* hub.c - repository listings, the cache, and files into it.
 *
 *   GET ENDPOINT/api/datasets/REPO/revision/REV?blobs=true   {"sha": COMMIT, "siblings":
 *        [{"rfilename", "size", "blobId", "lfs": {"sha256", "size"}}]}
 *   GET ENDPOINT/datasets/REPO/resolve/COMMIT/PATH            the file (models: without
 *   "datasets/")
 * A blob is named by its hash (SHA-256 of large files, git's SHA-1 of small ones) and checked
 * against it before it gets its name; until then it is NAME.incomplete, locked by whoever writes
 * it, and the next run goes on where the last one stopped. Paths come from outside: "..",
 * absolute ones and odd bytes are refused.
 */
#include "data/hub/hub.h"

#include "data/hub/hub_http.h"
#include "data/hub/sha.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    const char *path, *hash; /* hash: 64 or 40 hexadecimal digits, or "" */
    int64_t size;            /* -1: unknown */
} entry;

typedef struct {
    const mx_hub_request *r;
    mx_arena *a;
    const char *endpoint, *token, *folder, *commit; /* folder: cache of this repository */
    entry *files;
    int n_files;
    bool from_cache; /* the listing is of what is there, not of what the hub has */
} hub;

/* --- where things are --- */

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v ? v : "";
}

static bool is_offline(void)
{
    const char *v = env("HF_HUB_OFFLINE");
    return *v && strcmp(v, "0") != 0 && strcasecmp(v, "false") != 0;
}

static bool safe_path(const char *p)
{
    if (!*p || *p == '/' || strlen(p) > 1000)
        return false;
    for (const char *c = p; *c; c++)
        if ((unsigned char)*c < ' ' || *c == '\\')
            return false;
    for (const char *part = p; part; part = strchr(part, '/')) {
        part += *part == '/';
        size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return false;
    }
    return true;
}

bool mx_hub_is_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-";
    size_t org = strspn(name, letters), rest = name[org] == '/' ? org + 1 : 0;
    return org && rest && name[rest] && !name[rest + strspn(name + rest, letters)] &&
           *name != '.' && name[rest] != '.';
}

static mx_status set_up(hub *h)
{
    const char *repo = h->r->repo, *home = env("HF_HOME"), *cache = env("HF_HUB_CACHE");
    if (!safe_path(repo) || strchr(repo, '?') || strchr(repo, '#'))
        return mx_fail(MX_USAGE, "\"%s\" is not the name of a hub repository; expected ORG/NAME",
                       repo);
    if (!*home)
        home = *env("XDG_CACHE_HOME")
                   ? mx_arena_printf(h->a, "%s/huggingface", env("XDG_CACHE_HOME"))
                   : mx_arena_printf(h->a, "%s/.cache/huggingface",
                                     *env("HOME") ? env("HOME") : "/tmp");
    if (!*cache)
        cache = mx_arena_printf(h->a, "%s/hub", home);
    char *name =
        mx_arena_printf(h->a, "%s/%s--%s", cache, h->r->model ? "models" : "datasets", repo);
    mx_str folder = {0};
    for (const char *c = name; *c; c++)
        if (*c == '/' && c >= name + strlen(cache) + 1)
            mx_str_add(&folder, "--");
        else
            mx_str_add_n(&folder, c, 1);
    h->folder = mx_arena_strdup(h->a, folder.text);
    mx_str_fini(&folder);
    h->endpoint = *env("HF_ENDPOINT") ? env("HF_ENDPOINT") : "https://huggingface.co";
    h->token = h->r->token && *h->r->token ? h->r->token : env("HF_TOKEN");
    if (!*h->token) {
        FILE *f = fopen(mx_arena_printf(h->a, "%s/token", home), "r");
        char line[256] = "";
        if (f && fgets(line, sizeof line, f))
            line[strcspn(line, " \r\n")] = 0;
        if (f)
            fclose(f);
        h->token = mx_arena_strdup(h->a, line);
    }
    return MX_OK;
}

static mx_status make_folders(const char *path)
{
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", path);
    for (char *c = dir + 1; *c; c++)
        if (*c == '/') {
            *c = 0;
            if (mkdir(dir, 0777) != 0 && errno != EEXIST)
                return mx_fail_errno(MX_DEVICE, "%s: the cache folder cannot be made; set HF_HOME",
                                     dir);
            *c = '/';
        }
    return MX_OK;
}

/* --- listing --- */

static mx_status read_listing(hub *h, json_t *o)
{
    const char *sha = json_string_value(json_object_get(o, "sha"));
    json_t *list = json_object_get(o, "siblings"), *item;
    size_t i;
    if (!sha || !safe_path(sha) || strchr(sha, '/') || !json_is_array(list))
        return mx_fail(MX_INPUT, "%s: the hub's answer has no commit or no list of files",
                       h->r->repo);
    h->commit = mx_arena_strdup(h->a, sha);
    h->files = MX_NEW_N(h->a, entry, json_array_size(list) + 1);
    json_array_foreach (list, i, item) {
        const char *path = json_string_value(json_object_get(item, "rfilename"));
        json_t *lfs = json_object_get(item, "lfs"), *size = json_object_get(item, "size");
        const char *hash = json_string_value(json_object_get(lfs, "sha256"));
        if (!hash)
            hash = json_string_value(json_object_get(item, "blobId"));
        if (json_is_integer(json_object_get(lfs, "size")))
            size = json_object_get(lfs, "size");
        if (!path || !safe_path(path))
            return mx_fail(MX_INPUT, "%s: the hub names a file \"%s\", which is not a safe path",
                           h->r->repo, path ? path : "");
        bool named = hash && (strlen(hash) == 64 || strlen(hash) == 40) &&
                     strspn(hash, "0123456789abcdef") == strlen(hash);
        h->files[h->n_files++] =
            (entry){mx_arena_strdup(h->a, path), mx_arena_strdup(h->a, named ? hash : ""),
                    json_is_integer(size) ? json_integer_value(size) : -1};
    }
    return MX_OK;
}

static const char *revision(const hub *h)
{
    return h->r->revision && *h->r->revision ? h->r->revision : "main";
}

static mx_status ask_listing(hub *h, int tries)
{
    mx_http q = {.token = h->token, .max_bytes = (int64_t)256 << 20, .fd = -1, .tries = tries};
    json_error_t err;
    q.url = mx_arena_printf(h->a, "%s/api/%s/%s/revision/%s?blobs=true", h->endpoint,
                            h->r->model ? "models" : "datasets", h->r->repo, revision(h));
    mx_status st = mx_http_get(&q);
    json_t *o = st ? NULL : json_loadb(mx_str_text(&q.body), q.body.len, 0, &err);
    if (!st && !o)
        st = mx_fail(MX_INPUT, "%s: the hub's answer is not JSON: %s", q.url, err.text);
    if (!st)
        st = read_listing(h, o);
    json_decref(o);
    mx_str_fini(&q.body);
    return st;
}

/* --- files --- */

static mx_status check_hash(const entry *f, int fd, const char *path)
{
    char hex[65];
    mx_sha s;
    struct stat st;
    char *buf = mx_realloc(NULL, 1 << 20);
    if (!*f->hash || fstat(fd, &st) != 0) {
        mx_free(buf);
        return MX_OK;
    }
    if (strlen(f->hash) == 64) {
        mx_sha256_init(&s);
    } else {
        mx_sha1_init(&s);
        int n = snprintf(buf, 64, "blob %lld", (long long)st.st_size);
        mx_sha_add(&s, buf, (size_t)n + 1);
    }
    ssize_t k;
    for (int64_t at = 0; (k = pread(fd, buf, 1 << 20, at)) > 0; at += k)
        mx_sha_add(&s, buf, (size_t)k);
    mx_free(buf);
    mx_sha_hex(&s, hex);
    if (strcmp(hex, f->hash) == 0)
        return MX_OK;
    unlink(path);
    return mx_fail(MX_INPUT,
                   "%s: what arrived has the hash %s and not %s; it was deleted, try again",
                   f->path, hex, f->hash);
}

static const char *escape(const hub *h, const char *path)
{
    mx_str s = {0};
    for (const char *c = path; *c; c++)
        if (strchr("/-_.~", *c) || (*c >= '0' && *c <= '9') ||
            ((*c | 32) >= 'a' && (*c | 32) <= 'z'))
            mx_str_add_n(&s, c, 1);
        else
            mx_str_addf(&s, "%%%02X", (unsigned char)*c);
    char *out = mx_arena_strdup(h->a, mx_str_text(&s));
    mx_str_fini(&s);
    return out;
}

static mx_status download(hub *h, const entry *f, const char *blob)
{
    const char *part = mx_arena_printf(h->a, "%s.incomplete", blob);
    struct stat st;
    MX_TRY(make_folders(part));
    int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return mx_fail_errno(MX_DEVICE, "%s: cannot write to the cache", part);
    flock(fd, LOCK_EX); /* another process may be fetching the same file */
    mx_status e = MX_OK;
    if (access(blob, R_OK) != 0 && fstat(fd, &st) == 0) {
        mx_http q = {.token = h->token, .fd = fd, .from = st.st_size, .name = f->path,
                     .max_bytes = f->size >= 0 ? f->size : INT64_MAX / 2,
                     .progress = h->r->progress, .ctx = h->r->ctx};
        q.url = mx_arena_printf(h->a, "%s/%s%s/resolve/%s/%s", h->endpoint,
                                h->r->model ? "" : "datasets/", h->r->repo, h->commit,
                                escape(h, f->path));
        if (q.from > q.max_bytes) {
            q.from = 0;
            if (ftruncate(fd, 0) != 0)
                e = mx_fail_errno(MX_DEVICE, "%s", part);
        }
        if (!e && (f->size < 0 || q.from < f->size))
            e = mx_http_get(&q);
        mx_str_fini(&q.body);
        if (!e && f->size >= 0 && fstat(fd, &st) == 0 && st.st_size != f->size)
            e = mx_fail(MX_DEVICE, "%s: %lld of %lld bytes arrived; run again to go on", f->path,
                        (long long)st.st_size, (long long)f->size);
        if (!e)
            e = check_hash(f, fd, part);
        if (!e && (fsync(fd) != 0 || rename(part, blob) != 0))
            e = mx_fail_errno(MX_DEVICE, "%s: the file could not be put in its place", blob);
    } else {
        unlink(part);
    }
    close(fd);
    return e;
}

/* snapshots/COMMIT/PATH -> ../../blobs/HASH, with one more ../ per folder in PATH. */
static mx_status link_blob(const hub *h, const entry *f, const char *name, const char *snapshot)
{
    mx_str target = {0};
    mx_str_add(&target, "../../");
    for (const char *c = f->path; *c; c++)
        if (*c == '/')
            mx_str_add(&target, "../");
    mx_str_addf(&target, "blobs/%s", name);
    (void)h;
    mx_status st = make_folders(snapshot);
    if (!st && symlink(target.text, snapshot) != 0 && errno != EEXIST)
        st = mx_fail_errno(MX_DEVICE, "%s: the link into the cache cannot be made", snapshot);
    mx_str_fini(&target);
    return st;
}

static mx_status fetch_one(hub *h, const entry *f, char **path)
{
    /* without a hash from the listing the commit and the path name the content */
    mx_sha s;
    char hex[65];
    mx_sha1_init(&s);
    mx_sha_add(&s, h->commit, strlen(h->commit));
    mx_sha_add(&s, f->path, strlen(f->path));
    mx_sha_hex(&s, hex);
    const char *name = *f->hash ? f->hash : mx_arena_strdup(h->a, hex);
    const char *blob = mx_arena_printf(h->a, "%s/blobs/%s", h->folder, name);
    *path = mx_arena_printf(h->a, "%s/snapshots/%s/%s", h->folder, h->commit, f->path);
    if (access(*path, R_OK) == 0)
        return MX_OK;
    if (access(blob, R_OK) != 0)
        MX_TRY(download(h, f, blob));
    unlink(*path); /* a link that leads nowhere */
    return link_blob(h, f, name, *path);
}

static void write_ref(const hub *h)
{
    const char *path = mx_arena_printf(h->a, "%s/refs/%s", h->folder, revision(h));
    mx_status_free(make_folders(path));
    FILE *f = fopen(path, "w"); /* the commit is only remembered for offline use */
    if (f) {
        fputs(h->commit, f);
        fclose(f);
    }
}

/* --- offline --- */

static void walk(hub *h, const char *root, const char *below, int *cap, int depth)
{
    const char *dir = mx_arena_printf(h->a, "%s/%s", root, below);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        const char *path = mx_arena_printf(h->a, *below ? "%s/%s" : "%s%s", below, e->d_name);
        struct stat s;
        if (stat(mx_arena_printf(h->a, "%s/%s", root, path), &s) != 0)
            continue;
        if (S_ISDIR(s.st_mode) && depth < 16) {
            walk(h, root, path, cap, depth + 1);
            continue;
        }
        entry *grown = h->files;
        if (h->n_files == *cap) {
            *cap = *cap ? 2 * *cap : 64;
            grown = MX_NEW_N(h->a, entry, *cap);
            if (h->n_files)
                memcpy(grown, h->files, sizeof *grown * (size_t)h->n_files);
            h->files = grown;
        }
        h->files[h->n_files++] = (entry){path, "", s.st_size};
    }
    if (d)
        closedir(d);
}

static mx_status list_cache(hub *h)
{
    const char *ref = mx_arena_printf(h->a, "%s/refs/%s", h->folder, revision(h));
    char commit[128] = "";
    FILE *f = fopen(ref, "r");
    if (f && fgets(commit, sizeof commit, f))
        commit[strcspn(commit, " \r\n")] = 0;
    if (f)
        fclose(f);
    if (!*commit)
        snprintf(commit, sizeof commit, "%s", revision(h)); /* it may be a commit itself */
    h->commit = mx_arena_strdup(h->a, commit);
    int cap = 0;
    if (safe_path(commit))
        walk(h, mx_arena_printf(h->a, "%s/snapshots/%s", h->folder, commit), "", &cap, 0);
    if (h->n_files == 0)
        return mx_fail(MX_INPUT,
                       "%s is not in the cache (%s), and HF_HUB_OFFLINE is set; unset it to fetch "
                       "the files",
                       h->r->repo, h->folder);
    return MX_OK;
}

/* --- the calls --- */

static bool chosen(const char *patterns, const char *path)
{
    if (!patterns || !*patterns)
        return true;
    for (const char *p = patterns; *p;) {
        size_t k = strcspn(p, ",");
        char one[1024];
        snprintf(one, sizeof one, "%.*s", (int)k, p);
        if (k && mx_glob_match(one, path))
            return true;
        p += k + (p[k] == ',');
    }
    return false;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->path, ((const entry *)b)->path);
}

/* Without a network what was fetched before is still there. */
static mx_status list_files(hub *h)
{
    h->from_cache = is_offline();
    if (h->from_cache)
        return list_cache(h);
    mx_status none = list_cache(h);
    bool cached = !none;
    hub there = *h;
    mx_status_free(none);
    h->files = NULL;
    h->n_files = 0;
    mx_status st = ask_listing(h, cached ? 2 : 0);
    if (mx_status_code(st) != MX_DEVICE || !cached)
        return st;
    fprintf(stderr, "note: the hub cannot be reached; what was fetched of %s before is used\n",
            h->r->repo);
    mx_status_free(st);
    *h = there;
    h->from_cache = true;
    return MX_OK;
}

static mx_status open_hub(hub *h, const mx_hub_request *r, mx_arena *a)
{
    *h = (hub){.r = r, .a = a};
    MX_TRY(set_up(h));
    MX_TRY(list_files(h));
    qsort(h->files, (size_t)h->n_files, sizeof *h->files, by_path);
    return MX_OK;
}

mx_status mx_hub_list(const mx_hub_request *r, mx_arena *a, char ***names, int *n)
{
    hub h;
    MX_TRY(open_hub(&h, r, a));
    *names = MX_NEW_N(a, char *, h.n_files + 1);
    for (int i = 0; i < h.n_files; i++)
        (*names)[i] = mx_arena_strdup(a, h.files[i].path);
    *n = h.n_files;
    return MX_OK;
}

mx_status mx_hub_fetch(const mx_hub_request *r, mx_arena *a, char ***paths, int *n, char **folder)
{
    hub h;
    MX_TRY(open_hub(&h, r, a));
    *paths = MX_NEW_N(a, char *, h.n_files + 1);
    *n = 0;
    for (int i = 0; i < h.n_files; i++)
        if (chosen(r->pattern, h.files[i].path))
            MX_TRY(fetch_one(&h, &h.files[i], &(*paths)[(*n)++]));
    if (*n == 0)
        return mx_fail(MX_INPUT, "%s: none of its %d files matches \"%s\"", r->repo, h.n_files,
                       r->pattern ? r->pattern : "");
    if (!h.from_cache)
        write_ref(&h);
    *folder = mx_arena_printf(a, "%s/snapshots/%s", h.folder, h.commit);
    return MX_OK;
}
