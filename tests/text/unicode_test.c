/* unicode_test.c - the class table against utf8proc, character by character; normal forms. */
#include "../test.h"

#include "text/tokenizer/unicode.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static unsigned expected(uint32_t cp)
{
    const char *c = utf8proc_category_string((utf8proc_int32_t)cp);
    unsigned m = c[0] == 'L'   ? MX_UC_L
                 : c[0] == 'N' ? MX_UC_N
                 : c[0] == 'M' ? MX_UC_M
                 : c[0] == 'P' ? MX_UC_P
                 : c[0] == 'S' ? MX_UC_S
                               : 0;
    if (c[0] == 'M' || (c[0] == 'L' && c[1] != 'l'))
        m |= MX_UC_UPPER;
    if (c[0] == 'M' || (c[0] == 'L' && c[1] != 'u' && c[1] != 't'))
        m |= MX_UC_LOWER;
    bool space = c[0] == 'Z' || (cp >= 9 && cp <= 13) || cp == 0x85;
    return space ? m | MX_UC_SPACE : m;
}

MX_TEST(unicode_classes_follow_the_categories)
{
    mx_arena a = {0};
    mx_unicode u = {0};
    mx_unicode_init(&u, &a);
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        unsigned want = expected(cp), got = mx_uc_class(&u, cp);
        /* Characters newer than the library may have a class where it has none. */
        bool newer = utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_CN;
        MX_CHECK(got == want || newer, "U+%04X: %u, expected %u", cp, got, want);
    }
    MX_CHECK(mx_uc_class(&u, 0x2EBF0) == (MX_UC_L | MX_UC_UPPER | MX_UC_LOWER), "CJK extension I");
    MX_CHECK(mx_uc_class(&u, 0x180E) == 0, "U+180E is no white space");
    MX_CHECK(mx_uc_is_word(&u, '_') && mx_uc_is_word(&u, 0x200D) && !mx_uc_is_word(&u, 0xB2) &&
                 !mx_uc_is_word(&u, '-'),
             "word characters");
    mx_arena_fini(&a);
}

static void check_form(mx_normal_form form, const char *in, const char *want)
{
    mx_str out = {0};
    mx_unicode_normalize(form, (const uint8_t *)in, strlen(in), &out);
    MX_CHECK(strcmp(mx_str_text(&out), want) == 0, "\"%s\" gave \"%s\"", in, mx_str_text(&out));
    mx_str_fini(&out);
}

MX_TEST(unicode_normal_forms)
{
    check_form(MX_NFC, "e\xCC\x81 abc", "\xC3\xA9 abc");
    check_form(MX_NFC, "abce\xCC\x81", "abc\xC3\xA9");
    check_form(MX_NFD, "x\xC3\xA9", "xe\xCC\x81");
    check_form(MX_NFKC, "\xEF\xAC\x81\xE2\x91\xA0", "fi1");
    check_form(MX_NFKD, "\xC2\xBD",
               "1\xE2\x81\x84"
               "2");
    check_form(MX_NFC, "a\xCC\x81\xCC\xA3", "\xE1\xBA\xA1\xCC\x81"); /* the dot below comes first */
    check_form(MX_NFC, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81");
}

/* utf8proc's own result, which is quadratic in runs of marks, on random short texts. */
MX_TEST(unicode_normal_forms_equal_utf8proc)
{
    static const utf8proc_int32_t pool[] = {'a',    'e',    ' ',    0xC9,   0x301,  0x300,
                                            0x323,  0x327,  0x342,  0x345,  0x1100, 0x1161,
                                            0x11A8, 0xAC00, 0xFB01, 0x1E9B, 0x3099, 0x304B};
    static const int option[] = {UTF8PROC_COMPOSE, UTF8PROC_DECOMPOSE,
                                 UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                 UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
    uint64_t x = 1;
    for (int i = 0; i < 20000; i++) {
        uint8_t text[64];
        size_t n = 0;
        for (int k = 0; k < 12; k++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            n += (size_t)mx_utf8_encode((uint32_t)pool[(x >> 33) % (sizeof pool / sizeof *pool)],
                                        text + n);
        }
        int form = (int)(x >> 60) & 3;
        utf8proc_uint8_t *want = NULL;
        utf8proc_ssize_t m = utf8proc_map(text, (utf8proc_ssize_t)n, &want,
                                          (utf8proc_option_t)(UTF8PROC_STABLE | option[form]));
        mx_str got = {0};
        mx_unicode_normalize((mx_normal_form)form, text, n, &got);
        MX_CHECK(m == (utf8proc_ssize_t)got.len && memcmp(want, got.text, got.len) == 0,
                 "form %d, text %d", form, i);
        mx_str_fini(&got);
        free(want);
    }
}
