/* token_cache.c - see token_cache.h. The index (key, file, offset) is an open-addressing table in
 * memory; it is rebuilt from the files at open by hopping from entry to entry. */
#include "data/load/token_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { HEADER = 28, MAX_IDS = 1 << 28 };
static const char magic[8] = "maxctok2";

typedef struct {
    mx_cache_key key;
    int64_t at; /* 0: empty; entries begin after the magic */
    int32_t file;
} slot;

struct mx_token_cache {
    pthread_mutex_t lock;
    uint64_t seed;
    int *fds;
    int n_fds, cap_fds;
    int out; /* index in fds of the file that is written; -1: none */
    int64_t out_at;
    slot *slots;
    int64_t n, cap; /* cap is a power of two */
    uint8_t *buf;   /* entry being written */
    size_t cap_buf;
};

/* --- index --- */

static slot *lookup(const mx_token_cache *c, mx_cache_key key)
{
    uint64_t i = key.lo;
    for (;; i++) {
        slot *s = &c->slots[i & (uint64_t)(c->cap - 1)];
        if (!s->at || (s->key.hi == key.hi && s->key.lo == key.lo))
            return s;
    }
}

static void insert(mx_token_cache *c, mx_cache_key key, int file, int64_t at)
{
    if (2 * (c->n + 1) > c->cap) {
        slot *old = c->slots;
        int64_t old_cap = c->cap;
        c->cap = old_cap ? 2 * old_cap : 1024;
        c->slots = mx_realloc(NULL, sizeof *c->slots * (size_t)c->cap);
        memset(c->slots, 0, sizeof *c->slots * (size_t)c->cap);
        for (int64_t i = 0; i < old_cap; i++)
            if (old[i].at)
                *lookup(c, old[i].key) = old[i];
        mx_free(old);
    }
    slot *s = lookup(c, key);
    c->n += !s->at;
    *s = (slot){key, at, file};
}

static void put32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* Bytes of an entry after its header, or -1 when the header is not one. */
static int64_t body_bytes(const uint8_t *h)
{
    uint32_t docs = get32(h + 16), a = get32(h + 20), b = get32(h + 24);
    if (docs > 2 || a > MAX_IDS || b > MAX_IDS || (docs < 2 && b) || (docs < 1 && a))
        return -1;
    return 5 * ((int64_t)a + b) + 4 + 8;
}

static void index_file(mx_token_cache *c, int file)
{
    struct stat st;
    uint8_t h[HEADER];
    if (fstat(c->fds[file], &st) != 0)
        return;
    for (int64_t at = 8; at + HEADER <= st.st_size;) {
        if (pread(c->fds[file], h, HEADER, at) != HEADER)
            return;
        int64_t body = body_bytes(h);
        if (body < 0 || at + HEADER + body > st.st_size)
            return;
        mx_cache_key key;
        memcpy(&key, h, 16);
        insert(c, key, file, at);
        at += HEADER + body;
    }
}

/* --- opening --- */

static void open_one(mx_token_cache *c, const char *path)
{
    char head[8];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (pread(fd, head, 8, 0) != 8 || memcmp(head, magic, 8) != 0) {
        close(fd);
        return;
    }
    MX_GROW(c->fds, c->n_fds, c->cap_fds);
    c->fds[c->n_fds++] = fd;
    index_file(c, c->n_fds - 1);
}

static void open_output(mx_token_cache *c, const char *dir)
{
    char path[4096];
    for (int k = 0; k < 10000; k++) {
        snprintf(path, sizeof path, "%s/%ld-%d.tok", dir, (long)getpid(), k);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0)
            return;
        if (write(fd, magic, 8) != 8) {
            close(fd);
            unlink(path);
            return;
        }
        MX_GROW(c->fds, c->n_fds, c->cap_fds);
        c->out = c->n_fds;
        c->out_at = 8;
        c->fds[c->n_fds++] = fd;
        return;
    }
}

/* What tokens depend on besides the record. The tokenizer is represented by how it treats a probe.
 */
