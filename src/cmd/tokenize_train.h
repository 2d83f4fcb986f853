/* tokenize_train.h - maxc tokenize train: a part of the verb tokenize, in a file of its own. */
#ifndef MX_CMD_TOKENIZE_TRAIN_H
#define MX_CMD_TOKENIZE_TRAIN_H

#include "cmd/verb.h"

/* inv->args[0] is "train"; the others are files. */
mx_status mx_tokenize_train(mx_invocation *inv) MX_MUST_USE;

#endif
