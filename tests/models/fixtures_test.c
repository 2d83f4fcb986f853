/* fixtures_test.c - README's table of families claims nothing that has no fixture: every model_type
 * of every family stands, by that name, in a config.json of tests/fixtures/models. */
#include "../test.h"

#include "base/arena.h"
#include "base/str.h"
#include "models/model.h"
#include <dirent.h>
#include <stdio.h>
#include <string.h>

extern const mx_model mx_model_kimi_k25;

static const char root[] = "tests/fixtures/models";

/* The model_types of the fixtures, each between commas. */
static void collect(mx_str *types)
{
    DIR *d = opendir(root);
    struct dirent *e;
    MX_CHECK(d != NULL, "%s is missing: run the tests from the root of the source tree", root);
    mx_str_add(types, ",");
    while (d && (e = readdir(d))) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s/config.json", root, e->d_name);
        json_t *json = e->d_name[0] == '.' ? NULL : json_load_file(path, 0, NULL);
        const char *type = json_string_value(json_object_get(json, "model_type"));
        if (type)
            mx_str_addf(types, "%s,", type);
        json_decref(json);
    }
    if (d)
        closedir(d);
}

MX_TEST(fixtures_hold_every_model_type_of_every_family)
{
    mx_str have = {0};
    collect(&have);
    for (int i = 0; i < mx_model_count; i++) {
        const char *list = mx_model_table[i]->model_types;
        for (const char *p = list; *p;) {
            char name[128];
            size_t n = strcspn(p, ",");
            snprintf(name, sizeof name, ",%.*s,", (int)n, p);
            MX_CHECK(strstr(mx_str_text(&have), name), "%s: no fixture has the model_type %.*s",
                     mx_model_table[i]->name, (int)n, p);
            p += n + (p[n] == ',');
        }
    }
    mx_str_fini(&have);
}

/* What transformers calls the layers of a Kimi K2.5 that it saves. */
MX_TEST(fixtures_kimi_layers_may_be_called_blocks)
{
    char buf[256];
    const char *other = mx_model_kimi_k25.other_name("language_model.model.layers.7.x", buf, 256);
    MX_CHECK(other && strcmp(other, "language_model.model.blocks.7.x") == 0, "%s", other);
    MX_CHECK(!mx_model_kimi_k25.other_name("language_model.model.norm.weight", buf, 256));
}
