/* hub_curl.h - libcurl, opened when something is fetched.
 *
 * With what it needs in turn it is thirty libraries, which a program that reads local files should
 * not have to load. Functions are reached as `curl->easy_perform(...)`; their types come from the
 * header, so a call is checked like a direct one.
 */
#ifndef MX_DATA_HUB_CURL_H
#define MX_DATA_HUB_CURL_H

#include "base/status.h"

#define CURL_DISABLE_TYPECHECK /* its macros want to call the functions by their own names */
#include <curl/curl.h>

#define MX_CURL_FUNCTIONS(F)                                                                       \
    F(easy_init)                                                                                   \
    F(easy_setopt) F(easy_perform) F(easy_getinfo) F(easy_strerror) F(easy_cleanup)                \
        F(slist_append) F(slist_free_all)

#define MX_CURL_MEMBER(name) __typeof__(&curl_##name) name;
typedef struct {
    MX_CURL_FUNCTIONS(MX_CURL_MEMBER)
} mx_curl;

/* The error says what was tried and what to install. */
mx_status mx_curl_open(mx_curl *curl) MX_MUST_USE;

#endif
