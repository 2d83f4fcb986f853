/* unicode.c - building the class table; normal forms with linear canonical ordering.
 *
 * utf8proc does the decomposition of one character and the composition of a buffer. Its own
 * canonical ordering is an insertion sort, quadratic on a long run of marks, so ordering is done
 * here by a stable counting sort per run. ASCII followed by ASCII never changes and is copied.
 */
#include "text/tokenizer/unicode.h"

#include <string.h>
#include <utf8proc.h>

static unsigned class_of_category(int cat)
{
    switch (cat) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
        return MX_UC_L | MX_UC_UPPER;
    case UTF8PROC_CATEGORY_LL:
        return MX_UC_L | MX_UC_LOWER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return MX_UC_L | MX_UC_UPPER | MX_UC_LOWER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return MX_UC_M | MX_UC_UPPER | MX_UC_LOWER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return MX_UC_N;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return MX_UC_P;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
        return MX_UC_S;
    default:
        return 0;
    }
}

/* Characters of Unicode 15.1 and 16, which the reference libraries know and utf8proc 2.8 does not.
 * The category stands for its group (any mark, any number...). */
enum {
    LU = UTF8PROC_CATEGORY_LU,
    LL = UTF8PROC_CATEGORY_LL,
    LM = UTF8PROC_CATEGORY_LM,
    LO = UTF8PROC_CATEGORY_LO,
    MN = UTF8PROC_CATEGORY_MN,
    NO = UTF8PROC_CATEGORY_NO,
    PO = UTF8PROC_CATEGORY_PO,
    SO = UTF8PROC_CATEGORY_SO,
};

static const struct {
    uint32_t first, last;
    int category;
} later[] = {
    {0x897, 0x897, MN},     {0x1B4E, 0x1B4F, PO},   {0x1B7F, 0x1B7F, PO},   {0x1C89, 0x1C89, LU},
    {0x1C8A, 0x1C8A, LL},   {0x2427, 0x2429, SO},   {0x2FFC, 0x2FFF, SO},   {0x31E4, 0x31E5, SO},
    {0x31EF, 0x31EF, SO},   {0xA7CB, 0xA7CC, LU},   {0xA7CD, 0xA7CD, LL},   {0xA7DA, 0xA7DA, LU},
    {0xA7DB, 0xA7DB, LL},   {0xA7DC, 0xA7DC, LU},   {0x105C0, 0x105F3, LO}, {0x10D40, 0x10D49, NO},
    {0x10D4A, 0x10D4D, LO}, {0x10D4E, 0x10D4E, LM}, {0x10D4F, 0x10D4F, LO}, {0x10D50, 0x10D65, LU},
    {0x10D69, 0x10D6D, MN}, {0x10D6E, 0x10D6E, PO}, {0x10D6F, 0x10D6F, LM}, {0x10D70, 0x10D85, LL},
    {0x10D8E, 0x10D8F, SO}, {0x10EC2, 0x10EC4, LO}, {0x10EFC, 0x10EFC, MN}, {0x11380, 0x11389, LO},
    {0x1138B, 0x1138B, LO}, {0x1138E, 0x1138E, LO}, {0x11390, 0x113B5, LO}, {0x113B7, 0x113B7, LO},
    {0x113B8, 0x113C0, MN}, {0x113C2, 0x113C2, MN}, {0x113C5, 0x113C5, MN}, {0x113C7, 0x113CA, MN},
    {0x113CC, 0x113D0, MN}, {0x113D1, 0x113D1, LO}, {0x113D2, 0x113D2, MN}, {0x113D3, 0x113D3, LO},
    {0x113D4, 0x113D5, PO}, {0x113D7, 0x113D8, PO}, {0x113E1, 0x113E2, MN}, {0x116D0, 0x116E3, NO},
    {0x11BC0, 0x11BE0, LO}, {0x11BE1, 0x11BE1, PO}, {0x11BF0, 0x11BF9, NO}, {0x11F5A, 0x11F5A, MN},
    {0x13460, 0x143FA, LO}, {0x16100, 0x1611D, LO}, {0x1611E, 0x1612F, MN}, {0x16130, 0x16139, NO},
    {0x16D40, 0x16D42, LM}, {0x16D43, 0x16D6A, LO}, {0x16D6B, 0x16D6C, LM}, {0x16D6D, 0x16D6F, PO},
    {0x16D70, 0x16D79, NO}, {0x18CFF, 0x18CFF, LO}, {0x1CC00, 0x1CCEF, SO}, {0x1CCF0, 0x1CCF9, NO},
    {0x1CD00, 0x1CEB3, SO}, {0x1E5D0, 0x1E5ED, LO}, {0x1E5EE, 0x1E5EF, MN}, {0x1E5F0, 0x1E5F0, LO},
    {0x1E5F1, 0x1E5FA, NO}, {0x1E5FF, 0x1E5FF, PO}, {0x1F8B2, 0x1F8BB, SO}, {0x1F8C0, 0x1F8C1, SO},
    {0x1FA89, 0x1FA89, SO}, {0x1FA8F, 0x1FA8F, SO}, {0x1FABE, 0x1FABE, SO}, {0x1FAC6, 0x1FAC6, SO},
    {0x1FADC, 0x1FADC, SO}, {0x1FADF, 0x1FADF, SO}, {0x1FAE9, 0x1FAE9, SO}, {0x1FBCB, 0x1FBEF, SO},
    {0x2EBF0, 0x2EE5D, LO}};

