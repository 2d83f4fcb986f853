/* sentencepiece_load.c - reading a SentencePiece tokenizer.model, a protocol buffer:
 *
 *     ModelProto      1 pieces (repeated)  2 trainer_spec  3 normalizer_spec  5 denormalizer_spec
 *     SentencePiece   1 piece (string)     2 score (float)  3 type (enum, default NORMAL)
 *     TrainerSpec     3 model_type (1 unigram, 2 BPE)  24 treat_whitespace_as_suffix
 *                     35 byte_fallback  40-43 unk, bos, eos, pad id  44 unk_surface
 *     NormalizerSpec  2 precompiled_charsmap  3 add_dummy_prefix  4 remove_extra_whitespaces
 *                     5 escape_whitespaces
 *
 * Only varints, fixed32 and length-delimited fields occur, so the reader is forty lines, with every
 * length checked against what is left.
 */
#include "text/tokenizer/tokenizer_parts.h"

#include "base/file.h"
#include "base/varint.h"
#include <float.h>
#include <stdlib.h>

enum { MAX_PIECES = 1 << 24 };

typedef struct {
    const uint8_t *p, *end;
} wire;

typedef struct {
    uint32_t number, type;
    uint64_t value; /* varint or fixed */
    wire bytes;     /* length-delimited */
} field;

/* False at the end (w->p == w->end) and on damage (w->p != w->end, or bad is set). */
static bool next_field(wire *w, field *f, bool *bad)
{
    uint64_t tag, n;
    if (w->p == w->end)
        return false;
    *bad = true;
    if (!mx_varint_read(&w->p, w->end, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF)
        return false;
    *f = (field){.number = (uint32_t)(tag >> 3), .type = (uint32_t)(tag & 7)};
    if (f->type == 0) {
        if (!mx_varint_read(&w->p, w->end, &f->value))
            return false;
    } else if (f->type == 1 || f->type == 5) {
        size_t k = f->type == 1 ? 8 : 4;
        if ((size_t)(w->end - w->p) < k)
            return false;
        memcpy(&f->value, w->p, k);
        w->p += k;
    } else if (f->type == 2) {
        if (!mx_varint_read(&w->p, w->end, &n) || n > (size_t)(w->end - w->p))
            return false;
        f->bytes = (wire){w->p, w->p + n};
        w->p += n;
    } else {
        return false;
    }
    *bad = false;
    return true;
}

typedef struct {
    const uint8_t *s;
    size_t n;
    float score;
    uint32_t type;
} entry;

typedef struct {
    mx_tokenizer *t;
    const char *path;
    const uint8_t *start;
    entry *piece; /* owns */
    int32_t n, cap;
    uint64_t model_type;
    bool byte_fallback;
    int32_t unk;
} loader;

static mx_status damaged(const loader *l, const wire *w, const char *what)
{
    return mx_fail(MX_INPUT,
                   "%s: byte %zu: %s; this is not a SentencePiece model, or it is damaged", l->path,
                   (size_t)(w->p - l->start), what);
}

static mx_status read_piece(loader *l, wire w)
{
    entry e = {.type = MX_SP_NORMAL};
    field f;
    bool bad = false;
    while (next_field(&w, &f, &bad)) {
        if (f.number == 1 && f.type == 2) {
            e.s = f.bytes.p;
            e.n = (size_t)(f.bytes.end - f.bytes.p);
        } else if (f.number == 2 && f.type == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&e.score, &bits, 4);
        } else if (f.number == 3 && f.type == 0) {
            e.type = f.value <= MX_SP_BYTE ? (uint32_t)f.value : 0;
        }
    }
    if (bad)
        return damaged(l, &w, "a piece is cut short");
    if (!e.n || e.n > INT32_MAX || !e.type || e.score != e.score)
        return damaged(l, &w, "a piece without text, or with a type or score that does not exist");
    if (e.n > MX_MAX_PIECE_BYTES)
        return damaged(l, &w, "a piece of more than 1,024 bytes");
    if (mx_utf8_valid_prefix(e.s, e.n) != e.n)
        return damaged(l, &w, "a piece that is not UTF-8");
    if (l->n == MAX_PIECES)
        return damaged(l, &w, "more than 16 million pieces");
    MX_GROW(l->piece, l->n, l->cap);
    l->piece[l->n++] = e;
    return MX_OK;
}

static mx_status read_trainer(loader *l, wire w)
{
    field f;
    bool bad = false;
    mx_sentencepiece *m = l->t->sentencepiece;
    while (next_field(&w, &f, &bad)) {
        if (f.number == 44 && f.type == 2) {
            size_t n = (size_t)(f.bytes.end - f.bytes.p);
            char *s = mx_arena_alloc(&l->t->arena, n + 1);
            memcpy(s, f.bytes.p, n);
            m->unk_surface = s;
        }
        if (f.type != 0)
            continue;
        int32_t id = (int32_t)f.value;
        switch (f.number) {
        case 3:
            l->model_type = f.value;
            break;
        case 24:
            m->space_as_suffix = f.value != 0;
            break;
        case 35:
            l->byte_fallback = f.value != 0;
            break;
        case 41:
            l->t->bos = id;
            break;
        case 42:
            l->t->eos = id;
            break;
        case 43:
            l->t->pad = id;
            break;
        default:
            break;
        }
    }
    return bad ? damaged(l, &w, "the trainer settings are cut short") : MX_OK;
}

