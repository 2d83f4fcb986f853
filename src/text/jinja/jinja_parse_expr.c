/* jinja_parse_expr.c - expressions, by Jinja's grammar.
 *
 *     expr    = or ['if' or ['else' expr]]
 *     or      = and {'or' and}        and = not {'and' not}       not = 'not' not | compare
 *     compare = sum {(== != < <= > >= in, not in) sum}            chained as in Python: a < b < c
 *     sum     = concat {(+ -) concat} concat = product {~ product}
 *     product = power {(* / // %) power}                          power = unary {** unary}
 *     unary   = (- +) unary | primary {.name [index] (call)} {|filter, is test, (call)}
 * Binary levels are one function climbing a table of precedences; only brackets and prefix
 * operators recurse, and their nesting is limited.
 */
#include "text/jinja/jinja.h"

#include <string.h>

static mx_status binary(mx_jparser *p, int level, const mx_jnode **out);

mx_status mx_jinja_syntax(const mx_jparser *p, const char *expected)
{
    const mx_jtoken *t = p->tok;
    char op[3] = {(char)t->op, 0, 0};
    static const char *const two[] = {"==", "!=", "<=", ">=", "**", "//"};
    const char *found = t->kind == MX_T_END                            ? "the end of the template"
                        : t->kind == MX_T_DATA                         ? "text"
                        : t->kind == MX_T_NAME                         ? t->p
                        : t->kind == MX_T_STRING                       ? "a string"
                        : t->kind == MX_T_INT || t->kind == MX_T_FLOAT ? "a number"
                        : t->kind == MX_T_VAR_BEGIN                    ? "{{"
                        : t->kind == MX_T_VAR_END                      ? "}}"
                        : t->kind == MX_T_BLOCK_BEGIN                  ? "{%"
                        : t->kind == MX_T_BLOCK_END                    ? "%}"
                        : t->op >= 256                                 ? two[t->op - 256]
                                                                       : op;
    return mx_fail(MX_INPUT, "chat template line %d: expected %s, found %.80s", t->line, expected,
                   found);
}

mx_status mx_jinja_enter(mx_jparser *p)
{
    if (++p->depth > MX_J_PARSE_DEPTH)
        return mx_fail(MX_INPUT, "chat template line %d: nested more than %d deep", p->tok->line,
                       MX_J_PARSE_DEPTH);
    return MX_OK;
}

mx_jnode *mx_jinja_node(mx_jparser *p, mx_jkind kind)
{
    mx_jnode *n = MX_NEW(&p->t->arena, mx_jnode);
    n->kind = kind;
    n->line = p->tok->line;
    return n;
}

void mx_jinja_push(mx_jparser *p, mx_jnodes *list, const mx_jnode *n)
{
    if (list->n == list->cap) {
        int cap = list->cap ? 2 * list->cap : 4;
        const mx_jnode **v = MX_NEW_N(&p->t->arena, const mx_jnode *, cap);
        if (list->n)
            memcpy(v, list->v, sizeof *v * (size_t)list->n);
        list->v = v;
        list->cap = cap;
    }
    list->v[list->n++] = n;
}

bool mx_jinja_is_op(const mx_jparser *p, int op)
{
    return p->tok->kind == MX_T_OP && p->tok->op == op;
}

bool mx_jinja_take_op(mx_jparser *p, int op)
{
    if (!mx_jinja_is_op(p, op))
        return false;
    p->tok++;
    return true;
}

bool mx_jinja_is_word(const mx_jparser *p, const char *word)
{
    return p->tok->kind == MX_T_NAME && strcmp(p->tok->p, word) == 0;
}

bool mx_jinja_take_word(mx_jparser *p, const char *word)
{
    if (!mx_jinja_is_word(p, word))
        return false;
    p->tok++;
    return true;
}

static const mx_jnode *const_node(mx_jparser *p, mx_jv v)
{
    mx_jnode *n = mx_jinja_node(p, MX_J_CONST);
    n->value = v;
    return n;
}

