/* progress_test.c - the live line fits and loses its least needed fields first; pipes get no
 * escapes. */
#include "base/progress.h"

#include "../test.h"
#include "base/arena.h"
#include "base/signals.h"
#include <fcntl.h>
#include <math.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const mx_progress_state state = {.step = 1200,
                                        .steps = 5000,
                                        .loss = 3.214,
                                        .tokens_per_s = 52100,
                                        .mfu = 0.413,
                                        .eta_s = 760,
                                        .checkpoint = "saved 1000"};

static void falling(mx_progress *p, int charset)
{
    mx_progress_init(p,
                     &(mx_progress_options){.fd = -1, .mode = MX_PROGRESS_OFF, .charset = charset});
    mx_progress_state s = state;
    for (int i = 0; i < 40; i++) {
        s.loss = 10 - 0.2 * i;
        mx_progress_update(p, &s);
    }
}

MX_TEST(progress_line_shows_everything_when_wide)
{
    mx_progress p;
    mx_str out = {0};
    falling(&p, MX_CHARSET_UTF8);
    mx_progress_line(&p, &state, 200, &out);
    MX_CHECK(strcmp(mx_str_text(&out),
                    "1,200/5,000 24% ━━━╺──────────── │"
                    " loss 3.2140 ↘ ██▇▆▆▅▄▃▃▂▁▁ │"
                    " 52.1k tok/s │ MFU 41.3% │ eta 12m40s │ saved 1000") == 0,
             "%s", mx_str_text(&out));
    mx_str_fini(&out);
    falling(&p, MX_CHARSET_ASCII);
    mx_progress_line(&p, &state, 200, &out);
    for (size_t i = 0; i < out.len; i++)
        MX_CHECK((unsigned char)out.text[i] < 0x80, "byte %zu is not ASCII: %s", i, out.text);
    MX_CHECK(strstr(mx_str_text(&out), "[===>            ] | loss 3.2140 v #") != NULL, "%s",
             mx_str_text(&out));
    mx_str_fini(&out);
    mx_progress_state rewarded = state;
    rewarded.loss_name = "reward";
    mx_progress_line(&p, &rewarded, 200, &out);
    MX_CHECK(strstr(mx_str_text(&out), "| reward 3.2140 v") != NULL, "%s", mx_str_text(&out));
    mx_str_fini(&out);
}

MX_TEST(progress_line_never_exceeds_the_width)
{
    mx_progress p;
    falling(&p, MX_CHARSET_UTF8);
    for (int width = 1; width < 140; width++) {
        mx_str out = {0};
        mx_progress_line(&p, &state, width, &out);
        MX_CHECK(mx_text_columns(mx_str_text(&out)) <= width, "width %d: %s", width,
                 mx_str_text(&out));
        MX_CHECK(width < 11 || strncmp(out.text, "1,200/5,000", 11) == 0, "the step is kept: %s",
                 out.text);
        MX_CHECK(width < 35 || strstr(out.text, "loss 3.2140"), "the loss is kept at %d: %s", width,
                 out.text);
        mx_str_fini(&out);
    }
}

/* On 80 columns the bar is there, and its length depends on nothing that changes with each step. */
MX_TEST(progress_line_does_not_flicker)
{
    mx_progress p;
    falling(&p, MX_CHARSET_UTF8);
    int length = 0;
    for (int i = 0; i < 400; i++) {
        mx_progress_state s = {.step = 400 + i, .steps = 800, .loss = i % 5 ? 0.2 * i : 4.94,
                               .tokens_per_s = i % 3 ? 818 : 11370, .mfu = i % 2 ? 0.039 : 0.435,
                               .eta_s = i % 7 ? 4 : 619, .checkpoint = "saved 400"};
        mx_str out = {0};
        mx_progress_line(&p, &s, 79, &out);
        int cells = 0;
        for (const char *c = strpbrk(out.text, "%"); (c = strstr(c + 1, "\xe2\x94")) != NULL;)
            cells += c[2] == '\x81' || c[2] == '\x80'; /* ━ and ─ */
        length = length ? length : cells;
        MX_CHECK(cells >= 6 && cells == length, "%d cells after %d: %s", cells, length, out.text);
        mx_str_fini(&out);
    }
    mx_progress_fini(&p);
}

