/* messenger.h - messages from one process to another, beside everything else they do; the calls
 * promise what ir/process_group.h says.
 *
 * A messenger has a communicator of its own, and a thread that moves bytes while the program
 * computes. A message waits in the sender's memory until the receiver has room for it, so nothing
 * is copied, messages overtake each other, and two ranks that send to each other do not block.
 */
#ifndef MX_DIST_MESSENGER_H
#define MX_DIST_MESSENGER_H

#include "dist/comm.h"

typedef struct mx_messenger mx_messenger;

/* Takes the communicator, also when it fails. All ranks open it together. */
mx_status mx_messenger_open(mx_messenger **out, mx_comm *c) MX_MUST_USE;
/* The peer of a message is a rank of the communicator; tags are those of two ranks. */
mx_status mx_messenger_send(mx_messenger *m, const mx_message *msg) MX_MUST_USE;
mx_status mx_messenger_sent(mx_messenger *m, const mx_message *msg) MX_MUST_USE;
mx_status mx_messenger_post(mx_messenger *m, const mx_message *msg) MX_MUST_USE;
mx_status mx_messenger_receive(mx_messenger *m, const mx_message *msg) MX_MUST_USE;
/* Nothing is moved from here on: the memory of messages under way may go. */
void mx_messenger_stop(mx_messenger *m);
void mx_messenger_close(mx_messenger *m); /* NULL is a no-op */

#endif
