/* programs_codec.h - the compiled programs of a rank as bytes, in both directions: those of a step,
 * or of the chunks of its stages. saved_programs.c has the file around them. */
#ifndef MX_EXEC_PROGRAMS_CODEC_H
#define MX_EXEC_PROGRAMS_CODEC_H

#include "compile/program_file.h"
#include "exec/programs.h"

typedef struct {
    mx_codec c;
    mx_record_pool *pool;
    mx_program_reader how;
} mx_programs_codec;

/* Writes p, or fills it in, as k->c does. What is read is checked. */
mx_status mx_programs_code(mx_programs_codec *k, mx_programs *p,
                           const mx_programs_request *q) MX_MUST_USE;

#endif
