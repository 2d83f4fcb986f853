/* jinja_exec.c - statements: output, if, for, set, macros, captured blocks, generation marks.
 *
 * Scopes are frames, looked up outwards. A for iteration, a macro call, and the bodies of with,
 * call, filter, generation and block set have a frame of their own, so what they set does not leak
 * out; an if has none. A macro remembers the frame it was defined in.
 *
 * Spans of {% generation %} are byte positions in the result. Inside a macro (a capture) they count
 * from where the capture began, which is right whenever the macro's result is printed at once.
 * transformers ignores the text before the mark within the macro there; its spans are then shifted.
 */
#include "text/jinja/jinja.h"

#include <string.h>

static mx_status exec_one(mx_jctx *c, const mx_jnode *n);

void mx_jbind(mx_jctx *c, mx_jframe *f, const char *name, mx_jv v)
{
    for (int i = 0; i < f->n; i++)
        if (f->v[i].name == name) {
            f->v[i].value = v;
            return;
        }
    mx_jspend(c, (size_t)f->n / 8);
    if (f->n == f->cap) {
        int cap = f->cap ? 2 * f->cap : 2;
        mx_jbinding *more = MX_NEW_N(&c->arena, mx_jbinding, cap);
        if (f->n)
            memcpy(more, f->v, sizeof *more * (size_t)f->n);
        f->v = more;
        f->cap = cap;
    }
    f->v[f->n++] = (mx_jbinding){name, v};
}

static mx_jframe *new_frame(mx_jctx *c, mx_jframe *parent)
{
    mx_jframe *f = MX_NEW(&c->arena, mx_jframe);
    f->parent = parent;
    return f;
}

/* Runs a body in a frame of its own below `parent`. */
static mx_status exec_in(mx_jctx *c, mx_jframe *frame, const mx_jnodes *body)
{
    mx_jframe *outer = c->frame;
    c->frame = frame;
    mx_status st = mx_jexec(c, body);
    c->frame = outer;
    return st;
}

/* Likewise, with the output as a value. */
static mx_status capture(mx_jctx *c, mx_jframe *frame, const mx_jnodes *body, mx_jv *out)
{
    mx_str text = {0}, *outer = c->out;
    size_t before = c->before;
    c->before += outer->len;
    c->out = &text;
    mx_status st = exec_in(c, frame, body);
    c->out = outer;
    c->before = before;
    *out = mx_jv_take(c, &text);
    return st;
}

/* --- assignment --- */
static mx_status assign(mx_jctx *c, mx_jframe *f, const mx_jnode *target, mx_jv v)
{
    if (target->kind == MX_J_NAME) {
        mx_jbind(c, f, target->name, v);
        return MX_OK;
    }
    if (target->kind == MX_J_GETATTR) {
        mx_jv ns;
        MX_TRY(mx_jeval(c, target->a, &ns));
        if (ns.kind != MX_JV_NAMESPACE)
            return mx_jerror(c, "cannot set '%s.%s': '%s' is not a namespace", target->a->name,
                             target->name, mx_jv_type(ns));
        return mx_jdict_set(c, ns.dict, mx_jv_part(c, target->name, strlen(target->name)),
                            v);
    }
    mx_jlist *items;
    MX_TRY(mx_jv_items(c, v, &items));
    if (items->n != (size_t)target->items.n)
        return mx_jerror(c, "%d names stand for %zu values", target->items.n, items->n);
    for (int i = 0; i < target->items.n; i++)
        MX_TRY(assign(c, f, target->items.v[i], items->v[i]));
    return MX_OK;
}

static mx_status apply_filters(mx_jctx *c, const mx_jnode *chain, mx_jv in, mx_jv *out)
{
    *out = in;
    if (!chain)
        return MX_OK;
    MX_TRY(apply_filters(c, chain->a, in, &in));
    return mx_jfilter_node(c, chain, in, out);
}

static mx_status set_block(mx_jctx *c, const mx_jnode *n)
{
    mx_jv v;
    MX_TRY(capture(c, new_frame(c, c->frame), &n->body, &v));
    MX_TRY(apply_filters(c, n->b, v, &v));
    return assign(c, c->frame, n->a, v);
}

/* --- loops --- */
/* The next item whose condition holds; *got is false at the end. */
static mx_status fetch(mx_jctx *c, mx_jloop *l, mx_jv *v, bool *got)
{
    for (*got = false; !*got && l->next < l->source.list->n;) {
        *v = l->source.list->v[l->next++];
        *got = true;
        MX_TRY(mx_jstep(c));
        if (!l->node->c || l->counted)
            break;
        mx_jframe *outer = c->frame;
        mx_jv holds;
        c->frame = new_frame(c, l->outer);
        mx_status st = assign(c, c->frame, l->node->a, *v);
        if (!st)
            st = mx_jeval(c, l->node->c, &holds);
        c->frame = outer;
        if (st)
            return st;
        *got = mx_jv_truth(holds);
    }
    return MX_OK;
}

