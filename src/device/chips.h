/* chips.h - accelerators by name, from their data sheets. */
#ifndef MX_DEVICE_CHIPS_H
#define MX_DEVICE_CHIPS_H

#include "compile/device_traits.h"

typedef struct {
    const char *key;   /* as chip=KEY of `maxc plan` has it; NULL: it is not offered there */
    const char *model; /* part of what the driver calls it */
    mx_chip chip;
} mx_chip_entry;
extern const mx_chip_entry mx_chip_table[]; /* a NULL model ends it */

const mx_chip *mx_chip_find(const char *key); /* NULL: not known */
/* The chip that a driver calls so ("NVIDIA H100 PCIe"); NULL: not known. */
const mx_chip *mx_chip_of_model(const char *name);

#endif
