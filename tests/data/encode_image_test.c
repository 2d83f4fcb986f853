/* encode_image_test.c - pictures of training records: their tokens in rows, pixels in batches,
 * whatever the threads, the ranks and where a run was stopped; and records that do not fit. */
#include "../test.h"

#include "data/image/encode_image.h"
#include "data/load/loader.h"
#include "files.h"
#include <stdio.h>
#include <string.h>

#define PICTURES "tests/fuzz/corpus/image"
#define MODEL "tests/fixtures/vision/gemma3"
enum { SEQ = 64, PIECE = 5, PIECES = 4 };

typedef struct {
    mx_tokenizer *tokenizer;
    mx_chat_template *chat;
    mx_encode_images images;
    mx_dataset_options set;
    mx_loader_options o;
} setup;

static void open_setup(setup *s, const char *jsonl)
{
    mx_image_spec spec = {.channels = 3, .size = 8, .token = PIECE, .tokens = PIECES,
                          .max_tiles = 1, .mark = "<start_of_image>",
                          .begin = "\n\n<start_of_image>", .piece = "<image_soft_token>",
                          .end = "<end_of_image>\n\n"};
    *s = (setup){.images = {.column = "image", .folder = PICTURES, .max_tokens = SEQ,
                            .max_images = 3, .table = mx_image_table_new()}};
    MX_CHECK_OK(mx_tokenizer_open(&s->tokenizer, MODEL, &(mx_tokenizer_options){0}));
    MX_CHECK_OK(mx_chat_template_open_dir(&s->chat, MODEL, NULL));
    MX_CHECK(mx_tokenizer_find(s->tokenizer, spec.piece) == PIECE);
    MX_CHECK_OK(mx_image_processor_open(&s->images.processor, &spec, NULL));
    s->set = (mx_dataset_options){.paths = temp_text("pictures.jsonl", jsonl), .kind = "jsonl",
                                  .n_epochs = 6, .shuffle = true, .seed = 3};
    s->o = (mx_loader_options){.datasets = &s->set, .n_datasets = 1, .batch_rows = 4,
                               .n_threads = 1,
                               .pack = {.kind = MX_PACK_FIRST_FIT, .seq_len = SEQ},
                               .encoder = {.tokenizer = s->tokenizer, .chat = s->chat,
                                           .images = &s->images}};
}

static void close_setup(setup *s)
{
    mx_chat_template_close(s->chat);
    mx_tokenizer_close(s->tokenizer);
    mx_image_table_free(s->images.table);
}

static const char records[] =
    "{\"text\": \"A\", \"image\": \"plain.png\"}\n"
    "{\"text\": \"what is the mat\"}\n"
    "{\"text\": \"B <start_of_image> or\\n<start_of_image>\", \"image\": [\"wide.png\", "
    "{\"path\": \"grey.png\"}]}\n"
    "{\"prompt\": \"C\", \"completion\": \"the\", \"images\": [\"alpha.webp\"]}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", "
    "\"image\": \"turned8.png\"}, {\"type\": \"text\", \"text\": \"D\"}]}, "
    "{\"role\": \"assistant\", \"content\": \"cat\"}]}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"E\"}], \"image\": \"plain.webp\"}\n";

/* The pictures that follow a letter of the records above, in order. */
static const char *const pictures_of[5][3] = {{"plain.png"},
                                                {"wide.png", "grey.png"},
                                                {"alpha.webp"},
                                                {"turned8.png"},
                                                {"plain.webp"}};

static bool is_picture(const setup *s, const char *name, const float *pixels)
{
    char path[256];
    mx_image m;
    int64_t n = mx_image_floats(&s->images.processor.spec);
    float *want = mx_realloc(NULL, sizeof(float) * (size_t)n);
    snprintf(path, sizeof path, PICTURES "/%s", name);
    MX_CHECK_OK(mx_image_read(&m, path));
    MX_CHECK_OK(mx_image_process(&s->images.processor, &m, want));
    bool same = memcmp(want, pixels, sizeof(float) * (size_t)n) == 0;
    mx_image_fini(&m);
    mx_free(want);
    return same;
}

