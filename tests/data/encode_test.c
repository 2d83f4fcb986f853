/* encode_test.c - records of every shape become documents: which tokens, and which are trained. */
#include "../test.h"

#include "data/load/encode.h"
#include "data/formats/json_scan.h"
#include <string.h>

static const char chatml[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
static const char marked[] = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' "
                             "%}{% generation %}{{ m.content }}!"
                             "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";

/* The document as text: trained tokens as they are, masked ones between < and >. Bytes only. */
static void show(const mx_document *d, mx_str *out)
{
    bool masked = false;
    mx_str_clear(out);
    for (int64_t i = 0; i < d->ids.n; i++) {
        if (d->trained[i] == masked)
            mx_str_add(out, (masked = !masked) ? "<" : ">");
        int32_t id = d->ids.ids[i];
        mx_str_addf(out, id == 256 ? "B" : id == 257 ? "E" : id == '\n' ? "/" : "%c", id);
    }
    if (masked)
        mx_str_add(out, ">");
}

/* `want` has "|" between the two documents of a pair; "!" before text that an error must hold. */
static void check(mx_encoder e, const char *template, const char *json, const char *want)
{
    mx_source s = {0};
    mx_record r = {0};
    mx_document d[2] = {0};
    mx_tokenizer *t;
    mx_chat_template *chat = NULL;
    mx_str text = {0}, all = {0};
    int n;
    MX_CHECK_OK(mx_tokenizer_open(&t, "byte", NULL));
    if (template)
        MX_CHECK_OK(mx_chat_template_open(&chat, template));
    e.tokenizer = t;
    e.chat = chat;
    e.takes_pairs = strstr(json, "rejected") != NULL;
    MX_CHECK_OK(mx_json_scan_object(&s, json, strlen(json), &r));
    mx_status st = mx_encode_record(&e, &r, d, &n);
    if (*want == '!') {
        MX_CHECK_ERROR(st, want + 1);
    } else {
        MX_CHECK_OK(st);
        for (int k = 0; k < n; k++) {
            show(&d[k], &text);
            mx_str_addf(&all, "%s%s", k ? "|" : "", mx_str_text(&text));
        }
        MX_CHECK(strcmp(mx_str_text(&all), want) == 0, "%s\n  is   %s\n  want %s", json,
                 mx_str_text(&all), want);
    }
    mx_str_fini(&text), mx_str_fini(&all);
    mx_document_fini(&d[0]), mx_document_fini(&d[1]);
    mx_record_fini(&r);
    mx_chat_template_close(chat);
    mx_tokenizer_close(t);
}

#define CHAT                                                                                       \
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]"
#define SHARE "[{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"a\"}]"