static mx_status read_normalizer(loader *l, wire w, bool denormalizer)
{
    field f;
    bool bad = false;
    mx_sentencepiece *m = l->t->sentencepiece;
    while (next_field(&w, &f, &bad)) {
        if (f.number == 2 && f.type == 2)
            MX_TRY(mx_charsmap_init(denormalizer ? &m->denormal : &m->charsmap, f.bytes.p,
                                    (size_t)(f.bytes.end - f.bytes.p), l->path));
        if (f.type != 0 || denormalizer)
            continue;
        if (f.number == 3)
            m->add_dummy_prefix = f.value != 0;
        else if (f.number == 4)
            m->remove_extra_spaces = f.value != 0;
        else if (f.number == 5)
            m->escape_spaces = f.value != 0;
    }
    return bad ? damaged(l, &w, "the normalizer settings are cut short") : MX_OK;
}

static mx_status read_model(loader *l, wire w)
{
    field f;
    bool bad = false;
    while (next_field(&w, &f, &bad)) {
        if (f.type != 2)
            continue;
        if (f.number == 1)
            MX_TRY(read_piece(l, f.bytes));
        else if (f.number == 2)
            MX_TRY(read_trainer(l, f.bytes));
        else if (f.number == 3 || f.number == 5)
            MX_TRY(read_normalizer(l, f.bytes, f.number == 5));
    }
    if (bad)
        return damaged(l, &w, "a field is cut short or of a kind that does not exist");
    if (!l->n)
        return damaged(l, &w, "it has no pieces");
    return MX_OK;
}

static bool is_byte_piece(const entry *e)
{
    return e->n == 6 && memcmp(e->s, "<0x", 3) == 0 && e->s[5] == '>' &&
           strspn((const char *)e->s + 3, "0123456789ABCDEF") == 2;
}

/* Tokens, types, special ones; byte ids; the vocabulary of pieces that text can consist of. */
static mx_status fill_vocab(loader *l, mx_vocab *v, int32_t n_ids, int32_t byte_id[256])
{
    mx_tokenizer *t = l->t;
    mx_sentencepiece *m = t->sentencepiece;
    mx_vocab_init(v, n_ids);
    mx_tokenizer_grow(t, l->n);
    m->n_pieces = l->n;
    m->type = mx_arena_alloc(&t->arena, (size_t)l->n);
    l->unk = -1;
    for (int c = 0; c < 256; c++)
        byte_id[c] = -1;
    for (int32_t id = 0; id < l->n; id++) {
        const entry *e = &l->piece[id];
        bool text = e->type == MX_SP_NORMAL || e->type == MX_SP_USER_DEFINED;
        mx_vocab_set(v, id, e->s, e->n, text);
        t->token[id] = v->piece[id];
        t->special[id] = e->type == MX_SP_CONTROL || e->type == MX_SP_UNKNOWN;
        m->type[id] = (uint8_t)e->type;
        if (e->type == MX_SP_UNKNOWN)
            l->unk = id;
        if (e->type == MX_SP_BYTE) {
            if (!is_byte_piece(e))
                return mx_fail(MX_INPUT,
                               "%s: piece %d (\"%.*s\") is of the byte type, but is not "
                               "spelled <0x00> to <0xFF>",
                               l->path, id, (int)e->n, (const char *)e->s);
            char hex[3] = {(char)e->s[3], (char)e->s[4], 0};
            byte_id[strtol(hex, NULL, 16)] = id;
        }
        mx_added a = {
            .s = e->s, .n = (uint32_t)e->n, .id = id, .special = e->type == MX_SP_CONTROL};
        if (e->type == MX_SP_CONTROL)
            mx_added_put(&t->added, a);
        if (e->type == MX_SP_USER_DEFINED)
            mx_added_put(&m->user_defined, a);
    }
    mx_added_finish(&m->user_defined);
    if (l->unk < 0)
        return mx_fail(MX_INPUT, "%s: no piece is of the unknown type; the model is damaged",
                       l->path);
    return MX_OK;
}

/* The model merges any two neighbours whose joined text is a piece, also where one of them is a
 * single character that is no piece itself. Such characters get ids above the real ones. */
static int32_t add_lone_chars(loader *l, mx_vocab *v, int32_t next, bool count_only)
{
    uint32_t cp;
    for (int32_t id = 0; id < l->n; id++) {
        const entry *e = &l->piece[id];
        if (e->type != MX_SP_NORMAL)
            continue;
        for (size_t i = 0; i < e->n;) {
            size_t k = (size_t)mx_utf8_next(e->s + i, &cp);
            if (k < e->n && mx_vocab_find(v, e->s + i, k) < 0) {
                if (!count_only)
                    mx_vocab_set(v, next, e->s + i, k, true);
                next++;
            }
            i += k;
        }
    }
    return next;
}

