/* range.h - what a number of config.json may be.
 *
 * A row of a field table names its kind and range in one word: MX_IS_WIDTH is a whole number from 1
 * to 2^20. A number outside its range is refused when the file is read. The bounds lie far beyond
 * any model there is; what they keep out is what no model can be (a share above 1, a negative
 * size) and what would leave 64 bits when sizes are multiplied. What numbers must be to each other
 * is the family's `finish` to check.
 *
 * A row without a range does not compile: MX_CFG_INT, MX_CFG_F64 and MX_CFG_INTS take the bounds.
 * _OR_0: 0 says that there is none, or that the size is worked out from others.
 */
#ifndef MX_MODELS_RANGE_H
#define MX_MODELS_RANGE_H

#define MX_CFG_INT(lo, hi) MX_CFG_WHOLE, .min = (lo), .max = (hi)
#define MX_CFG_F64(lo, hi) MX_CFG_REAL, .min = (lo), .max = (hi)
#define MX_CFG_INTS(lo, hi) MX_CFG_WHOLES, .min = (lo), .max = (hi)

/* sizes of tensors */
#define MX_IS_VOCAB MX_CFG_INT(1, 1 << 24)
#define MX_IS_VOCAB_OR_0 MX_CFG_INT(0, 1 << 24)
#define MX_IS_WIDTH MX_CFG_INT(1, 1 << 20)
#define MX_IS_WIDTH_OR_0 MX_CFG_INT(0, 1 << 20)
#define MX_IS_HEADS MX_CFG_INT(1, 1 << 14)
#define MX_IS_HEADS_OR_0 MX_CFG_INT(0, 1 << 14)
#define MX_IS_HEAD_DIM MX_CFG_INT(1, MX_MAX_HEAD_DIM)
#define MX_IS_HEAD_DIM_OR_0 MX_CFG_INT(0, MX_MAX_HEAD_DIM)

/* how many, and how often */
#define MX_IS_LAYERS MX_CFG_INT(1, MX_MAX_LAYERS)
#define MX_IS_COUNT MX_CFG_INT(1, 1 << 16)
#define MX_IS_COUNT_OR_0 MX_CFG_INT(0, 1 << 16)
#define MX_IS_MTP_LAYERS MX_CFG_INT(0, MX_MAX_MTP)
#define MX_IS_LAYER_LIST MX_CFG_INTS(0, 1 << 16)
#define MX_IS_TOKEN MX_CFG_INT(0, (1 << 24) - 1)

/* lengths in tokens: positions are 32-bit numbers on a device */
#define MX_IS_POSITIONS MX_CFG_INT(1, INT32_MAX)
#define MX_IS_LENGTH MX_CFG_INT(1, INT32_MAX)
#define MX_IS_LENGTH_OR_0 MX_CFG_INT(0, INT32_MAX)
#define MX_IS_REAL_LENGTH_OR_0 MX_CFG_F64(0, INT32_MAX)

/* images */
#define MX_IS_PIXELS MX_CFG_INT(1, 8192)
#define MX_IS_PATCH MX_CFG_INT(1, 8192)
#define MX_IS_SIDE MX_CFG_INT(1, 64)
#define MX_IS_CHANNELS MX_CFG_INT(1, 16)
#define MX_IS_PLACES MX_CFG_INT(1, 1 << 24)

/* real numbers */
#define MX_IS_SHARE MX_CFG_F64(0, 1)
#define MX_IS_EPSILON MX_CFG_F64(0, 1)
#define MX_IS_DEVIATION MX_CFG_F64(0, 1000) /* of new weights */
#define MX_IS_THETA MX_CFG_F64(1, 1e15)     /* a rotary base */
#define MX_IS_FACTOR MX_CFG_F64(1e-6, 1e6)
#define MX_IS_FACTOR_OR_0 MX_CFG_F64(0, 1e6)
#define MX_IS_SIGNED_FACTOR MX_CFG_F64(-1e6, 1e6)

#endif