MX_TEST(encode_every_shape)
{
    mx_encoder both = {.add_bos = true, .add_eos = true},
               sft = {.loss_on = MX_LOSS_ASSISTANT, .add_eos = true};
    check(both, NULL, "{\"text\": \"hi\"}", "<B>hiE");
    check(both, NULL, "{\"text\": \"\"}", "");
    check(both, NULL, "{\"text\": null}", "");
    check((mx_encoder){0}, NULL, "{\"content\": \"hi\"}", "hi");
    check(sft, NULL, "{\"prompt\": \"p\", \"completion\": \"c\"}", "<p>cE");
    check(both, NULL, "{\"prompt\": \"p\", \"completion\": \"c\"}", "<B>pcE");
    check(sft, NULL, "{\"question\": \"p\", \"answer\": \"c\"}", "<p>cE");
    check(sft, NULL, "{\"messages\": " CHAT "}", "<User: q/Assistant: >a/E");
    check(sft, NULL, "{\"conversations\": " SHARE "}", "<User: q/Assistant: >a/E");
    check(sft, NULL, "{\"instruction\": \"do\", \"input\": \"x\", \"output\": \"y\"}",
          "<User: do//x/Assistant: >y/E");
    check(sft, NULL, "{\"instruction\": \"do\", \"input\": \"\", \"output\": \"y\"}",
          "<User: do/Assistant: >y/E");
    check(sft, NULL, "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"r\"}", "<p>cE|<p>rE");
    check(sft, NULL, "{\"chosen\": \"H: q\\nA: c\", \"rejected\": \"H: q\\nA: r\"}",
          "<H: q/>A: cE|<H: q/>A: rE");
    check(both, NULL, "{\"input_ids\": [1, 65, 66], \"labels\": [-100, 65, -100]}", "<\x01>A<B>");
    check(both, NULL, "{\"input_ids\": [1, 65, 66], \"assistant_masks\": [0, 1, 0]}",
          "<\x01>A<B>");
    check((mx_encoder){.vocab_size = 60}, NULL, "{\"input_ids\": [1, 65]}",
          "!outside the vocabulary of 60");
    check((mx_encoder){.columns = (const char *[]){"x", "y"}, .n_columns = 2}, NULL,
          "{\"x\": [1, 65, 66], \"y\": [-100, 65, -100]}", "<\x01>A<B>");
    check((mx_encoder){.columns = (const char *[]){"text"}, .n_columns = 1}, NULL,
          "{\"text\": [65, 66]}", "AB");
    check(both, NULL, "{\"title\": \"x\"}", "!no column to train on");
    check(both, NULL, "{\"messages\": [{\"content\": \"x\"}]}", "!has no role");
    check(both, NULL, "{\"messages\": []}", "!not empty");
    check(both, NULL, "{\"messages\": [{\"role\": \"user\", \"content\": 3}]}",
          "!neither text nor a list");
    const char *columns[] = {"a", "b"};
    mx_encoder named = {.columns = columns, .n_columns = 2, .loss_on = MX_LOSS_ASSISTANT};
    check(named, NULL, "{\"a\": \"p\", \"b\": \"c\", \"text\": \"t\"}", "<p>c");
    check(named, NULL, "{\"a\": \"p\"}", "!expected b, found a");
}

MX_TEST(encode_chat_masks_all_but_the_assistant)
{
    mx_encoder sft = {.loss_on = MX_LOSS_ASSISTANT, .add_bos = true, .add_eos = true}, all = {0};
    check(sft, chatml, "{\"messages\": " CHAT "}",
          "<<|im_start|>user/q<|im_end|>/<|im_start|>assistant/>a<|im_end|>/");
    check(all, chatml, "{\"conversations\": " SHARE "}",
          "<|im_start|>user/q<|im_end|>/<|im_start|>assistant/a<|im_end|>/");
    check(sft, marked, "{\"messages\": " CHAT "}", "<[user]q[assistant]>a!");
    check(sft, chatml,
          "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\", "
          "\"content\": "
          "\"2\"}, {\"role\": \"user\", \"content\": \"3\"}, {\"role\": \"assistant\", "
          "\"content\": \"4\"}]}",
          "<<|im_start|>user/1<|im_end|>/<|im_start|>assistant/>2<|im_end|>/<<|im_start|>user/"
          "3<|im_end|>/"
          "<|im_start|>assistant/>4<|im_end|>/");
    check(sft, chatml, "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}], \"chosen\": "
          "[{\"role\": \"assistant\", \"content\": \"c\"}], \"rejected\": \"\"}", "!same kind");
    check(
        sft, marked,
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}], \"chosen\": "
        "[{\"role\": \"assistant\", \"content\": \"c\"}], \"rejected\": [{\"role\": \"assistant\", "
        "\"content\": \"r\"}]}",
        "<[user]q[assistant]>c!|<[user]q[assistant]>r!");
}

static int count_id(const mx_document *d, int32_t id)
{
    int n = 0;
    for (int64_t i = 0; i < d->ids.n; i++)
        n += d->ids.ids[i] == id;
    return n;
}

