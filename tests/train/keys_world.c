/* keys_world.c - see keys_world.h. */
#include "keys_world.h"

#include "../test.h"
#include "base/io.h"
#include "cmd/verb.h"
#include "store/checkpoint_read.h"
#include "tiny_run.h"
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files ---- */

static void put(const char *name, const char *text)
{
    FILE *f = fopen(name, "w");
    MX_ASSERT(f, "%s", name);
    fputs(text, f);
    fclose(f);
}

static void put_stories(const char *name, int n, const char *word)
{
    FILE *f = fopen(name, "w");
    MX_ASSERT(f, "%s", name);
    for (int i = 0; i < n; i++)
        fprintf(f,
                "{\"title\": \"%s number %d\", \"text\": \"%s %d went to the %s and %s there for a "
                "very long time, %d days\"}\n",
                word, i, word, i * i % 17, i % 2 ? "hills" : "sea", i % 3 ? "sang" : "slept", i);
    fclose(f);
}

/* Of `n` records the first `bad` are damaged. */
static void put_bad(const char *name, int bad, int n)
{
    FILE *f = fopen(name, "w");
    MX_ASSERT(f, "%s", name);
    for (int i = 0; i < n; i++)
        fprintf(f, i < bad ? "{\"text\": %d\n" : "{\"text\": \"%d\"}\n", i);
    fclose(f);
}

static void run_command(const char *command)
{
    MX_ASSERT(system(command) == 0, "%s", command);
}

static void make_files(const char *root)
{
    static const struct {
        const char *of, *name;
    } copies[] = {{"tests/fixtures/models/llama3", "model"},
                  {"tests/fixtures/vision/gemma3", "chat"},
                  {"tests/fixtures/vision/gemma3", "tokenizer"},
                  {"tests/data/fixtures/text.arrayrecord", "data.arrayrecord"},
                  {"tests/data/fixtures/examples.tfrecord", "data.tfrecord"},
                  {"tests/fuzz/corpus/image/plain.jpg", "photo.jpg"},
                  {"tests/fixtures/models/llama2/golden.safetensors", "other.safetensors"}};
    static const char *const folders[] = {"hub",       "hub/data",        "hub/second",     "tfds",
                                          "tfds/tale", "tfds/tale/1.0.0", "tfds/tale/2.0.0"};
    char command[4096];
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        snprintf(command, sizeof command, "cp -RL '%.3000s/%s' %s", root, copies[i].of,
                 copies[i].name);
        run_command(command);
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        MX_ASSERT(mkdir(folders[i], 0755) == 0, "%s", folders[i]);
    put_stories("data.jsonl", 40, "A bear");
    put_stories("eval.jsonl", 20, "A wolf");
    put_stories("hub/data/train-0.jsonl", 30, "A crow");
    put_stories("hub/data/validation-0.jsonl", 9, "A dove");
    put_stories("hub/data/test-0.jsonl", 9, "A goat");
    put_stories("hub/second/train-0.jsonl", 9, "A mole");
    put_stories("tfds/tale/1.0.0/tale-train.jsonl", 9, "A frog");
    put_stories("tfds/tale/1.0.0/tale-test.jsonl", 9, "A toad");
    put_stories("tfds/tale/1.0.0/tale-validation.jsonl", 9, "A newt");
    put_stories("tfds/tale/2.0.0/tale-validation.jsonl", 9, "A hare");
    MX_ASSERT(system("gzip -k data.jsonl") == 0);
    put("bad.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\nnot json\n{\"text\": \"three\"}\n");
    put_bad("worse.jsonl", 15, 40);
    put("special.jsonl", "{\"text\": \"a <bos> b <eos> c\"}\n");
    put("chat.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Who?\"}, "
                      "{\"role\": \"assistant\", \"content\": \"Me.\"}]}\n");
    put("pairs.jsonl", "{\"prompt\": \"Who? \", \"chosen\": \"Me.\", \"rejected\": \"You.\"}\n");
    put("template.jinja", "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}");
    put("mixture.json", "{\"a\": {\"path\": \"data.arrayrecord\", \"weight\": 1}}");
    put("photos.jsonl", "{\"text\": \"<start_of_image> a\", \"photo\": \"photo.jpg\"}\n"
                        "{\"text\": \"b <start_of_image>\", \"photo\": \"photo.jpg\"}\n");
    put("text.txt", "a <bos> b\n");
    put("recipes.json", "{\"*\": \"fp8_rowwise\"}\n");
    put("ids.txt", "5 6 1 7\n");
}

