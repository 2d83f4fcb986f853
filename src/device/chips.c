/* chips.c - see chips.h. */
#include "device/chips.h"

#include <string.h>

#define ROW(key, model, gib, gbs, f32, bf16, i8, f8)                                               \
    {key, model,                                                                                   \
     {key, (gib) * 0x1p30, (gbs) * 1e9,                                                            \
      {[MX_F32] = (f32) * 1e12, [MX_BF16] = (bf16) * 1e12, [MX_F16] = (bf16) * 1e12,               \
       [MX_I8] = (i8) * 1e12, [MX_F8_E4M3] = (f8) * 1e12, [MX_F8_E5M2] = (f8) * 1e12}}},
static const struct {
    const char *key, *model;
    mx_chip chip;
} table[] = {MX_CHIPS(ROW)};

enum { N_CHIPS = sizeof table / sizeof *table };

const mx_chip *mx_chip_find(const char *key)
{
    for (int i = 0; i < N_CHIPS; i++)
        if (strcmp(table[i].key, key) == 0)
            return &table[i].chip;
    return NULL;
}

const mx_chip *mx_chip_of_model(const char *name)
{
    size_t longest = 0;
    const mx_chip *found = NULL;
    for (int i = 0; i < N_CHIPS; i++) {
        size_t n = strlen(table[i].model);
        if (n > longest && strstr(name, table[i].model)) {
            longest = n;
            found = &table[i].chip;
        }
    }
    return found;
}
