/* api_call.h - one call of a client: what it asks of the engine, and what it gets.
 *
 * A call becomes one or more choices, each a request of the engine: every prompt n times. How
 * prompts are read and answers written is the endpoint's affair (mx_api); the sampling fields are
 * the same for all. Nothing here knows HTTP.
 */
#ifndef MX_SERVE_API_CALL_H
#define MX_SERVE_API_CALL_H

#include "infer/engine.h"
#include "infer/pictures.h"
#include "serve/adapters.h"
#include "serve/field.h"
#include "serve/tool_calls.h"
#include "text/jinja/chat_template.h"

/* What calls are read by; does not change while the server runs. */
typedef struct {
    const mx_model_ref *model;
    const mx_tokenizer *tokenizer;
    const mx_chat_template *chat; /* NULL: none */
    const mx_call_form *calls;    /* how the model writes calls of tools */
    const mx_image_processor *images; /* of the family; NULL: there are none in requests */
    int64_t most_images, most_pixels; /* of a request; of one image */
    const char *name;             /* of the model, in answers */
    int64_t max_length, vocab;    /* of prompt and answer; ids that can be sampled */
    int64_t width;                /* of embeddings */
    mx_adapter_names *adapters;   /* that calls name in place of the model; NULL: none */
    mx_sampling usual;            /* where a call does not say */
    const mx_token_bytes *bytes;  /* for constrained decoding */
    uint64_t seed;                /* calls without a seed get one from here */
} mx_served;

typedef struct mx_api_call mx_api_call;

/* One answer. */
typedef struct {
    mx_api_call *call;
    int index;
    int prompt;     /* of which prompt */
    mx_request *r;  /* the engine's; NULL: not admitted, or over */
    mx_constraint *constraint; /* until it is admitted; NULL: none */
    size_t sent;    /* of a stream: bytes of text */
    int64_t n_ids;  /* tokens whose ids are out, */
    int64_t scored; /* and tokens with log-probabilities that are out, */
    int64_t offset; /* their characters */
    int64_t n_timed; /* tokens that were there when it last had something new, */
    double timed_at; /* then */
    bool begun, done;
    double score;  /* its tokens' log-probability, mean; where the best are chosen */
    int n_blocks;  /* of content that are out, in a stream of messages */
    bool text_open; /* one of text is under way */
} mx_part;

typedef struct {
    int status;
    const char *message, *param, *code; /* param, code: NULL, none */
} mx_api_error;

/* An endpoint that the engine works for. */
typedef struct {
    const char *path, *id_prefix, *object, *chunk_object;
    bool counts; /* nothing but the prompt's tokens is asked for, and they may be any number */
    /* The request as one of chat completions, where it has another form; NULL: as it is. */
    json_t *(*convert)(mx_fields *f);
    /* Reads what is its own: prompts, how many log-probabilities. Errors stay in the fields. */
    void (*read)(mx_api_call *c, mx_fields *f);
    /* A choice of the answer, whole; or the piece of it that is new, NULL: none. New references.
     * What a stream begins with may be NULL. */
    json_t *(*first)(const mx_part *p);
    json_t *(*whole)(const mx_part *p);
    json_t *(*piece)(mx_part *p, bool last);
    /* Where answers are not OpenAI's choices: the document of all of them; or all that is written
     * of a part with something new. */
    void (*document)(const mx_api_call *c, mx_str *out);
    void (*write)(mx_part *p, bool last, mx_str *out);
    void (*error)(mx_str *out, const mx_api_error *e); /* NULL: as OpenAI's */
} mx_api;
extern const mx_api mx_api_completions, mx_api_chat, mx_api_embeddings, mx_api_messages;
extern const mx_api mx_api_count_chat, mx_api_count_messages;

struct mx_api_call {
    const mx_served *served;
    const mx_api *api;
    char id[64];
    const char *model; /* that was asked for: the served one or an adapter */
    int64_t created;
    bool stream, usage; /* usage: in a last chunk of a stream */
    bool usage_so_far;  /* and, of a choice alone, in each */
    bool ids;           /* token ids of prompts and answers are in the response, too */
    bool echo, logprobs;
    int n_top; /* likeliest tokens shown beside each */
    int64_t n; /* answers to each prompt, */
    int64_t best_of; /* the best of this many */
    bool base64;     /* embeddings are given so */
    mx_request_options o;
    const mx_pattern *pattern; /* that answers must match; NULL: any */
    json_t *tools;             /* functions that the model may call; owns; NULL: none */
    bool forced;               /* it must */
    bool one_call;             /* at most one of them */
    mx_tokens *prompts;
    const char **texts; /* of the prompts, for echo; NULL where they were given as ids */
    int n_prompts;
    mx_part *part;
    int n_parts, n_done;
    json_t *choices; /* of parts that are done, by index */
    int64_t prompt_tokens, new_tokens, cached_tokens;
    mx_arena arena;
};

/* Reads the body of a call. False: *status and `error`, an OpenAI error object, say what is wrong.
 */
bool mx_api_call_read(mx_api_call *c, const mx_served *s, const mx_api *api, const char *body,
                      size_t n, int *status, mx_str *error);
void mx_api_call_fini(mx_api_call *c);
/* An error object in the form of the endpoint; api NULL: OpenAI's. */
void mx_error_object(mx_str *out, const mx_api *api, const mx_api_error *e);
/* Takes the document. */
void mx_json_add(mx_str *out, json_t *doc);
/* Prompts of a field: a text, ids, or a list of such. */
void mx_prompts_read(mx_api_call *c, mx_fields *f, const char *field);
void mx_chat_read(mx_api_call *c, mx_fields *f);
/* Takes images out of the messages, which then have parts {"type": "image"} in their places; the
 * content of messages without images becomes one text. Errors stay in the fields. */
void mx_chat_images(const mx_served *s, mx_fields *f, json_t *messages, mx_pictures *out);
/* response_format, structured_outputs. */
void mx_api_call_read_form(mx_api_call *c, mx_fields *f);
/* Checks one prompt, in tokens, against what fits. */
void mx_api_call_add_prompt(mx_api_call *c, mx_fields *f, const mx_tokens *t, const char *text);

/* The part's request has something new: text for the client is appended to `out`. True once the
 * whole call is done. */
bool mx_api_call_news(mx_api_call *c, mx_part *p, mx_str *out);
/* The engine failed, or does not take it: the rest of the answer is this error. */
void mx_api_call_fail(mx_api_call *c, mx_status why, int *status, mx_str *out);

/* The name that a token goes by in log-probabilities: its text, or "bytes:\xe2" where it is none.
 */
json_t *mx_token_name(const mx_served *s, int32_t id);
/* A token's bytes. */
void mx_token_raw(const mx_served *s, int32_t id, mx_str *out);
json_t *mx_token_byte_list(const mx_served *s, int32_t id);
const char *mx_finish_name(const mx_request *r);
/* What ended it: a stop text, a token's id, null. */
json_t *mx_stop_reason(const mx_request *r);

#endif