static mx_status peek(mx_jctx *c, mx_jloop *l, bool *got)
{
    if (!l->have_after)
        MX_TRY(fetch(c, l, &l->after, &l->have_after));
    *got = l->have_after;
    return MX_OK;
}

/* loop.length of a loop with a condition has to look at the rest now. */
static mx_status count(mx_jctx *c, mx_jloop *l)
{
    if (!l->node->c) {
        l->length = (int64_t)l->source.list->n;
        return MX_OK;
    }
    if (l->counted)
        return MX_OK;
    mx_jv rest = mx_jv_list(c, MX_JV_LIST, 0), v;
    bool got;
    for (;;) {
        MX_TRY(fetch(c, l, &v, &got));
        if (!got)
            break;
        mx_jv_push(c, rest.list, v);
    }
    l->length = l->index0 + 1 + l->have_after + (int64_t)rest.list->n;
    l->source = rest;
    l->next = 0;
    l->counted = true;
    return MX_OK;
}

static mx_jv loop_method(mx_jctx *c, mx_jloop *l, const char *name);

mx_status mx_jloop_attr(mx_jctx *c, mx_jloop *l, const char *name, mx_jv *out)
{
    bool more;
    if (strcmp(name, "index0") == 0) {
        *out = mx_jv_int(l->index0);
    } else if (strcmp(name, "index") == 0) {
        *out = mx_jv_int(l->index0 + 1);
    } else if (strcmp(name, "first") == 0) {
        *out = mx_jv_bool(l->index0 == 0);
    } else if (strcmp(name, "last") == 0) {
        MX_TRY(peek(c, l, &more));
        *out = mx_jv_bool(!more);
    } else if (strcmp(name, "previtem") == 0) {
        *out = l->previous; /* undefined before the first */
    } else if (strcmp(name, "nextitem") == 0) {
        MX_TRY(peek(c, l, &more));
        *out = more ? l->after : mx_jv_undefined("there is no next item");
    } else if (strcmp(name, "depth") == 0 || strcmp(name, "depth0") == 0) {
        *out = mx_jv_int(l->depth0 + (name[5] == 0));
    } else if (strcmp(name, "length") == 0 || mx_starts_with(name, "revindex")) {
        MX_TRY(count(c, l));
        *out = mx_jv_int(*name == 'l' ? l->length : l->length - l->index0 - (name[8] == '0'));
    } else {
        *out = loop_method(c, l, name);
    }
    return MX_OK;
}

static mx_status jloop_cycle(mx_jctx *c, mx_jloop *l, const mx_jargs *a, mx_jv *out)
{
    if (a->n < 1)
        return mx_jerror(c, "loop.cycle needs at least one value");
    *out = a->v[l->index0 % a->n];
    return MX_OK;
}

static mx_status jloop_changed(mx_jctx *c, mx_jloop *l, const mx_jargs *a, mx_jv *out)
{
    bool same = false;
    mx_jv now = mx_jv_list(c, MX_JV_TUPLE, (size_t)a->n);
    for (int i = 0; i < a->n; i++)
        mx_jv_push(c, now.list, a->v[i]);
    if (l->have_changed)
        MX_TRY(mx_jv_equal(c, l->changed, now, 0, &same));
    l->changed = now;
    l->have_changed = true;
    *out = mx_jv_bool(!same);
    return MX_OK;
}

static mx_status run_cycle(mx_jctx *c, mx_jv self, const mx_jargs *a, mx_jv *out)
{
    return jloop_cycle(c, self.loop, a, out);
}

static mx_status run_changed(mx_jctx *c, mx_jv self, const mx_jargs *a, mx_jv *out)
{
    return jloop_changed(c, self.loop, a, out);
}

static mx_jv loop_method(mx_jctx *c, mx_jloop *l, const char *name)
{
    static const mx_jbuiltin methods[] = {{"cycle", run_cycle, NULL},
                                          {"changed", run_changed, NULL}};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(name, methods[i].name) == 0) {
            mx_jmethod *m = MX_NEW(&c->arena, mx_jmethod);
            m->self = (mx_jv){MX_JV_LOOP, {.loop = l}};
            m->fn = &methods[i];
            return (mx_jv){MX_JV_METHOD, {.method = m}};
        }
    return mx_jv_undefined(name);
}