static int by_score(const void *x, const void *y)
{
    const entry *a = *(const entry *const *)x, *b = *(const entry *const *)y;
    return a->score > b->score ? -1 : a->score < b->score;
}

/* rank[id]: pieces of equal score have equal rank; -1 for what is never merged. */
static void rank_pieces(const loader *l, int32_t *rank)
{
    const entry **order = mx_realloc(NULL, sizeof *order * (size_t)l->n);
    for (int32_t i = 0; i < l->n; i++)
        order[i] = &l->piece[i];
    qsort(order, (size_t)l->n, sizeof *order, by_score);
    int32_t r = 0;
    for (int32_t i = 0; i < l->n; i++) {
        if (i && order[i]->score != order[i - 1]->score)
            r++;
        rank[order[i] - l->piece] = order[i]->type == MX_SP_NORMAL ? r : -1;
    }
    mx_free(order);
}

static mx_status make_bpe(loader *l)
{
    mx_bpe *b = &l->t->bpe;
    l->t->kind = "SentencePiece (BPE)";
    b->byte_fallback = l->byte_fallback;
    b->fuse_unk = true;
    MX_TRY(fill_vocab(l, &b->vocab, l->n, b->byte_id));
    int32_t n_ids = add_lone_chars(l, &b->vocab, l->n, true);
    if (n_ids > l->n) {
        mx_vocab_fini(&b->vocab);
        mx_added_fini(&l->t->added);
        mx_added_fini(&l->t->sentencepiece->user_defined);
        MX_TRY(fill_vocab(l, &b->vocab, n_ids, b->byte_id));
        add_lone_chars(l, &b->vocab, l->n, false);
    }
    b->unk = l->unk;
    int32_t *rank = mx_realloc(NULL, sizeof *rank * (size_t)n_ids);
    for (int32_t i = 0; i < n_ids; i++)
        rank[i] = -1;
    rank_pieces(l, rank);
    mx_bpe_merges_from_pieces(b, rank);
    mx_free(rank);
    mx_bpe_finish(b);
    return MX_OK;
}

static mx_status make_unigram(loader *l)
{
    mx_unigram *u = &l->t->unigram;
    l->t->kind = "SentencePiece (unigram)";
    l->t->model = MX_MODEL_UNIGRAM;
    MX_TRY(fill_vocab(l, &u->vocab, l->n, u->byte_id));
    mx_unigram_init(u);
    u->unk = l->unk;
    u->byte_fallback = l->byte_fallback;
    u->float_sums = true;
    float lowest = FLT_MAX, highest = FLT_MIN; /* FLT_MIN, not -FLT_MAX: as the library has it */
    for (int32_t id = 0; id < l->n; id++) {
        const entry *e = &l->piece[id];
        if (e->type == MX_SP_NORMAL || e->type == MX_SP_USER_DEFINED)
            mx_unigram_add(u, id, (double)e->score, e->type == MX_SP_USER_DEFINED);
        if (e->type != MX_SP_NORMAL)
            continue;
        lowest = e->score < lowest ? e->score : lowest;
        highest = e->score > highest ? e->score : highest;
    }
    u->unk_score = (double)(lowest - 10.0f);
    u->max_score = (double)highest;
    return MX_OK;
}

static void check_ids(mx_tokenizer *t)
{
    int32_t *id[3] = {&t->bos, &t->eos, &t->pad};
    for (int i = 0; i < 3; i++)
        if (*id[i] >= t->n_tokens)
            *id[i] = -1;
}

/* The pieces stay where they lie, so the bytes live as long as the tokenizer. */
static mx_status load(mx_tokenizer *t, const mx_tokenizer_source *s)
{
    const char *path = s->path, *text = mx_arena_copy(&t->arena, s->text, s->n + 1);
    size_t n = s->n;
    mx_sentencepiece *m = t->sentencepiece = MX_NEW(&t->arena, mx_sentencepiece);
    *m = (mx_sentencepiece){.add_dummy_prefix = true,
                            .remove_extra_spaces = true,
                            .escape_spaces = true,
                            .unk_surface = " \xE2\x81\x87 "};
    loader l = {.t = t, .path = path, .start = (const uint8_t *)text, .model_type = 1};
    t->bos = 1;
    t->eos = 2;
    mx_status st = read_model(&l, (wire){l.start, l.start + n});
    if (!st)
        st = l.model_type == 2   ? make_bpe(&l)
             : l.model_type == 1 ? make_unigram(&l)
                                 : mx_fail(MX_INPUT,
                                           "%s: SentencePiece model type %llu is not "
                                           "supported; unigram (1) and BPE (2) are",
                                           path, (unsigned long long)l.model_type);
    check_ids(t);
    if (!st && t->bos >= 0)
        mx_tokens_add(&t->prefix, t->bos);
    mx_free(l.piece);
    return st;
}

const mx_tokenizer_format mx_tokenizer_format_sentencepiece = {
    .type = "sentencepiece",
    .file = "tokenizer.model",
    .load = load,
};
