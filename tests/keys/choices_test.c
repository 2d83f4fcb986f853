/* choices_test.c - what is found by scanning the sources can be chosen by its key. */
#include "../test.h"

#include "cmd/verb.h"
#include "compile/compile.h"
#include "device/chips.h"
#include "device/device.h"
#include "plan/chips.h"
#include "text/tokenizer/tokenizer_parts.h"
#include <stdio.h>
#include <string.h>

/* Is `word` one of the words of an enum's `accept`? */
static bool accepts(const mx_key *k, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = k->accept; p; p = strpbrk(p, "|~"), p = p ? p + 1 : NULL)
        if (strncmp(p, word, n) == 0 && strchr("|=~", p[n])) /* also the end of the text */
            return true;
    return false;
}

static const mx_key *find_key(const char *name)
{
    const mx_key *k = NULL;
    for (const mx_key *const *t = mx_keys.tables; *t && !k; t++)
        k = mx_key_find(*t, name);
    MX_ASSERT(k, "no key %s", name);
    return k;
}

MX_TEST(every_kind_of_device_can_be_asked_for)
{
    const mx_key *device = find_key("device");
    for (int i = 0; i < mx_device_kind_count; i++) {
        const mx_device_kind *k = mx_device_kind_table[i];
        MX_CHECK(accepts(device, k->traits->name), "device=%s is refused", k->traits->name);
        MX_CHECK(mx_device_kind_find(k->traits->name) == k && k->doc && k->open);
    }
    MX_CHECK(mx_device_kind_find("cpu") && mx_device_kind_find("cuda"));
}

/* Every chip of the program's own table can be planned for, and is what a name beside it is refused
 * with; what is not in the table may be in configs/chips.yml. */
MX_TEST(every_chip_can_be_asked_for_and_is_the_nearest_to_its_neighbours)
{
#define KEY(key, ...) key,
    static const char *const chips[] = {MX_CHIPS(KEY)};
#undef KEY
    MX_CHECK(mx_key_find(mx_verb_find("plan")->keys, "chip"), "plan takes no chip");
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++) {
        char wrong[64], near[64];
        mx_plan_chip row;
        const mx_chip *c = mx_chip_find(chips[i]);
        MX_CHECK(c && c->memory_bytes > 0 && strcmp(c->name, chips[i]) == 0, "%s", chips[i]);
        MX_CHECK_OK(mx_plan_chip_read(&row, "configs", "", chips[i]));
        MX_CHECK(c && row.memory_bytes == c->memory_bytes, "%s: another memory", chips[i]);
        snprintf(wrong, sizeof wrong, "%sq", chips[i]);
        snprintf(near, sizeof near, "the nearest are %s", chips[i]);
        MX_CHECK(!mx_chip_find(wrong), "%s is found", wrong);
        MX_CHECK_ERROR(mx_plan_chip_read(&row, "configs", "", wrong), near);
    }
    MX_CHECK(mx_chip_find("h100") && mx_chip_find("v100") && !mx_chip_find("this"));
}

MX_TEST(every_type_of_tokenizer_can_be_asked_for)
{
    const mx_key *type = find_key("tokenizer_type");
    for (int i = 0; i < mx_tokenizer_format_count; i++) {
        const mx_tokenizer_format *f = mx_tokenizer_format_table[i];
        MX_CHECK(accepts(type, f->type) && f->load, "tokenizer_type=%s is refused", f->type);
    }
    MX_CHECK(mx_tokenizer_format_count == 4, "%d", mx_tokenizer_format_count);
}

MX_TEST(every_update_rule_can_be_asked_for)
{
    const mx_key *type = find_key("opt_type");
    for (int i = 0; i < mx_optimizer_rule_count; i++) {
        const mx_optimizer_rule *r = mx_optimizer_rule_table[i];
        MX_CHECK(accepts(type, r->name) && r->doc && r->update, "opt_type=%s is refused", r->name);
        MX_CHECK(!r->alias || accepts(type, r->alias), "opt_type=%s is refused", r->alias);
        MX_CHECK(mx_optimizer_rule_find(r->name) == r);
    }
    MX_CHECK(mx_optimizer_rule_find("adam_pax") == &mx_optimizer_rule_adamw);
    MX_CHECK(!mx_optimizer_rule_find("adagrad"));
}