/* --- primaries --- */
static mx_status name(mx_jparser *p, const mx_jnode **out)
{
    static const struct {
        const char *word;
        mx_jv value;
    } constants[] = {
        {"true", {MX_JV_BOOL, {.b = true}}},   {"True", {MX_JV_BOOL, {.b = true}}},
        {"false", {MX_JV_BOOL, {.b = false}}}, {"False", {MX_JV_BOOL, {.b = false}}},
        {"none", {.kind = MX_JV_NONE}},        {"None", {.kind = MX_JV_NONE}},
    };
    const char *s = p->tok->p;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (strcmp(s, constants[i].word) == 0) {
            *out = const_node(p, constants[i].value);
            p->tok++;
            return MX_OK;
        }
    mx_jnode *n = mx_jinja_node(p, MX_J_NAME);
    n->name = s;
    if (p->macro) {
        p->macro->uses_caller |= strcmp(s, "caller") == 0;
        p->macro->uses_varargs |= strcmp(s, "varargs") == 0;
        p->macro->uses_kwargs |= strcmp(s, "kwargs") == 0;
    }
    p->tok++;
    *out = n;
    return MX_OK;
}

static mx_status strings(mx_jparser *p, const mx_jnode **out)
{
    mx_str joined = {0};
    const mx_jtoken *first = p->tok;
    for (; p->tok->kind == MX_T_STRING; p->tok++)
        mx_str_add_n(&joined, p->tok->p, p->tok->n);
    mx_jnode *n = mx_jinja_node(p, MX_J_CONST);
    n->line = first->line;
    n->value = mx_jv_text(&p->t->arena, mx_str_text(&joined), joined.len);
    mx_str_fini(&joined);
    *out = n;
    return MX_OK;
}

static mx_status list(mx_jparser *p, const mx_jnode **out)
{
    mx_jnode *n = mx_jinja_node(p, MX_J_LIST);
    p->tok++;
    while (!mx_jinja_is_op(p, ']')) {
        const mx_jnode *item;
        MX_TRY(mx_jinja_expr(p, &item));
        mx_jinja_push(p, &n->items, item);
        if (!mx_jinja_take_op(p, ',') && !mx_jinja_is_op(p, ']'))
            return mx_jinja_syntax(p, "',' or ']' in a list");
    }
    p->tok++;
    *out = n;
    return MX_OK;
}

static mx_status dict(mx_jparser *p, const mx_jnode **out)
{
    mx_jnode *n = mx_jinja_node(p, MX_J_DICT);
    p->tok++;
    while (!mx_jinja_is_op(p, '}')) {
        const mx_jnode *item;
        MX_TRY(mx_jinja_expr(p, &item));
        mx_jinja_push(p, &n->items, item);
        if (!mx_jinja_take_op(p, ':'))
            return mx_jinja_syntax(p, "':' after a key of a dict");
        MX_TRY(mx_jinja_expr(p, &item));
        mx_jinja_push(p, &n->items, item);
        if (!mx_jinja_take_op(p, ',') && !mx_jinja_is_op(p, '}'))
            return mx_jinja_syntax(p, "',' or '}' in a dict");
    }
    p->tok++;
    *out = n;
    return MX_OK;
}

static mx_status primary(mx_jparser *p, const mx_jnode **out)
{
    const mx_jtoken *t = p->tok;
    switch (t->kind) {
    case MX_T_NAME:
        return name(p, out);
    case MX_T_STRING:
        return strings(p, out);
    case MX_T_INT:
    case MX_T_FLOAT:
        *out = const_node(p, t->kind == MX_T_INT ? mx_jv_int(t->i) : mx_jv_float(t->f));
        p->tok++;
        return MX_OK;
    default:
        break;
    }
    if (mx_jinja_is_op(p, '['))
        return list(p, out);
    if (mx_jinja_is_op(p, '{'))
        return dict(p, out);
    if (!mx_jinja_take_op(p, '('))
        return mx_jinja_syntax(p, "an expression");
    MX_TRY(mx_jinja_tuple(p, (mx_jtuple_rules){.parenthesised = true}, out));
    return mx_jinja_take_op(p, ')') ? MX_OK : mx_jinja_syntax(p, "')'");
}

