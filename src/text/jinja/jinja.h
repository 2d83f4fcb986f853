/* jinja.h - the inside of the chat-template interpreter, shared by the jinja_*.c files only.
 *
 *     text --jinja_lex--> tokens --jinja_parse*--> tree --jinja_exec, jinja_eval--> text
 *
 * The language is the part of Jinja 2 that chat templates use, with the settings transformers
 * chooses: trim_blocks and lstrip_blocks on, no automatic escaping, loop controls, {% generation
 * %}, and the sandbox's rules (no method that changes a list or a dict, ranges of at most 100,000).
 * Values print, compare, slice and fail as Python's do, because templates are written against
 * Python.
 *
 * Templates come from strangers. Every node evaluated and every byte copied is charged against a
 * budget of steps; values live in one arena with a limit; output and nesting have limits. Whatever
 * a template does, a render ends with text or with an error that names a line.
 *
 * Ownership: the tree lives in the template's arena; values in the render's. Strings from JSON and
 * from the tree are borrowed. Nothing is freed one by one.
 *
 * Left out, because no chat template uses it: inheritance, include/import, autoescape and Markup
 * (escape gives a plain string), i18n, async, integers beyond 64 bits (an error, not a wrong
 * number).
 */
#ifndef MX_TEXT_JINJA_H
#define MX_TEXT_JINJA_H

#include "base/arena.h"
#include "base/str.h"
#include "text/jinja/chat_template.h"
#include <jansson.h>

/* --- values --- */
typedef enum {
    MX_JV_UNDEFINED,
    MX_JV_NONE,
    MX_JV_BOOL,
    MX_JV_INT,
    MX_JV_FLOAT,
    MX_JV_STRING,
    MX_JV_LIST,
    MX_JV_TUPLE,
    MX_JV_GENERATOR, /* what map, select, reverse... give: true in a condition, read once, no length
                      */
    MX_JV_DICT,
    MX_JV_NAMESPACE, /* the one value that can be changed */
    MX_JV_MACRO,
    MX_JV_LOOP,
    MX_JV_FUNCTION, /* range, namespace, ... */
    MX_JV_METHOD,   /* 'abc'.upper: a function with the value it was taken from */
} mx_jv_kind;

typedef struct mx_jctx mx_jctx;
typedef struct mx_jnode mx_jnode;
typedef struct mx_jframe mx_jframe;
typedef struct mx_jloop mx_jloop;
typedef struct mx_jbuiltin mx_jbuiltin;
typedef struct mx_jlist mx_jlist;
typedef struct mx_jdict mx_jdict;
typedef struct mx_jmacro mx_jmacro;
typedef struct mx_jmethod mx_jmethod;

typedef struct {
    const char *p; /* UTF-8, not NUL-terminated; may hold NUL */
    size_t n;      /* bytes */
    size_t chars;  /* code points */
} mx_jtext;

typedef struct {
    mx_jv_kind kind;
    union {
        const char *hint; /* UNDEFINED: what was looked for, for messages; may be NULL */
        bool b;
        int64_t i;
        double f;
        const mx_jtext *s;
        mx_jlist *list; /* LIST, TUPLE, GENERATOR */
        mx_jdict *dict; /* DICT, NAMESPACE */
        const mx_jmacro *macro;
        mx_jloop *loop;
        const mx_jbuiltin *fn;
        const mx_jmethod *method;
    };
} mx_jv;

struct mx_jlist {
    mx_jv *v;
    size_t n, cap;
    size_t pos;          /* GENERATOR: the next one to give */
    bool grouped;        /* a (grouper, list) pair made by groupby */
    const char *printed; /* how it prints when not as a list: "range(0, 3)"; else NULL */
};

struct mx_jdict {
    mx_jv *key, *val;
    uint32_t *hash;
    size_t n, cap;
};

struct mx_jmacro {
    const mx_jnode *node; /* MACRO or CALLBLOCK: parameters and body */
    mx_jframe *frame;     /* where it was defined */
};

