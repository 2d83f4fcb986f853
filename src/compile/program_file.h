/* program_file.h - a compiled program as bytes: graph, order and addresses, without the passes.
 *
 * A program is kept as the nodes that it runs, in their order, one record each:
 *
 *     op (by name), attributes (field by field, op.h), inputs (positions of earlier nodes), types,
 *     name, scope, logical axes, box; for each output its place in memory
 *
 * and the numbers of its results and the sizes of its buffers. What follows from those (workspace,
 * FLOPs, bytes by class) is not kept: it is computed again for the current device, as at the end of
 * compiling.
 *
 * Ranks of a mesh have nearly the same programs. So records are kept once in a pool, and a program
 * is a list of numbers of records.
 *
 * Ranks that differ only in their place on the axes data, fsdp and expert have the same program,
 * except for the boxes of variables and inputs and for their indexes in groups, both of which
 * follow from mesh and rank. So one program is kept, and a codec that has a mesh reads it as
 * another rank's.
 *
 * What is read is checked: every number against its limits, every place against the buffers, and
 * then the graph by the verifier, which infers every type again.
 */
#ifndef MX_COMPILE_PROGRAM_FILE_H
#define MX_COMPILE_PROGRAM_FILE_H

#include "ir/codec.h"
#include "compile/program.h"

/* Distinct byte strings, numbered in the order in which they came. Zero-initialise. */
typedef struct {
    mx_str bytes;
    size_t *at; /* where each begins; its end is where the next one does */
    int n, cap;
    int *slot; /* open addressing: 1 + number, 0: free */
    int n_slots;
} mx_record_pool;
void mx_record_pool_fini(mx_record_pool *p);
void mx_code_record_pool(mx_codec *c, mx_record_pool *p);

/* Adds the program to the pool and writes its list. */
void mx_program_write(mx_codec *c, const mx_program *p, mx_record_pool *pool);
/* Into an initialised graph and *p, for this device; close both when it fails. slot_bytes: of the
 * slot that it runs on (mx_kept); 0: it runs on none. */
typedef struct {
    const mx_record_pool *pool;
    const mx_device_traits *device;
    int n_threads;
    size_t slot_bytes;
} mx_program_reader;
mx_status mx_program_read(mx_codec *c, mx_graph *g, mx_program *p,
                          const mx_program_reader *r) MX_MUST_USE;

/* program_attr.c: the attributes of a node or of a step of a group; *attr is the graph's when it is
 * read. count: elements of the node's result. */
void mx_code_attr(mx_codec *c, const mx_op *op, const void **attr, int64_t count);
void mx_code_op(mx_codec *c, const mx_op **op);
void mx_code_type(mx_codec *c, mx_type *t);
struct mx_box;
void mx_code_box(mx_codec *c, const struct mx_box **box);

#endif