/* --- calls, attributes, indices --- */
static mx_status one_argument(mx_jparser *p, mx_jnode *n)
{
    const mx_jnode *v;
    if (mx_jinja_take_op(p, '*')) {
        if (n->star || n->star_star)
            return mx_jinja_syntax(p, "one *list in a call");
        return mx_jinja_expr(p, &n->star);
    }
    if (mx_jinja_take_op(p, MX_OP_POW)) {
        if (n->star_star)
            return mx_jinja_syntax(p, "one **dict in a call");
        return mx_jinja_expr(p, &n->star_star);
    }
    bool keyword = p->tok->kind == MX_T_NAME && p->tok[1].kind == MX_T_OP && p->tok[1].op == '=';
    if (!keyword) {
        if (n->kw.n || n->star || n->star_star)
            return mx_jinja_syntax(p, "a keyword argument after keyword arguments");
        MX_TRY(mx_jinja_expr(p, &v));
        mx_jinja_push(p, &n->items, v);
        return MX_OK;
    }
    const char *key = p->tok->p;
    p->tok += 2;
    MX_TRY(mx_jinja_expr(p, &v));
    const char **names = MX_NEW_N(&p->t->arena, const char *, n->kw.n + 1);
    if (n->kw.n)
        memcpy(names, n->kw_name, sizeof *names * (size_t)n->kw.n);
    names[n->kw.n] = key;
    n->kw_name = names;
    mx_jinja_push(p, &n->kw, v);
    /* the names are copied for every argument: quadratic, so bounded */
    return n->kw.n > 100 ? mx_jinja_syntax(p, "at most 100 keyword arguments") : MX_OK;
}

static mx_status arguments(mx_jparser *p, mx_jnode *n)
{
    p->tok++;
    while (!mx_jinja_is_op(p, ')')) {
        MX_TRY(one_argument(p, n));
        if (!mx_jinja_take_op(p, ',') && !mx_jinja_is_op(p, ')'))
            return mx_jinja_syntax(p, "',' or ')' in a call");
    }
    p->tok++;
    return MX_OK;
}

/* start:stop:step, or a plain index. */
static mx_status index_or_slice(mx_jparser *p, const mx_jnode **out)
{
    mx_jnode *n = mx_jinja_node(p, MX_J_SLICE);
    const mx_jnode *part[3] = {0};
    int k = 0;
    for (; k < 3; k++) {
        if (!mx_jinja_is_op(p, ':') && !mx_jinja_is_op(p, ']') && !mx_jinja_is_op(p, ','))
            MX_TRY(mx_jinja_expr(p, &part[k]));
        if (k == 2 || !mx_jinja_take_op(p, ':'))
            break;
    }
    if (k == 0) {
        *out = part[0];
        return part[0] ? MX_OK : mx_jinja_syntax(p, "an index");
    }
    for (int i = 0; i < 3; i++)
        mx_jinja_push(p, &n->items, part[i]);
    *out = n;
    return MX_OK;
}

static mx_status subscript(mx_jparser *p, const mx_jnode *of, const mx_jnode **out)
{
    mx_jnode *n = mx_jinja_node(p, MX_J_GETITEM);
    n->a = of;
    *out = n;
    if (mx_jinja_take_op(p, '.')) {
        if (p->tok->kind == MX_T_NAME) {
            n->kind = MX_J_GETATTR;
            n->name = p->tok->p;
        } else if (p->tok->kind == MX_T_INT) {
            n->b = const_node(p, mx_jv_int(p->tok->i));
        } else {
            return mx_jinja_syntax(p, "a name after '.'");
        }
        p->tok++;
        return MX_OK;
    }
    p->tok++;
    MX_TRY(index_or_slice(p, &n->b));
    if (mx_jinja_is_op(p, ',')) {
        mx_jnode *tuple = mx_jinja_node(p, MX_J_TUPLE);
        mx_jinja_push(p, &tuple->items, n->b);
        while (mx_jinja_take_op(p, ',')) {
            const mx_jnode *item;
            MX_TRY(index_or_slice(p, &item));
            mx_jinja_push(p, &tuple->items, item);
        }
        n->b = tuple;
    }
    return mx_jinja_take_op(p, ']') ? MX_OK : mx_jinja_syntax(p, "']'");
}

static mx_status call(mx_jparser *p, const mx_jnode *of, const mx_jnode **out)
{
    mx_jnode *n = mx_jinja_node(p, MX_J_CALL);
    n->a = of;
    *out = n;
    return arguments(p, n);
}

static mx_status postfix(mx_jparser *p, const mx_jnode **n)
{
    for (;;) {
        if (mx_jinja_is_op(p, '.') || mx_jinja_is_op(p, '['))
            MX_TRY(subscript(p, *n, n));
        else if (mx_jinja_is_op(p, '('))
            MX_TRY(call(p, *n, n));
        else
            return MX_OK;
    }
}