/* Arguments of a filter, test, function, method or macro. */
typedef struct {
    const mx_jv *v;
    int n;
    const char *const *kw_name;
    const mx_jv *kw;
    int n_kw;
    mx_jv caller; /* {% call %}: the block; UNDEFINED otherwise */
} mx_jargs;

/* Filters and tests get the value they are applied to, methods the value they belong to. */
typedef mx_status (*mx_jfn)(mx_jctx *c, mx_jv self, const mx_jargs *a, mx_jv *out);
struct mx_jbuiltin {
    const char *name;
    mx_jfn run;
    const char *params; /* names in order, separated by spaces; NULL takes anything */
};
struct mx_jmethod {
    mx_jv self;
    const mx_jbuiltin *fn;
};

/* --- the tree --- */
typedef enum {
    MX_J_CONST,
    MX_J_NAME,
    MX_J_LIST,
    MX_J_TUPLE,
    MX_J_DICT,
    MX_J_GETATTR,
    MX_J_GETITEM,
    MX_J_SLICE,
    MX_J_CALL,
    MX_J_FILTER,
    MX_J_TEST,
    MX_J_NEG,
    MX_J_POS,
    MX_J_NOT,
    MX_J_AND,
    MX_J_OR,
    MX_J_BINARY,
    MX_J_CONCAT,
    MX_J_COMPARE,
    MX_J_COND,
    MX_J_DATA,
    MX_J_OUTPUT,
    MX_J_IF,
    MX_J_FOR,
    MX_J_SET,
    MX_J_SETBLOCK,
    MX_J_MACRO,
    MX_J_CALLBLOCK,
    MX_J_FILTERBLOCK,
    MX_J_WITH,
    MX_J_BREAK,
    MX_J_CONTINUE,
    MX_J_GENERATION,
} mx_jkind;

/* Operators are their own characters; these need two or are words. */
enum {
    MX_OP_EQ = 256,
    MX_OP_NE,
    MX_OP_LE,
    MX_OP_GE,
    MX_OP_POW,
    MX_OP_FLOORDIV,
    MX_OP_IN,
    MX_OP_NOTIN
};

typedef struct {
    const mx_jnode **v;
    int n, cap;
} mx_jnodes;

/* One shape for every node; which fields mean what:
 *   NAME name; CONST DATA value; LIST TUPLE CONCAT items; DICT items (keys and values in turn)
 *   GETATTR a.name; GETITEM a[b]; SLICE items = start, stop, step (NULL when left out)
 *   CALL a(args); FILTER a|name(args); TEST a is name(args), negated in op
 *   NEG POS NOT a; BINARY AND OR a op b; COMPARE items, ops[i] before items[i]; COND b ? a : c
 *   OUTPUT a; IF items = conditions, bodies, other; FOR target a in b if c, body, other
 *   SET target a = b; SETBLOCK a, filters b, body; FILTERBLOCK filters b, body
 *   MACRO CALLBLOCK name, parameters, body (CALLBLOCK: a is the call)
 *   WITH items = target and value in turn, body */
struct mx_jnode {
    mx_jkind kind;
    int op, line;
    const char *name; /* interned: equal names are equal pointers */
    mx_jv value;
    const mx_jbuiltin *fn;
    const mx_jnode *a, *b, *c;
    mx_jnodes items;
    int *ops;
    mx_jnodes body, other;   /* statements */
    const mx_jnodes *bodies; /* IF: one for each condition */
    /* calls: items are the positional arguments; macros: params and their defaults */
    const char **kw_name;
    mx_jnodes kw; /* call: values; macro: defaults, for the last kw.n parameters */
    int n_params;
    const mx_jnode *star, *star_star;
    bool uses_varargs, uses_kwargs, uses_caller, recursive;
};

struct mx_chat_template {
    mx_arena arena;
    mx_jnodes body;
    const char **names; /* interned */
    int n_names, cap_names;
    bool has_generation;
    const char *text; /* as it was opened */
};

