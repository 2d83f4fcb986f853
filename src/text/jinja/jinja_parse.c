/* jinja_parse.c - statements: {{ }}, if, for, set, macro, call, filter, with, break, continue,
 * generation.
 *
 * A statement that opens a block is parsed until one of the words that may follow it; the error for
 * a missing end names the line where the block was opened. Tags of Jinja that load other templates
 * (extends, include, import, block) are refused: a chat template is one text.
 */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <string.h>

static mx_status body(mx_jparser *p, const char *opener, int line, const char *ends,
                      mx_jnodes *out);

static mx_status block_end(mx_jparser *p)
{
    if (p->tok->kind != MX_T_BLOCK_END)
        return mx_jinja_syntax(p, "%} at the end of the tag");
    p->tok++;
    return MX_OK;
}

/* --- targets of set, for and with --- */
static bool is_target(const mx_jnode *n)
{
    if (n->kind == MX_J_TUPLE || n->kind == MX_J_LIST) {
        for (int i = 0; i < n->items.n; i++)
            if (!is_target(n->items.v[i]))
                return false;
        return n->items.n > 0;
    }
    return n->kind == MX_J_NAME || (n->kind == MX_J_GETATTR && n->a->kind == MX_J_NAME);
}

static mx_status target(mx_jparser *p, const char *stop, const mx_jnode **out)
{
    const mx_jtoken *first = p->tok;
    if (first->kind == MX_T_NAME && first[1].kind == MX_T_OP && first[1].op == '.' &&
        first[2].kind == MX_T_NAME) {
        mx_jnode *n = mx_jinja_node(p, MX_J_GETATTR), *ns = mx_jinja_node(p, MX_J_NAME);
        ns->name = first->p;
        n->a = ns;
        n->name = first[2].p;
        p->tok += 3;
        *out = n;
        return MX_OK;
    }
    MX_TRY(mx_jinja_tuple(p, (mx_jtuple_rules){.simple = true, .stop = stop}, out));
    if (is_target(*out))
        return MX_OK;
    p->tok = first;
    return mx_jinja_syntax(p, "a name to assign to");
}

/* --- statements --- */
static mx_status if_statement(mx_jparser *p, mx_jnode *n)
{
    mx_jnodes *bodies = NULL;
    int cap = 0;
    const char *word = "if";
    for (;;) {
        const mx_jnode *condition;
        MX_TRY(mx_jinja_tuple(p, (mx_jtuple_rules){.no_cond = true}, &condition));
        if (n->items.n == cap) {
            mx_jnodes *more = MX_NEW_N(&p->t->arena, mx_jnodes, cap = 2 * cap + 2);
            if (bodies)
                memcpy(more, bodies, sizeof *more * (size_t)n->items.n);
            bodies = more;
        }
        mx_jnodes *here = &bodies[n->items.n];
        mx_jinja_push(p, &n->items, condition);
        n->bodies = bodies;
        MX_TRY(block_end(p));
        MX_TRY(body(p, word, n->line, " elif else endif ", here));
        if (!mx_jinja_take_word(p, "elif"))
            break;
        word = "elif";
    }
    if (mx_jinja_take_word(p, "else")) {
        MX_TRY(block_end(p));
        MX_TRY(body(p, "else", n->line, " endif ", &n->other));
    }
    p->tok++;
    return block_end(p);
}

static mx_status for_statement(mx_jparser *p, mx_jnode *n)
{
    MX_TRY(target(p, "in", &n->a));
    if (!mx_jinja_take_word(p, "in"))
        return mx_jinja_syntax(p, "'in' after the names of a for");
    MX_TRY(mx_jinja_tuple(p, (mx_jtuple_rules){.no_cond = true, .stop = "recursive"}, &n->b));
    if (mx_jinja_take_word(p, "if"))
        MX_TRY(mx_jinja_expr(p, &n->c));
    n->recursive = mx_jinja_take_word(p, "recursive");
    MX_TRY(block_end(p));
    p->n_loops++;
    MX_TRY(body(p, "for", n->line, " else endfor ", &n->body));
    p->n_loops--;
    if (mx_jinja_take_word(p, "else")) {
        MX_TRY(block_end(p));
        MX_TRY(body(p, "else", n->line, " endfor ", &n->other));
    }
    p->tok++;
    return block_end(p);
}

static mx_status set_statement(mx_jparser *p, mx_jnode *n)
{
    MX_TRY(target(p, NULL, &n->a));
    if (mx_jinja_take_op(p, '=')) {
        MX_TRY(mx_jinja_tuple(p, (mx_jtuple_rules){0}, &n->b));
        return block_end(p);
    }
    n->kind = MX_J_SETBLOCK;
    MX_TRY(mx_jinja_filters(p, NULL, &n->b));
    MX_TRY(block_end(p));
    MX_TRY(body(p, "set", n->line, " endset ", &n->body));
    p->tok++;
    return block_end(p);
}