static uint64_t settings_hash(const mx_encoder *e)
{
    static const char probe[] =
        "The 12,345 quick  brown foxes\n\tjumped; \xc3\xa9t\xc3\xa9 \xe4\xb8\xad "
        "<|endoftext|></s><s>don't int main(void) { return 0; }";
    mx_str s = {0};
    mx_tokens t = {0};
    int32_t v = e->tokenizer ? mx_tokenizer_vocab_size(e->tokenizer) : 0;
    mx_str_addf(&s, "%d %d %d %d %d %lld", v, e->add_bos, e->add_eos, mx_encoder_mode(e),
                e->parse_special, (long long)e->vocab_size);
    for (int i = 0; i < e->n_columns; i++)
        mx_str_addf(&s, " %s", e->columns[i]);
    if (e->tokenizer) {
        mx_str_addf(&s, "%s %d %d", mx_tokenizer_kind(e->tokenizer), mx_tokenizer_bos(e->tokenizer),
                    mx_tokenizer_eos(e->tokenizer));
        for (int32_t i = 0; i < v; i += 1 + v / 4096) { /* a sample of the vocabulary itself */
            size_t n = 0;
            const char *text = mx_tokenizer_token(e->tokenizer, i, &n);
            if (text)
                mx_str_add_n(&s, text, n);
        }
        mx_status_free(mx_tokenizer_encode(e->tokenizer, probe, sizeof probe - 1, NULL, &t));
        mx_str_add_n(&s, (const char *)t.ids, sizeof *t.ids * (size_t)t.n);
    }
    if (e->chat) { /* likewise the template: by what it makes of a conversation */
        json_t *m = json_pack("[{ssss}{ssss}]", "role", "user", "content", "q", "role", "assistant",
                              "content", "a");
        mx_chat_options o = {.now = 1735689600};
        mx_status_free(mx_chat_render(e->chat, m, &o, &s, NULL));
        json_decref(m);
    }
    uint64_t h = XXH3_64bits(s.text, s.len);
    mx_str_fini(&s);
    mx_tokens_fini(&t);
    return h;
}

mx_status mx_token_cache_open(mx_token_cache **out, const char *dir, const mx_encoder *e)
{
    *out = NULL;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return mx_fail_errno(MX_INPUT, "%s: the folder for the tokenization cache cannot be made",
                             dir);
    DIR *d = opendir(dir);
    if (!d)
        return mx_fail_errno(MX_INPUT,
                             "%s: the tokenization cache is not a folder that can be read", dir);
    mx_token_cache *c = mx_realloc(NULL, sizeof *c);
    *c = (mx_token_cache){.out = -1, .seed = settings_hash(e)};
    pthread_mutex_init(&c->lock, NULL);
    for (struct dirent *f; (f = readdir(d));)
        if (mx_ends_with(f->d_name, ".tok")) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
            open_one(c, path);
        }
    closedir(d);
    open_output(c, dir);
    *out = c;
    return MX_OK;
}

void mx_token_cache_close(mx_token_cache *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_fds; i++)
        close(c->fds[i]);
    pthread_mutex_destroy(&c->lock);
    mx_free(c->fds);
    mx_free(c->slots);
    mx_free(c->buf);
    mx_free(c);
}

/* --- entries --- */

mx_cache_key mx_token_cache_key(const mx_token_cache *c, const mx_record *r)
{
    XXH3_state_t *st = XXH3_createState();
    XXH3_128bits_reset_withSeed(st, c->seed);
    for (int i = 0; i < r->n_cells; i++) {
        uint64_t head[2] = {(uint64_t)r->cells[i].kind, r->cells[i].len_bytes};
        const char *name = mx_record_name(r, i);
        XXH3_128bits_update(st, head, sizeof head);
        XXH3_128bits_update(st, name, strlen(name) + 1);
        XXH3_128bits_update(st, mx_record_data(r, i), r->cells[i].len_bytes);
    }
    XXH128_hash_t h = XXH3_128bits_digest(st);
    XXH3_freeState(st);
    return (mx_cache_key){h.high64, h.low64};
}

