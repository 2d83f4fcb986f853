/* version.c - maxc version: the program, how it was built, and the libraries it was built with.
 *
 * MX_BUILD_FLAGS comes from the Makefile. Library versions are what is loaded now, not what was
 * there at build time, as far as the library can say. Libraries opened at run time: maxc doctor.
 */
#include "base/version.h"
#include "base/arena.h"
#include "base/json_doc.h"
#include "cmd/verb.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <nettle/version.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <png.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include <webp/decode.h>
#include <xxhash.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

static void add(json_t *libraries, const char *name, const char *version)
{
    json_object_set_new(libraries, name, json_string(version));
}

static json_t *libraries(void)
{
    json_t *l = json_object();
    add(l, "jansson", jansson_version_str());
    char buf[64];
    add(l, "libyaml", yaml_get_version_string());
    pcre2_config(PCRE2_CONFIG_VERSION, buf);
    add(l, "PCRE2", buf);
    add(l, "utf8proc", utf8proc_version());
    add(l, "zstd", ZSTD_versionString());
    add(l, "zlib", zlibVersion());
    unsigned x = XXH_versionNumber();
    snprintf(buf, sizeof buf, "%u.%u.%u", x / 10000, x / 100 % 100, x % 100);
    add(l, "xxHash", buf);
    add(l, "LZ4", LZ4_versionString());
    unsigned b = BrotliDecoderVersion();
    snprintf(buf, sizeof buf, "%u.%u.%u", b >> 24, b >> 12 & 4095, b & 4095);
    add(l, "Brotli", buf);
    snprintf(buf, sizeof buf, "%d.%d", nettle_version_major(), nettle_version_minor());
    add(l, "nettle", buf);
    add(l, "libpng", png_get_libpng_ver(NULL));
    int w = WebPGetDecoderVersion();
    snprintf(buf, sizeof buf, "%d.%d.%d", w >> 16, w >> 8 & 255, w & 255);
    add(l, "libwebp", buf);
    return l;
}

static mx_status run(mx_invocation *inv)
{
    json_t *l = libraries();
    if (strcmp(mx_config_text(inv->config, "format"), "json") == 0) {
        json_t *all = json_pack("{s:s, s:s, s:s, s:o}", "version", MX_VERSION, "compiler",
                                __VERSION__, "flags", MX_BUILD_FLAGS, "libraries", l);
        char *text = mx_json_text(all, 2);
        printf("%s\n", text);
        mx_free(text);
        json_decref(all);
        return MX_OK;
    }
    printf("maxc %s\ncompiler  %s\nflags     %s\n", MX_VERSION, __VERSION__, MX_BUILD_FLAGS);
    const char *name;
    json_t *version;
    json_object_foreach(l, name, version) printf("%-14s %s\n", name, json_string_value(version));
    json_decref(l);
    return MX_OK;
}

static const mx_key keys[] = {MX_KEY_FORMAT, {0}};

const mx_verb mx_verb_version = {
    .name = "version",
    .doc = "version, build flags, libraries",
    .usage = "[format=json]",
    .keys = keys,
    .run = run,
};
