/* run_watch.c - the watchdog, goodput and log of a run, and its report at the end.
 *
 *     log.txt       what was said, with times; reports of crashes and of steps that do not end
 *     goodput.json  where the time went, over all restarts (goodput.h)
 *     plan.txt      what was planned (run_plan.c); at the end it is compared with what was used
 *
 * Nothing here can stop a run: a log or an account that cannot be written is said once, at most.
 */
#include "train/run/run_state.h"

#include "base/clock.h"
#include "base/crash.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { ACCOUNT_SECONDS = 30, ALARM_FAILURES = 3 };
enum { LEAST_TIMED = 20 }; /* steps, for a mean that says something */
enum { CRASHES = 3, CRASH_STEPS = 10, LOG_BYTES = 64 << 20 };

double mx_run_now(void)
{
    return mx_clock_wall();
}

/* What the device could do: the most that was seen, since others may be using it just now. */
void mx_run_measure_peak(mx_run *r)
{
    double peak = mx_session_peak_flops(r->session, r->request.options.compile.compute);
    r->report.peak_flops = peak > r->report.peak_flops ? peak : r->report.peak_flops;
}

double mx_run_rss_bytes(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? 1024.0 * (double)u.ru_maxrss : 0;
}

void mx_run_log_open(mx_run *r)
{
    const char *path = mx_arena_printf(&r->arena, "%s/log.txt", r->folder);
    if (!r->ranks.leads)
        path = mx_arena_printf(&r->arena, "%s/log-%d.txt", r->folder, r->ranks.comm->rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) {
        mx_progress_say(&r->report.progress, "note: %s cannot be written; there is no log", path);
        return;
    }
    r->watch.log_fd = fd;
    mx_progress_log_to(&r->report.progress, fd);
    mx_crash_set_log(fd);
}

/* The step of a line "maxc: SIGSEGV (...) in thread ..., step 12, node ..."; -1: another line. */
static int64_t crash_of(const char *line, const char *end)
{
    static const char head[] = "maxc: SIG", mark[] = ", step ";
    if (end - line < (ptrdiff_t)sizeof head || memcmp(line, head, sizeof head - 1) != 0)
        return -1;
    const char *p = memmem(line, (size_t)(end - line), mark, sizeof mark - 1);
    return p ? strtoll(p + sizeof mark - 1, NULL, 10) : -1;
}

/* A run that crashes again and again at the same place is not worth another start. What the log
 * says about crashes since the run last ended in an orderly way (a line of goodput) decides; being
 * killed from outside leaves no such line and does not count. */
mx_status mx_run_check_crashes(mx_run *r)
{
    char *text = NULL;
    size_t n = 0;
    int64_t step[CRASHES] = {0}, count = 0;
    const char *path = mx_arena_printf(&r->arena, "%s/log.txt", r->folder);
    mx_status_free(mx_io_read_file(NULL, path, LOG_BYTES, &text, &n)); /* none, or too long: fine */
    for (const char *line = text, *end; text && line < text + n; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + n - line));
        end = end ? end : text + n;
        int64_t at = crash_of(line, end);
        if (at >= 0)
            step[count++ % CRASHES] = at;
        else if (memmem(line, (size_t)(end - line), " goodput ", 9))
            count = 0;
    }
    mx_free(text);
    int64_t low = INT64_MAX, high = 0;
    for (int i = 0; i < CRASHES; i++) {
        low = step[i] < low ? step[i] : low;
        high = step[i] > high ? step[i] : high;
    }
    if (count < CRASHES || high - low >= CRASH_STEPS)
        return MX_OK;
    return mx_fail(MX_CHECK_FAILED,
                   "the run has crashed %lld times in a row, the last %d times near step %lld; %s "
                   "says where. It is not started again: find the cause first, or rename that file "
                   "to try once more",
                   (long long)count, CRASHES, (long long)high, path);
}

/* The time before the account could be opened is known now, too. */
static void account_open(mx_run *r)
{
    mx_status st = mx_goodput_open(&r->watch.goodput, r->folder, r->watch.opened, r->at.step, NULL);
    r->watch.accounts = !st;
    if (st)
        mx_progress_say(&r->report.progress, "note: time is not accounted for: %s",
                        mx_status_text(st));
    mx_status_free(st);
    if (!r->watch.accounts)
        return;
    if (r->watch.goodput.was_damaged)
        mx_progress_say(&r->report.progress,
                        "note: goodput.json was damaged; the account starts anew");
    mx_goodput_enter(&r->watch.goodput, MX_GOODPUT_COMPILE, r->watch.opened);
    mx_goodput_enter(&r->watch.goodput, MX_GOODPUT_LOAD, r->watch.compiled);
    r->watch.goodput.read_bytes = r->watch.read_bytes;
    r->watch.goodput.read_seconds = r->watch.read_seconds;
    mx_run_spend(r, MX_GOODPUT_OTHER);
}

mx_status mx_run_watch_open(mx_run *r)
{
    MX_TRY(mx_crash_install());
    if (r->mesh_rank && !r->ranks.leads)
        return MX_OK; /* rank 0's watches all of them: they go in step */
    if (mx_config_bool(r->c, "enable_goodput_recording") && r->ranks.leads)
        account_open(r);
    return mx_watchdog_open(
        &r->watch.watchdog,
        &(mx_watchdog_options){.limit_s = mx_config_float(r->c, "step_timeout_seconds"),
                               .fd = r->watch.log_fd > 0 ? r->watch.log_fd : 2});
}