static mx_status jloop_run(mx_jctx *c, const mx_jnode *n, mx_jv source, int64_t depth)
{
    mx_jloop *l = MX_NEW(&c->arena, mx_jloop);
    *l = (mx_jloop){.node = n, .outer = c->frame, .index0 = -1, .depth0 = depth};
    l->source.kind = MX_JV_LIST;
    MX_TRY(mx_jv_items(c, source, &l->source.list));
    for (;;) {
        bool got = true;
        mx_jv v = l->after;
        if (!l->have_after)
            MX_TRY(fetch(c, l, &v, &got));
        if (!got)
            break;
        l->previous = l->current;
        l->current = v;
        l->have_after = false;
        l->index0++;
        MX_TRY(mx_jstep(c));
        mx_jframe *f = new_frame(c, l->outer);
        mx_jbind(c, f, c->t->names[0], (mx_jv){MX_JV_LOOP, {.loop = l}});
        MX_TRY(assign(c, f, n->a, v));
        MX_TRY(exec_in(c, f, &n->body));
        bool stop = c->flow == MX_FLOW_BREAK;
        c->flow = MX_FLOW_NONE;
        if (stop)
            break;
    }
    return l->index0 < 0 ? exec_in(c, new_frame(c, l->outer), &n->other) : MX_OK;
}

/* --- macros --- */
static bool is_parameter(const mx_jnode *m, const char *name)
{
    for (int i = 0; i < m->n_params; i++)
        if (m->kw_name[i] == name || strcmp(m->kw_name[i], name) == 0)
            return true;
    return false;
}

static mx_status extra_arguments(mx_jctx *c, const mx_jnode *m, const mx_jargs *a, mx_jframe *f)
{
    MX_TRY(mx_jcharge(c, (size_t)m->n_params * (size_t)a->n_kw / 4));
    mx_jv varargs = mx_jv_list(c, MX_JV_TUPLE, 0), kwargs = mx_jv_dict(c);
    for (int i = m->n_params; i < a->n; i++) {
        if (!m->uses_varargs)
            return mx_jerror(c, "macro '%s' takes at most %d arguments, %d were given", m->name,
                             m->n_params, a->n);
        mx_jv_push(c, varargs.list, a->v[i]);
    }
    for (int i = 0; i < a->n_kw; i++) {
        if (is_parameter(m, a->kw_name[i]))
            continue;
        if (!m->uses_kwargs)
            return mx_jerror(c, "macro '%s' has no parameter '%s'", m->name, a->kw_name[i]);
        mx_jv key = mx_jv_part(c, a->kw_name[i], strlen(a->kw_name[i]));
        MX_TRY(mx_jdict_set(c, kwargs.dict, key, a->kw[i]));
    }
    if (a->caller.kind == MX_JV_MACRO && !m->uses_caller)
        return mx_jerror(c, "macro '%s' is used with {%% call %%} but never calls caller()",
                         m->name);
    if (m->uses_caller)
        mx_jbind(c, f, c->t->names[1], a->caller);
    if (m->uses_varargs)
        mx_jbind(c, f, c->t->names[2], varargs);
    if (m->uses_kwargs)
        mx_jbind(c, f, c->t->names[3], kwargs);
    return MX_OK;
}

static mx_status bind_parameters(mx_jctx *c, const mx_jnode *m, const mx_jargs *a, mx_jframe *f)
{
    MX_TRY(mx_jcharge(c, (size_t)m->n_params * (size_t)a->n_kw / 4));
    for (int i = 0; i < m->n_params; i++) {
        const char *name = m->kw_name[i];
        const mx_jv *given = i < a->n ? &a->v[i] : NULL;
        for (int k = 0; k < a->n_kw; k++)
            if (strcmp(a->kw_name[k], name) == 0) {
                if (given)
                    return mx_jerror(c, "macro '%s' got two values for '%s'", m->name, name);
                given = &a->kw[k];
            }
        int d = i - (m->n_params - m->kw.n);
        mx_jv v = given ? *given : mx_jv_undefined(name);
        if (!given && d >= 0) { /* a default sees the parameters before it */
            mx_jframe *outer = c->frame;
            c->frame = f;
            mx_status st = mx_jeval(c, m->kw.v[d], &v);
            c->frame = outer;
            if (st)
                return st;
        }
        mx_jbind(c, f, name, v);
    }
    return extra_arguments(c, m, a, f);
}

/* A recursive loop is called like a macro: its one argument is iterated, n_kw is the depth. */
static mx_status call_loop(mx_jctx *c, const mx_jmacro *m, const mx_jargs *a, mx_jv *out)
{
    mx_str text = {0}, *outer = c->out;
    mx_jframe *frame = c->frame;
    size_t before = c->before;
    c->before += outer->len;
    c->out = &text;
    c->frame = m->frame;
    mx_status st = jloop_run(c, m->node, a->v[0], a->n_kw);
    c->out = outer;
    c->frame = frame;
    c->before = before;
    *out = mx_jv_take(c, &text);
    return st;
}

