/* key_accept.c - see key_accept.h; the grammar is in key.h. */
#include "base/key_accept.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* One alternative, cut out of the column. */
typedef struct {
    char text[256];
    bool planned;
} alternative;

/* Takes the next alternative of "a|!b|c"; false at the end. The empty word counts. */
static bool next(const char **s, alternative *a)
{
    if (!*s)
        return false;
    a->planned = **s == '!';
    const char *from = *s + a->planned;
    size_t n = strcspn(from, "|");
    MX_ASSERT(n < sizeof a->text, "an alternative of %zu characters in `%s`", n, from);
    memcpy(a->text, from, n);
    a->text[n] = 0;
    *s = from[n] ? from + n + 1 : NULL;
    return true;
}

static mx_accept verdict(const alternative *a)
{
    return a->planned ? MX_ACCEPT_PLANNED : MX_ACCEPT_YES;
}

/* ---- numbers ---- */

static double number(const char *text)
{
    double v = 0;
    MX_ASSERT(mx_parse_f64(text, &v), "`%s` is not a number", text);
    return v;
}

/* One alternative: `3`, `1..`, `..8`, `0..1`, `>0`. */
static bool in_interval(char *word, double v)
{
    if (word[0] == '>')
        return v > number(word + 1);
    char *dots = strstr(word, "..");
    if (!dots)
        return v == number(word);
    *dots = 0;
    return (!*word || v >= number(word)) && (!dots[2] || v <= number(dots + 2));
}

mx_accept mx_accept_number(const mx_key *key, double v)
{
    if (!isfinite(v))
        return MX_ACCEPT_NO;
    if (!key->accept)
        return MX_ACCEPT_YES;
    alternative a;
    for (const char *rest = key->accept; next(&rest, &a);)
        if (in_interval(a.text, v))
            return verdict(&a);
    return MX_ACCEPT_NO;
}

static void describe_interval(char *word, mx_str *out)
{
    char *dots = strstr(word, "..");
    if (word[0] == '>') {
        mx_str_addf(out, "above %s", word + 1);
    } else if (!dots) {
        mx_str_add(out, word);
    } else {
        *dots = 0;
        if (!*word)
            mx_str_addf(out, "at most %s", dots + 2);
        else if (!dots[2])
            mx_str_addf(out, "at least %s", word);
        else
            mx_str_addf(out, "%s to %s", word, dots + 2);
    }
}

/* ---- words ---- */

/* Walks the spellings of a word: itself, then those after `=` (accepted) and `~` (offered). */
static bool next_spelling(const char **s, char word[MX_ACCEPT_WORD], char *mark)
{
    if (!*s)
        return false;
    *mark = **s == '=' || **s == '~' ? **s : ' ';
    const char *from = *s + (*mark != ' ');
    size_t n = strcspn(from, "=~");
    MX_ASSERT(n < MX_ACCEPT_WORD, "a word of %zu characters in `%s`", n, from);
    memcpy(word, from, n);
    word[n] = 0;
    *s = from[n] ? from + n : NULL;
    return true;
}

mx_accept mx_accept_word(const mx_key *key, const char *text, char word[MX_ACCEPT_WORD])
{
    alternative a;
    char spelling[MX_ACCEPT_WORD], mark;
    for (const char *rest = key->accept; next(&rest, &a);)
        for (const char *s = a.text; next_spelling(&s, spelling, &mark);) {
            if (mark == ' ')
                memcpy(word, spelling, sizeof spelling);
            if (mark != '~' && strcmp(spelling, text) == 0)
                return verdict(&a);
        }
    return MX_ACCEPT_NO;
}

bool mx_accept_nearest(const mx_key *key, const char *text, char word[MX_ACCEPT_WORD])
{
    alternative a;
    int best = INT_MAX;
    char spelling[MX_ACCEPT_WORD], main_word[MX_ACCEPT_WORD] = "", mark;
    for (const char *rest = key->accept; next(&rest, &a);)
        for (const char *s = a.text; next_spelling(&s, spelling, &mark);) {
            if (mark == ' ')
                memcpy(main_word, spelling, sizeof spelling);
            int d = mx_edit_distance(text, spelling);
            if (d < best && *spelling) {
                best = d;
                memcpy(word, main_word, sizeof main_word);
            }
        }
    return mx_is_near(text, best);
}

/* ---- both ---- */

bool mx_accept_has_planned(const mx_key *key)
{
    alternative a;
    for (const char *rest = key->accept; next(&rest, &a);)
        if (a.planned)
            return true;
    return false;
}

void mx_accept_describe(const mx_key *key, bool planned, mx_str *out)
{
    alternative a;
    bool words = key->type == MX_KEY_ENUM;
    const char *separator = "";
    for (const char *rest = key->accept; next(&rest, &a);) {
        if (a.planned != planned)
            continue;
        mx_str_add(out, separator);
        separator = words ? ", " : " or ";
        a.text[words ? strcspn(a.text, "=~") : strlen(a.text)] = 0;
        if (!words)
            describe_interval(a.text, out);
        else
            mx_str_add(out, *a.text ? a.text : "\"\" (none)");
    }
}
