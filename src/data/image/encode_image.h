/* encode_image.h - pictures of training records, from file names to the pixels of a batch.
 *
 * A record has its pictures in a column (a file name, bytes, or a list of these) or in the parts of
 * its messages, {"type": "image", "image": "FILE"}. While it is encoded each is decoded once, to
 * see that it is whole and how it is cut. Pixels are many times larger than text, so they are not
 * kept: the first token of a picture becomes a number below -1 that stands for it in a table, and
 * when a row is written into a batch it is decoded again, its pixels go into the batch, and the
 * token becomes what it is to the model. So a document's tokens are all that is packed and
 * shuffled, and no more pixels exist than in the batches ahead.
 */
#ifndef MX_DATA_ENCODE_IMAGE_H
#define MX_DATA_ENCODE_IMAGE_H

#include "data/load/encode.h"
#include "data/image/image_process.h"

typedef struct mx_image_table mx_image_table;

#define MX_IMAGES_COLUMN "images" /* looked at where there is no `column` */

struct mx_encode_images {
    mx_image_processor processor;
    const char *column;  /* of records */
    const char *folder;  /* where names that are relative are looked for as well; NULL: nowhere */
    int64_t max_tokens;  /* of a document with pictures: it cannot be cut */
    int64_t max_images;  /* to the model, of a document */
    mx_image_table *table;
};
typedef struct mx_encode_images mx_encode_images;

mx_image_table *mx_image_table_new(void);
void mx_image_table_clear(mx_image_table *t);
void mx_image_table_free(mx_image_table *t); /* NULL is a no-op */

/* A file, or the bytes of one that came with the record. */
typedef struct {
    char *name; /* path, or what errors call it */
    void *bytes; /* NULL: a file */
    size_t n_bytes;
} mx_picture;
mx_status mx_picture_read(const mx_picture *p, mx_image *out) MX_MUST_USE;

/* The pictures of the record being encoded. */
struct mx_record_pictures {
    const mx_encode_images *images;
    int n, cap;
    mx_picture *picture; /* in the arena, and what they hold */
    mx_image_cut *cut;
    mx_arena arena;
};
typedef struct mx_record_pictures mx_record_pictures;

/* Finds and reads them. The example's text gets a mark for each when it has none. */
mx_status mx_record_pictures_open(mx_record_pictures *p, const mx_encode_images *images,
                                  const mx_record *r, mx_example *x) MX_MUST_USE;
void mx_record_pictures_close(mx_record_pictures *p);
/* Appends text whose marks become pictures; *done: it had some, nothing else is to be appended. */
mx_status mx_encode_marks(const mx_encoder *e, const char *text, size_t n, mx_document *d,
                          bool *done) MX_MUST_USE;
/* All pictures have found their places, and the document can be used. */
mx_status mx_encode_pictures_end(mx_document *d) MX_MUST_USE;

/* Of a row of tokens: pictures' files are read, their pixels appended to *pixels (images so far in
 * *n, which may hold *cap), and their tokens put right. pixels NULL: tokens alone. */
mx_status mx_row_pictures(const mx_encode_images *images, int32_t *tokens, int64_t n_tokens,
                          float **pixels, int64_t *n, int64_t *cap) MX_MUST_USE;

#endif
