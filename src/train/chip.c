/* chip.c - see chip.h. */
#include "train/chip.h"

#include <stddef.h>
#include <string.h>

#define ROW(name, gib, tflops, gbs) {name, gib, tflops, gbs},
static const mx_chip chips[] = {MX_CHIPS(ROW)};

const mx_chip *mx_chip_find(const char *name)
{
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++)
        if (strcmp(chips[i].name, name) == 0)
            return &chips[i];
    return NULL;
}