/* Classes of the later characters of a page of 256. */
static void add_later(uint32_t page, uint8_t row[256])
{
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        uint32_t cp = later[i].first > page << 8 ? later[i].first : page << 8;
        for (; cp <= later[i].last && cp >> 8 == page; cp++)
            row[cp & 0xFF] = (uint8_t)class_of_category(later[i].category);
    }
}

static bool is_white_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == ' ' || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}

static unsigned class_of(uint32_t cp)
{
    unsigned c = class_of_category(utf8proc_category((utf8proc_int32_t)cp));
    return is_white_space(cp) ? c | MX_UC_SPACE : c;
}

/* Above U+3FFFF only the tags and variation selectors of plane 14 have a category of interest. */
static bool page_is_empty(uint32_t page)
{
    return page >= 0x400 && (page < 0xE00 || page > 0xE01);
}

/* Pages inside the large blocks whose characters are all alike, for a quicker start.
 */
static bool page_is_even(uint32_t page)
{
    return (page >= 0x34 && page <= 0x4C) || (page >= 0x4E && page <= 0x9F) ||
           (page >= 0xAC && page <= 0xD6) || (page >= 0xD8 && page <= 0xF8) ||
           (page >= 0x170 && page <= 0x186) || (page >= 0x200 && page <= 0x2A5) ||
           (page >= 0x2A8 && page <= 0x2B6) || (page >= 0x2B9 && page <= 0x2CD) ||
           (page >= 0x2CF && page <= 0x2EA) || (page >= 0x300 && page <= 0x312) || page >= 0x324;
}

void mx_unicode_init(mx_unicode *u, mx_arena *a)
{
    uint8_t row[256];
    u->row = (uint8_t(*)[256])mx_arena_alloc(a, (size_t)256 * 256);
    int n_rows = 1; /* row 0: nothing */
    for (uint32_t page = 0; page < 0x1100; page++) {
        if (page_is_empty(page))
            continue;
        bool even = page_is_even(page) && page < 0x400;
        memset(row, (int)class_of(page << 8), 256);
        for (uint32_t i = 0; i < 256 && !even; i++)
            row[i] = (uint8_t)class_of(page << 8 | i);
        add_later(page, row);
        int k = 0;
        while (k < n_rows && memcmp(u->row[k], row, 256) != 0)
            k++;
        MX_ASSERT(k < 256, "more than 256 distinct rows of character classes");
        if (k == n_rows)
            memcpy(u->row[n_rows++], row, 256);
        u->page[page] = (uint8_t)k;
    }
    for (uint32_t cp = 0; cp < 128; cp++)
        u->ascii[cp] = (uint8_t)class_of(cp);
}

bool mx_uc_is_word(const mx_unicode *u, uint32_t cp)
{
    if (mx_uc_class(u, cp) & (MX_UC_L | MX_UC_M))
        return true;
    if (cp == 0x200C || cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9) ||
        (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
        (cp >= 0x1F170 && cp <= 0x1F189))
        return true;
    int cat = utf8proc_category((utf8proc_int32_t)cp);
    return cat == UTF8PROC_CATEGORY_ND || cat == UTF8PROC_CATEGORY_NL ||
           cat == UTF8PROC_CATEGORY_PC;
}

typedef struct {
    utf8proc_int32_t *cp;
    size_t n, cap;
} points;

