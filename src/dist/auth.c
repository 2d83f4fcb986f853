/* auth.c - see auth.h. */
#include "dist/auth.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

mx_status mx_auth_random(void *p, size_t n)
{
    if (getrandom(p, n, 0) != (ssize_t)n)
        return mx_fail_errno(MX_DEVICE, "the system gives no random numbers");
    return MX_OK;
}

static void hmac(const mx_auth_key *key, const void *head, size_t n_head, const void *p, size_t n,
                 uint8_t *out, size_t n_out)
{
    struct hmac_sha256_ctx c;
    hmac_sha256_set_key(&c, sizeof key->bytes, key->bytes);
    hmac_sha256_update(&c, n_head, head);
    hmac_sha256_update(&c, n, p);
    hmac_sha256_digest(&c, n_out, out);
    explicit_bzero(&c, sizeof c);
}

mx_auth_key mx_auth_derive(const mx_auth_key *from, const char *purpose, const void *p, size_t n)
{
    mx_auth_key key;
    /* The NUL separates purpose and data. */
    hmac(from, purpose, strlen(purpose) + 1, p, n, key.bytes, sizeof key.bytes);
    return key;
}

void mx_auth_sign(const mx_auth_key *key, uint64_t counter, const void *p, size_t n,
                  uint8_t mac[MX_AUTH_MAC])
{
    uint8_t head[8];
    for (int i = 0; i < 8; i++)
        head[i] = (uint8_t)(counter >> 8 * i);
    hmac(key, head, sizeof head, p, n, mac, MX_AUTH_MAC);
}

bool mx_auth_equal(const void *a, const void *b, size_t n)
{
    return memeql_sec(a, b, n);
}

mx_status mx_auth_key_of_text(mx_auth_key *key, const char *secret)
{
    if (strlen(secret) < MX_AUTH_SECRET_LEAST)
        return mx_fail(MX_USAGE,
                       "rendezvous_secret has %zu characters; expected at least %d that cannot be "
                       "guessed (`openssl rand -hex 16` makes some), the same for all ranks",
                       strlen(secret), MX_AUTH_SECRET_LEAST);
    *key = mx_auth_derive(&(mx_auth_key){{0}}, "rendezvous secret", secret, strlen(secret));
    return MX_OK;
}

/* --- the file ------------------------------------------------------------------------------- */

static const char NAME[] = ".maxc-rendezvous-";
enum { DAY_S = 24 * 60 * 60 };

static void file_of(char path[PATH_BYTES], const char *dir, const uint8_t id[MX_AUTH_ID])
{
    int n = snprintf(path, PATH_BYTES, "%s/%s", *dir ? dir : ".", NAME);
    for (int i = 0; i < MX_AUTH_ID && n > 0 && n < PATH_BYTES; i++)
        n += snprintf(path + n, (size_t)(PATH_BYTES - n), "%02x", id[i]);
}

/* "a/b" -> "a", "/a" -> "/", "a" -> "", the present folder. False: there is none above. */
static bool go_up(char *dir)
{
    char *slash = strrchr(dir, '/');
    if (!*dir || strcmp(dir, "/") == 0)
        return false;
    if (slash)
        slash[slash == dir] = 0;
    else
        *dir = 0;
    return true;
}

/* Opens the file in DIR or in the nearest folder above that has it, or can. -1 and errno. */
static int open_file(const char *dir, const uint8_t id[MX_AUTH_ID], int flags,
                     char path[PATH_BYTES])
{
    char at[PATH_BYTES - 64];
    if ((size_t)snprintf(at, sizeof at, "%s", dir) >= sizeof at) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd;
    do {
        file_of(path, at, id);
        fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    } while (fd < 0 && errno == ENOENT && go_up(at));
    return fd;
}

/* Removes what starts that were killed left beside this file, a day ago or earlier. */
static void sweep(const char *path)
{
    char dir[PATH_BYTES];
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    DIR *d = opendir(*dir ? dir : "/");
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat s;
        if (strncmp(e->d_name, NAME, sizeof NAME - 1) == 0 &&
            fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && s.st_uid == geteuid() &&
            s.st_mtime < time(NULL) - DAY_S)
            unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d)
        closedir(d);
}

mx_status mx_auth_file_make(const char *dir, const uint8_t id[MX_AUTH_ID], mx_auth_key *key,
                            char *path, size_t cap)
{
    char at[PATH_BYTES] = "";
    MX_TRY(mx_auth_random(key, sizeof *key));
    int fd = open_file(dir, id, O_WRONLY | O_CREAT | O_EXCL, at);
    bool good = fd >= 0 && write(fd, key, sizeof *key) == (ssize_t)sizeof *key;
    int err = errno;
    if (fd >= 0 && close(fd) && good) {
        err = errno;
        good = false;
    }
    if (fd >= 0 && !good)
        unlink(at);
    if (good)
        sweep(at);
    snprintf(path, cap, "%s", at);
    errno = err;
    return good ? MX_OK
                : mx_fail_errno(MX_DEVICE,
                                "the secret by which ranks know each other cannot be kept in %s "
                                "(base_output_directory; rendezvous_secret needs no file)",
                                at);
}

mx_status mx_auth_file_read(const char *dir, const uint8_t id[MX_AUTH_ID], mx_auth_key *key)
{
    char at[PATH_BYTES] = "";
    struct stat s;
    int fd = open_file(dir, id, O_RDONLY | O_NONBLOCK, at);
    if (fd < 0) {
        file_of(at, dir, id);
        return mx_fail_errno(MX_USAGE,
                             "rank 0 keeps the secret of this start in its base_output_directory, "
                             "and this rank cannot read it there (%s); give all ranks one folder "
                             "that they share, or the same rendezvous_secret",
                             at);
    }
    bool ours = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid() &&
                (s.st_mode & (S_IRWXG | S_IRWXO)) == 0 && s.st_size == (off_t)sizeof *key;
    bool good = ours && read(fd, key, sizeof *key) == (ssize_t)sizeof *key;
    close(fd);
    return good ? MX_OK
                : mx_fail(MX_USAGE,
                          "%s is not a secret of this user alone (owner, rights 0600, %zu bytes); "
                          "give all ranks the same rendezvous_secret instead",
                          at, sizeof *key);
}
