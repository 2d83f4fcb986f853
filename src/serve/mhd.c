/* mhd.c - see mhd.h. */
#include "serve/mhd.h"

#include "base/library.h"

mx_status mx_mhd_open(mx_mhd *mhd)
{
    void *library;
    MX_TRY(mx_library_open(MX_LIBRARY_MICROHTTPD, &library));
#define FIND(name)                                                                                 \
    MX_TRY(mx_library_find(MX_LIBRARY_MICROHTTPD, library, "MHD_" #name, &mhd->name));
    MX_MHD_FUNCTIONS(FIND)
    return MX_OK;
}
