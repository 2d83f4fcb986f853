/* hub_curl.c - looking up libcurl's functions. */
#include "data/hub/hub_curl.h"

#include "base/library.h"

#define FIND(name) MX_TRY(mx_library_find(MX_LIBRARY_CURL, so, "curl_" #name, &curl->name));

mx_status mx_curl_open(mx_curl *curl)
{
    void *so = NULL;
    MX_TRY(mx_library_open(MX_LIBRARY_CURL, &so));
    MX_CURL_FUNCTIONS(FIND)
    return MX_OK;
}
