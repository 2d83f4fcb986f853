/* image_table.h - what encode_image.c asks of the table. */
#ifndef MX_DATA_IMAGE_TABLE_H
#define MX_DATA_IMAGE_TABLE_H

#include "data/image/encode_image.h"

/* A number below -1 for a picture; what it holds is copied. */
int32_t mx_image_table_add(mx_image_table *t, const mx_picture *p);
/* The picture, given to the caller (mx_free of its two parts); the number is free again. */
mx_picture mx_image_table_take(mx_image_table *t, int32_t number);

#endif
