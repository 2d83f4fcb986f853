/* byte_tokenizer.c - the built-in tokenizer: ids 0-255 are the bytes, 256 begins a text, 257 ends
 * it, 258 is padding. */
#include "text/tokenizer/tokenizer_parts.h"

static mx_status load(mx_tokenizer *t, const mx_tokenizer_source *s)
{
    static const char *const name[] = {"<bos>", "<eos>", "<pad>"};
    (void)s;
    t->kind = "byte";
    uint8_t *byte = mx_arena_alloc(&t->arena, 256);
    mx_vocab_init(&t->bpe.vocab, 256);
    mx_tokenizer_grow(t, 256 + 3);
    t->bpe.byte_level = true;
    t->bpe.unk = -1;
    for (int i = 0; i < 256; i++) {
        byte[i] = (uint8_t)i;
        t->bpe.byte_id[i] = i;
        mx_vocab_set(&t->bpe.vocab, i, byte + i, 1, true);
        t->token[i] = t->bpe.vocab.piece[i];
    }
    for (int i = 0; i < 3; i++) {
        t->token[256 + i] = (mx_piece){(const uint8_t *)name[i], 5};
        t->special[256 + i] = true;
        mx_added_put(
            &t->added,
            (mx_added){.s = (const uint8_t *)name[i], .n = 5, .id = 256 + i, .special = true});
    }
    mx_bpe_finish(&t->bpe);
    t->bos = 256;
    t->eos = 257;
    t->pad = 258;
    mx_tokens_add(&t->prefix, t->bos);
    t->decoder.step = MX_NEW(&t->arena, mx_dec_step);
    t->decoder.n = 1;
    return MX_OK;
}

const mx_tokenizer_format mx_tokenizer_format_byte = {.type = "byte", .load = load};
