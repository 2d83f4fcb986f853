/* payload.h - what a TFRecord or ArrayRecord record holds: a tf.train.Example, a JSON object, or
 * text. */
#ifndef MX_DATA_PAYLOAD_H
#define MX_DATA_PAYLOAD_H

#include "data/formats/source.h"

mx_status mx_payload_decode(const mx_source *s, const uint8_t *p, size_t n,
                            mx_record *r) MX_MUST_USE;

/* Protocol buffers, as far as they are needed here. A message is (number << 3 | wire type) varints,
 * each followed by a value. */
typedef struct {
    const uint8_t *p, *end;
    bool bad;
} mx_proto;
/* false: the end, or damage (`bad`). `bytes` is set for wire type 2, `value` for 0, 1 and 5. */
bool mx_proto_next(mx_proto *m, int *number, int *wire, uint64_t *value, mx_proto *bytes);
bool mx_proto_varint(mx_proto *m, uint64_t *value);

#endif