MX_TEST(encode_never_promotes_special_tokens_of_data)
{
    static const char *const lines[] = {
        "{\"text\": \"before <|im_end|> after\"}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"say <|im_end|> now\"}, {\"role\": "
        "\"assistant\", \"content\": \"ok\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"plain\"}, {\"role\": \"assistant\", "
        "\"content\": \"ok\"}]}"};
    mx_tokenizer *t;
    mx_chat_template *chat;
    MX_CHECK_OK(mx_tokenizer_open(&t, "tests/fixtures/tokenizers/qwen3/tokenizer.json", NULL));
    MX_CHECK_OK(mx_chat_template_open(&chat, chatml));
    int32_t end = mx_tokenizer_find(t, "<|im_end|>");
    MX_CHECK(end >= 0);
    for (int parse = 0; parse < 2; parse++)
        for (int k = 0; k < 3; k++) {
            mx_source s = {0};
            mx_record r = {0};
            mx_document d[2] = {0};
            int n, want = (k ? 2 : 0) + (parse && k < 2);
            mx_encoder e = {.tokenizer = t, .chat = chat, .loss_on = MX_LOSS_ASSISTANT,
                            .parse_special = parse};
            MX_CHECK_OK(mx_json_scan_object(&s, lines[k], strlen(lines[k]), &r));
            MX_CHECK_OK(mx_encode_record(&e, &r, d, &n));
            MX_CHECK(count_id(&d[0], end) == want,
                     "parse %d, line %d: %d special tokens, expected %d", parse, k,
                     count_id(&d[0], end), want);
            mx_document_fini(&d[0]), mx_document_fini(&d[1]);
            mx_record_fini(&r);
        }
    mx_chat_template_close(chat);
    mx_tokenizer_close(t);
}

/* Schemas of tools reach the template wherever messages do, as a list or as its text; of messages
 * that are a prompt nothing is trained, whoever wrote it. */
MX_TEST(encode_tools_and_prompts_of_messages)
{
    static const char tools[] =
        "{% if tools %}{{ tools[0].name }}:{% endif %}{% for m in messages %}[{{ m.role[0] }}]"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[a]{% endif %}";
#define ASK "\"prompt\": [{\"role\": \"assistant\", \"content\": \"p\"}, {\"role\": \"user\", " \
            "\"content\": \"q\"}], "
    mx_encoder e = {.whole = true, .loss_on = MX_LOSS_COMPLETION};
    check(e, tools, "{" ASK "\"chosen\": [{\"role\": \"assistant\", \"content\": \"y\"}], "
          "\"rejected\": [{\"role\": \"assistant\", \"content\": \"n\"}], "
          "\"tools\": [{\"name\": \"T\"}]}", "<T:[a]p![u]q[a]>y!|<T:[a]p![u]q[a]>n!");
    static const char answered[] =
        "{" ASK "\"completion\": [{\"role\": \"assistant\", \"content\": \"y\"}], "
        "\"tools\": \"[{\\\"name\\\": \\\"T\\\"}]\"}";
    check(e, tools, answered, "<T:[a]p![u]q[a]>y!");
    e.loss_on = MX_LOSS_ASSISTANT;
    check(e, tools, answered, "<T:[a]p![u]q[a]>y!");
    e.loss_on = MX_LOSS_COMPLETION;
    e.answers_last = true;
    check(e, tools, "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
          "\"assistant\", \"content\": \"y\"}]}", "<[u]q[a]>y!");
#undef ASK
}

MX_TEST(encode_margins)
{
    mx_encoder e = {.whole = true, .loss_on = MX_LOSS_COMPLETION, .takes_margins = true};
    check(e, NULL, "{\"prompt\": \"p\", \"chosen\": \"y\", \"rejected\": \"n\", \"margin\": 0.5}",
          "<p>y|<p>n");
    check(e, NULL, "{\"prompt\": \"p\", \"chosen\": \"y\", \"rejected\": \"n\", \"margin\": null}",
          "<p>y|<p>n");
    check(e, NULL, "{\"prompt\": \"p\", \"chosen\": \"y\", \"rejected\": \"n\", \"margin\": \"1\"}",
          "!expected a number");
    e.takes_margins = false;
    check(e, NULL, "{\"prompt\": \"p\", \"chosen\": \"y\", \"rejected\": \"n\", \"margin\": \"1\"}",
          "<p>y|<p>n");
}
