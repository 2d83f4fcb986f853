/* rewards_built_in.c - rewards that need no program: exact answers, numbers, format, length. */
#include "base/str.h"
#include "post/reward.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double exact(mx_reward_context *c, const mx_reward_input *j)
{
    char buf[64];
    const char *want = mx_reference_answer(j->record, buf, sizeof buf), *text;
    size_t n, w;
    (void)c;
    if (!want)
        return NAN;
    mx_extracted_answer(j, &text, &n);
    w = strlen(want);
    while (w && (unsigned char)want[w - 1] <= ' ')
        w--;
    while (w && (unsigned char)*want <= ' ')
        want++, w--;
    return n == w && memcmp(text, want, n) == 0;
}

/* The last number of a text; commas between digits are left out. False: there is none. */
static bool last_number(const char *text, size_t n, double *out)
{
    char digits[64];
    for (size_t i = n; i-- > 0;) {
        if (!isdigit((unsigned char)text[i]))
            continue;
        size_t from = i, k = 0;
        while (from > 0 && (isdigit((unsigned char)text[from - 1]) || text[from - 1] == '.' ||
                            text[from - 1] == ','))
            from--;
        bool minus = from > 0 && text[from - 1] == '-';
        for (size_t q = from; q <= i && k + 1 < sizeof digits; q++)
            if (text[q] != ',')
                digits[k++] = text[q];
        digits[k] = 0;
        *out = strtod(digits, NULL) * (minus ? -1 : 1);
        return true;
    }
    return false;
}

static double number(mx_reward_context *c, const mx_reward_input *j)
{
    char buf[64];
    const char *want = mx_reference_answer(j->record, buf, sizeof buf), *text;
    size_t n;
    double a, b;
    (void)c;
    if (!want || !last_number(want, strlen(want), &b))
        return NAN;
    mx_extracted_answer(j, &text, &n);
    return last_number(text, n, &a) && fabs(a - b) <= 1e-6 * fmax(1, fabs(b));
}

static double format(mx_reward_context *c, const mx_reward_input *j)
{
    size_t from, to;
    mx_regex_begin(c->scratch, mx_regex_seconds(j->n_answer));
    mx_regex_result found = mx_regex_next(c->pattern, c->scratch, (const uint8_t *)j->answer,
                                          j->n_answer, 0, &from, &to);
    return found == MX_REGEX_FOUND && from == 0 && to == j->n_answer;
}

static double length(mx_reward_context *c, const mx_reward_input *j)
{
    (void)c;
    return 1 - (double)j->tokens / (double)j->max_tokens;
}

static double json(mx_reward_context *c, const mx_reward_input *j)
{
    (void)c;
    json_t *v = json_loadb(j->answer, j->n_answer, JSON_REJECT_DUPLICATES, NULL);
    bool good = v != NULL;
    json_decref(v);
    return good;
}

static double ended(mx_reward_context *c, const mx_reward_input *j)
{
    (void)c;
    return !j->truncated;
}

const mx_reward mx_reward_exact = {
    .name = "exact",
    .doc = "1 where the answer (what <answer> holds, else all of it) is the record's",
    .score = exact,
};
const mx_reward mx_reward_number = {
    .name = "number",
    .doc = "1 where the answer's last number is the record's",
    .score = number,
};
const mx_reward mx_reward_format = {
    .name = "format",
    .doc = "1 where the whole answer matches reward_pattern",
    .score = format,
};
const mx_reward mx_reward_length = {
    .name = "length",
    .doc = "the share of max_completion_length that was not used",
    .score = length,
};
const mx_reward mx_reward_json = {
    .name = "json",
    .doc = "1 where the answer is a JSON object or array",
    .score = json,
};
const mx_reward mx_reward_ended = {
    .name = "ended",
    .doc = "1 where the answer ended before the limit",
    .score = ended,
};