/* Each document's letter says which pixels its images must have. */
static int check_batch(const setup *s, const mx_batch *b)
{
    int64_t floats = mx_image_floats(&s->images.processor.spec), image = 0;
    int32_t letter = mx_tokenizer_find(s->tokenizer, "A");
    for (int64_t row = 0; row < b->rows; row++) {
        MX_CHECK(b->first_image[row] == image);
        int64_t pieces = 0;
        for (int32_t segment = 1; segment < SEQ; segment++) {
            int which = -1, k = 0;
            for (int64_t i = row * SEQ; i < (row + 1) * SEQ; i++)
                for (int c = 0; c < 5 && b->segments[i] == segment; c++)
                    if (b->tokens[i] == letter + c)
                        which = c;
            for (int64_t i = row * SEQ; i < (row + 1) * SEQ; i++) {
                MX_CHECK(b->tokens[i] >= 0 && b->labels[i] != PIECE);
                if (b->segments[i] != segment || b->tokens[i] != PIECE)
                    continue;
                bool first = pieces++ % PIECES == 0;
                if (first && which >= 0 && pictures_of[which][k])
                    MX_CHECK(is_picture(s, pictures_of[which][k++], b->pixels + floats * image));
                image += first;
            }
            MX_CHECK(which < 0 || !pictures_of[which][k], "letter %d has %d pictures", which, k);
        }
    }
    MX_CHECK(b->first_image[b->rows] == image && b->n_images == image);
    return (int)image;
}

static int check_all(setup *s)
{
    mx_loader *l;
    const mx_batch *b;
    int images = 0;
    MX_CHECK_OK(mx_loader_open(&l, &s->o));
    for (;;) {
        mx_status st = mx_loader_next(l, &b);
        bool bad = st != MX_OK;
        MX_CHECK_OK(st);
        if (bad || !b)
            break;
        images += check_batch(s, b);
    }
    mx_loader_close(l);
    return images;
}

MX_TEST(pictures_of_records_come_with_their_rows)
{
    for (int kind = MX_PACK_NONE; kind <= MX_PACK_BEST_FIT; kind++)
        for (int threads = 1; threads <= 3; threads += 2) {
            setup s;
            open_setup(&s, records);
            s.o.n_threads = threads;
            s.o.pack.kind = (mx_pack_kind)kind;
            int n = check_all(&s), halves = 0;
            MX_CHECK(n == 6 * 6, "%d images", n);
            for (s.o.rank = 0, s.o.n_ranks = 2; s.o.rank < 2; s.o.rank++)
                halves += check_all(&s);
            MX_CHECK(halves == n, "%d and %d images", halves, n);
            close_setup(&s);
        }
}

MX_TEST(pictures_are_the_same_after_a_restart)
{
    setup s;
    mx_loader *l;
    const mx_batch *b;
    mx_str at = {0};
    int32_t tokens[4 * SEQ];
    open_setup(&s, records);
    s.o.batch_rows = 2;
    int64_t floats = mx_image_floats(&s.images.processor.spec);
    MX_CHECK_OK(mx_loader_open(&l, &s.o));
    MX_CHECK_OK(mx_loader_next(l, &b));
    mx_loader_position(l, &at);
    MX_CHECK_OK(mx_loader_next(l, &b));
    MX_CHECK(b && b->n_images > 0);
    int64_t n = b->n_images;
    size_t bytes = sizeof(float) * (size_t)(n * floats);
    float *pixels = memcpy(mx_realloc(NULL, bytes), b->pixels, bytes);
    memcpy(tokens, b->tokens, sizeof *tokens * 2 * SEQ);
    MX_CHECK_OK(mx_loader_seek(l, at.text, at.len));
    MX_CHECK_OK(mx_loader_next(l, &b));
    MX_CHECK(b->n_images == n && memcmp(b->pixels, pixels, bytes) == 0);
    MX_CHECK(memcmp(b->tokens, tokens, sizeof *tokens * 2 * SEQ) == 0);
    mx_free(pixels);
    mx_loader_close(l);
    mx_str_fini(&at);
    close_setup(&s);
}