/* (a, b=1, ...) of a macro or call; absent for a plain {% call %}. */
static mx_status signature(mx_jparser *p, mx_jnode *n)
{
    if (!mx_jinja_take_op(p, '('))
        return n->kind == MX_J_CALLBLOCK ? MX_OK
                                         : mx_jinja_syntax(p, "'(' after the name of a macro");
    enum { MAX = 64 };
    const char **names = MX_NEW_N(&p->t->arena, const char *, MAX);
    while (!mx_jinja_is_op(p, ')')) {
        if (p->tok->kind != MX_T_NAME)
            return mx_jinja_syntax(p, "the name of a parameter");
        if (n->n_params == MAX)
            return mx_jinja_syntax(p, "at most 64 parameters");
        names[n->n_params++] = p->tok++->p;
        if (mx_jinja_take_op(p, '=')) {
            const mx_jnode *v;
            MX_TRY(mx_jinja_expr(p, &v));
            mx_jinja_push(p, &n->kw, v);
        } else if (n->kw.n) {
            return mx_jinja_syntax(p, "a default, as the parameter before has one");
        }
        if (!mx_jinja_take_op(p, ',') && !mx_jinja_is_op(p, ')'))
            return mx_jinja_syntax(p, "',' or ')' in a list of parameters");
    }
    p->tok++;
    n->kw_name = names;
    return MX_OK;
}

static mx_status macro_body(mx_jparser *p, mx_jnode *n, const char *word, const char *ends)
{
    mx_jnode *outer = p->macro;
    int loops = p->n_loops;
    p->macro = n;
    p->n_loops = 0; /* break does not reach through a macro */
    MX_TRY(block_end(p));
    MX_TRY(body(p, word, n->line, ends, &n->body));
    p->macro = outer;
    p->n_loops = loops;
    /* what a nested block uses, the macro around it must provide */
    if (outer && n->kind != MX_J_MACRO) {
        outer->uses_caller |= n->uses_caller;
        outer->uses_varargs |= n->uses_varargs;
        outer->uses_kwargs |= n->uses_kwargs;
    }
    p->tok++;
    return block_end(p);
}

static mx_status macro_statement(mx_jparser *p, mx_jnode *n)
{
    if (p->tok->kind != MX_T_NAME)
        return mx_jinja_syntax(p, "the name of a macro");
    n->name = p->tok++->p;
    MX_TRY(signature(p, n));
    return macro_body(p, n, "macro", " endmacro ");
}

static mx_status call_statement(mx_jparser *p, mx_jnode *n)
{
    n->name = "caller";
    MX_TRY(signature(p, n));
    MX_TRY(mx_jinja_expr(p, &n->a));
    if (n->a->kind != MX_J_CALL)
        return mx_jinja_syntax(p, "a call of a macro in {% call %}");
    return macro_body(p, n, "call", " endcall ");
}

static mx_status generation_statement(mx_jparser *p, mx_jnode *n)
{
    p->t->has_generation = true;
    int loops = p->n_loops;
    p->n_loops = 0;
    MX_TRY(block_end(p));
    MX_TRY(body(p, "generation", n->line, " endgeneration ", &n->body));
    p->n_loops = loops;
    p->tok++;
    return block_end(p);
}

static mx_status filter_statement(mx_jparser *p, mx_jnode *n)
{
    /* the first name has no bar before it, as in {% filter trim | upper %} */
    mx_jnode *f = mx_jinja_node(p, MX_J_FILTER);
    if (p->tok->kind != MX_T_NAME)
        return mx_jinja_syntax(p, "the name of a filter");
    f->name = p->tok->p;
    f->fn = mx_jfilter_find(f->name);
    p->tok++;
    n->b = f;
    if (mx_jinja_is_op(p, '('))
        return mx_jinja_syntax(
            p, "a filter without arguments in {% filter %}; use {% set x | f(...) %}");
    MX_TRY(mx_jinja_filters(p, f, &n->b));
    MX_TRY(block_end(p));
    MX_TRY(body(p, "filter", n->line, " endfilter ", &n->body));
    p->tok++;
    return block_end(p);
}

static mx_status with_statement(mx_jparser *p, mx_jnode *n)
{
    while (p->tok->kind != MX_T_BLOCK_END) {
        const mx_jnode *part;
        if (n->items.n && !mx_jinja_take_op(p, ','))
            return mx_jinja_syntax(p, "',' between the names of {% with %}");
        if (p->tok->kind != MX_T_NAME)
            return mx_jinja_syntax(p, "a name in {% with %}");
        MX_TRY(mx_jinja_unary(p, false, &part));
        if (part->kind != MX_J_NAME || !mx_jinja_take_op(p, '='))
            return mx_jinja_syntax(p, "name = value in {% with %}");
        mx_jinja_push(p, &n->items, part);
        MX_TRY(mx_jinja_expr(p, &part));
        mx_jinja_push(p, &n->items, part);
    }
    MX_TRY(block_end(p));
    MX_TRY(body(p, "with", n->line, " endwith ", &n->body));
    p->tok++;
    return block_end(p);
}

