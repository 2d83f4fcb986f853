/* pack_test.c - every packer: each token once, labels never across documents, positions, counts. */
#include "../test.h"

#include "base/clock.h"
#include "data/load/pack.h"
#include "data/load/random.h"
#include <string.h>

enum { DOCS = 400, S = 64 };

/* Document d, token i has the id d * 1000 + i, so that rows can be checked without a second packer.
 */
static int64_t lengths[DOCS];

static void make_lengths(int64_t longest)
{
    mx_draws draws = {mx_mix_key(3, (uint64_t)longest), 0};
    for (int d = 0; d < DOCS; d++)
        lengths[d] = d % 17 == 5 ? 0 : 1 + (int64_t)mx_draw_below(&draws, (uint64_t)longest);
}

static void add(mx_packer *p, int64_t d)
{
    static int32_t ids[1000];
    static uint8_t trained[1000];
    for (int64_t i = 0; i < lengths[d]; i++) {
        ids[i] = (int32_t)(d * 1000 + i);
        trained[i] = i % 3 != 1; /* every third is masked */
    }
    mx_packer_add(p, ids, trained, lengths[d]);
}

static int32_t tokens[S], labels[S], segments[S], positions[S];

/* Checks one row; counts how often each token was seen and each trained token was a label. */
static void check_row(uint8_t seen[DOCS][1000], uint8_t labelled[DOCS][1000], bool whole)
{
    for (int i = 0; i < S; i++) {
        int d = tokens[i] / 1000, k = tokens[i] % 1000;
        if (segments[i] == 0) {
            MX_CHECK(tokens[i] == -7 && labels[i] == MX_NO_LABEL && positions[i] == 0);
            continue;
        }
        bool first = i == 0 || segments[i - 1] != segments[i];
        MX_CHECK(first ? positions[i] == 0 : positions[i] == positions[i - 1] + 1);
        MX_CHECK(first || tokens[i - 1] == tokens[i] - 1, "a segment mixes documents");
        MX_CHECK(i == 0 || segments[i] == segments[i - 1] || segments[i] == segments[i - 1] + 1);
        MX_CHECK(!whole || positions[i] == k);
        seen[d][k]++;
        if (labels[i] != MX_NO_LABEL) {
            MX_CHECK(labels[i] == tokens[i] + 1 && k + 1 < lengths[d] && (k + 1) % 3 != 1,
                     "token %d predicts %d", tokens[i], labels[i]);
            labelled[d][k + 1]++;
        }
    }
}

static void run(mx_pack_kind kind, int64_t longest, bool truncate)
{
    static uint8_t seen[DOCS][1000], labelled[DOCS][1000];
    memset(seen, 0, sizeof seen);
    memset(labelled, 0, sizeof labelled);
    make_lengths(longest);
    mx_packer *p = mx_packer_new(&(mx_pack_options){.kind = kind, .seq_len = S, .window_rows = 16,
                                                    .truncate = truncate, .pad_id = -7});
    int64_t d = 0;
    for (uint64_t window = 1; d < DOCS || !mx_packer_empty(p); window++) {
        while (d < DOCS && !mx_packer_full(p))
            add(p, d++);
        mx_packer_close(p, d == DOCS);
        for (int64_t r = 0; r < mx_packer_rows(p); r++) {
            mx_packer_write(p, r, tokens, labels, segments, positions);
            check_row(seen, labelled, longest <= S && kind != MX_PACK_CONCAT);
        }
        mx_packer_next(p, window);
    }
    mx_pack_counts c = mx_packer_counts(p);
    int64_t expect_tokens = 0, cut = 0;
    for (d = 0; d < DOCS; d++)
        for (int64_t i = 0; i < lengths[d]; i++) {
            /* a token may be known only as a label: the one after a full row's last */
            bool label_only = i > 0 && i % S == 0 && i + 1 == lengths[d] && kind != MX_PACK_CONCAT;
            bool dropped = truncate && i > S && kind != MX_PACK_CONCAT;
            label_only = label_only || (truncate && i == S && kind != MX_PACK_CONCAT);
            int want = !dropped && !label_only;
            MX_CHECK(seen[d][i] == want, "kind %d: token %d of %d seen %d times", kind, (int)i,
                     (int)d, seen[d][i]);
            want = !dropped && i > 0 && i % 3 != 1;
            MX_CHECK(labelled[d][i] == want,
                     "kind %d: token %d of %d of document %d is a label %d times", kind, (int)i,
                     (int)lengths[d], (int)d, labelled[d][i]);
            expect_tokens += !dropped && !label_only;
            cut += dropped;
        }
    MX_CHECK(c.documents == DOCS && c.tokens == expect_tokens && c.truncated_tokens == cut,
             "%d documents, %d tokens of %d, %d cut of %d", (int)c.documents, (int)c.tokens,
             (int)expect_tokens, (int)c.truncated_tokens, (int)cut);
    double efficiency = (double)c.tokens / (double)c.places;
    double floor = kind == MX_PACK_NONE ? 0.2 : kind == MX_PACK_CONCAT ? 0.99 : 0.85;
    MX_CHECK(efficiency > floor, "kind %d fills %.2f", kind, efficiency);
    mx_packer_free(p);
}

