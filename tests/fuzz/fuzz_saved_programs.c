/* fuzz_saved_programs.c - a file of compiled programs with other bytes than were written.
 *
 * The first byte chooses: the bytes as a file; or a file that was written here, of a small model,
 * with bytes of it changed behind its checksum, so that what reads programs is reached. Whatever is
 * taken must pass the verifier; nothing may crash.
 */
#include "base/file.h"
#include "exec/saved_programs.h"
#include "keys/keys.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct {
    mx_config *cfg;
    mx_model_spec model;
    mx_programs_request request;
    mx_arena arena;
    char *file;
    size_t bytes;
} whole;

static void must(mx_status st)
{
    if (st)
        abort();
}

static void write_whole(void)
{
    const char *args[] = {"base_emb_dim=8", "base_num_query_heads=2", "base_num_kv_heads=1",
                          "head_dim=4", "base_mlp_dim=16", "base_num_decoder_layers=1",
                          "vocab_size=16", "max_target_length=4", "per_device_batch_size=1"};
    mx_config_request r = {.schema = &mx_keys, .args = args, .n_args = 9};
    mx_saved_for what = {.device = "cpu", .chip = "", .ranks = 1, .data_ranks = 1, .model = "m"};
    mx_programs p = {0};
    char path[] = "/tmp/fuzz-saved-XXXXXX";
    close(mkstemp(path));
    must(mx_config_load(&whole.cfg, &r));
    must(mx_model_open(&whole.model, whole.cfg, NULL));
    must(mx_programs_configure(&whole.request, whole.cfg, &whole.model,
                               (mx_programs_ranks){1, 1, NULL}, &whole.arena));
    whole.request.options.compile.device = &mx_cpu_traits;
    must(mx_programs_plan(&p, &whole.model, &whole.request));
    mx_saved_programs *s = mx_saved_programs_new(&what);
    mx_saved_programs_add(s, &(mx_saved_kind){&p, &whole.request, 0, 1});
    must(mx_saved_programs_write(s, whole.cfg, path, &whole.bytes));
    must(mx_file_read(&whole.arena, path, 1 << 24, &whole.file, &whole.bytes));
    unlink(path);
    mx_saved_programs_free(s);
    mx_programs_close(&p);
}

static void read_file(const void *bytes, size_t n)
{
    mx_saved_programs *s = NULL;
    mx_status st = mx_saved_programs_parse(&s, bytes, n, true);
    if (!st && mx_saved_programs_kinds(s) > 0) {
        mx_programs p = {0};
        mx_status_free(mx_saved_programs_take(s, &p, &whole.request,
                                              (mx_saved_rank){0, 1, &mx_cpu_traits}));
        mx_programs_close(&p);
    }
    mx_status_free(st);
    mx_saved_programs_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!whole.file)
        write_whole();
    if (!n || data[0] % 4 == 0) {
        read_file(data + (n > 0), n - (n > 0));
        return 0;
    }
    char *changed = malloc(whole.bytes);
    size_t cut = whole.bytes;
    memcpy(changed, whole.file, whole.bytes);
    for (size_t i = 1; i + 4 <= n; i += 4) { /* three bytes of a place, one to put there */
        size_t at = (data[i] | data[i + 1] << 8 | (size_t)data[i + 2] << 16) % whole.bytes;
        changed[at] = (char)data[i + 3];
        if (data[0] % 4 == 3 && i == 1)
            cut = at;
    }
    read_file(changed, cut);
    free(changed);
    return 0;
}
