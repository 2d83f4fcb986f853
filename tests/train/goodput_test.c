/* goodput_test.c - every second has a place, through restarts, crashes and damaged files. */
#include "train/report/goodput.h"

#include "../test.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool near(double a, double b)
{
    return fabs(a - b) < 0.01;
}

/* load 10, compile 20, then steps of 2 s with 0.5 s of waiting; a checkpoint every 5 steps */
static double attempt(mx_goodput *g, const char *dir, double t, int64_t from, int64_t to)
{
    MX_CHECK_OK(mx_goodput_open(g, dir, t, from, NULL));
    mx_goodput_enter(g, MX_GOODPUT_LOAD, t += 1);
    mx_goodput_enter(g, MX_GOODPUT_COMPILE, t += 10);
    mx_goodput_enter(g, MX_GOODPUT_DATA, t += 20);
    for (int64_t step = from; step < to; step++) {
        mx_goodput_enter(g, MX_GOODPUT_STEP, t += 0.5);
        mx_goodput_enter(g, MX_GOODPUT_DATA, t += 2);
        mx_goodput_step_done(g, step);
        if ((step + 1) % 5 == 0)
            mx_goodput_commit(g, step + 1, t);
        MX_CHECK_OK(mx_goodput_save(g, t));
    }
    return t;
}

MX_TEST(goodput_adds_up_in_one_attempt)
{
    char dir[] = "/tmp/maxc-goodput-XXXXXX";
    mx_goodput g;
    MX_CHECK(mkdtemp(dir) != NULL);
    double end = attempt(&g, dir, 1000, 0, 10);
    MX_CHECK(near(g.seconds[MX_GOODPUT_STEP], 20) && near(g.seconds[MX_GOODPUT_DATA], 5), "%g %g",
             g.seconds[MX_GOODPUT_STEP], g.seconds[MX_GOODPUT_DATA]);
    MX_CHECK(near(g.seconds[MX_GOODPUT_COMPILE], 20) && near(g.seconds[MX_GOODPUT_LOAD], 10) &&
             near(g.seconds[MX_GOODPUT_OTHER], 1));
    MX_CHECK(near(mx_goodput_total(&g), end - 1000), "%g", mx_goodput_total(&g));
    MX_CHECK(near(mx_goodput_fraction(&g), 20.0 / 56), "%g", mx_goodput_fraction(&g));
    MX_CHECK(g.attempts == 1 && g.steps_lost == 0);
    MX_CHECK_OK(mx_io_remove_tree(NULL, dir));
}

MX_TEST(goodput_counts_lost_work_and_down_time_across_restarts)
{
    char dir[] = "/tmp/maxc-goodput-XXXXXX";
    mx_goodput g;
    MX_CHECK(mkdtemp(dir) != NULL);
    double died = attempt(&g, dir, 1000, 0, 13); /* the last durable step is 10 */
    double end = attempt(&g, dir, died + 100, 10, 20);
    MX_CHECK(g.attempts == 2 && g.steps_lost == 3, "%d steps lost", (int)g.steps_lost);
    MX_CHECK(near(g.seconds[MX_GOODPUT_LOST], 6), "lost %g", g.seconds[MX_GOODPUT_LOST]);
    MX_CHECK(near(g.seconds[MX_GOODPUT_STEP], 40), "step %g", g.seconds[MX_GOODPUT_STEP]);
    MX_CHECK(near(g.seconds[MX_GOODPUT_RESTART], 100), "restart %g", g.seconds[MX_GOODPUT_RESTART]);
    MX_CHECK(near(mx_goodput_total(&g), end - 1000), "total %g", mx_goodput_total(&g));
    /* a run stopped at a checkpoint loses nothing */
    end = attempt(&g, dir, end + 50, 20, 25);
    MX_CHECK(g.attempts == 3 && g.steps_lost == 3 && near(g.seconds[MX_GOODPUT_LOST], 6), "lost %g",
             g.seconds[MX_GOODPUT_LOST]);
    /* going back to an older checkpoint than the last loses what lies between */
    end = attempt(&g, dir, end + 1, 10, 11);
    MX_CHECK(g.steps_lost == 18 && near(g.seconds[MX_GOODPUT_LOST], 36), "%d steps, %g s",
             (int)g.steps_lost, g.seconds[MX_GOODPUT_LOST]);
    MX_CHECK(near(mx_goodput_total(&g), end - 1000), "total %g", mx_goodput_total(&g));
    mx_goodput seen;
    MX_CHECK_OK(mx_goodput_read(&seen, dir));
    MX_CHECK(seen.attempts == 4 && near(mx_goodput_total(&seen), end - 1000), "read back");
    mx_str text = {0};
    mx_goodput_report(&seen, &text);
    MX_CHECK(strstr(text.text, "4 attempts, 18 steps lost") && strstr(text.text, "  lost "), "%s",
             text.text);
    mx_str_fini(&text);
    MX_CHECK_OK(mx_io_remove_tree(NULL, dir));
}

