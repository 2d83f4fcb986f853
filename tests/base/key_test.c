/* key_test.c - values by type: spellings, limits, lists, what is refused, and writing them back. */
#include "base/key.h"

#include "../test.h"
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const mx_key k_bool = {"flag", MX_KEY_BOOL, 0, "false", 0, "", 0, 0};
static const mx_key k_int = {"count", MX_KEY_INT, 0, "-1", "-1|1..1000000", "", 0, MX_KEY_OPTIONAL};
static const mx_key k_float = {"rate", MX_KEY_FLOAT, 0, "0", "0..1", "", 0, 0};
static const mx_key k_above = {"scale", MX_KEY_FLOAT, 0, "1", ">0", "", 0, 0};
static const mx_key k_text = {"name", MX_KEY_STRING, 0, "", 0, "", 0, 0};
static const mx_key k_enum = {"kind", MX_KEY_ENUM, 0, "", "|int8|fp8", "", 0, 0};
static const mx_key k_auto = {"template", MX_KEY_ENUM, 0, "auto", "auto|true|false", ""};
static const mx_key k_dtype = {
    "dtype", MX_KEY_ENUM, 0, "float32", "float32|bfloat16~bf16|!float16=half", "", 0, 0};
static const mx_key k_list = {"names", MX_KEY_LIST, 0, "", 0, "", 0, 0};
static const mx_key k_ints = {"sizes", MX_KEY_INTS, 0, "", "0..", "", 0, 0};
static const mx_key k_rules = {"rules", MX_KEY_RULES, 0, "", 0, "", 0, 0};

/* Reads text by a key; gives what it is written as, or "!" and why not. The caller frees with
 * mx_str_fini. */
static mx_str written(const mx_key *key, const char *text)
{
    mx_arena a = {0};
    mx_value v;
    mx_str why = {0}, out = {0};
    if (mx_value_read_text(&a, key, text, &v, &why))
        mx_value_write(key, &v, &out);
    else
        mx_str_addf(&out, "!%s", mx_str_text(&why));
    mx_str_fini(&why);
    mx_arena_fini(&a);
    return out;
}

static void becomes(const mx_key *key, const char *text, const char *expected)
{
    mx_str got = written(key, text);
    MX_CHECK(strcmp(mx_str_text(&got), expected) == 0, "%s: `%s` became %s, expected %s", key->name,
             text, mx_str_text(&got), expected);
    mx_str_fini(&got);
}

static void refused(const mx_key *key, const char *text, const char *part)
{
    mx_str got = written(key, text);
    const char *s = mx_str_text(&got);
    MX_CHECK(s[0] == '!' && strstr(s, part), "%s: `%s` gave %s, expected `%s`", key->name, text, s,
             part);
    mx_str_fini(&got);
}

MX_TEST(key_bool_spellings)
{
    static const char *const yes[] = {"true", "True", "yes", "on", "1"};
    static const char *const no[] = {"false", "FALSE", "no", "off", "0"};
    for (int i = 0; i < 5; i++) {
        becomes(&k_bool, yes[i], "true");
        becomes(&k_bool, no[i], "false");
    }
    refused(&k_bool, "maybe", "`flag` takes true or false; found `maybe`");
    refused(&k_bool, "", "found no value");
    refused(&k_bool, "2", "found `2`");
}

MX_TEST(key_int_spellings_and_limits)
{
    becomes(&k_int, "12", "12");
    becomes(&k_int, "1e3", "1000");
    becomes(&k_int, "2.0", "2");
    becomes(&k_int, "1_000", "1000");
    becomes(&k_int, "+7", "7");
    becomes(&k_int, "-1", "-1");
    becomes(&k_int, "None", "-1");
    becomes(&k_int, "null", "-1");
    refused(&k_int, "0", "an integer, -1 or 1 to 1000000; found `0`");
    refused(&k_int, "1000001", "found `1000001`");
    refused(&k_int, "2.5", "found `2.5`");
    refused(&k_int, "0x10", "found `0x10`");
    refused(&k_int, "ten", "found `ten`");
    refused(&k_int, "99999999999999999999", "found");
    refused(&k_int, " 3", "found");
    refused(&k_int, "_3", "found");
    refused(&k_int, "1__0", "found");
}

MX_TEST(key_float_spellings_and_limits)
{
    becomes(&k_float, "0.1", "0.1");
    becomes(&k_float, "3e-05", "3e-05");
    becomes(&k_float, "1", "1.0");
    becomes(&k_float, "0.30000000000000004", "0.30000000000000004");
    refused(&k_float, "1.0001", "a number, 0 to 1; found `1.0001`");
    refused(&k_float, "-0.1", "found");
    refused(&k_float, "nan", "found `nan`");
    refused(&k_float, ".nan", "found");
    refused(&k_float, "inf", "found");
    refused(&k_float, "1e999", "found");
    refused(&k_float, "0,5", "found `0,5`");
    refused(&k_above, "0", "a number, above 0; found `0`");
    becomes(&k_above, "1e-3", "0.001");
}

