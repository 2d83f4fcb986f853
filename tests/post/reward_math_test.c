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
        /* units, names, words */
        {"\\boxed{5\\text{ cm}}", "5"}, {"12 \\mathrm{km/h}", "12"}, {"3 square metres", "3"},
        {"10\\text{ cm}^{2}", "10"}, {"\\$20,\\!000", "20000"}, {"Yes", "yes"},
        {"\\text{No solution}", "no solution"}, {"f(x) = x^2", "x^2"},
        {"\\angle A = 30^\\circ", "30"}, {"x \\approx 3.14", "3.14"},
        {"50\\%", "0.5"}, {"0.25", "25%"},
        /* sets, lists */
        {"2, 1", "1,2"}, {"\\{3,2,1\\}", "\\{1, 2, 3\\}"}, {"\\pm 2", "2, -2"},
        {"-2\\pm\\sqrt3", "-2-\\sqrt3, -2+\\sqrt3"}, {"x = 1 \\text{ or } x = 2", "1,2"},
        {"2 and 3", "2,3"}, {"\\emptyset", "\\{\\}"}, {"\\{1\\}\\cup\\{2\\}", "\\{1,2\\}"},
        {"(3,4)\\cup(1,2)", "(1,2)\\cup(3,4)"}, {"(3,4),(1,2)", "(1,2),(3,4)"},
        /* inequalities, equations, matrices */
        {"3 \\le x", "x \\ge 3"}, {"2x < 6", "x<3"}, {"1 < x \\leq 3", "(1,3]"},
        {"x > 3", "x \\in (3, \\infty)"}, {"\\mathbb{R}", "(-\\infty,\\infty)"},
        {"y - 3 = 2x", "y=2x+3"}, {"x^2+y^2=1", "y^2+x^2=1"},
        {"\\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}",
         "\\begin{pmatrix}1&\\frac42\\\\3&4\\end{pmatrix}"},
        /* values */
        {"3\\frac{1}{2}", "3.5"}, {"-1\\frac12", "-1.5"}, {"3 1/2", "3.5"}, {"5!", "120"},
        {"\\binom{5}{2}", "10"}, {"{4 \\choose 2}", "6"}, {"\\log_2 8", "3"}, {"\\ln e", "1"},
        {"\\sin^2 x + \\cos^2 x", "1"}, {"\\cos 2x", "2\\cos^2 x - 1"},
        {"\\sin^{-1}(1)", "\\frac{\\pi}{2}"}, {"\\tan 45^\\circ", "1"},
        {"2\\theta", "\\theta + \\theta"}, {"x_2 + x_1", "x_1+x_2"},
        {"\\lfloor 2.5 \\rfloor", "2"}, {"(1+i)^2", "2i"}, {"\\sqrt{-4}", "2i"},
        {"1.2 \\times 10^{3}", "1200"}, {"{1 + \\sqrt{5} \\over 2}", "\\frac{1+\\sqrt5}{2}"},
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
        {"1000001", "1000000"},    {"3.14159", "\\pi"}, {"0.333", "1/3"},
        {"x < 3", "x \\le 3"},     {"x > 3", "x < 3"},  {"x = 5", "y = 5"},
        {"(2,1)", "(1,2)"},        {"[2,1]", "[1,2]"},  {"\\sqrt{x^2}", "x"},
        {"31/2", "3 1/2"},         {"1,2", "1,2,3"},    {"\\{\\}", "0"},
        {"\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"},
        {"\\begin{pmatrix}1", "\\begin{pmatrix}1\\end{pmatrix}"}, {"2^{99999}", "\\infty"},
        {"<", "<1"}, {"=", "1"}, {",", "1"}, {"<<<<", "1<2"}, {"\\frac", "1"},
        {"1\\pm", "1"}, {"\\text{", "a"}, {"\\cup", "1"},
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
