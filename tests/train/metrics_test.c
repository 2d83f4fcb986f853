/* metrics_test.c - lines and records as readers expect them, resumes that cut back, full disks. */
#include "train/report/metrics.h"

#include "../test.h"
#include "base/crc32c.h"
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static double fixed_now(void)
{
    return 1700000000.25;
}

static void remove_dir(const char *dir)
{
    MX_CHECK_OK(mx_io_remove_tree(NULL, dir));
}

static char *read_all(const char *dir, const char *name, size_t *n)
{
    char path[600], *text = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    MX_CHECK_OK(mx_io_read_file(NULL, path, 1 << 24, &text, n));
    return text;
}

static int count_lines(const char *dir)
{
    size_t n = 0;
    int lines = 0;
    char *text = read_all(dir, "metrics.jsonl", &n);
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    mx_free(text);
    return lines;
}

MX_TEST(crc32c_known_values)
{
    /* RFC 3720: 32 bytes of zeros, of ones, ascending, and the check value of the catalogue */
    unsigned char b[32] = {0}, up[32], ones[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++)
        up[i] = (unsigned char)i;
    MX_CHECK(mx_crc32c(b, 32) == 0x8a9136aa, "%08x", mx_crc32c(b, 32));
    MX_CHECK(mx_crc32c(ones, 32) == 0x62a8ab43, "%08x", mx_crc32c(ones, 32));
    MX_CHECK(mx_crc32c(up, 32) == 0x46dd794e, "%08x", mx_crc32c(up, 32));
    MX_CHECK(mx_crc32c("123456789", 9) == 0xe3069283, "%08x", mx_crc32c("123456789", 9));
    MX_CHECK(mx_crc32c("", 0) == 0);
    MX_CHECK(mx_crc32c_masked("123456789", 9) == 0xc78ab0e5, "mask");
}

MX_TEST(metrics_lines_are_json_one_per_step)
{
    char dir[] = "/tmp/maxc-metrics-XXXXXX";
    mx_metrics *m;
    MX_CHECK(mkdtemp(dir) != NULL);
    MX_CHECK_OK(mx_metrics_open(&m, dir, &(mx_metrics_options){.now = fixed_now}));
    mx_metrics_log(m, 0, (mx_metric[]){{"loss", 10.25}, {"lr", 1e-3}, {"odd \"name\"\n", 0.1}}, 3);
    mx_metrics_log(m, 1, (mx_metric[]){{"loss", NAN}, {"up", INFINITY}, {"down", -INFINITY}}, 3);
    mx_metrics_log(m, 2, NULL, 0);
    MX_CHECK_OK(mx_metrics_close(m));
    size_t n;
    char *text = read_all(dir, "metrics.jsonl", &n);
    const char *want =
        "{\"step\": 0, \"time\": 1700000000.250, \"loss\": 10.25, \"lr\": 0.001, "
        "\"odd \\\"name\\\"\\u000a\": 0.1}\n"
        "{\"step\": 1, \"time\": 1700000000.250, \"loss\": \"NaN\", \"up\": \"Infinity\", "
        "\"down\": \"-Infinity\"}\n"
        "{\"step\": 2, \"time\": 1700000000.250}\n";
    MX_CHECK(text && strcmp(text, want) == 0, "%s", text);
    mx_free(text);
    remove_dir(dir);
}

