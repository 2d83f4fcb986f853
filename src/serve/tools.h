/* tools.h - functions that the model may call; see tools.c. */
#ifndef MX_SERVE_TOOLS_H
#define MX_SERVE_TOOLS_H

#include "serve/api_call.h"

/* tools, tool_choice. */
void mx_tools_read(mx_api_call *c, mx_fields *f);
/* The calls of an answer that is whole; *n_text: bytes of text before them. New reference. */
json_t *mx_tools_calls(const mx_part *p, size_t *n_text);
/* Of a stream: bytes that are surely text; what is new of a forced call, NULL: nothing. */
size_t mx_tools_visible(const mx_part *p);
json_t *mx_tools_delta(mx_part *p, bool last);

#endif
