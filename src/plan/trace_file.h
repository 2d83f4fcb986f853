/* trace_file.h - a simulated step as files: a trace for Perfetto, a picture. */
#ifndef MX_PLAN_TRACE_FILE_H
#define MX_PLAN_TRACE_FILE_H

#include "plan/forecast.h"

/* JSON of the Chrome trace format, which ui.perfetto.dev opens: a process per stage, a thread per
 * stream. */
mx_status mx_trace_write(const mx_trace *t, const char *path) MX_MUST_USE;
/* SVG: memory of the rank that needs the most over a step, with the largest tensors by name, and
 * the timeline of all stages. */
mx_status mx_picture_write(const mx_forecast *f, const mx_trace *t, const char *path) MX_MUST_USE;

#endif