MX_TEST(key_text_and_enum)
{
    becomes(&k_text, "no", "\"no\"");
    becomes(&k_text, "1e3", "\"1e3\"");
    becomes(&k_text, "a \"b\"\n\t\\", "\"a \\\"b\\\"\\n\\t\\\\\"");
    becomes(&k_text, "null", "\"\"");
    becomes(&k_text, "\xc2\x9b\xc3\xa9\xef\xbb\xbf", "\"\\u009b\xc3\xa9\\ufeff\"");
    refused(&k_text, "a\xff", "`name` takes text in UTF-8");
    refused(&k_list, "a,\xff", "found");
    becomes(&k_enum, "int8", "\"int8\"");
    becomes(&k_enum, "", "\"\"");
    refused(&k_enum, "int9", "one of \"\" (none), int8, fp8; found `int9`; did you mean `int8`?");
    refused(&k_dtype, "bf16", "found `bf16`; did you mean `bfloat16`?");
    refused(&k_dtype, "bfloat61", "did you mean `bfloat16`?");
    becomes(&k_dtype, "half", "\"float16\"");
    becomes(&k_auto, "auto", "\"auto\"");
    becomes(&k_auto, "True", "\"true\"");
    becomes(&k_auto, "no", "\"false\"");
    refused(&k_auto, "maybe", "one of auto, true, false; found `maybe`");
    refused(&k_enum, "True", "found `True`");
}

MX_TEST(key_lists)
{
    becomes(&k_list, "a,b", "[\"a\", \"b\"]");
    becomes(&k_list, "[a, b]", "[\"a\", \"b\"]");
    becomes(&k_list, " a , b ", "[\"a\", \"b\"]");
    becomes(&k_list, "", "[]");
    becomes(&k_ints, "1,2e1,[]", "!`sizes` takes a list of integers, at least 0; found `1,2e1,[]`");
    becomes(&k_ints, "[1, 2e1]", "[1, 20]");
    refused(&k_ints, "-1", "found `-1`");
    refused(&k_list, "[a, [b]]", "found a list");
    refused(&k_list, "[a, b", "not valid YAML");
    becomes(&k_rules, "[[batch, [data, fsdp]], [mlp, tensor], [kv, []]]",
            "[[batch, [data, fsdp]], [mlp, [tensor]], [kv, []]]");
    refused(&k_rules, "[[\"!lp\", tensor]]", "a list of [name, [axis, ...]]");
    refused(&k_rules, "[[mlp, [[tensor]]]]", "a list of [name, [axis, ...]]");
    refused(&k_rules, "[batch]", "a list of [name, [axis, ...]]");
}

MX_TEST(key_secret_is_never_printed)
{
    static const mx_key secret = {"token", MX_KEY_INT, 0, "0", 0, "", 0, MX_KEY_SECRET};
    mx_str got = written(&secret, "hunter2");
    MX_CHECK(!strstr(mx_str_text(&got), "hunter2"), "%s", mx_str_text(&got));
    mx_str_fini(&got);
}

MX_TEST(key_aliases_are_found_and_offered)
{
    static const mx_key keys[] = {
        {"max_target_length", MX_KEY_INT, 0, "1", 0, "", "max_seq_len block_size", 0},
        {"decode_sampling_top_k", MX_KEY_INT, 0, "0", 0, "", "=top_k", 0},
        {0}};
    MX_CHECK(mx_key_find(keys, "top_k") == &keys[1]);
    MX_CHECK(mx_key_find(keys, "max_seq_len") == NULL, "offered, not accepted");
    int distance = INT_MAX;
    MX_CHECK(mx_key_nearest(keys, "max_seq_len", &distance) == &keys[0] && distance == 0);
    distance = INT_MAX;
    MX_CHECK(mx_key_nearest(keys, "blok_size", &distance) == &keys[0] &&
             mx_is_near("blok_size", distance));
    MX_CHECK(!mx_is_near("zzzzzz", 5) && !mx_is_near("n", 1));
}

/* A locale whose decimal point is a comma: an installed one, else one compiled here. */
static bool use_comma_locale(char *folder, size_t cap)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"};
    for (int i = 0; i < 4; i++)
        if (setlocale(LC_ALL, names[i]))
            return true;
    snprintf(folder, cap, "/tmp/maxc_locale_XXXXXX");
    if (!mkdtemp(folder))
        return false;
    char command[512];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1",
             folder);
    int rc = system(command);
    setenv("LOCPATH", folder, 1);
    return rc == 0 && setlocale(LC_ALL, "de_DE.UTF-8");
}

MX_TEST(key_numbers_do_not_depend_on_the_locale)
{
    char folder[64] = "", command[128];
    if (use_comma_locale(folder, sizeof folder)) {
        char shown[16];
        snprintf(shown, sizeof shown, "%.1f", 0.5);
        MX_CHECK(strcmp(shown, "0,5") == 0, "the locale writes %s", shown);
    } else {
        printf("    no comma-decimal locale here: only the C locale was checked\n");
    }
    becomes(&k_float, "0.25", "0.25");
    becomes(&k_float, "1", "1.0");
    becomes(&k_float, "3e-05", "3e-05");
    refused(&k_float, "0,25", "found `0,25`");
    if (*folder) {
        snprintf(command, sizeof command, "rm -r %s", folder);
        MX_CHECK(system(command) == 0);
    }
}