/* --- filters and tests --- */
static mx_status filter(mx_jparser *p, const mx_jnode *of, const mx_jnode **out)
{
    mx_jnode *n = mx_jinja_node(p, MX_J_FILTER);
    if (p->tok->kind != MX_T_NAME)
        return mx_jinja_syntax(p, "the name of a filter after '|'");
    n->name = p->tok++->p;
    n->fn = mx_jfilter_find(n->name);
    n->a = of;
    *out = n;
    return mx_jinja_is_op(p, '(') ? arguments(p, n) : MX_OK;
}

static bool starts_argument(const mx_jparser *p)
{
    const mx_jtoken *t = p->tok;
    if (t->kind == MX_T_OP)
        return t->op == '(' || t->op == '[' || t->op == '{';
    if (t->kind == MX_T_NAME)
        return !mx_jinja_is_word(p, "else") && !mx_jinja_is_word(p, "or") &&
               !mx_jinja_is_word(p, "and");
    return t->kind == MX_T_STRING || t->kind == MX_T_INT || t->kind == MX_T_FLOAT;
}

static mx_status test(mx_jparser *p, const mx_jnode *of, const mx_jnode **out)
{
    mx_jnode *n = mx_jinja_node(p, MX_J_TEST);
    n->a = of;
    n->op = mx_jinja_take_word(p, "not");
    if (p->tok->kind != MX_T_NAME)
        return mx_jinja_syntax(p, "the name of a test after 'is'");
    n->name = p->tok++->p;
    n->fn = mx_jtest_find(n->name);
    *out = n;
    if (mx_jinja_is_op(p, '('))
        return arguments(p, n);
    if (!starts_argument(p))
        return MX_OK;
    if (mx_jinja_is_word(p, "is"))
        return mx_jinja_syntax(p, "'and' between two tests (they cannot be chained with 'is')");
    const mx_jnode *arg;
    MX_TRY(primary(p, &arg));
    MX_TRY(postfix(p, &arg));
    mx_jinja_push(p, &n->items, arg);
    return MX_OK;
}

mx_status mx_jinja_filters(mx_jparser *p, const mx_jnode *of, const mx_jnode **out)
{
    *out = of;
    for (;;) {
        if (mx_jinja_take_op(p, '|'))
            MX_TRY(filter(p, *out, out));
        else if (*out && mx_jinja_take_word(p, "is"))
            MX_TRY(test(p, *out, out));
        else if (*out && mx_jinja_is_op(p, '('))
            MX_TRY(call(p, *out, out));
        else
            return MX_OK;
    }
}

mx_status mx_jinja_unary(mx_jparser *p, bool with_filter, const mx_jnode **out)
{
    MX_TRY(mx_jinja_enter(p));
    if (mx_jinja_is_op(p, '-') || mx_jinja_is_op(p, '+')) {
        mx_jnode *n = mx_jinja_node(p, mx_jinja_is_op(p, '-') ? MX_J_NEG : MX_J_POS);
        p->tok++;
        MX_TRY(mx_jinja_unary(p, false, &n->a));
        *out = n;
    } else {
        MX_TRY(primary(p, out));
    }
    MX_TRY(postfix(p, out));
    if (with_filter)
        MX_TRY(mx_jinja_filters(p, *out, out));
    p->depth--;
    return MX_OK;
}

/* --- binary operators --- */
enum { OR, AND, NOT, COMPARE, SUM, CONCAT, PRODUCT, POWER, UNARY };

/* The operator at this level the parser stands on, or 0; *words is how many tokens it takes. */
static int op_at(const mx_jparser *p, int level, int *words)
{
    *words = 1;
    if (level == OR || level == AND)
        return mx_jinja_is_word(p, level == OR ? "or" : "and");
    if (level == COMPARE && p->tok->kind == MX_T_NAME) {
        if (mx_jinja_is_word(p, "in"))
            return MX_OP_IN;
        *words = 2;
        bool not_in = mx_jinja_is_word(p, "not") && p->tok[1].kind == MX_T_NAME &&
                      strcmp(p->tok[1].p, "in") == 0;
        return not_in ? MX_OP_NOTIN : 0;
    }
    if (p->tok->kind != MX_T_OP)
        return 0;
    int op = p->tok->op;
    switch (level) {
    case COMPARE:
        return op == '<' || op == '>' || (op >= MX_OP_EQ && op <= MX_OP_GE) ? op : 0;
    case SUM:
        return op == '+' || op == '-' ? op : 0;
    case CONCAT:
        return op == '~' ? op : 0;
    case PRODUCT:
        return op == '*' || op == '/' || op == '%' || op == MX_OP_FLOORDIV ? op : 0;
    default:
        return op == MX_OP_POW ? op : 0;
    }
}