static const char turned8[] = "{\"text\": \"D\", \"image\": \"data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAcAAAAFCAIAAAAG+GGPAAAAGmVYSWZNTQAqAAAACAABAR"
    "IAAwAAAAEACAAAAAAAAIZYMDQAAABXSURBVHicNcq7DoJAFEDBQ9ijuZHH2tpa8Jl8rw0F"
    "AZYEIVZOPdVYGIg38SIyURMbkZ5fMzYYWOOJBVNe7fCBNwQP3DDlyfYfL9xxwdR/bPCOFR"
    "5YcMYfkowR5tbGgckAAAAASUVORK5CYII=" "\"}\n";

MX_TEST(pictures_inside_the_data_are_read)
{
    static const struct {
        const char *file, *kind;
        int images;
    } cases[] = {{"pictures.parquet", "parquet", 3},
                 {"pictures.arrow", "arrow", 3},
                 {"pictures_flat.parquet", "parquet", 2},
                 {NULL, "jsonl", 1}};
    for (int i = 0; i < 4; i++) {
        setup s;
        open_setup(&s, turned8);
        s.set.kind = cases[i].kind;
        s.set.n_epochs = 2;
        if (cases[i].file)
            s.set.paths = fixture(cases[i].file);
        int n = check_all(&s);
        MX_CHECK(n == 2 * cases[i].images, "%s: %d images", s.set.paths, n);
        close_setup(&s);
    }
}

static void check_refused(const char *record, const char *why)
{
    char text[2048];
    setup s;
    mx_loader *l;
    const mx_batch *b;
    snprintf(text, sizeof text, "{\"text\": \"the mat\"}\n%s\n", record);
    open_setup(&s, text);
    MX_CHECK_OK(mx_loader_open(&l, &s.o));
    MX_CHECK_ERROR(mx_loader_next(l, &b), why);
    mx_loader_close(l);
    /* or left out */
    s.o.skip_bad = true;
    MX_CHECK_OK(mx_loader_open(&l, &s.o));
    MX_CHECK_OK(mx_loader_next(l, &b));
    MX_CHECK(b && b->n_images == 0);
    mx_loader_close(l);
    close_setup(&s);
}

MX_TEST(pictures_that_do_not_fit_their_record_are_refused)
{
    check_refused("{\"text\": \"a\", \"image\": \"none.png\"}", PICTURES "/none.png");
    check_refused("{\"text\": \"a\", \"image\": \"enormous.png\"}", "too large");
    check_refused("{\"text\": \"<start_of_image> <start_of_image>\", \"image\": \"plain.png\"}",
                  "has 1 pictures and more places");
    check_refused("{\"text\": \"<start_of_image>\", \"images\": [\"plain.png\", \"grey.png\"]}",
                  "has 2 pictures, but only 1 places");
    check_refused("{\"text\": \"a\", \"image\": {\"bytes\": \"xx\"}}", "names of image files");
    check_refused("{\"text\": \"a\", \"image\": \"data:;base64,iVBO!\"}", "not base64 at byte 17");
    check_refused("{\"text\": \"a\", \"image\": \"data:;base64,iVBORw0KGgo=\"}",
                  "picture 1 of the record: the PNG image is damaged");
    check_refused("{\"ids\": [1, 2], \"image\": \"plain.png\"}", "token ids has pictures");
    check_refused("{\"text\": \"a\", \"image\": [\"grey.png\", \"grey.png\", \"grey.png\", "
                  "\"grey.png\"]}", "4 images to the model, at most 3");
    check_refused("{\"text\": \"the cat sat on the mat the cat sat on the mat the cat sat on the "
                  "mat the cat sat on the mat the cat sat on the mat the cat sat on the mat the "
                  "cat sat on the mat the cat sat on the mat\", \"image\": \"grey.png\"}",
                  "pictures cannot be cut off");
}
