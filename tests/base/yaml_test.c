/* yaml_test.c - what configuration files may contain, and what is refused with file:line. */
#include "base/yaml.h"

#include "../test.h"
#include "base/str.h"
#include <dirent.h>
#include <stdio.h>
#include <string.h>

static mx_status parse(mx_arena *a, const char *text, mx_yaml_node **root)
{
    return mx_yaml_parse(a, "t.yml", text, strlen(text), root);
}

static void refused(const char *text, const char *part)
{
    mx_arena a = {0};
    mx_yaml_node *root = NULL;
    MX_CHECK_ERROR(parse(&a, text, &root), part);
    mx_arena_fini(&a);
}

MX_TEST(yaml_reads_maps_lists_and_lines)
{
    mx_arena a = {0};
    mx_yaml_node *root = NULL;
    MX_CHECK_OK(
        parse(&a, "# comment\nsteps: 10\nnames: [a, 'b c']\nlora:\n  rank: 4\nempty:\n", &root));
    mx_yaml_node *steps = root->first, *names = steps->next, *lora = names->next;
    MX_CHECK(root->n == 4, "n=%d", root->n);
    MX_CHECK(strcmp(steps->key, "steps") == 0 && strcmp(steps->text, "10") == 0 &&
             steps->line == 2);
    MX_CHECK(names->kind == MX_YAML_LIST && names->n == 2 && names->line == 3);
    MX_CHECK(!names->first->quoted && names->first->next->quoted);
    MX_CHECK(lora->kind == MX_YAML_MAP && strcmp(lora->first->key, "rank") == 0 &&
             lora->first->line == 5);
    MX_CHECK(*lora->next->text == 0 && lora->next->kind == MX_YAML_SCALAR);
    mx_arena_fini(&a);
}

MX_TEST(yaml_empty_file_is_an_empty_map)
{
    mx_arena a = {0};
    mx_yaml_node *root = NULL;
    MX_CHECK_OK(parse(&a, "", &root));
    MX_CHECK(root->kind == MX_YAML_MAP && root->n == 0);
    MX_CHECK_OK(parse(&a, "# nothing\n", &root));
    MX_CHECK(root->kind == MX_YAML_MAP && root->n == 0);
    mx_arena_fini(&a);
}

MX_TEST(yaml_refuses_what_is_not_configuration)
{
    refused("a: &x 1\nb: *x\n", "t.yml:1: anchors (&x)");
    refused("b: *x\n", "t.yml:1: aliases (*x)");
    refused("a: !!int 3\n", "t.yml:1: tags");
    refused("a: 1\n---\nb: 2\n", "t.yml:2: a second document");
    refused("- a\n", "expected `key: value` lines, found a list");
    refused("just text\n", "found a value");
    refused("? [a]\n: 1\n", "a key must be text");
    refused("a: [1, 2\n", "not valid YAML");
    refused("a: 1\n b: 2\n", "not valid YAML");
    refused("a: \"\\0\"\n", "NUL");
    refused("a: \xff\n", "UTF-8");
    refused("a: [[[[[[[[1]]]]]]]]\n", "nested deeper than 8");
}

MX_TEST(yaml_reports_every_duplicate)
{
    mx_arena a = {0};
    mx_yaml_node *root = NULL;
    mx_status st = parse(&a, "a: 1\nb: 2\na: 3\nb: 4\n", &root);
    MX_CHECK(st && strstr(mx_status_text(st), "t.yml:3: duplicate key `a`, first set in line 1"));
    MX_CHECK(st && strstr(mx_status_text(st), "t.yml:4: duplicate key `b`"));
    mx_status_free(st);
    mx_arena_fini(&a);
}

MX_TEST(yaml_bounds_size_and_count)
{
    mx_str s = {0};
    while (s.len <= MX_YAML_MAX_BYTES)
        mx_str_add(&s, "# a comment that fills the file\n");
    refused(mx_str_text(&s), "bytes; a configuration has at most");
    mx_str_clear(&s);
    mx_str_add(&s, "a: [");
    for (int i = 0; i < MX_YAML_MAX_NODES + 2; i++)
        mx_str_add(&s, "1,");
    mx_str_add(&s, "]\n");
    refused(mx_str_text(&s), "more than 20000 values");
    mx_str_fini(&s);
    mx_arena a = {0};
    mx_yaml_node *root = NULL;
    MX_CHECK_ERROR(mx_yaml_read(&a, "/nonexistent/x.yml", &root),
                   "/nonexistent/x.yml: cannot open");
    mx_arena_fini(&a);
}

#define LLVMFuzzerTestOneInput mx_fuzz_yaml
#include "../fuzz/fuzz_yaml.c"
#undef LLVMFuzzerTestOneInput

MX_TEST(fuzz_corpus_yaml)
{
    static const char folder[] = "tests/fuzz/corpus/yaml";
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512], text[8192];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!f)
            continue;
        size_t size = fread(text, 1, sizeof text, f);
        fclose(f);
        for (size_t cut = 0; cut <= size; cut++)
            mx_fuzz_yaml((const uint8_t *)text, cut);
        n++;
    }
    if (d)
        closedir(d);
    MX_CHECK(n >= 8, "%d files replayed from %s", n, folder);
}
