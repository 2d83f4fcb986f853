/* chips.h - accelerators and the links between them, read from tables in YAML.
 *
 * configs/chips.yml and configs/networks.yml say what the fields are. A file of the user's own, as
 * `maxc bench calibrate` writes it, is laid over them row by row. Figures that are missing, out of
 * range or of no sense are refused with file:line.
 */
#ifndef MX_PLAN_CHIPS_H
#define MX_PLAN_CHIPS_H

#include "base/arena.h"
#include "base/yaml.h"

/* What operands are multiplied in. */
typedef enum {
    MX_RATE_F32,
    MX_RATE_BF16,
    MX_RATE_FP8,        /* one scale for a tensor */
    MX_RATE_FP8_ROWS,   /* one for each row */
    MX_RATE_FP8_BLOCKS, /* one for 1 x 128 numbers, of weights for 128 x 128 */
    MX_RATE_INT8,
    MX_RATE_FP4,
    MX_RATES
} mx_rate;

enum { MX_CURVE_POINTS = 16, MX_GEMM_POINTS = 64, MX_LEVELS = 2, MX_HEAD_SIZES = 3 };

/* A rate over a size, straight between the points on a logarithmic axis. */
typedef struct {
    int n;
    double at[MX_CURVE_POINTS], rate[MX_CURVE_POINTS];
} mx_rate_curve;

/* A GEMM that was measured: `groups` of (m, k) x (k, n). */
typedef struct {
    double groups, m, n, k, flops; /* FLOP/s */
} mx_gemm_point;

typedef struct {
    mx_gemm_point at[MX_GEMM_POINTS];
    int n;
} mx_gemm_points;

typedef struct {
    char name[32];
    double memory_bytes, bytes_per_second;
    double peak[MX_RATES], sustained[MX_RATES]; /* FLOP/s; 0: the chip has no such rate */
    double watts, units, memory_share, k_half, launch_seconds, comm_units;
    double grouped_k_half; /* 0: k_half */
    /* by head size (64, 128, 256), forward and backward: FLOP/s by length; n = 0: not known */
    mx_rate_curve attention[MX_HEAD_SIZES][2];
    double recurrence[2];         /* FLOP/s of the delta rule; 0: not known */
    mx_gemm_points gemm, grouped; /* of one GEMM, of those of experts */
    char network[128];
    char network_at[256]; /* "file:line" of it; "" where no row has one */
} mx_plan_chip;

/* One level of a network, from the inside out. */
typedef struct {
    char name[32];
    int64_t chips;           /* that it joins; the last joins any number */
    double bytes_per_second; /* per chip and direction, as large collectives reach it */
    double latency;          /* seconds, of a step of a ring */
} mx_level;

typedef struct {
    mx_level level[MX_LEVELS];
    int n;
} mx_network;

/* "no WHAT `name`; the nearest are ..." of some names. */
mx_status mx_nearest_names(const char *what, const char *name, const char *const *names,
                           int n) MX_MUST_USE;
/* The chip of this name: of `file` where that is given ("" for none) and has it, else of
 * home/chips.yml. An unknown name gets the nearest ones. */
mx_status mx_plan_chip_read(mx_plan_chip *out, const char *home, const char *file,
                            const char *name) MX_MUST_USE;
/* Figures that a user gives in place of the row's, 0 for none: its memory, its peak at a rate, with
 * which all rates scale, and its bandwidth. */
typedef struct {
    double memory_bytes, peak, bytes_per_second;
    mx_rate rate;
} mx_chip_figures;
void mx_plan_chip_set(mx_plan_chip *c, const mx_chip_figures *f);
/* Refuses a dtype whose rate is not known of the chip. */
mx_status mx_plan_chip_computes(const mx_plan_chip *c, mx_rate r) MX_MUST_USE;
/* "nvlink4 x 8, infiniband-400": links by their names in home/networks.yml or `file`. */
mx_status mx_network_read(mx_network *out, const char *home, const char *file,
                          const char *text) MX_MUST_USE;

const char *mx_rate_name(mx_rate r); /* "float32", "bfloat16", "float8", ... */
/* The rate at a size; beyond the ends, that of the end. */
double mx_rate_curve_at(const mx_rate_curve *c, double at);

#endif