/* n-ary: comparisons (chained) and ~ keep their operands in one node. */
static mx_status many(mx_jparser *p, int level, const mx_jnode *first, const mx_jnode **out)
{
    mx_jnode *n = mx_jinja_node(p, level == COMPARE ? MX_J_COMPARE : MX_J_CONCAT);
    mx_jinja_push(p, &n->items, first);
    int op, words, cap = 0;
    while ((op = op_at(p, level, &words))) {
        p->tok += words;
        if (n->items.n >= cap) {
            int *ops = MX_NEW_N(&p->t->arena, int, cap = 2 * n->items.n + 4);
            if (n->ops)
                memcpy(ops, n->ops, sizeof *ops * (size_t)n->items.n);
            n->ops = ops;
        }
        n->ops[n->items.n] = op; /* stands before items[n] */
        const mx_jnode *next;
        MX_TRY(binary(p, level + 1, &next));
        mx_jinja_push(p, &n->items, next);
    }
    *out = n;
    return MX_OK;
}

static mx_status binary(mx_jparser *p, int level, const mx_jnode **out)
{
    if (level == UNARY)
        return mx_jinja_unary(p, true, out);
    if (level == NOT && mx_jinja_is_word(p, "not")) {
        mx_jnode *n = mx_jinja_node(p, MX_J_NOT);
        MX_TRY(mx_jinja_enter(p));
        p->tok++;
        MX_TRY(binary(p, NOT, &n->a));
        p->depth--;
        *out = n;
        return MX_OK;
    }
    MX_TRY(binary(p, level + 1, out));
    int words, op;
    if ((level == COMPARE || level == CONCAT) && op_at(p, level, &words))
        return many(p, level, *out, out);
    while (level != NOT && (op = op_at(p, level, &words))) {
        mx_jnode *n = mx_jinja_node(p, level == OR    ? MX_J_OR
                                       : level == AND ? MX_J_AND
                                                      : MX_J_BINARY);
        n->op = op;
        n->a = *out;
        p->tok += words;
        MX_TRY(binary(p, level + 1, &n->b));
        *out = n;
    }
    return MX_OK;
}

mx_status mx_jinja_expr(mx_jparser *p, const mx_jnode **out)
{
    MX_TRY(mx_jinja_enter(p));
    MX_TRY(binary(p, OR, out));
    while (mx_jinja_is_word(p, "if")) {
        mx_jnode *n = mx_jinja_node(p, MX_J_COND);
        n->a = *out;
        p->tok++;
        MX_TRY(binary(p, OR, &n->b));
        if (mx_jinja_take_word(p, "else"))
            MX_TRY(mx_jinja_expr(p, &n->c));
        *out = n;
    }
    p->depth--;
    return MX_OK;
}

static bool tuple_ends(const mx_jparser *p, const char *stop)
{
    return p->tok->kind == MX_T_BLOCK_END || p->tok->kind == MX_T_VAR_END ||
           mx_jinja_is_op(p, ')') || (stop && mx_jinja_is_word(p, stop));
}

mx_status mx_jinja_tuple(mx_jparser *p, mx_jtuple_rules rules, const mx_jnode **out)
{
    mx_jnode *n = mx_jinja_node(p, MX_J_TUPLE);
    bool comma = false;
    while (!tuple_ends(p, rules.stop)) {
        const mx_jnode *item;
        if (rules.simple)
            MX_TRY(primary(p, &item));
        else if (rules.no_cond)
            MX_TRY(binary(p, OR, &item));
        else
            MX_TRY(mx_jinja_expr(p, &item));
        mx_jinja_push(p, &n->items, item);
        if (!mx_jinja_take_op(p, ','))
            break;
        comma = true;
    }
    if (n->items.n == 0 && !rules.parenthesised)
        return mx_jinja_syntax(p, "an expression");
    *out = n->items.n == 1 && !comma ? n->items.v[0] : n;
    return MX_OK;
}
