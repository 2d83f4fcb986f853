/* events.h - TensorBoard event files: scalars by step, readable by TensorBoard as they are.
 *
 * A file is a sequence of TFRecords, little-endian:
 *     u64 length | u32 masked crc32c of the length | bytes | u32 masked crc32c of the bytes
 * each holding one protobuf Event:
 *     1 wall_time double, 2 step int64, 3 file_version string, 5 summary, 7 session_log
 *     summary: repeated 1 value { 1 tag string, 2 simple_value float }
 *     session_log: 1 status (1 is START)
 *
 * The first event is the version "brain.Event:2". When a run resumes, a new file starts with
 * session_log START at the step it resumes from, which makes TensorBoard forget what an earlier
 * file says about that step and later ones.
 */
#ifndef MX_TRAIN_EVENTS_H
#define MX_TRAIN_EVENTS_H

#include "base/io.h"
#include "base/str.h"

typedef struct {
    const char *name;
    double value;
} mx_metric;

/* One record holding the event, appended to `out`. */
void mx_event_version(mx_str *out, double wall_time);
void mx_event_start(mx_str *out, double wall_time, int64_t step);
void mx_event_scalars(mx_str *out, double wall_time, int64_t step, const mx_metric *v, int n);
/* "events.out.tfevents.SECONDS.HOST.PID", in `buf`. */
void mx_event_file_name(char *buf, size_t cap, double wall_time);

#endif
