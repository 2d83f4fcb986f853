/* join_test.c - how ranks meet: who is admitted, who is refused and told why, and that strangers at
 * the port delay nobody. */
#include "../test.h"
#include "ranks.h"

#include "../store/test_dir.h"
#include "base/clock.h"
#include "dist/coord_impl.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* What rank 0 said while it waited. */
static char said[4096];
static void note(void *ctx, const char *text)
{
    (void)ctx;
    strncat(said, text, sizeof said - strlen(said) - 2);
    strcat(said, "\n");
}

static int count_of(const char *what)
{
    int n = 0;
    for (const char *p = said; (p = strstr(p, what)); p++)
        n++;
    return n;
}

/* So many things have happened, in whatever process. */
static _Atomic int *happened;
static void count_events(void)
{
    happened =
        mmap(NULL, sizeof *happened, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void wait_for_events(int n)
{
    while (*happened < n)
        usleep(1000);
}

static mx_status meet(mx_coord **c, const mx_coord_options *o)
{
    mx_launch l;
    MX_TRY(mx_launch_find(&l, getenv));
    return mx_coord_open(c, &l, o);
}

/* What a rank of a test is started with, and what it must hear. */
typedef struct {
    const char *secret, *folder, *size, *number, *job;
    const mx_coord_part *parts;
    int n_parts;
    bool is_last;      /* starts when another one has ended */
    double join_s;     /* 0: enough */
    const char *hears; /* NULL: it meets the others */
    mx_code code;      /* 0: any */
    bool told;         /* what rank 0 says is enough */
    bool silent;       /* it has nothing to say while it waits */
} start;

static int meets(int rank, void *ctx)
{
    const start *s = (const start *)ctx + rank;
    int bad = 0;
    mx_coord *c = NULL;
    mx_coord_options o = ranks_options(0, 0);
    o.say = note;
    o.secret = s->secret ? s->secret : o.secret;
    o.folder = s->folder;
    o.join_timeout_s = s->join_s > 0 ? s->join_s : o.join_timeout_s;
    o.parts = s->parts;
    o.n_parts = s->n_parts;
    if (s->is_last)
        wait_for_events(1);
    if (s->size)
        setenv("WORLD_SIZE", s->size, 1);
    if (s->number)
        setenv("RANK", s->number, 1);
    if (s->job)
        setenv("TORCHELASTIC_RUN_ID", s->job, 1);
    bool told = false;
    o.rank0_reports = &told;
    mx_status st = meet(&c, &o);
    EXPECT(bad, told == s->told, "rank %d: %s by rank 0: %s", rank, told ? "told" : "not told",
           mx_status_text(st));
    EXPECT(bad, s->hears ? st && strstr(mx_status_text(st), s->hears) : !st, "rank %d: %s", rank,
           mx_status_text(st));
    EXPECT(bad, !s->code || mx_status_code(st) == s->code, "rank %d: code %d", rank,
           (int)mx_status_code(st));
    EXPECT(bad, !s->silent || !said[0], "rank %d says: %s", rank, said);
    mx_status_free(st);
    mx_coord_close(c);
    if (happened)
        ++*happened;
    return bad;
}

/* --- nobody there --- */

MX_TEST(join_lists_ranks_that_do_not_come)
{
    mx_coord *c;
    mx_coord_options o = ranks_options(0, 0);
    o.join_timeout_s = 0.3;
    ranks_be(0, 3, ranks_port());
    MX_CHECK_ERROR(meet(&c, &o), "2 of 3 ranks have not come: 1 2");
    MX_CHECK(!c, "a coordinator of one");
    ranks_be(1, 3, ranks_port());
    MX_CHECK_ERROR(meet(&c, &o), "is rank 0 running there?");
}

static int listening(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    MX_CHECK(bind(fd, (struct sockaddr *)&a, n) == 0 && listen(fd, 8) == 0 &&
             getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    *port = ntohs(a.sin_port);
    return fd;
}

MX_TEST(join_says_that_its_port_is_taken)
{
    int port, fd = listening(&port);
    mx_coord *c;
    mx_coord_options o = ranks_options(0, 0);
    ranks_be(0, 2, port);
    MX_CHECK_ERROR(meet(&c, &o), "Address already in use");
    close(fd);
}

/* A process that is stopped, or no rank at all, takes the connection and says nothing. */
MX_TEST(join_names_a_rank_0_that_does_not_answer)
{
    int port, fd = listening(&port);
    mx_coord *c;
    mx_coord_options o = ranks_options(0.5, 0);
    ranks_be(1, 2, port);
    MX_CHECK_ERROR(meet(&c, &o), "nothing heard for 0 s from rank 0, which takes connections");
    close(fd);
}

/* --- who is refused, and why --- */

MX_TEST(join_refuses_ranks_of_another_number)
{
    static start s[] = {
        {.hears = "says it is rank 1 of 3, and rank 0 was started as one of 2", .code = MX_USAGE},
        {.size = "3", .hears = "this is rank 1 of 3, and rank 0", .code = MX_USAGE, .told = true}};
    ranks_run(2, meets, s);
}

/* One of the two was there first and hears the verdict; the other is refused itself. */
MX_TEST(join_refuses_a_rank_that_is_there_twice)
{
    static start s[] = {
        {.size = "4", .hears = "rank 1 is there twice: process ", .code = MX_USAGE},
        {.size = "4", .hears = "rank 1", .code = MX_USAGE, .told = true},
        {.size = "4", .number = "1", .hears = "rank 1", .code = MX_USAGE, .told = true},
    };
    ranks_run(3, meets, s);
}

/* Of so much to say that rank 0 has refused it, and closed, before it is done. */
MX_TEST(join_tells_why_to_who_is_refused_in_the_middle_of_a_word)
{
    static mx_coord_part parts[MX_COORD_PARTS];
    for (int i = 0; i < MX_COORD_PARTS; i++)
        parts[i] = (mx_coord_part){"key", 1};
    start s[] = {
        {.hears = "says it is rank 1 of 3", .code = MX_USAGE, .parts = parts,
         .n_parts = MX_COORD_PARTS, .silent = true},
        {.size = "3", .hears = "this is rank 1 of 3, and rank 0", .code = MX_USAGE, .told = true,
         .parts = parts, .n_parts = MX_COORD_PARTS}};
    ranks_run(2, meets, s);
}

/* It came to the wrong port, which is no reason for the others not to begin. */
MX_TEST(join_sends_ranks_of_another_job_away)
{
    static start s[] = {
        {.size = "2", .job = "a"},
        {.size = "2", .job = "b", .number = "1", .hears = "another job", .code = MX_USAGE},
        {.size = "2", .job = "a", .number = "1", .is_last = true},
    };
    count_events();
    ranks_run(3, meets, s);
}

MX_TEST(join_names_what_ranks_were_started_with)
{
    static const mx_coord_part ours[] = {{"program", 1}, {"steps", 2}, {"seed", 3}};
    static const mx_coord_part other[] = {{"program", 1}, {"steps", 9}, {"seed", 8}};
    static const mx_coord_part build[] = {{"program", 7}, {"steps", 2}, {"seed", 3}};
    static start s[] = {{.parts = ours, .n_parts = 3, .hears = "differs in ", .code = MX_USAGE},
                        {.n_parts = 3, .hears = "differs in ", .code = MX_USAGE, .told = true}};
    static const struct {
        const mx_coord_part *parts;
        int n;
        const char *words;
    } cases[] = {{other, 3, "started otherwise than rank 0: it differs in steps, seed;"},
                 {other, 3, "it differs in steps, seed;"},
                 {build, 3, "it differs in program;"},
                 {build, 2, "it differs in program;"},
                 {build, 0, "it differs in program;"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s[1].parts = cases[i].parts;
        s[1].n_parts = cases[i].n;
        s[0].hears = cases[i].words;
        s[1].hears = strstr(cases[i].words, "it differs");
        ranks_run(2, meets, s);
    }
}

/* Hundreds of keys need several frames; the first few are named and the rest counted. */
MX_TEST(join_compares_many_parts)
{
    enum { MANY = 1500 };
    static mx_coord_part ours[MANY], other[MANY];
    static char name[MANY][16];
    for (int i = 0; i < MANY; i++) {
        snprintf(name[i], sizeof name[i], "k%d", i);
        ours[i] = other[i] = (mx_coord_part){name[i], (uint32_t)i};
    }
    static start s[] = {{.parts = ours, .n_parts = MANY}, {.parts = other, .n_parts = MANY}};
    ranks_run(2, meets, s);
    for (int i = 300; i < 320; i++)
        other[i].hash++;
    s[0].hears = s[1].hears =
        "differs in k300, k301, k302, k303, k304, k305, k306, k307 and 12 more;";
    s[0].code = s[1].code = MX_USAGE;
    s[1].told = true;
    ranks_run(2, meets, s);
}

/* --- the secret --- */

/* The second process has another secret and is told so; the third is the true rank 1. */
static int wrong_secret(int rank, void *ctx)
{
    int bad = 0;
    mx_coord *c = NULL;
    mx_coord_options o = ranks_options(0, 0);
    (void)ctx;
    o.say = note;
    setenv("WORLD_SIZE", "2", 1);
    if (rank == 1)
        o.secret = "somebody else's secret";
    if (rank == 2)
        wait_for_events(1);
    setenv("RANK", rank ? "1" : "0", 1);
    mx_status st = meet(&c, &o);
    *happened += rank == 1;
    if (rank == 1)
        EXPECT(bad,
               mx_status_code(st) == MX_USAGE &&
                   strstr(mx_status_text(st), "does not accept the secret of rank 1"),
               "%s", mx_status_text(st));
    else
        EXPECT(bad, !st, "%s", mx_status_text(st));
    if (rank == 0)
        EXPECT(bad,
               strstr(said, "a connection was refused; it came from 127.0.0.1: does not know "
                            "the secret"),
               "said: %s", said);
    mx_status_free(st);
    mx_coord_close(c);
    return bad;
}

MX_TEST(join_refuses_who_does_not_know_the_secret)
{
    count_events();
    ranks_run(3, wrong_secret, NULL);
}

static int files_in(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        n += strncmp(e->d_name, ".maxc-", 6) == 0;
    if (d)
        closedir(d);
    return n;
}

MX_TEST(join_shares_a_secret_through_a_folder)
{
    test_dir d, elsewhere;
    char deeper[512];
    test_dir_make(&d);
    test_dir_make(&elsewhere);
    snprintf(deeper, sizeof deeper, "%s/not/there/yet/", d.path);
    start s[] = {{.secret = "", .folder = d.path}, {.secret = "", .folder = d.path}};
    ranks_run(2, meets, s);
    MX_CHECK(files_in(d.path) == 0, "the secret is left behind");
    s[0].folder = s[1].folder = deeper;
    ranks_run(2, meets, s);
    MX_CHECK(files_in(d.path) == 0, "the secret is left behind");
    /* Another folder, or a secret on one side only. */
    static const char given[] = "a secret of a user";
    start bad[][2] = {
        {{.secret = "", .folder = d.path, .hears = "Connections were refused, the last one from "},
         {.secret = "", .folder = elsewhere.path, .hears = "this rank cannot read it there"}},
        {{.secret = "", .folder = d.path, .hears = "have not come: 1"},
         {.secret = given, .hears = "rank 1 was given a rendezvous_secret and rank 0 was not"}},
        {{.secret = given, .hears = "have not come: 1"},
         {.secret = "", .hears = "rank 0 was given a rendezvous_secret and rank 1 was not"}}};
    for (int i = 0; i < 3; i++) {
        bad[i][0].join_s = 1;
        bad[i][0].code = MX_DEVICE;
        bad[i][1].code = MX_USAGE;
        ranks_run(2, meets, bad[i]);
    }
    MX_CHECK(files_in(d.path) == 0, "the secret is left behind");
    test_dir_remove(&d);
    test_dir_remove(&elsewhere);
}

MX_TEST(join_trusts_a_secret_of_this_user_alone)
{
    test_dir d;
    mx_auth_key made, read;
    char path[4096], way[512];
    const uint8_t id[MX_AUTH_ID] = {1, 2, 3};
    test_dir_make(&d);
    MX_CHECK_OK(mx_auth_file_make(d.path, id, &made, path, sizeof path));
    MX_CHECK_OK(mx_auth_file_read(d.path, id, &read));
    MX_CHECK(memcmp(&made, &read, sizeof made) == 0, "another secret");
    struct stat s;
    MX_CHECK(stat(path, &s) == 0 && (s.st_mode & 07777) == 0600, "%o", (unsigned)s.st_mode);
    MX_CHECK_ERROR(mx_auth_file_make(d.path, id, &made, path, sizeof path), "File exists");
    /* One that was left behind long ago goes, one of today stays. */
    struct timespec old[2] = {{time(NULL) - 90000, 0}, {time(NULL) - 90000, 0}};
    MX_CHECK(utimensat(AT_FDCWD, path, old, 0) == 0 && files_in(d.path) == 1);
    MX_CHECK_OK(mx_auth_file_make(d.path, (uint8_t[MX_AUTH_ID]){4}, &made, path, sizeof path));
    MX_CHECK_OK(mx_auth_file_make(d.path, id, &made, path, sizeof path));
    MX_CHECK(files_in(d.path) == 2, "%d files", files_in(d.path));
    chmod(path, 0640);
    MX_CHECK_ERROR(mx_auth_file_read(d.path, id, &read), "is not a secret of this user alone");
    chmod(path, 0600);
    MX_CHECK(truncate(path, 31) == 0);
    MX_CHECK_ERROR(mx_auth_file_read(d.path, id, &read), "is not a secret of this user alone");
    snprintf(way, sizeof way, "%s/way", d.path);
    MX_CHECK(rename(path, way) == 0 && symlink(way, path) == 0);
    MX_CHECK_ERROR(mx_auth_file_read(d.path, id, &read), "cannot read it there");
    mx_auth_key key;
    MX_CHECK_ERROR(mx_auth_key_of_text(&key, "fifteen letters"), "at least 16");
    MX_CHECK_OK(mx_auth_key_of_text(&key, "sixteen letters!"));
    test_dir_remove(&d);
}

/* --- strangers --- */

static int call_root(void)
{
    int64_t port = strtol(getenv("MASTER_PORT"), NULL, 10);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

static void forge(int fd, mx_wire_kind kind, mx_wire_keys *keys)
{
    mx_wire_frame f;
    mx_wire_begin(&f, kind);
    if (kind == MX_WIRE_HELLO) {
        mx_wire_put_int(&f, MX_WIRE_VERSION, 2);
        mx_wire_put(&f, "0123456789abcdef", MX_AUTH_NONCE);
    } else {
        mx_wire_put_int(&f, 1, 4);
        mx_wire_put_int(&f, 3, 4);
        mx_wire_put_int(&f, 0, 8);
        mx_wire_put_text(&f, "forger\033[2J");
    }
    mx_wire_end(&f, keys);
    (void)!send(fd, f.bytes, f.n, MSG_NOSIGNAL);
}

/* Everything that has been seen at open ports: silence, half a frame, noise, a length beyond every
 * limit, a join with keys of its own. The first two are kept open. */
static bool pester(int i)
{
    mx_wire_keys keys = {.agreed = true};
    char noise[4096];
    int fd = call_root();
    if (fd < 0) {
        usleep(1000);
        return false;
    }
    memset(noise, 0xa5, sizeof noise);
    if (i % 5 == 1)
        (void)!send(fd, "mxc1\1", 5, MSG_NOSIGNAL);
    if (i % 5 == 2)
        (void)!send(fd, noise, sizeof noise, MSG_NOSIGNAL);
    if (i % 5 == 3)
        (void)!send(fd, "mxc1\4\0\377\377", 8, MSG_NOSIGNAL);
    if (i % 5 == 4) {
        forge(fd, MX_WIRE_HELLO, &keys);
        (void)!recv(fd, noise, sizeof noise, 0); /* the challenge */
        forge(fd, MX_WIRE_CARD, &keys);
    }
    if (i % 5 > 1)
        close(fd);
    return true;
}

/* Ranks 0 to 2 meet while a fourth process calls as often as it can. */
static int pestered(int rank, void *ctx)
{
    (void)ctx;
    int bad = 0;
    mx_coord *c = NULL;
    mx_coord_options o = ranks_options(0, 0);
    o.say = note;
    setenv("WORLD_SIZE", "3", 1);
    for (int i = 0; rank == 3; i++)
        *happened += pester(i);
    if (rank)
        wait_for_events(5 * MX_ACCEPTOR_PENDING);
    double begun = mx_clock_now();
    mx_status st = meet(&c, &o);
    EXPECT(bad, !st, "rank %d: %s", rank, mx_status_text(st));
    EXPECT(bad, mx_clock_now() - begun < 5, "rank %d waited %.1f s", rank, mx_clock_now() - begun);
    EXPECT(bad, rank || count_of("a connection was refused") == 1, "said: %s", said);
    EXPECT(bad, rank || strstr(said, "connections were refused while ranks joined"), "%s", said);
    EXPECT(bad, !strchr(said, '\033'), "%s", said);
    mx_status_free(st);
    mx_coord_close(c);
    return bad;
}

MX_TEST(join_is_not_delayed_by_strangers)
{
    pid_t pids[4];
    int status[4];
    count_events();
    ranks_start(4, pestered, NULL, pids);
    ranks_wait_for(60, 3, pids, status);
    kill(pids[3], SIGKILL);
    ranks_wait(1, pids + 3, status + 3);
    for (int r = 0; r < 3; r++)
        MX_CHECK(status[r] == 0, "rank %d: %d", r, status[r]);
}

/* --- coming again, and words --- */

/* Rank 2 is admitted and dies before all are there; then it comes again, and rank 1 for the first
 * time. */
static int comes_again(int rank, void *ctx)
{
    (void)ctx;
    int bad = 0;
    mx_coord *c = NULL;
    mx_coord_options o = ranks_options(0, 0);
    o.say = note;
    setenv("WORLD_SIZE", "3", 1);
    setenv("RANK", rank == 0 ? "0" : rank == 1 ? "1" : "2", 1);
    if (rank == 2) {
        mx_launch l;
        mx_status st = mx_launch_find(&l, getenv);
        if (!st)
            st = mx_coord_new(&c, &l, &o);
        if (!st)
            st = mx_auth_key_of_text(&c->secret, o.secret);
        if (!st)
            st = mx_coord_member_connect(c, mx_clock_now() + 60);
        mx_socket_close(&c->member[0].link->fd);
        ++*happened;
        _exit(st != MX_OK);
    }
    if (rank)
        wait_for_events(1);
    mx_status st = meet(&c, &o);
    EXPECT(bad, !st, "%s", mx_status_text(st));
    EXPECT(bad, rank || strstr(said, "has left again before all ranks were there"), "%s", said);
    mx_status_free(st);
    mx_coord_close(c);
    return bad;
}

MX_TEST(join_lets_a_rank_come_again)
{
    count_events();
    ranks_run(4, comes_again, NULL);
}

/* What a rank says of its end reaches the others readable and in one line. */
static int ends_with_escapes(int rank, void *ctx)
{
    (void)ctx;
    int bad = 0;
    mx_coord *c = ranks_meet(0, 0);
    if (!c)
        return 1;
    uint8_t all[RANKS_MAX];
    mx_status st = mx_coord_gather(c, &(uint8_t){0}, 1, all); /* everybody knows everybody */
    if (rank == 1)
        mx_coord_abort(c, MX_INPUT, "no\nfile \033[31mx\302\233y");
    for (int i = 0; i < 5000 && !st; i++) {
        usleep(1000);
        st = mx_coord_check(c);
    }
    EXPECT(bad, mx_status_code(st) == MX_INPUT, "code %d", (int)mx_status_code(st));
    EXPECT(bad, strstr(mx_status_text(st), "has ended: no\\nfile \\x1b[31mx\\xc2\\x9by"), "%s",
           mx_status_text(st));
    mx_status_free(st);
    mx_coord_close(c);
    return bad;
}

MX_TEST(join_escapes_the_words_of_others)
{
    ranks_run(3, ends_with_escapes, NULL);
}

static int gathers(int rank, void *ctx)
{
    (void)ctx;
    int bad = 0, size = 0;
    mx_coord *c = ranks_meet(0, 0);
    if (!c)
        return 1;
    size = mx_coord_size(c);
    for (uint8_t round = 0; round < 20; round++) {
        uint8_t mine[MX_COORD_BLOB], all[RANKS_MAX * MX_COORD_BLOB];
        size_t n = round % 2 ? sizeof mine : 2;
        memset(mine, rank + round, sizeof mine);
        mx_status st = mx_coord_gather(c, mine, n, all);
        EXPECT(bad, !st, "%s", mx_status_text(st));
        for (int r = 0; r < size && !st; r++)
            EXPECT(bad,
                   all[(size_t)r * n] == r + round && all[(size_t)(r + 1) * n - 1] == r + round,
                   "round %d: %d of rank %d", round, all[(size_t)r * n], r);
        mx_status_free(st);
    }
    mx_coord_close(c);
    return bad;
}

MX_TEST(join_gathers_a_few_bytes)
{
    for (int n = 1; n <= RANKS_MAX; n *= 2)
        ranks_run(n, gathers, NULL);
}
