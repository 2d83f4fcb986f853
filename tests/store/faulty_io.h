/* faulty_io.h - an mx_io whose n-th call fails, and which writes down what it was asked.
 *
 * fsync does nothing real: what is tested is the order of calls and what follows a failure, and a
 * thousand saves would otherwise spend minutes waiting for the disk.
 */
#ifndef MX_TEST_FAULTY_IO_H
#define MX_TEST_FAULTY_IO_H

#include "base/io.h"
#include <pthread.h>

typedef struct {
    int fail_at;   /* the call (from 1) that fails; 0: none */
    bool for_ever; /* and all calls after it */
    int error;     /* errno; 0: a short write (or read) of one byte instead */
    int calls;     /* out: how many were made */
    int failed;    /* out: how many were made to fail */
    uint64_t room; /* what free_bytes says; 0: plenty */
    pthread_mutex_t lock;
    char (*log)[160]; /* "open PATH", "write FD", "fsync PATH", "rename A B"...; NULL: no log */
    int n_log, max_log;
    char names[64][120]; /* of open descriptors below 64 */
} faulty_io;

mx_io faulty_io_make(faulty_io *f);

#endif