/* --- lexer --- */
typedef enum {
    MX_T_DATA,
    MX_T_VAR_BEGIN,
    MX_T_VAR_END,
    MX_T_BLOCK_BEGIN,
    MX_T_BLOCK_END,
    MX_T_NAME,
    MX_T_STRING,
    MX_T_INT,
    MX_T_FLOAT,
    MX_T_OP,
    MX_T_END,
} mx_jtoken_kind;
typedef struct {
    mx_jtoken_kind kind;
    int op, line;
    const char *p; /* NAME: interned; DATA, STRING: text, in the arena */
    size_t n;
    int64_t i;
    double f;
} mx_jtoken;
typedef struct {
    mx_jtoken *v; /* owned: mx_free */
    int n, cap;
} mx_jtokens;
mx_status mx_jinja_lex(mx_chat_template *t, const char *text, size_t n,
                       mx_jtokens *out) MX_MUST_USE;
const char *mx_jinja_intern(mx_chat_template *t, const char *p, size_t n);
const char *mx_jinja_interned(const mx_chat_template *t, const char *name); /* NULL: never named */

/* --- parser --- */
enum { MX_J_PARSE_DEPTH = 200 };
typedef struct {
    mx_chat_template *t;
    const mx_jtoken *tok;
    int depth, n_loops;
    mx_jnode *macro; /* the innermost, to note the use of caller, varargs, kwargs */
} mx_jparser;
mx_status mx_jinja_parse(mx_chat_template *t, const mx_jtokens *tokens) MX_MUST_USE;
mx_status mx_jinja_expr(mx_jparser *p, const mx_jnode **out) MX_MUST_USE;
/* `a, b` without parentheses; `no_cond` leaves a following `if` alone, `simple` takes targets only.
 */
typedef struct {
    bool no_cond, simple, parenthesised;
    const char *stop; /* a word that ends it */
} mx_jtuple_rules;
mx_status mx_jinja_tuple(mx_jparser *p, mx_jtuple_rules rules, const mx_jnode **out) MX_MUST_USE;
mx_status mx_jinja_unary(mx_jparser *p, bool with_filter, const mx_jnode **out) MX_MUST_USE;
mx_status mx_jinja_filters(mx_jparser *p, const mx_jnode *of, const mx_jnode **out) MX_MUST_USE;
mx_status mx_jinja_enter(mx_jparser *p) MX_MUST_USE;
mx_status mx_jinja_syntax(const mx_jparser *p, const char *expected) MX_MUST_USE;
mx_jnode *mx_jinja_node(mx_jparser *p, mx_jkind kind);
void mx_jinja_push(mx_jparser *p, mx_jnodes *list, const mx_jnode *n);
bool mx_jinja_is_op(const mx_jparser *p, int op);
bool mx_jinja_take_op(mx_jparser *p, int op);
bool mx_jinja_is_word(const mx_jparser *p, const char *word);
bool mx_jinja_take_word(mx_jparser *p, const char *word);

/* --- a render --- */
typedef struct {
    const char *name;
    mx_jv value;
} mx_jbinding;
struct mx_jframe {
    mx_jframe *parent;
    mx_jbinding *v;
    int n, cap;
};
struct mx_jloop {
    const mx_jnode *node;
    mx_jframe *outer; /* where the condition is evaluated */
    mx_jv source;
    size_t next; /* of the source */
    int64_t index0, depth0;
    mx_jv current, previous, after;
    bool have_after, counted;
    int64_t length;
    mx_jv changed; /* what loop.changed saw last */
    bool have_changed;
};
struct mx_jctx {
    mx_arena arena;
    const mx_chat_template *t;
    mx_str *out;   /* where output goes now: the result or a capture */
    size_t before; /* bytes of the result that come before `out` starts */
    mx_chat_limits limits;
    int64_t steps;   /* left */
    int64_t allowed; /* in all */
    int64_t per_byte; /* more for each byte of the conversation */
    int depth, line;
    enum { MX_FLOW_NONE, MX_FLOW_BREAK, MX_FLOW_CONTINUE } flow;
    mx_jframe *frame;
    mx_chat_spans *spans; /* or NULL */
    int64_t now;          /* seconds since 1970, for strftime_now */
};

