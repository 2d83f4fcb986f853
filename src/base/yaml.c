/* yaml.c - libyaml's events into the tree of yaml.h.
 *
 * The parser keeps an explicit stack of open lists and maps, so the depth of the input never
 * becomes depth of the C stack. libyaml checks UTF-8 and syntax; its document API is not used
 * because it would resolve aliases before they can be refused. Everything lives in the caller's
 * arena.
 */
#include "base/yaml.h"

#include "base/io.h"
#include "base/str.h"
#include <string.h>
#include <yaml.h>

typedef struct {
    mx_yaml_node *node; /* an open list or map */
    mx_yaml_node *last; /* its newest child */
    const char *key;    /* of a map: the key read, whose value comes next */
    int key_line;
} open_node;

typedef struct {
    mx_arena *arena;
    const char *name;
    open_node stack[MX_YAML_MAX_DEPTH];
    int depth, n_nodes, n_documents;
    mx_yaml_node *root;
    mx_status problems; /* duplicates found so far; owns */
} reader;

const char *mx_yaml_kind_name(mx_yaml_kind kind)
{
    return kind == MX_YAML_LIST ? "a list" : kind == MX_YAML_MAP ? "a map" : "a value";
}

static int line_of(const yaml_event_t *e)
{
    return (int)e->start_mark.line + 1;
}

static mx_yaml_node *node_new(reader *r, mx_yaml_kind kind, int line)
{
    mx_yaml_node *n = MX_NEW(r->arena, mx_yaml_node);
    n->kind = kind;
    n->text = "";
    n->line = line;
    r->n_nodes++;
    return n;
}

/* Hangs a finished or just opened node into the innermost open list or map. */
static void attach(reader *r, mx_yaml_node *n)
{
    if (r->depth == 0) {
        r->root = n;
        return;
    }
    open_node *top = &r->stack[r->depth - 1];
    if (top->node->kind == MX_YAML_MAP) {
        n->key = top->key;
        n->line = top->key_line;
        top->key = NULL;
    }
    if (top->last)
        top->last->next = n;
    else
        top->node->first = n;
    top->last = n;
    top->node->n++;
}

static bool expects_key(const reader *r)
{
    return r->depth > 0 && r->stack[r->depth - 1].node->kind == MX_YAML_MAP &&
           !r->stack[r->depth - 1].key;
}

static void take_key(reader *r, const char *key, int line)
{
    open_node *top = &r->stack[r->depth - 1];
    for (const mx_yaml_node *c = top->node->first; c; c = c->next)
        if (strcmp(c->key, key) == 0)
            r->problems = mx_status_join(
                r->problems,
                mx_fail(MX_USAGE, "%s:%d: duplicate key `%s`, first set in line %d; keep one",
                        r->name, line, key, c->line));
    top->key = key;
    top->key_line = line;
}

static mx_status take_scalar(reader *r, const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    size_t len = e->data.scalar.length;
    if (memchr(text, 0, len))
        return mx_fail(MX_USAGE, "%s:%d: the value contains a NUL byte", r->name, line_of(e));
    char *copy = mx_arena_strdup(r->arena, text);
    if (expects_key(r)) {
        if (!*copy || len > 200)
            return mx_fail(MX_USAGE, "%s:%d: a key must have 1 to 200 characters, found %zu",
                           r->name, line_of(e), len);
        take_key(r, copy, line_of(e));
        return MX_OK;
    }
    mx_yaml_node *n = node_new(r, MX_YAML_SCALAR, line_of(e));
    n->text = copy;
    n->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    attach(r, n);
    return MX_OK;
}

static mx_status open_collection(reader *r, mx_yaml_kind kind, int line)
{
    if (expects_key(r))
        return mx_fail(MX_USAGE, "%s:%d: a key must be text, found %s", r->name, line,
                       mx_yaml_kind_name(kind));
    if (r->depth == MX_YAML_MAX_DEPTH)
        return mx_fail(MX_USAGE, "%s:%d: nested deeper than %d levels", r->name, line,
                       MX_YAML_MAX_DEPTH);
    mx_yaml_node *n = node_new(r, kind, line);
    attach(r, n);
    r->stack[r->depth++] = (open_node){.node = n};
    return MX_OK;
}

/* Anchors and tags may sit on any of the three node events. */
static mx_status refuse_decoration(const reader *r, const yaml_event_t *e,
                                   const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor)
        return mx_fail(MX_USAGE, "%s:%d: anchors (&%s) are not accepted; write the value out",
                       r->name, line_of(e), (const char *)anchor);
    if (tag)
        return mx_fail(MX_USAGE, "%s:%d: tags (%s) are not accepted; the type follows from the key",
                       r->name, line_of(e), (const char *)tag);
    return MX_OK;
}

