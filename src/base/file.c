/* file.c - reading whole files: regular files in one read, pipes by growing; and lines. */
#include "base/file.h"

#include "base/memory_available.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAD = 16 };

bool mx_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool mx_dir_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static ssize_t read_some(int fd, char *buf, size_t n)
{
    for (;;) {
        ssize_t got = read(fd, buf, n);
        if (got >= 0 || errno != EINTR)
            return got;
    }
}

/* Reads to the end of fd into a heap buffer that grows from `guess` bytes. */
static mx_status read_all(int fd, const char *path, size_t max_bytes, size_t guess, char **out,
                          size_t *n)
{
    size_t cap = guess + PAD + 1, len = 0;
    char *buf = mx_realloc(NULL, cap);
    *out = buf;
    for (;;) {
        if (cap - len <= PAD) {
            cap *= 2;
            *out = buf = mx_realloc(buf, cap);
        }
        ssize_t got = read_some(fd, buf + len, cap - PAD - len);
        if (got < 0)
            return mx_fail_errno(MX_INPUT, "%s: reading failed at byte %zu", path, len);
        if (got == 0)
            break;
        len += (size_t)got;
        if (len > max_bytes)
            return mx_fail(MX_INPUT, "%s: larger than the %zu bytes allowed for this kind of file",
                           path, max_bytes);
    }
    *n = len;
    return MX_OK;
}

mx_status mx_file_read(mx_arena *a, const char *path, size_t max_bytes, char **text, size_t *n)
{
    bool standard = strcmp(path, "-") == 0;
    char *buf = NULL;
    mx_status st = MX_OK;
    /* O_NONBLOCK: opening a FIFO without a writer must not hang; it has no effect on files. */
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return mx_fail_errno(MX_INPUT, "%s: cannot be opened", path);
    struct stat info;
    if (fstat(fd, &info) != 0)
        MX_TRY_OUT(st, mx_fail_errno(MX_INPUT, "%s: cannot be examined", path));
    if (!standard && !S_ISREG(info.st_mode))
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: is not a regular file", path));
    if (info.st_size > 0 && (uint64_t)info.st_size > max_bytes)
        MX_TRY_OUT(st, mx_fail(MX_INPUT,
                               "%s: %lld bytes, more than the %zu allowed for this kind of "
                               "file",
                               path, (long long)info.st_size, max_bytes));
    MX_TRY_OUT(
        st, read_all(fd, path, max_bytes, info.st_size > 0 ? (size_t)info.st_size : 4096, &buf, n));
    *text = mx_arena_alloc(a, *n + PAD);
    memcpy(*text, buf, *n);
out:
    mx_free(buf);
    if (!standard)
        close(fd);
    return st;
}

mx_status mx_file_line(FILE *f, bool pieces, mx_str *line)
{
    char buf[4096];
    size_t n = 0;
    int c = 0;
    mx_str_clear(line);
    while (c != '\n' && (c = getc_unlocked(f)) != EOF) {
        buf[n++] = (char)c;
        if (n < sizeof buf && c != '\n')
            continue;
        mx_str_add_n(line, buf, n);
        n = 0;
        if (line->len < MX_LINE_BYTES)
            continue;
        if (pieces || c == '\n')
            return MX_OK;
        return mx_fail(MX_INPUT,
                       "expected lines of at most %d MiB and found a longer one; is this a text "
                       "file?",
                       MX_LINE_BYTES >> 20);
    }
    mx_str_add_n(line, buf, n);
    return MX_OK;
}

size_t mx_file_most_of_stdin(void)
{
    int64_t most = mx_memory_available_now().bytes / 16;
    return most > MX_LINE_BYTES ? (size_t)most : MX_LINE_BYTES;
}