static mx_status jump(mx_jparser *p, mx_jnode *n)
{
    if (!p->n_loops)
        return mx_fail(MX_INPUT, "chat template line %d: '%s' stands outside any loop", n->line,
                       n->kind == MX_J_BREAK ? "break" : "continue");
    return block_end(p);
}

static mx_status print_statement(mx_jparser *p, mx_jnode *n)
{
    MX_TRY(mx_jinja_tuple(p, (mx_jtuple_rules){0}, &n->a));
    return block_end(p);
}

static const struct {
    const char *word;
    mx_jkind kind;
    mx_status (*parse)(mx_jparser *p, mx_jnode *n);
} statements[] = {
    {"if", MX_J_IF, if_statement},
    {"for", MX_J_FOR, for_statement},
    {"set", MX_J_SET, set_statement},
    {"macro", MX_J_MACRO, macro_statement},
    {"call", MX_J_CALLBLOCK, call_statement},
    {"filter", MX_J_FILTERBLOCK, filter_statement},
    {"with", MX_J_WITH, with_statement},
    {"break", MX_J_BREAK, jump},
    {"continue", MX_J_CONTINUE, jump},
    {"generation", MX_J_GENERATION, generation_statement},
    {"print", MX_J_OUTPUT, print_statement},
};

static mx_status statement(mx_jparser *p, mx_jnodes *out)
{
    if (p->tok->kind != MX_T_NAME)
        return mx_jinja_syntax(p, "the name of a tag after {%");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (mx_jinja_is_word(p, statements[i].word)) {
            mx_jnode *n = mx_jinja_node(p, statements[i].kind);
            p->tok++;
            MX_TRY(mx_jinja_enter(p));
            MX_TRY(statements[i].parse(p, n));
            p->depth--;
            mx_jinja_push(p, out, n);
            return MX_OK;
        }
    const char *word = p->tok->p;
    if (mx_starts_with(word, "end") || strcmp(word, "else") == 0 || strcmp(word, "elif") == 0)
        return mx_fail(MX_INPUT,
                       "chat template line %d: {%% %.40s %%} closes nothing that is open here",
                       p->tok->line, word);
    return mx_fail(MX_INPUT,
                   "chat template line %d: unknown tag {%% %.40s %%}; known are if, for, set, "
                   "macro, call, filter, with, break, continue, generation and raw",
                   p->tok->line, word);
}

static void data(mx_jparser *p, mx_jnodes *out)
{
    mx_jnode *n = mx_jinja_node(p, MX_J_DATA);
    n->value = mx_jv_borrow(&p->t->arena, p->tok->p, p->tok->n);
    p->tok++;
    mx_jinja_push(p, out, n);
}

/* Statements until a tag whose word is in `ends` (" a b "); the parser then stands on the word.
 * With `ends` NULL, until the end of the template. */
static mx_status body(mx_jparser *p, const char *opener, int line, const char *ends, mx_jnodes *out)
{
    for (;;) {
        if (p->tok->kind == MX_T_END) {
            if (!ends)
                return MX_OK;
            return mx_fail(MX_INPUT,
                           "chat template line %d: {%% %s %%} is never closed; expected one of:%s",
                           line, opener, ends);
        }
        if (p->tok->kind == MX_T_DATA) {
            data(p, out);
        } else if (p->tok->kind == MX_T_VAR_BEGIN) {
            mx_jnode *n = mx_jinja_node(p, MX_J_OUTPUT);
            p->tok++;
            MX_TRY(mx_jinja_tuple(p, (mx_jtuple_rules){0}, &n->a));
            if (p->tok->kind != MX_T_VAR_END)
                return mx_jinja_syntax(p, "}} or an operator");
            p->tok++;
            mx_jinja_push(p, out, n);
        } else {
            p->tok++;
            char word[64];
            int k = p->tok->kind == MX_T_NAME ? snprintf(word, sizeof word, " %s ", p->tok->p) : 0;
            if (ends && k > 0 && (size_t)k < sizeof word && strstr(ends, word))
                return MX_OK;
            MX_TRY(statement(p, out));
        }
    }
}

mx_status mx_jinja_parse(mx_chat_template *t, const mx_jtokens *tokens)
{
    mx_jparser p = {.t = t, .tok = tokens->v};
    return body(&p, "", 1, NULL, &t->body);
}