MX_TEST(metrics_resume_cuts_back_repeated_steps_and_torn_lines)
{
    char dir[] = "/tmp/maxc-metrics-XXXXXX", path[300];
    mx_metrics *m;
    MX_CHECK(mkdtemp(dir) != NULL);
    MX_CHECK_OK(mx_metrics_open(&m, dir, NULL));
    for (int i = 0; i < 20; i++)
        mx_metrics_log(m, i, &(mx_metric){"loss", 100 - i}, 1);
    MX_CHECK_OK(mx_metrics_close(m));
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "a");
    fputs("{\"step\": 20, \"ti", f); /* killed in the middle of a line */
    fclose(f);
    MX_CHECK_OK(mx_metrics_open(&m, dir, &(mx_metrics_options){.start_step = 20}));
    MX_CHECK(count_lines(dir) == 20, "%d lines after a torn one", count_lines(dir));
    MX_CHECK_OK(mx_metrics_close(m));
    f = fopen(path, "a");
    fwrite("{\"st\0\0\0\0\0\0\0\0\0", 1, 13, f); /* by a power loss */
    fclose(f);
    MX_CHECK_OK(mx_metrics_open(&m, dir, &(mx_metrics_options){.start_step = 20}));
    MX_CHECK(count_lines(dir) == 20, "%d lines after zeros", count_lines(dir));
    MX_CHECK_OK(mx_metrics_close(m));
    char other[300], kept[16] = "";
    snprintf(other, sizeof other, "%s/notes.txt", dir);
    f = fopen(other, "w");
    fputs("one\nlast", f);
    fclose(f);
    MX_CHECK_ERROR(mx_metrics_open(&m, dir, &(mx_metrics_options){.start_step = 20, .copy = other}),
                   "would be lost; name another file");
    f = fopen(other, "r");
    MX_CHECK(fread(kept, 1, 15, f) == 8 && strcmp(kept, "one\nlast") == 0, "%s", kept);
    fclose(f);
    MX_CHECK_OK(mx_metrics_open(&m, dir, &(mx_metrics_options){.start_step = 12}));
    mx_metrics_log(m, 12, &(mx_metric){"loss", -1}, 1);
    MX_CHECK_OK(mx_metrics_close(m));
    mx_arena a = {0};
    mx_series s;
    MX_CHECK_OK(mx_metrics_read(path, "loss", &a, &s));
    MX_CHECK(s.n == 13 && s.x[12] == 12 && s.y[12] == -1 && s.y[11] == 89, "n %d", (int)s.n);
    mx_arena_fini(&a);
    remove_dir(dir);
}

/* --- TensorBoard --- */
static int event_files(const char *dir, char name[300])
{
    char path[300];
    int n = 0;
    snprintf(path, sizeof path, "%s/tensorboard", dir);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strncmp(e->d_name, "events.out.tfevents.", 20) == 0) {
            snprintf(name, 300, "tensorboard/%.250s", e->d_name);
            n++;
        }
    if (d)
        closedir(d);
    return n;
}

/* Walks the records of a file, checking both CRCs of each; gives how many there are. */
static int check_records(const char *b, size_t n)
{
    int records = 0;
    for (size_t at = 0; at < n; records++) {
        uint64_t len;
        uint32_t head, body;
        MX_CHECK(n - at >= 16, "a torn record at %zu", at);
        if (n - at < 16)
            break;
        memcpy(&len, b + at, 8);
        memcpy(&head, b + at + 8, 4);
        MX_CHECK(head == mx_crc32c_masked(b + at, 8), "crc of the length at %zu", at);
        MX_CHECK(len <= n - at - 16, "length %llu at %zu", (unsigned long long)len, at);
        if (len > n - at - 16)
            break;
        memcpy(&body, b + at + 12 + len, 4);
        MX_CHECK(body == mx_crc32c_masked(b + at + 12, len), "crc of the record at %zu", at);
        at += 16 + len;
    }
    return records;
}

MX_TEST(metrics_events_have_the_bytes_tensorboard_reads)
{
    char dir[] = "/tmp/maxc-metrics-XXXXXX", name[300];
    mx_metrics *m;
    size_t n;
    MX_CHECK(mkdtemp(dir) != NULL);
    MX_CHECK_OK(mx_metrics_open(
        &m, dir, &(mx_metrics_options){.tensorboard = true, .start_step = 3, .now = fixed_now}));
    mx_metrics_log(m, 300, (mx_metric[]){{"loss", 1.5}, {"perf/tokens_per_s", -2}}, 2);
    MX_CHECK_OK(mx_metrics_close(m));
    MX_CHECK(event_files(dir, name) == 1);
    char *b = read_all(dir, name, &n);
    MX_CHECK(check_records(b, n) == 3, "version, start, scalars");
    /* the last record, as TensorBoard's own protobuf classes serialise the same event */
    static const unsigned char want[] = {
        9,   0,   0,   16,  64,  252, 84, 217, 65,  16,  172, 2,   42, 39,  10,  11,  10,  4,
        108, 111, 115, 115, 21,  0,   0,  192, 63,  10,  24,  10,  17, 112, 101, 114, 102, 47,
        116, 111, 107, 101, 110, 115, 95, 112, 101, 114, 95,  115, 21, 0,   0,   0,   192};
    MX_CHECK(n > sizeof want + 16 && memcmp(b + n - 4 - sizeof want, want, sizeof want) == 0,
             "scalars");
    MX_CHECK(memmem(b, n, "brain.Event:2", 13) != NULL, "version");
    MX_CHECK(memmem(b, n, "\x10\x03\x3a\x02\x08\x01", 6) != NULL, "session start at step 3");
    mx_free(b);
    remove_dir(dir);
}

/* --- a disk that fills up --- */
typedef struct {
    int calls, fail_from, fail_to; /* writes that fail */
    bool partly;                   /* after half of the bytes */
} bad_disk;