MX_TEST(progress_leaves_out_what_is_unknown)
{
    mx_progress p;
    mx_str out = {0};
    mx_progress_init(
        &p, &(mx_progress_options){.fd = -1, .mode = MX_PROGRESS_OFF, .charset = MX_CHARSET_ASCII});
    mx_progress_state s = {
        .step = 7, .loss = NAN, .tokens_per_s = NAN, .mfu = NAN, .eta_s = INFINITY};
    mx_progress_line(&p, &s, 100, &out);
    MX_CHECK(strcmp(mx_str_text(&out), "7") == 0, "%s", mx_str_text(&out));
    mx_str_clear(&out);
    mx_progress_update(&p, &s);
    mx_progress_line(&p, &s, 100, &out);
    MX_CHECK(strcmp(mx_str_text(&out), "7 | loss nan") == 0, "%s", mx_str_text(&out));
    mx_str_fini(&out);
    mx_progress_fini(&p);
}

static size_t drain(int fd, char *buf, size_t cap)
{
    size_t n = 0;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    for (ssize_t k; n < cap - 1 && (k = read(fd, buf + n, cap - 1 - n)) > 0;)
        n += (size_t)k;
    buf[n] = 0;
    return n;
}

MX_TEST(progress_in_a_pipe_is_plain_lines)
{
    int fd[2];
    char buf[8192];
    MX_CHECK(pipe(fd) == 0);
    setenv("TERM", "xterm", 1);
    mx_progress p;
    mx_progress_init(&p, &(mx_progress_options){.fd = fd[1], .plain_every = 10});
    mx_progress_state s = state;
    s.steps = 25;
    for (s.step = 1; s.step <= 25; s.step++)
        mx_progress_update(&p, &s);
    mx_progress_say(&p, "checkpoint %d written", 20);
    mx_progress_fini(&p);
    drain(fd[0], buf, sizeof buf);
    MX_CHECK(!strchr(buf, '\x1b') && !strchr(buf, '\r'), "escapes in a pipe: %s", buf);
    MX_CHECK(strcmp(buf, "step 1/25  loss 3.2140  52.1k tok/s  MFU 41.3%  eta 12m40s  saved 1000\n"
                         "step 10/25  loss 3.2140  52.1k tok/s  MFU 41.3%  eta 12m40s  saved 1000\n"
                         "step 20/25  loss 3.2140  52.1k tok/s  MFU 41.3%  eta 12m40s  saved 1000\n"
                         "step 25/25  loss 3.2140  52.1k tok/s  MFU 41.3%  eta 12m40s  saved 1000\n"
                         "checkpoint 20 written\n") == 0,
             "%s", buf);
    close(fd[0]);
    close(fd[1]);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

MX_TEST(progress_is_never_silent_for_long)
{
    int fd[2];
    char buf[16384];
    MX_CHECK(pipe(fd) == 0);
    mx_progress p;
    mx_progress_init(
        &p, &(mx_progress_options){.fd = fd[1], .plain_every = 1000, .plain_seconds = 0.05});
    mx_progress_phase(&p, "loading %s", "weights");
    usleep(400000);
    drain(fd[0], buf, sizeof buf);
    MX_CHECK(strncmp(buf, "loading weights\n", 16) == 0, "%s", buf);
    MX_CHECK(count(buf, "loading weights: 0s so far\n") >= 2, "%s", buf);
    mx_progress_begin(&p, 6);
    usleep(400000);
    drain(fd[0], buf, sizeof buf);
    MX_CHECK(count(buf, "step 7: 0s so far\n") >= 2, "%s", buf);
    mx_progress_state s = state;
    for (s.step = 7; s.step < 10; s.step++) { /* each comes later than a line is due */
        usleep(60000);
        mx_progress_update(&p, &s);
    }
    mx_progress_fini(&p);
    drain(fd[0], buf, sizeof buf);
    MX_CHECK(count(buf, "/5000") + count(buf, "so far") >= 3, "%s", buf);
    close(fd[0]);
    close(fd[1]);
}

MX_TEST(progress_tells_of_the_first_step_and_the_last)
{
    int fd[2];
    char buf[8192];
    MX_CHECK(pipe(fd) == 0);
    mx_progress p;
    mx_progress_init(&p, &(mx_progress_options){.fd = fd[1], .plain_every = 10});
    mx_progress_state s = state;
    for (s.step = 3; s.step < 14; s.step++)
        mx_progress_update(&p, &s);
    mx_progress_end(&p);
    mx_progress_end(&p);
    mx_progress_fini(&p);
    drain(fd[0], buf, sizeof buf);
    MX_CHECK(count(buf, "step ") == 3 && strstr(buf, "step 3/") && strstr(buf, "step 10/") &&
                 strstr(buf, "step 13/"),
             "%s", buf);
    close(fd[0]);
    close(fd[1]);
}

/* What a terminal shows after these bytes: returns and ESC [ K are followed. */
static void play(const char *bytes, char screen[64][256])
{
    int row = 0, col = 0;
    memset(screen, 0, 64 * 256);
    for (const char *c = bytes; *c && row < 63; c++) {
        if (*c == '\n')
            row++;
        else if (*c == '\r')
            col = 0;
        else if (strncmp(c, "\x1b[K", 3) == 0) {
            memset(screen[row] + col, 0, 256 - (size_t)col);
            c += 2;
        } else if (col < 255)
            screen[row][col++] = *c;
    }
}

MX_TEST(progress_line_is_there_once_after_an_interrupt)
{
    int master, slave, keep = dup(2);
    char buf[16384], screen[64][256];
    struct winsize size = {.ws_col = 120, .ws_row = 24};
    setenv("TERM", "xterm", 1);
    MX_CHECK(openpty(&master, &slave, NULL, NULL, &size) == 0);
    MX_CHECK_OK(mx_signals_install("maxc: stopping after this step\n"));
    mx_progress p;
    mx_progress_init(&p, &(mx_progress_options){.fd = slave, .charset = MX_CHARSET_ASCII});
    mx_progress_state s = state;
    mx_progress_update(&p, &s);
    (void)!write(slave, "^C", 2); /* the terminal's echo */
    dup2(slave, 2);
    raise(SIGINT);
    dup2(keep, 2);
    mx_progress_update(&p, &s);
    mx_progress_say(&p, "stopped");
    mx_progress_fini(&p);
    drain(master, buf, sizeof buf);
    play(buf, screen);
    MX_CHECK(strstr(screen[0], "maxc: stopping after this step") == screen[0], "%s", screen[0]);
    MX_CHECK(strcmp(screen[1], "stopped") == 0, "%s", screen[1]);
    MX_CHECK(strstr(screen[2], "loss 3.2140") != NULL, "%s", screen[2]);
    for (int i = 0; i < 64; i++)
        MX_CHECK(i == 2 || !strstr(screen[i], "loss"), "row %d: %s", i, screen[i]);
    close(slave);
    close(master);
}

MX_TEST(progress_leaves_no_phase_behind)
{
    struct winsize size = {.ws_col = 120, .ws_row = 24};
    setenv("TERM", "xterm", 1);
    for (int steps = 0; steps < 3; steps++) { /* 2: a step had begun after the phase */
        int master, slave;
        char buf[16384], screen[64][256];
        MX_CHECK(openpty(&master, &slave, NULL, NULL, &size) == 0);
        mx_progress p;
        mx_progress_init(&p, &(mx_progress_options){.fd = slave, .charset = MX_CHARSET_ASCII});
        mx_progress_phase(&p, "loading %s", "weights");
        mx_progress_begin(&p, 0);
        mx_progress_state s = state;
        if (steps)
            mx_progress_update(&p, &s);
        mx_progress_phase(&p, "ending the run");
        if (steps == 2)
            mx_progress_begin(&p, 2);
        mx_progress_say(&p, "the model is there");
        mx_progress_fini(&p);
        drain(master, buf, sizeof buf);
        play(buf, screen);
        MX_CHECK(strcmp(screen[0], "the model is there") == 0, "%s", screen[0]);
        MX_CHECK(steps ? strstr(screen[1], "loss 3.2140") != NULL : !*screen[1], "%s", screen[1]);
        for (int i = 0; i < 64; i++)
            MX_CHECK(!strstr(screen[i], "so far"), "row %d: %s", i, screen[i]);
        close(slave);
        close(master);
    }
}

MX_TEST(progress_on_a_terminal_rewrites_one_line)
{
    int master, slave;
    char buf[16384];
    struct winsize size = {.ws_col = 60, .ws_row = 24};
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    MX_CHECK(openpty(&master, &slave, NULL, NULL, &size) == 0);
    mx_progress p;
    mx_progress_init(&p, &(mx_progress_options){.fd = slave});
    MX_CHECK(p.live && p.utf8);
    mx_progress_state s = state;
    for (s.step = 0; s.step < 10; s.step++)
        mx_progress_update(&p, &s);
    drain(master, buf, sizeof buf);
    int returns = 0, newlines = 0;
    for (char *c = buf; *c; c++) {
        returns += *c == '\r';
        newlines += *c == '\n';
    }
    MX_CHECK(returns == 10 && newlines == 0, "%d returns, %d newlines", returns, newlines);
    for (char *line = buf, *end; (end = strchr(line + 1, '\r')); line = end) {
        *end = 0; /* each frame is \r, the line, and the three bytes that clear the rest */
        MX_CHECK(mx_text_columns(line) - 4 < 60, "%d columns", mx_text_columns(line) - 4);
    }
    mx_progress_say(&p, "hello");
    drain(master, buf, sizeof buf);
    MX_CHECK(strncmp(buf, "\r\x1b[Khello\r\n\r9/5,000", 19) == 0,
             "the message stands above the line: %s", buf);
    mx_progress_fini(&p);
    drain(master, buf, sizeof buf);
    MX_CHECK(strcmp(buf, "\r\n") == 0, "the line ends once: %s", buf);
    setenv("TERM", "dumb", 1);
    mx_progress_init(&p, &(mx_progress_options){.fd = slave});
    MX_CHECK(!p.live, "a dumb terminal gets plain lines");
    close(slave);
    close(master);
}

MX_TEST(progress_updates_do_not_allocate)
{
    mx_progress p;
    int fd = open("/dev/null", O_WRONLY);
    mx_progress_init(&p, &(mx_progress_options){.fd = fd, .mode = MX_PROGRESS_LIVE, .width = 120});
    mx_progress_state s = state;
    for (int i = 0; i < 10; i++)
        mx_progress_update(&p, &s);
    int64_t before = mx_alloc_count();
    for (s.step = 1000; s.step < 5000; s.step += 50)
        mx_progress_update(&p, &s);
    MX_CHECK(mx_alloc_count() == before, "%d allocations", (int)(mx_alloc_count() - before));
    mx_progress_fini(&p);
    close(fd);
}

MX_TEST(durations_read_well)
{
    static const struct {
        double s;
        const char *want;
    } c[] = {{0, "0s"},        {59.4, "59s"},     {59.6, "1m00s"}, {760, "12m40s"}, {3600, "1h00m"},
             {11100, "3h05m"}, {187200, "2d04h"}, {-1, "?"},       {NAN, "?"},      {1e300, "?"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char buf[32];
        MX_CHECK(strcmp(mx_format_duration(buf, sizeof buf, c[i].s), c[i].want) == 0, "%g: %s",
                 c[i].s, buf);
    }
}
