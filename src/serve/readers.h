/* readers.h - the threads that read requests.
 *
 * What a request costs before the engine sees it (JSON, templates, tokens, images, schemas) is paid
 * here, so that one that costs seconds keeps nobody waiting: neither libmicrohttpd's thread, which
 * writes every answer, nor the engine's. Requests with large bodies never take all of the threads,
 * and the kernel runs these after the engine's (a lower priority).
 */
#ifndef MX_SERVE_READERS_H
#define MX_SERVE_READERS_H

#include "base/status.h"

typedef struct mx_exchange mx_exchange;
typedef struct mx_readers mx_readers;

/* `read` is called with each exchange, in one of the threads. */
mx_status mx_readers_start(mx_readers **out, void (*read)(mx_exchange *x)) MX_MUST_USE;
/* Takes the exchange; large: its body is. False: they have stopped. */
bool mx_readers_add(mx_readers *r, mx_exchange *x, bool large);
/* Ends the threads once what was added has been read. NULL is a no-op; may be called again. */
void mx_readers_stop(mx_readers *r);
void mx_readers_close(mx_readers *r); /* NULL is a no-op */

#endif