MX_TEST(packing_none) { run(MX_PACK_NONE, S, true); }
MX_TEST(packing_none_truncates) { run(MX_PACK_NONE, 200, true); }
MX_TEST(packing_none_splits) { run(MX_PACK_NONE, 200, false); }
MX_TEST(packing_first_fit) { run(MX_PACK_FIRST_FIT, 40, true); }
MX_TEST(packing_first_fit_splits) { run(MX_PACK_FIRST_FIT, 300, false); }
MX_TEST(packing_best_fit) { run(MX_PACK_BEST_FIT, 40, true); }
MX_TEST(packing_best_fit_truncates) { run(MX_PACK_BEST_FIT, 300, true); }
MX_TEST(packing_concat) { run(MX_PACK_CONCAT, 40, false); }
MX_TEST(packing_concat_long) { run(MX_PACK_CONCAT, 900, false); }

MX_TEST(packing_limits_segments)
{
    make_lengths(6);
    for (int k = 1; k <= 3; k++) {
        mx_packer *p = mx_packer_new(&(mx_pack_options){.kind = (mx_pack_kind)k, .seq_len = S,
                                                        .max_segments = 3, .pad_id = -7});
        for (int d = 0; d < 100; d++)
            add(p, d);
        mx_packer_close(p, true);
        for (int64_t r = 0; r < mx_packer_rows(p); r++) {
            mx_packer_write(p, r, tokens, labels, segments, positions);
            for (int i = 0; i < S; i++)
                MX_CHECK(segments[i] <= 3);
        }
        mx_packer_free(p);
    }
}

/* One document of half a million pieces after a short one: a search for room that began at the
 * first row each time took a quarter of an hour. */
MX_TEST(packing_a_very_long_document_is_fast)
{
    enum { LONG = 4000000, SHORT_ROWS = 8 };
    int32_t *ids = mx_realloc(NULL, LONG * sizeof *ids);
    uint8_t *trained = mx_realloc(NULL, LONG);
    memset(ids, 0, LONG * sizeof *ids);
    memset(trained, 1, LONG);
    static const mx_pack_kind kinds[] = {MX_PACK_FIRST_FIT, MX_PACK_BEST_FIT};
    for (int k = 0; k < 2; k++) {
        mx_packer *p = mx_packer_new(&(mx_pack_options){.kind = kinds[k], .seq_len = SHORT_ROWS});
        double began = mx_clock_now();
        mx_packer_add(p, ids, trained, 3);
        mx_packer_add(p, ids, trained, LONG);
        mx_packer_add(p, ids, trained, 4);
        mx_packer_close(p, true);
        MX_CHECK(mx_packer_rows(p) == LONG / SHORT_ROWS + 1, "%lld rows",
                 (long long)mx_packer_rows(p));
        MX_CHECK(mx_clock_now() - began < 30, "%.1f s", mx_clock_now() - began);
        mx_packer_free(p);
    }
    mx_free(ids);
    mx_free(trained);
}
