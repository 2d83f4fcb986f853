/* llmc_gpt2.c - the same GPT-2 124M step by llm.c's train_gpt2.c, for the ratio of `make bench`.
 *
 * Built beside a checkout of llm.c, whose source it includes (bench/run does it where LLMC names
 * one):
 *
 *     cc -Ofast -march=native -fopenmp -DOMP -I$LLMC bench/peers/llmc_gpt2.c -lm -o llmc_gpt2
 *     ./llmc_gpt2 STEPS                prints tokens per second, batch 4, length 512
 * A checkpoint of small random weights is written to a temporary file, since that is what llm.c
 * starts from. llm.c has no clip here; that is to its advantage.
 */
#define TESTING
#include "train_gpt2.c"

enum { B = 4, T = 512 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void write_checkpoint(const char *path)
{
    int header[256] = {20240326, 3, 1024, 50257, 12, 12, 768, 50304};
    GPT2Config c = {1024, 50257, 50304, 12, 12, 768};
    size_t sizes[NUM_PARAMETER_TENSORS], n = 0;
    fill_in_parameter_sizes(sizes, c);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++)
        n += sizes[i];
    FILE *f = fopen(path, "wb");
    fwrite(header, sizeof(int), 256, f);
    for (size_t i = 0; i < n; i++) {
        float x = 0.02f * ((float)(i * 2654435761u % 65536) / 32768 - 1);
        fwrite(&x, sizeof x, 1, f);
    }
    fclose(f);
}

int main(int argc, char **argv)
{
    int steps = argc > 1 ? atoi(argv[1]) : 3, *ids = malloc(sizeof(int) * B * T);
    double each[100];
    char path[] = "/tmp/llmc-XXXXXX";
    close(mkstemp(path));
    write_checkpoint(path);
    GPT2 model;
    freopen("/dev/null", "w", stdout);
    gpt2_build_from_checkpoint(&model, path);
    unlink(path);
    for (int i = 0; i < B * T; i++)
        ids[i] = (int)(i * 2654435761u % 50257);
    for (int s = -1; s < steps && s < 100; s++) {
        double start = now();
        gpt2_forward(&model, ids, ids, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.0f, s + 2);
        if (s >= 0)
            each[s] = now() - start;
    }
    qsort(each, (size_t)steps, sizeof *each, by_value);
    fprintf(stderr, "%.1f\n", B * T / each[steps / 2]);
    return 0;
}
