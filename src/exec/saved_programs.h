/* saved_programs.h - compiled_trainstep_file: everything that compiling a run has produced.
 *
 * `maxc plan compiled_trainstep_file=FILE` compiles the programs of every rank of the run that the
 * keys describe and keeps them; `maxc train compiled_trainstep_file=FILE` reads its rank's and runs
 * no pass. The file is for one build of the program, one model, one kind of device, one mesh, and
 * the values of all keys that were read while the programs were made; what differs is refused by
 * name. It is no exchange format: another build compiles again.
 *
 *     "MAXCSTEP"   version   digest of the rest
 *     what it is for: build, device, chip, model (digest of its configuration), mesh, keys
 *     kernels: cubins that NVRTC has made, and chosen algorithms, by their names in the cache
 *     records of nodes, each once (compile/program_file.h)
 *     for every kind of rank the programs of one, as lists of records; for every rank its kind
 */
#ifndef MX_EXEC_SAVED_PROGRAMS_H
#define MX_EXEC_SAVED_PROGRAMS_H

#include "compile/program_file.h"
#include "exec/programs.h"

/* What programs are made for. Texts are borrowed. */
typedef struct {
    const char *device; /* as device=NAME has it */
    const char *chip;   /* "": not known */
    mx_mesh mesh;
    int64_t ranks, data_ranks;
    int64_t images_per_row;
    const char *model; /* digest of its configuration */
} mx_saved_for;

typedef struct mx_saved_programs mx_saved_programs;

/* --- writing --- */

mx_saved_programs *mx_saved_programs_new(const mx_saved_for *what);
/* Those of a rank, which from now on stand for a kind of rank; gives its number. seconds: that
 * compiling them took. */
typedef struct {
    mx_programs *programs;
    const mx_programs_request *request;
    int rank;
    double seconds;
} mx_saved_kind;
int mx_saved_programs_add(mx_saved_programs *s, const mx_saved_kind *k);
/* This rank, too, is of that kind. */
void mx_saved_programs_share(mx_saved_programs *s, int rank, int kind);
/* Do the kind's programs, read as those of k's rank, equal the ones that were compiled for it? */
mx_status mx_saved_programs_stand_for(mx_saved_programs *s, int kind, const mx_saved_kind *k,
                                      bool *out) MX_MUST_USE;
/* A file of the kernels' cache, by its name. */
mx_status mx_saved_programs_add_kernel(mx_saved_programs *s, const char *dir,
                                       const char *name) MX_MUST_USE;
/* With the keys that were asked for so far. *bytes: how long it became. */
mx_status mx_saved_programs_write(mx_saved_programs *s, const mx_config *c, const char *path,
                                  size_t *bytes) MX_MUST_USE;

/* --- reading --- */

mx_status mx_saved_programs_open(mx_saved_programs **out, const char *path) MX_MUST_USE;
/* The same of bytes that stay where they are; `checked`: their digest is not looked at. */
mx_status mx_saved_programs_parse(mx_saved_programs **out, const void *bytes, size_t n,
                                  bool checked) MX_MUST_USE;
/* An error that names what differs. */
mx_status mx_saved_programs_fit(const mx_saved_programs *s, const mx_config *c,
                                const mx_saved_for *run) MX_MUST_USE;
/* Those of a rank, for its device; close them also when it fails. */
typedef struct {
    int rank, n_threads;
    const mx_device_traits *device;
} mx_saved_rank;
mx_status mx_saved_programs_take(mx_saved_programs *s, mx_programs *p,
                                 const mx_programs_request *q, mx_saved_rank by) MX_MUST_USE;
/* Puts kernels and choices into a folder that lacks them; gives their number. */
mx_status mx_saved_programs_install(const mx_saved_programs *s, const char *dir,
                                    int *n) MX_MUST_USE;
int mx_saved_programs_kinds(const mx_saved_programs *s);
double mx_saved_programs_seconds(const mx_saved_programs *s); /* that compiling a rank took */
void mx_saved_programs_free(mx_saved_programs *s);

/* --- of a run --- */

/* saved_run.c: what the keys describe, compiled for every rank and kept in the file that
 * compiled_trainstep_file names. processes: that the run will have; arch: that kernels are
 * compiled for, NULL: none are. *note says what was kept. */
typedef struct {
    const mx_config *config;
    const mx_model_spec *model;
    const mx_device_traits *device;
    const char *chip, *arch;
    int processes, n_threads;
} mx_saved_request;
mx_status mx_saved_programs_make(const mx_saved_request *r, mx_str *note) MX_MUST_USE;
/* The digest of a model's configuration, in the arena. */
const char *mx_saved_model(const mx_model_spec *m, mx_arena *a);

#endif
