/* tokenizer_bench.c - how fast a tokenizer loads and encodes, on one thread.
 *
 *     make build/release/bench/tokenizer_bench
 *     build/release/bench/tokenizer_bench TOKENIZER TEXT [PATTERN]
 *
 * Times are processor time, so that other work on the machine counts little. Prints the time to
 * load (best of 3), the encoding speed over the text as one document and over its lines, decoding
 * speed, the first digits of the SHA-256 of the ids, and texts that are hard on tokenizers: 10 MB
 * of one letter, of spaces, of random bytes, of random letters. MB are 10^6 bytes.
 * bench/peers/tokenizer_speed.py measures the tokenizers package the same way.
 */
#include "base/file.h"
#include "data/hub/sha.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double encode_once(const mx_tokenizer *t, const char *text, size_t n, bool lines,
                          mx_tokens *ids)
{
    double start = now();
    mx_status st = MX_OK;
    ids->n = 0;
    for (size_t i = 0; i < n && !st;) {
        const char *end = lines ? memchr(text + i, '\n', n - i) : NULL;
        size_t k = end ? (size_t)(end + 1 - (text + i)) : n - i;
        st = mx_tokenizer_encode(t, text + i, k, NULL, ids);
        i += k;
    }
    if (st)
        printf("%s\n", mx_status_text(st));
    mx_status_free(st);
    return now() - start;
}

static void report(const mx_tokenizer *t, const char *what, const char *text, size_t n, bool lines)
{
    mx_tokens ids = {0};
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double s = encode_once(t, text, n, lines, &ids);
        best = s < best ? s : best;
    }
    printf("%-14s %8.1f MB/s  %lld tokens, %.2f bytes each\n", what, (double)n / best / 1e6,
           (long long)ids.n, (double)n / (double)(ids.n ? ids.n : 1));
    if (strcmp(what, "one document") == 0) {
        mx_sha sha;
        char hex[65];
        mx_sha256_init(&sha);
        mx_sha_add(&sha, ids.ids, sizeof *ids.ids * (size_t)ids.n);
        mx_sha_hex(&sha, hex);
        printf("%-14s %.16s\n", "ids", hex);
    }
    mx_tokens_fini(&ids);
}

static void report_decode(const mx_tokenizer *t, const char *text, size_t n)
{
    mx_tokens ids = {0};
    mx_str out = {0};
    encode_once(t, text, n, false, &ids);
    double start = now();
    mx_status_free(mx_tokenizer_decode(t, ids.ids, ids.n, NULL, &out));
    printf("%-14s %8.1f MB/s\n", "decode", (double)out.len / (now() - start) / 1e6);
    mx_str_fini(&out);
    mx_tokens_fini(&ids);
}

static void report_hard(const mx_tokenizer *t)
{
    enum { N = 10000000 };
    mx_arena a = {0};
    char *s = mx_arena_alloc(&a, N);
    memset(s, 'a', N);
    report(t, "one letter", s, N, false);
    memset(s, ' ', N);
    report(t, "spaces", s, N, false);
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < N; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        s[i] = (char)x;
    }
    report(t, "random bytes", s, N, false);
    for (int i = 0; i < N; i++)
        s[i] = (char)('a' + (uint8_t)s[i] % 26);
    report(t, "random letters", s, N, false);
    mx_arena_fini(&a);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: tokenizer_bench TOKENIZER TEXT [PATTERN]\n");
        return MX_USAGE;
    }
    mx_arena a = {0};
    mx_tokenizer *t = NULL;
    mx_tokenizer_options o = {.pattern = argc > 3 ? argv[3] : NULL};
    char *text;
    size_t n;
    double best = 1e9;
    mx_status st = mx_file_read(&a, argv[2], (size_t)1 << 32, &text, &n);
    for (int i = 0; i < 3 && !st; i++) {
        mx_tokenizer_close(t);
        double start = now();
        st = mx_tokenizer_open(&t, argv[1], &o);
        best = now() - start < best ? now() - start : best;
    }
    if (st) {
        fprintf(stderr, "%s\n", mx_status_text(st));
        return (int)mx_status_code(st);
    }
    printf("%s, %d ids, loaded in %.3f s\n", mx_tokenizer_kind(t), mx_tokenizer_vocab_size(t),
           best);
    report(t, "one document", text, n, false);
    report(t, "lines", text, n, true);
    report_decode(t, text, n);
    report_hard(t);
    mx_tokenizer_close(t);
    mx_arena_fini(&a);
    return 0;
}