mx_status mx_jerror(const mx_jctx *c, const char *fmt, ...) MX_PRINTF(2, 3) MX_MUST_USE;
/* `n` units of work are about to be done. */
mx_status mx_jcharge(mx_jctx *c, size_t n) MX_MUST_USE;
/* The same where no status can be given: the next charge misses what was spent. */
void mx_jspend(mx_jctx *c, size_t n);
/* One more item of a loop inside a builtin: a unit of work, and a look at the memory. */
mx_status mx_jstep(mx_jctx *c) MX_MUST_USE;
/* `n` bytes are about to be made, in one operation whose size the template chooses. */
mx_status mx_jreserve(mx_jctx *c, size_t n) MX_MUST_USE;

mx_status mx_jexec(mx_jctx *c, const mx_jnodes *body) MX_MUST_USE;
mx_status mx_jeval(mx_jctx *c, const mx_jnode *n, mx_jv *out) MX_MUST_USE;
mx_status mx_jcall_node(mx_jctx *c, const mx_jnode *n, mx_jv caller, mx_jv *out) MX_MUST_USE;
mx_status mx_jfilter_node(mx_jctx *c, const mx_jnode *n, mx_jv in, mx_jv *out) MX_MUST_USE;
mx_status mx_jmacro_call(mx_jctx *c, const mx_jmacro *m, const mx_jargs *a, mx_jv *out) MX_MUST_USE;
mx_status mx_jloop_attr(mx_jctx *c, mx_jloop *l, const char *name, mx_jv *out) MX_MUST_USE;
void mx_jbind(mx_jctx *c, mx_jframe *f, const char *name, mx_jv v);
mx_status mx_jattr(mx_jctx *c, mx_jv of, const char *name, mx_jv *out) MX_MUST_USE;
mx_status mx_jitem(mx_jctx *c, mx_jv of, mx_jv key, mx_jv *out) MX_MUST_USE;
mx_status mx_jbinary(mx_jctx *c, int op, mx_jv a, mx_jv b, mx_jv *out) MX_MUST_USE;
mx_status mx_jcompare(mx_jctx *c, int op, mx_jv a, mx_jv b, bool *out) MX_MUST_USE;

/* --- values (jinja_value.c, jinja_dict.c, jinja_repr.c) --- */
#define MX_JV_NULL ((mx_jv){.kind = MX_JV_NONE})
mx_jv mx_jv_bool(bool b);
mx_jv mx_jv_int(int64_t i);
mx_jv mx_jv_float(double f);
mx_jv mx_jv_undefined(const char *hint);
mx_jv mx_jv_text(mx_arena *a, const char *p, size_t n);   /* copies */
mx_jv mx_jv_borrow(mx_arena *a, const char *p, size_t n); /* p must outlive the render */
mx_jv mx_jv_part(mx_jctx *c, const char *p, size_t n);    /* likewise, during a render: charged */
mx_jv mx_jv_take(mx_jctx *c, mx_str *s);                  /* copies, then clears and frees s */
mx_jv mx_jv_list(mx_jctx *c, mx_jv_kind kind, size_t cap);
void mx_jv_push(mx_jctx *c, mx_jlist *l, mx_jv v);
mx_jv mx_jv_pair(mx_jctx *c, mx_jv a, mx_jv b);
mx_jv mx_jv_dict(mx_jctx *c);
mx_status mx_jdict_set(mx_jctx *c, mx_jdict *d, mx_jv key, mx_jv v) MX_MUST_USE;
mx_status mx_jdict_get(mx_jctx *c, const mx_jdict *d, mx_jv key, mx_jv *v, bool *found) MX_MUST_USE;
mx_status mx_jv_from_json(mx_jctx *c, const json_t *j, int depth, mx_jv *out) MX_MUST_USE;