static bool read_all(int fd, int64_t at, void *buf, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(fd, (char *)buf + done, n - done, at + (int64_t)done);
        if (k <= 0 && !(k < 0 && errno == EINTR))
            return false;
        done += k > 0 ? (size_t)k : 0;
    }
    return true;
}

bool mx_token_cache_get(mx_token_cache *c, mx_cache_key key, mx_document docs[2], int *n_docs)
{
    pthread_mutex_lock(&c->lock);
    slot s = c->cap ? *lookup(c, key) : (slot){0};
    int fd = s.at ? c->fds[s.file] : -1;
    pthread_mutex_unlock(&c->lock);
    uint8_t h[HEADER];
    if (fd < 0 || !read_all(fd, s.at, h, HEADER) || memcmp(h, &key, 16) != 0)
        return false;
    int64_t body = body_bytes(h);
    if (body < 0)
        return false;
    uint8_t *buf = mx_realloc(NULL, (size_t)body);
    uint64_t sum = 0;
    bool ok = read_all(fd, s.at + HEADER, buf, (size_t)body);
    if (ok)
        memcpy(&sum, buf + body - 8, 8);
    ok = ok && sum == XXH3_64bits(buf, (size_t)body - 8);
    const uint8_t *p = buf;
    *n_docs = ok ? (int)get32(h + 16) : 0;
    for (int k = 0; ok && k < *n_docs; k++) {
        int64_t n = get32(h + 20 + 4 * k);
        docs[k].ids.n = 0;
        mx_tokens_reserve(&docs[k].ids, n ? n : 1);
        memcpy(docs[k].ids.ids, p, (size_t)n * 4);
        docs[k].ids.n = n;
        if (n > docs[k].cap_trained) {
            docs[k].cap_trained = n;
            docs[k].trained = mx_realloc(docs[k].trained, (size_t)n);
        }
        if (n)
            memcpy(docs[k].trained, p + 4 * n, (size_t)n);
        p += 5 * n;
    }
    for (int k = 0; ok && k < *n_docs; k++)
        memcpy(&docs[k].margin, p, 4);
    mx_free(buf);
    return ok;
}

void mx_token_cache_put(mx_token_cache *c, mx_cache_key key, const mx_document docs[2], int n_docs)
{
    int64_t n[2] = {n_docs > 0 ? docs[0].ids.n : 0, n_docs > 1 ? docs[1].ids.n : 0};
    if (c->out < 0 || n[0] > MAX_IDS || n[1] > MAX_IDS)
        return;
    size_t total = (size_t)(HEADER + 5 * (n[0] + n[1]) + 4 + 8);
    pthread_mutex_lock(&c->lock);
    if (total > c->cap_buf) {
        c->cap_buf = 2 * total;
        c->buf = mx_realloc(c->buf, c->cap_buf);
    }
    memcpy(c->buf, &key, 16);
    put32(c->buf + 16, (uint32_t)n_docs);
    uint8_t *p = c->buf + HEADER;
    for (int k = 0; k < 2; k++) {
        put32(c->buf + 20 + 4 * k, (uint32_t)n[k]);
        if (n[k]) {
            memcpy(p, docs[k].ids.ids, (size_t)n[k] * 4);
            memcpy(p + 4 * n[k], docs[k].trained, (size_t)n[k]);
        }
        p += 5 * n[k];
    }
    memcpy(p, &docs[0].margin, 4);
    p += 4;
    uint64_t sum = XXH3_64bits(c->buf + HEADER, (size_t)(p - c->buf) - HEADER);
    memcpy(p, &sum, 8);
    if (pwrite(c->fds[c->out], c->buf, total, c->out_at) == (ssize_t)total) {
        insert(c, key, c->out, c->out_at);
        c->out_at += (int64_t)total;
    } else {
        c->out = -1; /* a full disk costs the cache, not the run */
    }
    pthread_mutex_unlock(&c->lock);
}