static int combining_class(utf8proc_int32_t cp)
{
    return cp < 0x300 ? 0 : utf8proc_get_property(cp)->combining_class;
}

static void push(points *v, utf8proc_int32_t cp)
{
    MX_GROW(v->cp, v->n, v->cap);
    v->cp[v->n++] = cp;
}

static void decompose(points *v, utf8proc_int32_t cp, utf8proc_option_t options)
{
    utf8proc_int32_t part[64];
    int boundary = 0;
    utf8proc_ssize_t k = utf8proc_decompose_char(cp, part, 64, options, &boundary);
    if (k < 1 || k > 64) {
        push(v, cp);
        return;
    }
    for (utf8proc_ssize_t i = 0; i < k; i++)
        push(v, part[i]);
}

/* Stable sort of v[from..to) by combining class; every one of them is non-zero. */
static void order_run(utf8proc_int32_t *v, size_t n, points *tmp)
{
    bool sorted = true;
    for (size_t i = 1; i < n && sorted; i++)
        sorted = combining_class(v[i - 1]) <= combining_class(v[i]);
    if (sorted)
        return;
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[combining_class(v[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        start[c + 1] += start[c];
    if (tmp->cap < n) {
        tmp->cap = n;
        tmp->cp = mx_realloc(tmp->cp, n * sizeof *tmp->cp);
    }
    for (size_t i = 0; i < n; i++)
        tmp->cp[start[combining_class(v[i])]++] = v[i];
    memcpy(v, tmp->cp, n * sizeof *v);
}

static void order(points *v, points *tmp)
{
    for (size_t i = 0; i < v->n; i++) {
        size_t j = i;
        while (j < v->n && combining_class(v->cp[j]))
            j++;
        if (j > i + 1)
            order_run(v->cp + i, j - i, tmp);
        if (j > i)
            i = j - 1;
    }
}

static void add_points(const points *v, mx_str *out)
{
    uint8_t buf[4];
    for (size_t i = 0; i < v->n; i++)
        mx_str_add_n(out, (char *)buf, (size_t)mx_utf8_encode((uint32_t)v->cp[i], buf));
}

/* The end of the ASCII run at p, less its last character (which a following mark may change). */
static const uint8_t *plain_end(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *q = p;
    while (end - q >= 8) {
        uint64_t w;
        memcpy(&w, q, 8);
        if (w & 0x8080808080808080u)
            break;
        q += 8;
    }
    while (q < end && *q < 0x80)
        q++;
    return q == end || q == p ? q : q - 1;
}

void mx_unicode_normalize(mx_normal_form form, const uint8_t *p, size_t n, mx_str *out)
{
    bool compose = form == MX_NFC || form == MX_NFKC;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (form == MX_NFKC || form == MX_NFKD)
        options |= UTF8PROC_COMPAT;
    points v = {0}, tmp = {0};
    const uint8_t *end = p + n;
    while (p < end) {
        const uint8_t *q = plain_end(p, end);
        mx_str_add_n(out, (const char *)p, (size_t)(q - p));
        p = q;
        v.n = 0;
        /* One stretch: from here to the next two ASCII characters in a row. */
        while (p < end && !(end - p >= 2 && v.n && p[0] < 0x80 && p[1] < 0x80)) {
            uint32_t cp;
            p += mx_utf8_next(p, &cp);
            decompose(&v, (utf8proc_int32_t)cp, options);
        }
        order(&v, &tmp);
        if (compose && v.n) {
            utf8proc_ssize_t k = utf8proc_normalize_utf32(v.cp, (utf8proc_ssize_t)v.n,
                                                          UTF8PROC_STABLE | UTF8PROC_COMPOSE);
            if (k >= 0)
                v.n = (size_t)k;
        }
        add_points(&v, out);
    }
    mx_free(v.cp);
    mx_free(tmp.cp);
}

void mx_unicode_lower(const uint8_t *p, size_t n, mx_str *out)
{
    const uint8_t *end = p + n;
    uint8_t buf[4];
    while (p < end) {
        uint32_t cp;
        p += mx_utf8_next(p, &cp);
        if (cp == 0x130) { /* the one character whose lowercase is two characters */
            mx_str_add(out, "i\xCC\x87");
            continue;
        }
        cp = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        mx_str_add_n(out, (char *)buf, (size_t)mx_utf8_encode(cp, buf));
    }
}
