/* choices_test.c - what is found by scanning the sources can be chosen by its key. */
#include "../test.h"

#include "cmd/verb.h"
#include "device/device.h"
#include "text/tokenizer/tokenizer_parts.h"
#include <string.h>

/* Is `word` one of the words of an enum's `accept`? */
static bool accepts(const mx_key *k, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = k->accept; p; p = strchr(p, '|'), p = p ? p + 1 : NULL)
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
    MX_CHECK(mx_key_find(mx_verb_find("plan")->keys, "chip"), "plan takes a chip");
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