bool mx_jv_truth(mx_jv v);
mx_status mx_jv_equal(mx_jctx *c, mx_jv a, mx_jv b, int depth, bool *out) MX_MUST_USE;
mx_status mx_jv_order(mx_jctx *c, mx_jv a, mx_jv b, int depth, int *out) MX_MUST_USE;
mx_status mx_jv_contains(mx_jctx *c, mx_jv in, mx_jv item, bool *out) MX_MUST_USE;
/* Everything a `for` would see, as a list of its own; a generator is used up. */
mx_status mx_jv_items(mx_jctx *c, mx_jv v, mx_jlist **out) MX_MUST_USE;
mx_status mx_jv_length(mx_jctx *c, mx_jv v, int64_t *out) MX_MUST_USE;
/* As Python's str() and repr(). */
mx_status mx_jv_print(mx_jctx *c, mx_jv v, mx_str *out) MX_MUST_USE;
mx_status mx_jv_repr(mx_jctx *c, mx_jv v, int depth, mx_str *out) MX_MUST_USE;
mx_status mx_jv_str(mx_jctx *c, mx_jv v, mx_jv *out) MX_MUST_USE;
mx_status mx_jv_json(mx_jctx *c, mx_jv v, const mx_jargs *a, mx_str *out) MX_MUST_USE;
const char *mx_jv_type(mx_jv v); /* Python's name for it, for messages */
bool mx_jv_number(mx_jv v, double *out);
bool mx_jv_integer(mx_jv v, int64_t *out); /* int or bool */

/* --- arguments --- */
/* The i-th argument of `fn`, by position or by the name fn->params gives it; NULL when absent. */
const mx_jv *mx_jarg(const mx_jbuiltin *fn, const mx_jargs *a, int i);
mx_status mx_jargs_check(mx_jctx *c, const char *what, const mx_jbuiltin *fn,
                         const mx_jargs *a) MX_MUST_USE;
/* a without its first `skip` positional arguments. */
mx_jargs mx_jargs_rest(const mx_jargs *a, int skip);

/* --- tables --- */
const mx_jbuiltin *mx_jfilter_find(const char *name);
const mx_jbuiltin *mx_jtest_find(const char *name);
const mx_jbuiltin *mx_jfunction_find(const char *name);
const mx_jbuiltin *mx_jmethod_find(mx_jv of, const char *name);
extern const mx_jbuiltin mx_jfilters_text[], mx_jfilters_list[];
extern const mx_jbuiltin mx_jstring_methods[];

/* --- text (jinja_text.c): all indices are code points, as in Python --- */
bool mx_juni_space(int32_t cp);
int mx_juni_next(const char *p, size_t n, int32_t *cp);  /* bytes used; the text is valid UTF-8 */
size_t mx_jtext_offset(const mx_jtext *s, size_t index); /* byte offset of a code point */
mx_jv mx_jtext_strip(mx_jctx *c, const mx_jtext *s, const mx_jtext *set, bool left, bool right);
enum {
    MX_CASE_UPPER,
    MX_CASE_LOWER,
    MX_CASE_CAPITALIZE,
    MX_CASE_TITLE,
    MX_CASE_SWAP,
    MX_CASE_WORDS
};
mx_jv mx_jtext_case(mx_jctx *c, const mx_jtext *s, int how);
mx_status mx_jtext_replace(mx_jctx *c, const mx_jtext *s, const mx_jtext *from, const mx_jtext *to,
                           int64_t count, mx_jv *out) MX_MUST_USE;
mx_status mx_jtext_slice(mx_jctx *c, mx_jv s, int64_t start, int64_t step, int64_t n,
                         mx_jv *out) MX_MUST_USE;
/* Where x stands first at or after byte `from`, and where it stands last; *hit NULL: nowhere. */
mx_status mx_jtext_find(mx_jctx *c, const mx_jtext *s, size_t from, const mx_jtext *x,
                        const char **hit) MX_MUST_USE;
mx_status mx_jtext_rfind(mx_jctx *c, const mx_jtext *s, const mx_jtext *x,
                         const char **hit) MX_MUST_USE;
mx_status mx_jtext_percent(mx_jctx *c, const mx_jtext *fmt, mx_jv args, mx_jv *out) MX_MUST_USE;
mx_status mx_jtext_format(mx_jctx *c, const mx_jtext *fmt, const mx_jargs *a,
                          mx_jv *out) MX_MUST_USE;

#endif
