/* engine_impl.h - what the files of the engine share. */
#ifndef MX_INFER_ENGINE_IMPL_H
#define MX_INFER_ENGINE_IMPL_H

#include "infer/batch.h"
#include "infer/engine.h"
#include "infer/pages.h"

enum { MX_ENGINE_PAGE = 16 };

typedef struct mx_seq mx_seq;
struct mx_seq {
    mx_request r; /* first: the caller's view */
    mx_request_options o;
    int32_t *banned; /* what may not be sampled before min_new: every stop id */
    int n_banned;
    int64_t computed; /* tokens whose entries are in the cache */
    int64_t scored;   /* tokens before this have their log-probabilities */
    int32_t row;      /* of the page table; -1: not running */
    int32_t *page;
    int64_t n_pages, n_named;        /* the first n_named are in the prefix cache */
    mx_page_name name;               /* of the last of them */
    mx_image_spots spots;            /* of its images */
    int64_t take, first_row, n_rows; /* of this step: tokens, and rows of logits */
    int64_t first_in;                /* its first token in the batch */
    int64_t n_drafted, n_drawn;      /* tokens drafted after the last one; tokens sampled */
    int64_t n_kept;                  /* tokens of this step whose entries stay in the cache */
    int32_t *mtp_draft;              /* (draft_tokens) of the MTP layer, for the next step */
    int64_t n_mtp_drafts;
    int64_t n_pending;               /* tokens of batches in flight, not known yet: 0 or 1, 2 for a
                                        moment */
    bool news, listed;               /* has something new; stands in the list of those */
    mx_seq *prev, *next;             /* all requests; waiting ones by next_waiting */
    mx_seq *next_waiting;
    mx_arena arena;
};

/* A batch in flight, and which rows belong to which request. A plain batch gives the host no
 * logits: tokens are sampled on the device, one for each answer, and the next batch can be formed
 * and launched before they are known. */
typedef struct {
    mx_seq *s; /* NULL: evicted or cancelled since the launch */
    int64_t take, row, n_rows; /* tokens; its row of logits, where n_rows is 1 */
} mx_inflight_part;
typedef struct {
    mx_inflight_part *part; /* (sequences) */
    int64_t n;            /* 0: none */
    int turn;             /* to wait with: mx_engine_batch_launch */
    bool plain;           /* no logits for the host */
} mx_inflight;

struct mx_engine {
    mx_engine_options o;
    mx_session *session;
    mx_engine_batch *batch;
    mx_engine_batch *mtp; /* the MTP layer; NULL: not used */
    mx_tower *tower; /* NULL: no images */
    mx_image_spec image_spec;
    mx_pages *pages;
    int64_t n_pages;
    int64_t vocab, model_vocab;
    bool device_draws; /* requests with no more than temperature, top-k and top-p */
    mx_seq *all;
    mx_seq *waiting, *last_waiting;
    mx_seq **running; /* in the order in which they began */
    int64_t n_running;
    int32_t *free_rows;
    int64_t n_free_rows;
    mx_seq **news;
    int64_t n_news, cap_news;
    int64_t n_rows;          /* of logits in a batch */
    mx_choice *drawn;        /* (sequences, 1 + draft_tokens): the next tokens of running[i] */
    uint64_t *slot_contents; /* (adapter_slots): changes with what a slot holds */
    uint64_t n_contents;
    float *hidden; /* (n_rows, width), where a request asks for it */
    char *work;       /* the sampler's scratch memory, for each thread */
    int n_threads;
    mx_inflight inflight[2]; /* the older one first */
    mx_engine_counts counts;
    mx_arena arena;
};

/* Tokens of a request, with one that is not known yet. */
static inline int64_t mx_seq_length(const mx_seq *s)
{
    return s->r.tokens.n + s->n_pending;
}

/* engine_schedule.c: fills the batch. Sequences in it have take > 0. */
void mx_engine_schedule(mx_engine *e);
/* Whether the next batch can be filled while one is in flight: surely without preemption. */
bool mx_engine_has_room_ahead(const mx_engine *e);
/* Gives up row and pages. */
void mx_engine_evict(mx_engine *e, mx_seq *s);
void mx_engine_wait(mx_engine *e, mx_seq *s, bool first);
/* engine_images.c. How much of a request's next n tokens, from `computed` on, can go into a batch:
 * not a part of an image whose tokens see each other both ways. */
int64_t mx_engine_whole_images(const mx_engine *e, const mx_seq *s, int64_t n);
/* What the tokens of a batch get from images, and where they stand. */
mx_status mx_engine_fill_images(mx_engine *e) MX_MUST_USE;
/* The name that page `page` of a request follows: images that begin in it are part of that. */
mx_page_name mx_engine_before_page(const mx_seq *s, int64_t page, mx_page_name before);

/* After the batch has run: pages that are full now go into the prefix cache. */
void mx_engine_publish(mx_engine *e, mx_seq *s);

/* What every rank of a mesh has of an engine: session, programs, weights. */
mx_status mx_engine_open_model(mx_engine *e) MX_MUST_USE;

/* engine_sample.c: what the batch's logits are for. */
/* Before a batch runs: how the device samples each row, and which rows' logits the host reads. */
void mx_engine_set_sampling(mx_engine *e);
void mx_engine_sample(mx_engine *e);
/* What a plain batch, which was waited for, has given. */
void mx_engine_complete(mx_engine *e, mx_inflight *f);

/* Pages for the first n tokens, or as many as are free. Gives how many tokens have a page. */
int64_t mx_engine_reserve(mx_engine *e, mx_seq *s, int64_t n);

/* engine_mtp.c: after a batch is sampled, the MTP layer reads what the model has computed, and
 * drafts the next tokens of answers. */
mx_status mx_engine_mtp_draft(mx_engine *e) MX_MUST_USE;
/* Is it possible with this model? */
mx_status mx_engine_check_mtp(const mx_model_ref *m) MX_MUST_USE;

/* draft.c: drafts at most n tokens that follow the n_ids; gives how many. */
int64_t mx_draft_lookup(const int32_t *ids, int64_t n_ids, int64_t n, int32_t *out);

#endif
