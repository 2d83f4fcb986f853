/* trace_file.c - see trace_file.h. */
#include "plan/trace_file.h"

#include "base/io.h"
#include <math.h>

static const char *const stream_name[MX_STREAMS] = {"kernels", "network"};

static void name_tracks(const mx_trace *t, mx_str *out)
{
    int stages = 0;
    for (int i = 0; i < t->n; i++)
        stages = t->event[i].stage + 1 > stages ? t->event[i].stage + 1 : stages;
    for (int s = 0; s < stages; s++) {
        mx_str_addf(out,
                    "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": "
                    "\"stage %d\"}},\n",
                    s, s);
        for (int k = 0; k < MX_STREAMS; k++)
            mx_str_addf(out,
                        "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %d, "
                        "\"args\": {\"name\": \"%s\"}},\n",
                        s, k, stream_name[k]);
    }
}

/* Nanoseconds, rounded so that what begins where another ends does not overlap it. */
static double nanoseconds(double seconds)
{
    return round(seconds * 1e9);
}

mx_status mx_trace_write(const mx_trace *t, const char *path)
{
    mx_str out = {0};
    mx_str_add(&out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n");
    name_tracks(t, &out);
    for (int i = 0; i < t->n; i++) {
        const mx_event *e = &t->event[i];
        double start = nanoseconds(e->start);
        mx_str_addf(&out,
                    "{\"ph\": \"X\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, "
                    "\"dur\": %.3f}%s\n",
                    e->name, e->stage, e->stream, start / 1e3, (nanoseconds(e->end) - start) / 1e3,
                    i + 1 < t->n ? "," : "");
    }
    mx_str_add(&out, "]}\n");
    mx_status st = mx_io_write_output(path, out.text, out.len);
    mx_str_fini(&out);
    return st;
}