void mx_run_spend(mx_run *r, mx_goodput_kind on)
{
    if (r->watch.accounts)
        mx_goodput_enter(&r->watch.goodput, on, mx_run_now());
    if (on != MX_GOODPUT_STEP && on != MX_GOODPUT_DATA && r->watch.watchdog)
        mx_watchdog_pause(r->watch.watchdog);
}

void mx_run_step_begins(mx_run *r)
{
    mx_crash_set_step(r->at.step + 1);
    if (r->watch.watchdog)
        mx_watchdog_step(r->watch.watchdog, r->at.step + 1);
}

static void account_save(mx_run *r)
{
    if (!r->watch.accounts)
        return;
    r->watch.account_saved = mx_run_now();
    /* Written again half a minute later: a full disk that has room again needs no word. */
    mx_status_free(mx_goodput_save(&r->watch.goodput, r->watch.account_saved));
}

void mx_run_step_done(mx_run *r, int64_t step)
{
    mx_goodput_step_done(&r->watch.goodput, step - 1);
    if (r->watch.accounts && mx_run_now() - r->watch.account_saved > ACCOUNT_SECONDS)
        account_save(r);
}

/* The mark is set when the state is copied: should the write fail, the run will start from an
 * older one, and the account looks for the mark of that. */
void mx_run_saved(mx_run *r)
{
    if (r->watch.accounts)
        mx_goodput_commit(&r->watch.goodput, r->at.step, mx_run_now());
    account_save(r);
}

void mx_run_check_saves(mx_run *r)
{
    if (!r->saving.ckpt)
        return;
    mx_ckpt_status s = mx_ckpt_poll(r->saving.ckpt);
    if (s.n_failed == 0 && r->saving.failures_said)
        mx_progress_say(&r->report.progress, "checkpoints can be written again: %lld is",
                        (long long)s.last_step);
    if (s.n_failed > r->saving.failures_said) {
        const char *alarm = s.n_failed >= ALARM_FAILURES ? "ALARM: " : "";
        mx_progress_say(&r->report.progress,
                        "%scheckpoint failed, %d in a row: %s. Training goes on; older checkpoints "
                        "are untouched and the next save tries again",
                        alarm, s.n_failed, s.error);
        if (*alarm && r->ranks.leads)
            fprintf(stderr, "maxc: ALARM: %d checkpoints in a row could not be written: %s\n",
                    s.n_failed, s.error);
    }
    r->saving.failures_said = s.n_failed;
    mx_run_local_checkpoint_clear(r, s.last_step);
}

/* ", 21.4 GiB in use at the end (+0.1%)": what the run has taken of a device's own memory. Virtual
 * ranks share a device: nothing is known of one of them. */
static const char *device_memory(char *text, size_t size, const mx_run *r)
{
    char a[32];
    double used = (double)(r->watch.device_free - mx_session_memory_available(r->session).bytes);
    *text = 0;
    if (r->watch.device_free > 0)
        snprintf(text, size, ", %s in use at the end (%+.1f%%)",
                 mx_format_bytes(a, sizeof a, used), 100 * (used / mx_run_planned_bytes(r) - 1));
    return text;
}

static void say_memory(mx_run *r)
{
    char a[32], b[32], device[96];
    bool host = mx_session_traits(r->session)->host_memory;
    double used = mx_run_rss_bytes() - r->watch.start_rss_bytes;
    mx_progress_say(&r->report.progress, "memory: %s planned%s%s, %s of host memory really used",
                    mx_format_bytes(a, sizeof a, mx_run_planned_bytes(r)),
                    host ? "" : " on the device", device_memory(device, sizeof device, r),
                    mx_format_bytes(b, sizeof b, used));
}

void mx_run_watch_close(mx_run *r, mx_status st)
{
    mx_watchdog_close(r->watch.watchdog);
    r->watch.watchdog = NULL;
    if (r->session && r->plan.total > 0)
        say_memory(r);
    if (r->loop.n_timed >= LEAST_TIMED && r->ranks.leads)
        mx_run_say_time(r, r->loop.mean_step_s);
    if (r->watch.accounts) {
        mx_str table = {0};
        mx_run_spend(r, MX_GOODPUT_OTHER);
        account_save(r);
        mx_goodput_report(&r->watch.goodput, &table);
        if (table.len && table.text[table.len - 1] == '\n')
            table.text[--table.len] = 0;
        mx_progress_say(&r->report.progress, "%s", mx_str_text(&table));
        mx_str_fini(&table);
    }
    if (st && r->watch.log_fd > 0) {
        (void)!write(r->watch.log_fd, mx_status_text(st), strlen(mx_status_text(st)));
        (void)!write(r->watch.log_fd, "\n", 1);
    }
    if (r->ranks.leads || !r->mesh_rank)
        mx_crash_set_log(-1);
    mx_progress_log_to(&r->report.progress, 0);
    if (r->watch.log_fd > 0)
        close(r->watch.log_fd);
    r->watch.log_fd = 0;
}
