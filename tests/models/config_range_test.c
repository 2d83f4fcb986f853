/* config_range_test.c - numbers of config.json: each row of each family's table has a range, and
 * what lies outside is refused by name before anything is built. */
#include "../test.h"

#include "json_put.h"
#include "models/model.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_number(const mx_cfg_field *f)
{
    return f->kind == MX_CFG_WHOLE || f->kind == MX_CFG_REAL || f->kind == MX_CFG_WHOLES;
}

static void check_rows(const mx_model *m)
{
    for (const mx_cfg_field *f = m->fields; f->key; f++) {
        if (!is_number(f)) {
            MX_CHECK(f->min == 0 && f->max == 0, "%s: %s is no number, but has a range", m->name,
                     f->key);
            continue;
        }
        MX_CHECK(isfinite(f->min) && isfinite(f->max) && f->min < f->max, "%s: %s has no range",
                 m->name, f->key);
        MX_CHECK(f->kind == MX_CFG_REAL || f->max <= INT32_MAX, "%s: %s goes up to %g", m->name,
                 f->key, f->max);
        MX_CHECK(f->fallback <= f->max, "%s: %s is %g by default", m->name, f->key, f->fallback);
    }
}

MX_TEST(config_numbers_have_ranges)
{
    for (int i = 0; i < mx_model_count; i++) {
        check_rows(mx_model_table[i]);
        if (mx_model_table[i]->text)
            check_rows(mx_model_table[i]->text);
    }
}

static json_t *value_of(const mx_cfg_field *f, double v)
{
    if (f->kind == MX_CFG_REAL)
        return json_real(v);
    json_t *n = json_integer((json_int_t)v);
    return f->kind == MX_CFG_WHOLE ? n : json_pack("[o]", n);
}

static void refused(const json_t *json, const mx_cfg_field *f, bool in_text, double v)
{
    mx_model_spec m;
    json_t *copy = json_deep_copy(json), *text = json_object_get(copy, "text_config");
    json_put(in_text && text ? text : copy, f->key, value_of(f, v));
    mx_status st = mx_model_from_json(&m, copy, "config.json");
    char key[128], name[160];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(f->key, "|"), f->key);
    snprintf(name, sizeof name, "config.json: \"%s\" is ", key);
    MX_CHECK(st && strstr(mx_status_text(st), name) && strstr(mx_status_text(st), " from "),
             "%g: %s", v, st ? mx_status_text(st) : "accepted");
    mx_status_free(st);
    mx_model_spec_fini(&m);
    json_decref(copy);
}

static void refuse_each(const json_t *json, const mx_cfg_field *f, bool in_text)
{
    for (; f->key; f++) {
        if (!is_number(f))
            continue;
        double step = f->kind == MX_CFG_REAL ? fabs(f->max) / 1000 : 1;
        refused(json, f, in_text, f->max + step);
        refused(json, f, in_text, f->min - step);
        refused(json, f, in_text, f->kind == MX_CFG_REAL ? 1e308 : 9e18);
        refused(json, f, in_text, f->kind == MX_CFG_REAL ? -1e308 : -9e18);
    }
}

/* The ids that end an answer are in no table: any family may have them. */
MX_TEST(config_stop_ids_are_checked)
{
    static const char *const bad[] = {"-5", "4294967296", "\"x\"", "1.5", "true", "[2, -7]", "{}"};
    static const char *const good[] = {"2", "null", "-1", "[2, 7]", "[]"};
    json_t *json = json_load_file("tests/fixtures/models/llama3/config.json", 0, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mx_model_spec m;
        json_object_set_new(json, "eos_token_id", json_loads(bad[i], JSON_DECODE_ANY, NULL));
        MX_CHECK_ERROR(mx_model_from_json(&m, json, "config.json"), "\"eos_token_id\" is ");
        mx_model_spec_fini(&m);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        mx_model_spec m;
        json_object_set_new(json, "eos_token_id", json_loads(good[i], JSON_DECODE_ANY, NULL));
        MX_CHECK_OK(mx_model_from_json(&m, json, "config.json"));
        mx_model_spec_fini(&m);
    }
    json_decref(json);
}

MX_TEST(config_numbers_outside_their_range_are_refused)
{
    static const char root[] = "tests/fixtures/models";
    DIR *d = opendir(root);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s/config.json", root, e->d_name);
        json_t *json = e->d_name[0] == '.' ? NULL : json_load_file(path, 0, NULL);
        mx_model_spec m;
        if (!json)
            continue;
        MX_CHECK_OK(mx_model_from_json(&m, json, path));
        refuse_each(json, m.family->fields, false);
        if (m.family->text)
            refuse_each(json, m.family->text->fields, true);
        mx_model_spec_fini(&m);
        json_decref(json);
        n++;
    }
    if (d)
        closedir(d);
    MX_CHECK(n >= 30, "%d configurations", n);
}
