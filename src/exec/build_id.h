/* build_id.h - which build of the program this is. */
#ifndef MX_EXEC_BUILD_ID_H
#define MX_EXEC_BUILD_ID_H

#include "base/arena.h"

/* The version and the linker's build ID, which no two builds of different sources share. */
const char *mx_build_id(mx_arena *a);

#endif
