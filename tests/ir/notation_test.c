/* notation_test.c - index notation: what parses, what does not, what shapes come out. */
#include "ir/notation.h"

#include "../test.h"
#include <string.h>

MX_TEST(notation_refuses_what_it_cannot_mean)
{
    static const char *const good[] = {"ab->ba", "*!d,!d->*!d", "*->", "->a", "-,a->-", "*a1->*a",
                                       " a b , c -> a c ", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p->q"};
    static const char *const bad[] = {"",      "ab",     "a->b->c", "a!->b", "!*a->a", "a*->a",
                                      "a->b!", "-a->a",  "a-->a",   "**->*", "a2->a",  "a->b;c",
                                      "abcdefg->a", "a!,b->a",
                                      "a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a->a"};
    mx_notation n;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        MX_CHECK(mx_notation_parse(good[i], &n), "\"%s\" is refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        MX_CHECK(!mx_notation_parse(bad[i], &n), "\"%s\" is accepted", bad[i]);
}

/* Parses and infers one output; gives its shape, or ndim -1. */
static mx_type infer(const char *text, mx_shape a, mx_shape b, char *why)
{
    mx_notation n;
    mx_type in[2] = {mx_type_of(MX_F32, a), mx_type_of(MX_F32, b)}, out = {.ndim = -1};
    MX_CHECK(mx_notation_parse(text, &n), "\"%s\" is refused", text);
    if (!mx_notation_infer(&n, (const mx_type *[]){&in[0], &in[1]}, n.n_in, &out, 1, why, 128))
        out.ndim = -1;
    return out;
}

MX_TEST(notation_gives_shapes)
{
    char why[128] = "";
    mx_type t = infer("*mk,kn->*mn", MX_SHAPE(5, 2, 3), MX_SHAPE(3, 4), why);
    MX_CHECK(t.ndim == 3 && t.dim[0] == 5 && t.dim[1] == 2 && t.dim[2] == 4, "%s", why);
    t = infer("*d,*d->*1", MX_SHAPE(5, 2), MX_SHAPE(5, 2), why);
    MX_CHECK(t.ndim == 2 && t.dim[0] == 5 && t.dim[1] == 1, "%s", why);
    t = infer("*d,*d->", MX_SHAPE(2), MX_SHAPE(2), why);
    MX_CHECK(t.ndim == 0, "%s", why);
    t = infer("mk,kn->mn", MX_SHAPE(0, 3), MX_SHAPE(3, 4), why);
    MX_CHECK(t.ndim == 2 && t.dim[0] == 0 && t.dim[1] == 4, "%s", why);
}

MX_TEST(notation_says_which_sizes_disagree)
{
    char why[128] = "";
    MX_CHECK(infer("mk,kn->mn", MX_SHAPE(2, 3), MX_SHAPE(5, 4), why).ndim == -1);
    MX_CHECK(strcmp(why, "input 1 has size 5 for 'k', expected 3") == 0, "%s", why);
    MX_CHECK(infer("mk,kn->mn", MX_SHAPE(2, 0), MX_SHAPE(5, 4), why).ndim == -1);
    MX_CHECK(strcmp(why, "input 1 has size 5 for 'k', expected 0") == 0, "%s", why);
    MX_CHECK(infer("mk,k1->m", MX_SHAPE(2, 3), MX_SHAPE(3, 4), why).ndim == -1);
    MX_CHECK(strcmp(why, "input 1 has size 4 for '1', expected 1") == 0, "%s", why);
    MX_CHECK(infer("*d,*d->*d", MX_SHAPE(2, 3), MX_SHAPE(4, 3), why).ndim == -1);
    MX_CHECK(strstr(why, "leading dims of input 1"), "%s", why);
    MX_CHECK(infer("mk,kn->mn", MX_SHAPE(2, 3, 4), MX_SHAPE(3, 4), why).ndim == -1);
    MX_CHECK(strcmp(why, "input 0 has 3 dims, expected 2") == 0, "%s", why);
}