static ssize_t bad_write(void *ctx, int fd, const void *buf, size_t n)
{
    bad_disk *d = ctx;
    int k = d->calls++;
    if (k < d->fail_from || k >= d->fail_to)
        return write(fd, buf, n);
    if (d->partly && k == d->fail_from)
        return write(fd, buf, n / 2);
    errno = ENOSPC;
    return -1;
}

static void full_disk(bool partly)
{
    char dir[] = "/tmp/maxc-metrics-XXXXXX", name[300];
    bad_disk d = {.fail_from = 10, .fail_to = 16, .partly = partly};
    mx_io io = mx_io_system;
    io.ctx = &d;
    io.write = bad_write;
    mx_metrics *m;
    MX_CHECK(mkdtemp(dir) != NULL);
    MX_CHECK_OK(mx_metrics_open(&m, dir, &(mx_metrics_options){.tensorboard = true, .io = &io}));
    for (int i = 0; i < 20; i++)
        mx_metrics_log(m, i, &(mx_metric){"loss", i}, 1);
    MX_CHECK(mx_metrics_dropped(m) > 3, "%d dropped", (int)mx_metrics_dropped(m));
    MX_CHECK(strstr(mx_metrics_problem(m), "No space left") != NULL, "%s", mx_metrics_problem(m));
    MX_CHECK_ERROR(mx_metrics_close(m), "training was not affected");
    size_t n;
    char *text = read_all(dir, "metrics.jsonl", &n);
    MX_CHECK(text && strstr(text, "\"dropped\": ") != NULL, "the gap is not marked");
    int lines = 0;
    for (char *line = text, *eol; line && (eol = strchr(line, '\n')); line = eol + 1, lines++) {
        json_t *j = json_loadb(line, (size_t)(eol - line), 0, NULL);
        MX_CHECK(j != NULL, "line %d is broken", lines);
        json_decref(j);
    }
    MX_CHECK(lines >= 15 && lines < 20, "%d lines", lines);
    mx_free(text);
    MX_CHECK(event_files(dir, name) == 1);
    text = read_all(dir, name, &n);
    MX_CHECK(check_records(text, n) >= 15);
    mx_free(text);
    remove_dir(dir);
}

MX_TEST(metrics_full_disk_drops_whole_records)
{
    full_disk(false);
}
MX_TEST(metrics_short_write_leaves_no_half_record)
{
    full_disk(true);
}

MX_TEST(metrics_logging_does_not_allocate)
{
    char dir[] = "/tmp/maxc-metrics-XXXXXX";
    mx_metrics *m;
    MX_CHECK(mkdtemp(dir) != NULL);
    MX_CHECK_OK(mx_metrics_open(&m, dir, &(mx_metrics_options){.tensorboard = true}));
    const mx_metric v[] = {
        {"loss", 1.0 / 3}, {"grad_norm", -1.0 / 7e10}, {"tokens_per_s", 1e9 / 7}};
    mx_metrics_log(m, INT64_MAX / 2, v, 3);
    int64_t before = mx_alloc_count();
    for (int i = 0; i < 100; i++)
        mx_metrics_log(m, INT64_MAX / 2 + i, v, 3);
    MX_CHECK(mx_alloc_count() == before, "%d allocations", (int)(mx_alloc_count() - before));
    MX_CHECK_OK(mx_metrics_close(m));
    remove_dir(dir);
}

MX_TEST(metrics_read_says_where_a_line_is_bad)
{
    char dir[] = "/tmp/maxc-metrics-XXXXXX", path[300];
    mx_arena a = {0};
    mx_series s;
    MX_CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "w");
    fputs("{\"step\": 1, \"loss\": \"NaN\"}\n{\"step\": 2, \"eval\": 1}\n{\"step\": 3, \"loss\": "
          "2}\n{\"st",
          f);
    fclose(f);
    MX_CHECK_OK(mx_metrics_read(path, "loss", &a, &s));
    MX_CHECK(s.n == 2 && isnan(s.y[0]) && s.x[1] == 3 && s.y[1] == 2, "n %d", (int)s.n);
    f = fopen(path, "w");
    fputs("{\"step\": 1}\nnonsense\n{\"step\": 2}\n", f);
    fclose(f);
    MX_CHECK_ERROR(mx_metrics_read(path, "loss", &a, &s), "metrics.jsonl:2: not a JSON object");
    MX_CHECK_ERROR(mx_metrics_open(&(mx_metrics *){0}, "/nonexistent/run", NULL), "metrics.jsonl");
    mx_arena_fini(&a);
    remove_dir(dir);
}