MX_TEST(goodput_many_checkpoints_keep_the_latest_marks)
{
    char dir[] = "/tmp/maxc-goodput-XXXXXX";
    mx_goodput g;
    double t = 0;
    MX_CHECK(mkdtemp(dir) != NULL);
    MX_CHECK_OK(mx_goodput_open(&g, dir, t, 0, NULL));
    for (int64_t step = 0; step < 1000; step++) {
        mx_goodput_enter(&g, MX_GOODPUT_STEP, t);
        mx_goodput_step_done(&g, step);
        mx_goodput_commit(&g, step + 1, t += 1);
    }
    MX_CHECK_OK(mx_goodput_save(&g, t));
    MX_CHECK_OK(mx_goodput_open(&g, dir, t, 990, NULL));
    MX_CHECK(g.steps_lost == 10 && near(g.seconds[MX_GOODPUT_LOST], 10), "%g",
             g.seconds[MX_GOODPUT_LOST]);
    MX_CHECK_OK(mx_io_remove_tree(NULL, dir));
}

MX_TEST(goodput_a_damaged_file_is_set_aside)
{
    static const char *const bad[] = {
        "", "{", "[]", "{\"format\": 2, \"seconds\": {}}",
        "{\"format\": 1, \"seconds\": {\"step\": -5}, \"first_start\": 1}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char dir[] = "/tmp/maxc-goodput-XXXXXX", path[300];
        mx_goodput g;
        struct stat about;
        MX_CHECK(mkdtemp(dir) != NULL);
        snprintf(path, sizeof path, "%s/goodput.json", dir);
        FILE *f = fopen(path, "w");
        fputs(bad[i], f);
        fclose(f);
        MX_CHECK_OK(mx_goodput_open(&g, dir, 500, 7, NULL));
        MX_CHECK(g.was_damaged && g.attempts == 1 && mx_goodput_total(&g) == 0, "%s", bad[i]);
        snprintf(path, sizeof path, "%s/goodput.json.bad", dir);
        MX_CHECK(stat(path, &about) == 0, "the damaged file is kept");
        MX_CHECK_OK(mx_goodput_save(&g, 501));
        MX_CHECK_OK(mx_goodput_read(&g, dir));
        MX_CHECK_OK(mx_io_remove_tree(NULL, dir));
    }
    mx_goodput g;
    MX_CHECK_ERROR(mx_goodput_read(&g, "/nonexistent"), "does not exist");
}

MX_TEST(goodput_time_never_runs_backwards)
{
    char dir[] = "/tmp/maxc-goodput-XXXXXX";
    mx_goodput g;
    MX_CHECK(mkdtemp(dir) != NULL);
    MX_CHECK_OK(mx_goodput_open(&g, dir, 1000, 0, NULL));
    mx_goodput_enter(&g, MX_GOODPUT_STEP, 990); /* the clock was set back */
    mx_goodput_enter(&g, MX_GOODPUT_DATA, 995);
    MX_CHECK(near(mx_goodput_total(&g), 5), "%g", mx_goodput_total(&g));
    MX_CHECK_OK(mx_goodput_save(&g, 996));
    MX_CHECK_OK(mx_goodput_open(&g, dir, 900, 0, NULL));
    for (int i = 0; i < MX_GOODPUT_N; i++)
        MX_CHECK(g.seconds[i] >= 0, "%s %g", mx_goodput_name[i], g.seconds[i]);
    MX_CHECK_OK(mx_io_remove_tree(NULL, dir));
}

static ssize_t no_space(void *ctx, int fd, const void *buf, size_t n)
{
    (void)ctx, (void)fd, (void)buf, (void)n;
    errno = ENOSPC;
    return -1;
}

MX_TEST(goodput_full_disk_keeps_the_old_account)
{
    char dir[] = "/tmp/maxc-goodput-XXXXXX";
    mx_goodput g;
    mx_io io = mx_io_system;
    io.write = no_space;
    MX_CHECK(mkdtemp(dir) != NULL);
    attempt(&g, dir, 1000, 0, 5);
    double total = mx_goodput_total(&g);
    g.io = &io;
    MX_CHECK_ERROR(mx_goodput_save(&g, 5000), "No space left");
    MX_CHECK_OK(mx_goodput_read(&g, dir));
    MX_CHECK(near(mx_goodput_total(&g), total), "%g", mx_goodput_total(&g));
    MX_CHECK_OK(mx_io_remove_tree(NULL, dir));
}
