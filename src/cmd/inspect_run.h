/* inspect_run.h - what `maxc inspect` says about a run folder. */
#ifndef MX_CMD_INSPECT_RUN_H
#define MX_CMD_INSPECT_RUN_H

#include "base/str.h"

bool mx_is_run_folder(const char *path);
mx_status mx_inspect_run(const char *path, mx_str *out) MX_MUST_USE;

/* The losses as a curve in text; `svg` and `png` name files for a picture, "" for none. */
mx_status mx_inspect_curve(const char *path, const char *svg, const char *png,
                           mx_str *out) MX_MUST_USE;

#endif
