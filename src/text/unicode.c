/* unicode.c - building the class table; normal forms with linear canonical ordering.
 *
 * utf8proc does the decomposition of one character and the composition of a buffer. Its own
 * canonical ordering is an insertion sort, quadratic on a long run of marks, so ordering is done
 * here by a stable counting sort per run. ASCII followed by ASCII never changes and is copied.
 */
#include "text/unicode.h"

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

void mx_unicode_init(mx_unicode *u, mx_arena *a)
{
    uint8_t row[256];
    u->row = (uint8_t(*)[256])mx_arena_alloc(a, (size_t)256 * 256);
    int n_rows = 1; /* row 0: nothing */
    for (uint32_t page = 0; page < 0x1100; page++) {
        if (page_is_empty(page))
            continue;
        for (uint32_t i = 0; i < 256; i++)
            row[i] = (uint8_t)class_of(page << 8 | i);
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
