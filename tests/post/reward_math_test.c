/* reward_math_test.c - which answers are the same mathematics. */
#include "../test.h"
#include "post/reward.h"
#include <math.h>
#include <string.h>

extern const mx_reward mx_reward_math;

static double score(const char *answer, const char *wanted)
{
    json_t *record = json_pack("{s:s}", "answer", wanted);
    mx_reward_input j = {.prompt = "", .answer = answer, .n_answer = strlen(answer),
                         .record = record};
    double x = mx_reward_math.score(NULL, &j);
    json_decref(record);
    return x;
}

MX_TEST(reward_math_knows_equal_answers)
{
    static const struct {
        const char *answer, *wanted;
    } same[] = {
        {"so it is \\boxed{\\frac{1}{2}}.", "0.5"},
        {"first \\boxed{3}, no: \\boxed{4}", "4"},
        {"<answer> $\\dfrac12$ </answer>", "\\frac{2}{4}"},
        {"\\boxed{2\\sqrt{3}}", "\\sqrt{12}"},
        {"(x+1)^2", "x^2+2x+1"},
        {"1,234", "1234"},
        {"12{,}000", "12000"},
        {"x = -3", "-3"},
        {"\\left(1, \\frac{1}{4}\\right]", "(1,0.25]"},
        {"3,\\,4", "3, 4"},
        {"\\text{east}", "\\text{east}"},
        {"50\\%", "50"},
        {"2^{-1}", "0.5"},
        {"90^\\circ", "90"},
        {"\\sqrt[3]{8}", "2"},
        {"\\frac{\\pi}{2}", "\\pi/2"},
        {"-|{-2}|", "-2"},
        {"the rest of it", "the rest of it"},
        {"7", "He has 3 + 4 of them.\n#### 7"},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        MX_CHECK(score(same[i].answer, same[i].wanted) == 1, "%s is not %s", same[i].answer,
                 same[i].wanted);
}

MX_TEST(reward_math_knows_other_answers)
{
    static const struct {
        const char *answer, *wanted;
    } other[] = {
        {"\\boxed{3}", "4"},       {"", "4"},           {"(1,2)", "(1,2]"},
        {"(1,2)", "(1,2,3)"},      {"x", "y"},          {"(x+1)^2", "x^2+1"},
        {"1/0", "1/0+1"},          {"\\frac{1}", "1"},  {"((((((", "1"},
        {"\\boxed{4", "\\boxed{4}"}, {"4 or 5", "4"},   {"\\unknown{3}", "3"},
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        MX_CHECK(score(other[i].answer, other[i].wanted) == 0, "%s is %s", other[i].answer,
                 other[i].wanted);
    char deep[2000];
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    MX_CHECK(score(deep, "1") == 0, "a long text");
    deep[500] = 0;
    MX_CHECK(score(deep, "1") == 0, "deep brackets");
    json_t *none = json_object();
    mx_reward_input j = {.prompt = "", .answer = "1", .n_answer = 1, .record = none};
    MX_CHECK(isnan(mx_reward_math.score(NULL, &j)), "without a reference there is nothing to say");
    json_decref(none);
}