static int without_dots(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

void world_copy(const char *world, const char *name)
{
    char command[1024];
    snprintf(command, sizeof command, "cp -R '%.200s/files' '%.200s/%.200s'", world, world, name);
    run_command(command);
}

/* Runs take place in a folder of links to the files: what is no link there, a run has made. */
static void link_files(void)
{
    struct dirent **names = NULL;
    int n = scandir("files", &names, without_dots, alphasort);
    MX_ASSERT(mkdir("here", 0755) == 0 && chdir("here") == 0);
    for (int i = 0; i < n; i++) {
        char to[512];
        snprintf(to, sizeof to, "../files/%s", names[i]->d_name);
        MX_ASSERT(symlink(to, names[i]->d_name) == 0, "%s", to);
        free(names[i]);
    }
    free(names);
}

void world_make(char *path, size_t cap)
{
    char root[3000];
    MX_ASSERT(getcwd(root, sizeof root));
    tiny_folder(path, cap);
    MX_ASSERT(chdir(path) == 0);
    MX_ASSERT(mkdir("files", 0755) == 0 && chdir("files") == 0);
    make_files(root);
    MX_ASSERT(chdir("..") == 0);
    link_files();
}

void world_remove(const char *path)
{
    MX_ASSERT(chdir("/") == 0);
    mx_status_free(mx_io_remove_tree(NULL, path));
}

/* ---- command lines ---- */

#define TINY                                                                                       \
    "base_emb_dim=32 base_num_query_heads=4 base_num_kv_heads=2 head_dim=8 "                       \
    "base_mlp_dim=64 base_num_decoder_layers=1 max_target_length=32 num_threads=1 "                \
    "per_device_batch_size=2 learning_rate=0.01 "
#define TINY_VISION                                                                                \
    "hidden_size_for_vit=32 intermediate_size_for_vit=24 num_attention_heads_for_vit=4 "           \
    "num_hidden_layers_for_vit=1 image_size_for_vit=28 patch_size_for_vit=14 "                     \
    "spatial_merge_size_for_vit=2 out_hidden_size_for_vit=32 num_position_embeddings_for_vit=64 "  \
    "projector_input_dim_for_vit=16 projector_output_dim_for_vit=16 "                              \
    "vision_output_length=4 "
#define TINY_LATENT "kv_lora_rank=8 qk_nope_head_dim=8 qk_rope_head_dim=8 v_head_dim=8 "
#define TINY_COMPRESSED                                                                            \
    "sliding_window_size=8 q_lora_rank=8 qk_rope_head_dim=8 o_lora_rank=8 o_groups=2 "             \
    "compress_ratios=0 indexer_n_heads=2 indexer_head_dim=16 indexer_topk=8 num_experts=4 "        \
    "shared_experts=1 routed_score_func=sqrtsoftplus mlp_activations_limit=10 "
#define TINY_INDEXER "indexer_n_heads=2 indexer_head_dim=16 indexer_topk=8 "

static const struct {
    const char *verb, *words, *settings, *input;
} lines[] = {
    {"train", "",
     TINY "vocab_size=300 steps=3 run_name=first local_checkpoint_directory=memory "
          "enable_checkpointing=false",
     NULL},
    {"plan", "", TINY "dump_ir=optimizer memory_gib=16", NULL}, /* what is free changes */
    {"bench", "train", TINY "vocab_size=300 steps=1", NULL},
    {"data", "", "max_target_length=64 rows=3 batches=2 loader_threads=1", NULL},
    {"generate", "chat", "prompt=abc max_new_tokens=8 num_threads=1", NULL},
    {"verify", "model", "", NULL},
    {"tokenize", "", "tokenizer_path=tokenizer", "text.txt"},
    {"detokenize", "", "tokenizer_path=tokenizer", "ids.txt"},
    {"inspect", "model", "", NULL},
    {"quantize", "chat", "output=quantized quantization=int8 eval_text=text.txt", NULL},
    {"doctor", "", "", NULL},
    {"version", "", "", NULL},
};

static int line_of(const char *verb)
{
    for (int i = 0; i < (int)(sizeof lines / sizeof *lines); i++)
        if (strcmp(lines[i].verb, verb) == 0)
            return i;
    return -1;
}

/* Splits at spaces, in place. */
static int split(char *text, char **words, int n, int most)
{
    char *save = NULL;
    for (char *w = strtok_r(text, " ", &save); w && n < most; w = strtok_r(NULL, " ", &save))
        words[n++] = w;
    return n;
}

/* A setting of the tiny command line that the example does not replace. A model that is named or
 * loaded has its own sizes; what is about checkpoints needs them. */
static bool stays(const char *setting, char *const *own, int n_own)
{
    size_t n = strcspn(setting, "=") + 1;
    for (int i = 0; i < n_own; i++) {
        if (strncmp(setting, own[i], n) == 0)
            return false;
        bool sized = mx_starts_with(own[i], "load_parameters_path=") ||
                     mx_starts_with(own[i], "model_name=");
        if (sized && (mx_starts_with(setting, "base_") || mx_starts_with(setting, "head_dim") ||
                      mx_starts_with(setting, "vocab_size")))
            return false;
        bool one_size = strstr(own[i], "=gpt2") || strstr(own[i], "=deepseek4");
        if (one_size && mx_starts_with(setting, "base_num_kv_heads"))
            return false;
        if (strstr(own[i], "checkpoint") && mx_starts_with(setting, "enable_checkpointing"))
            return false;
    }
    return true;
}

int world_command(const char *verb, const char *settings, mx_arena *a, char **argv, int most)
{
    int line = line_of(verb);
    MX_ASSERT(line >= 0, "no command line for %s", verb);
    char *own[64], *usual[64];
    int n = 0, n_own = split(mx_arena_strdup(a, settings), own, 0, 64);
    static const struct {
        const char *with, *more;
    } further[] = {{"use_multimodal=true ", TINY_VISION},
                   {"decoder_block=deepseek ", TINY_LATENT},
                   {"decoder_block=deepseek4 ", TINY_COMPRESSED},
                   {"vision_encoder_block=qwen3_vl ", "mrope_section=2,1,1 "},
                   {"use_indexer=true ", TINY_INDEXER}};
    char *text = mx_arena_printf(a, "%s ", lines[line].settings);
    const char *all = mx_arena_printf(a, "%s ", settings);
    for (size_t i = 0; i < sizeof further / sizeof *further; i++)
        if (strstr(all, further[i].with) && strstr(text, "base_emb_dim") &&
            !strstr(settings, "load_parameters_path"))
            text = mx_arena_printf(a, "%s%s", text, further[i].more);
    bool evaluates = strstr(settings, "eval_interval") && strcmp(lines[line].verb, "data") == 0;
    text = mx_arena_printf(a, "%s%s", text, evaluates ? "evaluation=true" : "");
    int n_usual = split(text, usual, 0, 64);
    argv[n++] = "maxc";
    argv[n++] = mx_arena_strdup(a, lines[line].verb);
    n = split(mx_arena_strdup(a, lines[line].words), argv, n, most);
    for (int i = 0; i < n_usual; i++)
        if (stays(usual[i], own, n_own))
            argv[n++] = usual[i];
    for (int i = 0; i < n_own; i++)
        argv[n++] = own[i];
    argv[n] = NULL;
    return n;
}

/* ---- what there is to see ---- */

static char *read_text(const char *path)
{
    char *text = NULL;
    size_t n;
    mx_status st = mx_io_read_file(NULL, path, 1 << 26, &text, &n);
    mx_status_free(st);
    return text ? text : strdup("");
}

/* Lines that hold a time or a rate differ from run to run; that a key has no effect is none. */
static bool is_timed(const char *verb, const char *line)
{
    static const struct {
        const char *verb, *word;
    } timed[] = {{"train", "tok/s"},         {"train", "really used"}, {"train", "goodput"},
                 {"train", "  step  "},      {"train", "  compile  "}, {"train", "  load  "},
                 {"train", "  eval  "},      {"train", "data wait  "}, {"train", "checkpoint  "},
                 {"train", "  other  "},     {"train", "%  "},         {"plan", "compiled"},
                 {"data", "million tokens"}, {"doctor", "free"}};
    for (size_t i = 0; i < sizeof timed / sizeof *timed; i++)
        if (strcmp(timed[i].verb, verb) == 0 && strstr(line, timed[i].word))
            return true;
    return strstr(line, "have no effect") != NULL;
}

static void add_lines(mx_str *seen, const char *verb, char *text)
{
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (!is_timed(verb, line))
            mx_str_addf(seen, "%s\n", line);
}

static void add_metrics(mx_str *seen, const char *path)
{
    static const char *const timed[] = {"time",
                                        "tokens_per_second",
                                        "tflops",
                                        "mfu",
                                        "step_seconds",
                                        "data_wait_seconds",
                                        "host_memory_bytes",
                                        "communication_seconds",
                                        "communication_hidden"};
    char *text = read_text(path), *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *o = json_loads(line, 0, NULL);
        for (size_t i = 0; i < sizeof timed / sizeof *timed; i++)
            json_object_del(o, timed[i]);
        char *kept = json_dumps(o, JSON_SORT_KEYS);
        mx_str_addf(seen, "%s\n", kept ? kept : line);
        free(kept);
        json_decref(o);
    }
    free(text);
}

