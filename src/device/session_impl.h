/* session_impl.h - a session's insides, for the files that make one up: session.c (opening,
 * variables), initial.c (first values), exec.c (programs), readback.c. */
#ifndef MX_DEVICE_SESSION_IMPL_H
#define MX_DEVICE_SESSION_IMPL_H

#include "device/device.h"
#include "ir/name_map.h"

struct mx_session {
    mx_device *device; /* owns */
    int n_threads;
    mx_arena arena;
    mx_var **var;
    int n_vars, cap_vars;
    mx_name_map names;  /* of var */
    mx_exec *execs;     /* owns, a list */
    mx_device_buffer *block;   /* owns; the variables a program brought lie in one */
    int n_blocks, cap_blocks;
    mx_group_finder find_group; /* NULL: this rank is alone */
    bool stage; /* it has the weights of one */
    void *group_ctx;
    struct { /* owns; what programs work in, one at a time */
        mx_device_buffer scratch, offloaded;
    } shared;
    mx_device_buffer work; /* owns; the workspace of all programs */
};

/* The variables of a program that the session does not have yet, with memory. */
mx_status mx_session_add_variables(mx_session *s, const mx_program *p) MX_MUST_USE;
/* Where an input or root lies; of no handle when the program has no use for such a name. */
mx_device_buffer mx_exec_buffer(mx_exec *e, const char *name);

#endif