static mx_status take_event(reader *r, const yaml_event_t *e)
{
    if (r->n_nodes > MX_YAML_MAX_NODES)
        return mx_fail(MX_USAGE, "%s:%d: more than %d values", r->name, line_of(e),
                       MX_YAML_MAX_NODES);
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (r->n_documents++)
            return mx_fail(MX_USAGE,
                           "%s:%d: a second document (---) is not accepted; use one file each",
                           r->name, line_of(e));
        return MX_OK;
    case YAML_ALIAS_EVENT:
        return mx_fail(MX_USAGE, "%s:%d: aliases (*%s) are not accepted; write the value out",
                       r->name, line_of(e), (const char *)e->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        MX_TRY(refuse_decoration(r, e, e->data.scalar.anchor, e->data.scalar.tag));
        return take_scalar(r, e);
    case YAML_SEQUENCE_START_EVENT:
        MX_TRY(refuse_decoration(r, e, e->data.sequence_start.anchor, e->data.sequence_start.tag));
        return open_collection(r, MX_YAML_LIST, line_of(e));
    case YAML_MAPPING_START_EVENT:
        MX_TRY(refuse_decoration(r, e, e->data.mapping_start.anchor, e->data.mapping_start.tag));
        return open_collection(r, MX_YAML_MAP, line_of(e));
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        r->depth--;
        return MX_OK;
    default:
        return MX_OK;
    }
}

static mx_status syntax_error(const reader *r, const yaml_parser_t *p)
{
    const char *problem = p->problem ? p->problem : "cannot be read";
    if (p->error == YAML_READER_ERROR)
        return mx_fail(MX_USAGE, "%s: byte %zu: %s; the file must be UTF-8 text", r->name,
                       p->problem_offset, problem);
    return mx_fail(MX_USAGE, "%s:%zu: not valid YAML: %s", r->name, p->problem_mark.line + 1,
                   problem);
}

static mx_status parse(reader *r, const char *text, size_t n)
{
    if (n > MX_YAML_MAX_BYTES)
        return mx_fail(MX_USAGE, "%s: %zu bytes; a configuration has at most %d", r->name, n,
                       MX_YAML_MAX_BYTES);
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser))
        return mx_fail(MX_MEMORY, "%s: no memory for the YAML parser", r->name);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    mx_status st = MX_OK;
    for (bool done = false; !done && !st;) {
        yaml_event_t e;
        if (!yaml_parser_parse(&parser, &e)) {
            st = syntax_error(r, &parser);
            break;
        }
        done = e.type == YAML_STREAM_END_EVENT;
        st = take_event(r, &e);
        yaml_event_delete(&e);
    }
    yaml_parser_delete(&parser);
    return st;
}

/* The duplicates, then what ended the parse. */
static mx_status all_problems(reader *r, mx_status st)
{
    st = mx_status_join(r->problems, st);
    r->problems = MX_OK;
    return st;
}

mx_status mx_yaml_parse(mx_arena *a, const char *name, const char *text, size_t n,
                        mx_yaml_node **root)
{
    reader r = {.arena = a, .name = name};
    mx_status st = parse(&r, text, n);
    *root = NULL;
    if (st)
        return all_problems(&r, st);
    bool empty = !r.root || (r.root->kind == MX_YAML_SCALAR && !*r.root->text && !r.root->quoted);
    if (empty)
        r.root = node_new(&r, MX_YAML_MAP, 1);
    if (r.root->kind == MX_YAML_MAP)
        *root = r.root;
    else
        st = mx_fail(MX_USAGE, "%s:%d: expected `key: value` lines, found %s", name, r.root->line,
                     mx_yaml_kind_name(r.root->kind));
    return all_problems(&r, st);
}

mx_status mx_yaml_parse_value(mx_arena *a, const char *name, const char *text, mx_yaml_node **value)
{
    reader r = {.arena = a, .name = name};
    mx_status st = parse(&r, text, strlen(text));
    MX_TRY(all_problems(&r, st));
    *value = r.root ? r.root : node_new(&r, MX_YAML_SCALAR, 1);
    return MX_OK;
}

mx_status mx_yaml_read(mx_arena *a, const char *path, mx_yaml_node **root)
{
    char *text = NULL;
    size_t n = 0;
    *root = NULL;
    mx_status st = mx_io_read_file(NULL, path, MX_YAML_MAX_BYTES, &text, &n);
    if (!st)
        st = mx_yaml_parse(a, path, text, n, root);
    mx_free(text);
    return st;
}