/* A trace: how many bars it has. */
static void add_trace(mx_str *seen, const char *path)
{
    char *text = read_text(path);
    mx_str_addf(seen, "%d events\n", tiny_count(text, "\"name\""));
    free(text);
}

static void add_file(mx_str *seen, const char *path, const char *name)
{
    if (strcmp(name, "metrics.jsonl") == 0 || strcmp(name, "copy.jsonl") == 0)
        add_metrics(seen, path);
    else if (mx_starts_with(name, "trace"))
        add_trace(seen, path);
    else if (strcmp(name, "plan.txt") == 0 || mx_ends_with(name, ".index.json")) {
        char *text = read_text(path);
        add_lines(seen, "train", text);
        free(text);
    } else if (strcmp(name, "manifest.json") == 0) {
        char folder[4096];
        snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
        char *hashes = tiny_checkpoint(folder);
        mx_str_addf(seen, "%s\n", hashes);
        free(hashes);
    }
}

/* What the run left behind: everything that is no link to the world. */
static void add_tree(mx_str *seen, const char *below)
{
    struct dirent **names = NULL;
    int n = scandir(below, &names, without_dots, alphasort);
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", below, names[i]->d_name);
        if (lstat(path, &st) == 0 && !S_ISLNK(st.st_mode)) {
            bool stamped = mx_starts_with(names[i]->d_name, "events.out"); /* host, time, pid */
            mx_str_addf(seen, "%s\n", stamped ? "events.out" : path);
            if (S_ISDIR(st.st_mode))
                add_tree(seen, path);
            else
                add_file(seen, path, names[i]->d_name);
        }
        free(names[i]);
    }
    free(names);
}

