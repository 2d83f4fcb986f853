/* teacher_file.h - what a teacher said of every row of some data, in a folder.
 *
 *     teacher.json              {"format", "length", "top_k", "vocab", "rows", "rows_per_file"}
 *     rows-00000.safetensors    tokens, labels, segments, positions (R, S) int32;
 *                               ids (R, S, K) int32, logits (R, S, K) float32: the largest k
 * teacher.json is written last: without it the folder is not whole.
 */
#ifndef MX_POST_TEACHER_FILE_H
#define MX_POST_TEACHER_FILE_H

#include "base/config.h"
#include "data/load/loader.h"
#include "store/safetensors.h"

typedef struct {
    const char *dir; /* in the arena */
    int64_t seq, top_k, vocab, rows, rows_per_file;
    mx_st_file file; /* the one that was read last */
    int64_t at;      /* its number; -1: none */
    mx_arena arena;
} mx_teacher_file;

/* Zero-initialise; closing a zero object is a no-op. */
mx_status mx_teacher_file_open(mx_teacher_file *f, const char *dir) MX_MUST_USE;
void mx_teacher_file_close(mx_teacher_file *f);
/* Row `row` into row `to` of b, its logits and ids (S, K) to where they belong. */
mx_status mx_teacher_file_read(mx_teacher_file *f, int64_t row, mx_batch *b, int64_t to,
                               float *logits, int32_t *ids) MX_MUST_USE;

/* Runs the teacher of a configuration over its data and writes such a folder: write_teacher. */
mx_status mx_teacher_write(const mx_config *c) MX_MUST_USE;

#endif
