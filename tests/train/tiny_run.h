/* tiny_run.h - whole training runs on a model of a few thousand weights, for tests. */
#ifndef MX_TESTS_TRAIN_TINY_RUN_H
#define MX_TESTS_TRAIN_TINY_RUN_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

/* A new folder, in `buf`. */
char *tiny_folder(char *buf, size_t cap);
/* `maxc train` with these arguments. Standard output goes nowhere. */
mx_status tiny_run(const char *const *args, int n);
/* The run FOLDER/NAME/r, with further key=value arguments that end with NULL. Standard output goes
 * nowhere. One thread, float32, no TensorBoard files, unless the arguments say otherwise. */
mx_status tiny_train(const char *folder, const char *name, const char *const *extra);
/* The same on `size` ranks, each a process; one rank, too: OpenMP's threads do not survive a fork.
 */
void tiny_train_ranks(const char *folder, int size, const char *name, const char *const *args);
/* The same on a device with memory of its own (device/cpu/queue.h); bytes it had on the host. */
int64_t tiny_train_queued(const char *folder, const char *name, const char *const *extra);
/* Fails the test unless checkpoints of this step and metrics of two runs are equal. */
void tiny_same(const char *folder, const char *a, const char *b, int step);
/* A file of a run, from malloc; "" when it cannot be read, which fails the test. */
char *tiny_text(const char *folder, const char *name, const char *file);
/* metrics.jsonl without times and what depends on them; from malloc. */
char *tiny_metrics(const char *folder, const char *name);
/* The digest of every tensor of a checkpoint, from its manifest; from malloc. By its path, or by
 * the run's name. */
char *tiny_checkpoint(const char *path);
char *tiny_tensors(const char *folder, const char *name, int step);
/* The largest difference of two checkpoints' weights, as a share of each tensor's largest value. */
double tiny_difference(const char *folder, const char *a, const char *b, int step);
int tiny_count(const char *text, const char *what);

#endif