/* ---- running ---- */

/* Removes what a run left behind. */
static void sweep(void)
{
    struct dirent **names = NULL;
    int n = scandir(".", &names, without_dots, alphasort);
    for (int i = 0; i < n; i++) {
        struct stat st;
        bool made = lstat(names[i]->d_name, &st) == 0 && !S_ISLNK(st.st_mode);
        if (made && S_ISDIR(st.st_mode))
            mx_status_free(mx_io_remove_tree(NULL, names[i]->d_name));
        else if (made)
            unlink(names[i]->d_name);
        free(names[i]);
    }
    free(names);
}

/* Standard output and error of the call go to a file, standard input comes from one. */
static int call(char **argv, int argc, const char *input)
{
    fflush(stdout);
    fflush(stderr);
    int keep_out = dup(1), keep_err = dup(2), to = open(".out", O_CREAT | O_RDWR | O_TRUNC, 0644);
    MX_ASSERT(freopen(input ? input : "/dev/null", "r", stdin));
    dup2(to, 1);
    dup2(to, 2);
    int code = mx_main(argc, argv, NULL);
    fflush(stdout);
    fflush(stderr);
    dup2(keep_out, 1);
    dup2(keep_err, 2);
    close(keep_out);
    close(keep_err);
    close(to);
    return code;
}

int world_run(const char *verb, const char *settings, mx_str *seen)
{
    mx_arena a = {0};
    char *argv[160];
    int argc = world_command(verb, settings, &a, argv, 100);
    int code = call(argv, argc, lines[line_of(verb)].input);
    char *text = read_text(".out");
    mx_str_addf(seen, "exit status %d\n", code);
    add_lines(seen, verb, text);
    add_tree(seen, ".");
    free(text);
    sweep();
    mx_arena_fini(&a);
    return code;
}