mx_status mx_jmacro_call(mx_jctx *c, const mx_jmacro *m, const mx_jargs *a, mx_jv *out)
{
    if (m->node->kind == MX_J_FOR)
        return call_loop(c, m, a, out);
    mx_jframe *f = new_frame(c, m->frame);
    int line = c->line;
    MX_TRY(bind_parameters(c, m->node, a, f));
    MX_TRY(capture(c, f, &m->node->body, out));
    c->line = line;
    return MX_OK;
}

static mx_jv make_macro(mx_jctx *c, const mx_jnode *n)
{
    mx_jmacro *m = MX_NEW(&c->arena, mx_jmacro);
    m->node = n;
    m->frame = c->frame;
    return (mx_jv){MX_JV_MACRO, {.macro = m}};
}

/* --- output --- */
static mx_status check_output(const mx_jctx *c)
{
    if (c->before + c->out->len > c->limits.output_bytes)
        return mx_jerror(c, "the output is longer than %zu bytes and was stopped",
                         c->limits.output_bytes);
    return MX_OK;
}

static mx_status print(mx_jctx *c, mx_jv v)
{
    MX_TRY(mx_jv_print(c, v, c->out));
    return check_output(c);
}

static mx_status generation(mx_jctx *c, const mx_jnode *n)
{
    size_t begin = c->before + c->out->len;
    MX_TRY(exec_in(c, new_frame(c, c->frame), &n->body));
    if (c->spans) {
        MX_GROW(c->spans->v, c->spans->n, c->spans->cap);
        c->spans->v[c->spans->n++] = (mx_chat_span){begin, c->before + c->out->len};
    }
    return MX_OK;
}

static mx_status exec_if(mx_jctx *c, const mx_jnode *n)
{
    for (int i = 0; i < n->items.n; i++) {
        mx_jv v;
        MX_TRY(mx_jeval(c, n->items.v[i], &v));
        if (mx_jv_truth(v))
            return mx_jexec(c, &n->bodies[i]);
    }
    return mx_jexec(c, &n->other);
}

static mx_status exec_with(mx_jctx *c, const mx_jnode *n)
{
    mx_jframe *f = new_frame(c, c->frame);
    for (int i = 0; i < n->items.n; i += 2) {
        mx_jv v;
        MX_TRY(mx_jeval(c, n->items.v[i + 1], &v));
        MX_TRY(assign(c, f, n->items.v[i], v));
    }
    return exec_in(c, f, &n->body);
}

static mx_status exec_one(mx_jctx *c, const mx_jnode *n)
{
    mx_jv v;
    switch (n->kind) {
    case MX_J_DATA:
        return print(c, n->value);
    case MX_J_OUTPUT:
        MX_TRY(mx_jeval(c, n->a, &v));
        return print(c, v);
    case MX_J_IF:
        return exec_if(c, n);
    case MX_J_FOR:
        MX_TRY(mx_jeval(c, n->b, &v));
        return jloop_run(c, n, v, 0);
    case MX_J_SET:
        MX_TRY(mx_jeval(c, n->b, &v));
        return assign(c, c->frame, n->a, v);
    case MX_J_SETBLOCK:
        return set_block(c, n);
    case MX_J_MACRO:
        mx_jbind(c, c->frame, n->name, make_macro(c, n));
        return MX_OK;
    case MX_J_CALLBLOCK:
        MX_TRY(mx_jcall_node(c, n->a, make_macro(c, n), &v));
        return print(c, v);
    case MX_J_FILTERBLOCK:
        MX_TRY(capture(c, new_frame(c, c->frame), &n->body, &v));
        MX_TRY(apply_filters(c, n->b, v, &v));
        return print(c, v);
    case MX_J_WITH:
        return exec_with(c, n);
    case MX_J_BREAK:
    case MX_J_CONTINUE:
        c->flow = n->kind == MX_J_BREAK ? MX_FLOW_BREAK : MX_FLOW_CONTINUE;
        return MX_OK;
    case MX_J_GENERATION:
        return generation(c, n);
    default:
        return mx_jerror(c, "not a statement");
    }
}

mx_status mx_jexec(mx_jctx *c, const mx_jnodes *body)
{
    if (++c->depth > c->limits.depth)
        return mx_jerror(c, "nested more than %d deep; a macro may be calling itself",
                         c->limits.depth);
    for (int i = 0; i < body->n && c->flow == MX_FLOW_NONE; i++) {
        c->line = body->v[i]->line;
        MX_TRY(mx_jstep(c));
        MX_TRY(exec_one(c, body->v[i]));
    }
    c->depth--;
    return MX_OK;
}
