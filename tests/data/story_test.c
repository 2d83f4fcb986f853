/* story_test.c - the built-in corpus is a pure function of (seed, index); its sums are right. */
#include "../test.h"

#include "data/formats/story.h"
#include <stdio.h>
#include <string.h>

MX_TEST(story_is_pure_and_varied)
{
    mx_str a = {0}, b = {0}, c = {0};
    int same = 0;
    for (uint64_t i = 0; i < 500; i++) {
        mx_str_clear(&a), mx_str_clear(&b), mx_str_clear(&c);
        mx_story_write(&a, 7, i * 1000003);
        mx_story_write(&b, 7, i * 1000003);
        mx_story_write(&c, 8, i * 1000003);
        MX_CHECK(strcmp(mx_str_text(&a), mx_str_text(&b)) == 0, "document %d differs", (int)i);
        same += strcmp(mx_str_text(&a), mx_str_text(&c)) == 0;
        MX_CHECK(a.len >= 40 && a.len < 1000 && a.text[a.len - 1] == '\n', "length %zu", a.len);
        for (size_t j = 0; j < a.len; j++)
            MX_CHECK((a.text[j] >= ' ' && a.text[j] < 127) || a.text[j] == '\n', "%d", a.text[j]);
    }
    MX_CHECK(same == 0, "%d documents do not depend on the seed", same);
    mx_str_fini(&a), mx_str_fini(&b), mx_str_fini(&c);
}

MX_TEST(story_sums_are_right)
{
    mx_str s = {0};
    int n_sums = 0, n_stories = 0;
    for (uint64_t i = 0; i < 400; i++) {
        mx_str_clear(&s);
        mx_story_write(&s, 1, i);
        int x, y, z, stories = 0;
        char op;
        for (const char *line = s.text; *line; line = strchr(line, '\n') + 1) {
            if (sscanf(line, "%d %c %d = %d", &x, &op, &y, &z) != 4) {
                stories = 1;
                continue;
            }
            n_sums++;
            MX_CHECK(z == (op == '+' ? x + y : x - y), "%d %c %d = %d", x, op, y, z);
        }
        n_stories += stories;
    }
    MX_CHECK(n_sums > 300 && n_stories > 200, "%d sums, %d stories", n_sums, n_stories);
    mx_str_fini(&s);
}
