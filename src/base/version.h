/* version.h - the program's version: major.minor.patch; the formats it writes follow the minor. */
#ifndef MX_BASE_VERSION_H
#define MX_BASE_VERSION_H

#include "base/arena.h"

#define MX_VERSION "0.1.0"

/* The version and the linker's build ID, which no two builds of different sources share. */
const char *mx_build_id(mx_arena *a);

#endif
