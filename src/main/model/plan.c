/* plan.c - gyre plan MODEL --cards 8xH200: how a model may be spread over cards that need not be here, and how fast
 * each way should be. */
#include "main/verbs.h"

#include "main/model/model_path.h"
#include "main/model/plan_print.h"
#include "main/plan_replay.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *cards, *link, *quantization, *kv_cache_dtype;
    int64_t input_len, output_len, block_size;
    double memory_share;
    int64_t only_tp, only_pp;
    struct flag_ids batch, replay_cards;
    bool all, json;
    struct plan_replay replay;
} opt = {.cards = "1xH200",
         .link = "nvlink",
         .quantization = "none",
         .kv_cache_dtype = "auto",
         .input_len = 1024,
         .output_len = 256,
         .block_size = 64,
         .memory_share = 0.92,
         .replay = {.n_requests = 64, .max_tokens = 8192, .max_seqs = 512}};

static const struct flag flags[] = {
    {"cards", 0, FLAG_STRING, &opt.cards, "NxCARD", "Cards",
     "how many of which: 8xH200; H200, H100 and B200 are known"},
    {"link", 0, FLAG_CHOICE, &opt.link, "nvlink|ib400", "Cards",
     "between cards: nvlink joins 8 of a host, and InfiniBand hosts; ib400: InfiniBand joins any two"},
    {"gpu-memory-utilization", 0, FLAG_REAL, &opt.memory_share, "SHARE", "Cards",
     "of a card's memory that may be taken, as of serve", .min = 0.01, .max = 1},
    {"quantization", 0, FLAG_CHOICE, &opt.quantization, "none|fp8", "Model", "as of serve"},
    {"kv-cache-dtype", 0, FLAG_CHOICE, &opt.kv_cache_dtype, "auto|fp8|int4", "Model", "as of serve; auto has 16 bits"},
    {"block-size", 0, FLAG_INT, &opt.block_size, "N", "Model", "tokens in a block of cache", .min = 1, .max = 1 << 14},
    ALLOW_LINKS_FLAG,
    {"input-len", 0, FLAG_INT, &opt.input_len, "N", "Load", "tokens of a prompt", .min = 1, .max = 1 << 24},
    {"output-len", 0, FLAG_INT, &opt.output_len, "N", "Load", "tokens of an answer", .min = 1, .max = 1 << 24},
    {"batch", 0, FLAG_IDS, &opt.batch, "N,N", "Load", "sequences that an engine decodes together; 1,32,128"},
    {"tensor-parallel-size", 0, FLAG_INT, &opt.only_tp, "N", "Load", "only this; 0 is any", .min = 0, .max = 64},
    {"pipeline-parallel-size", 0, FLAG_INT, &opt.only_pp, "N", "Load", "only this; 0 is any", .min = 0, .max = 64},
    {"trace", 0, FLAG_STRING, &opt.replay.trace, "FILE", "Replay",
     "replay these requests: a CSV file of Azure's traces, or JSON lines of Mooncake's"},
    {"replay-cards", 0, FLAG_IDS, &opt.replay_cards, "N,N", "Replay", "on so many cards; otherwise those of --cards"},
    {"trace-rate", 0, FLAG_REAL, &opt.replay.rate, "RATE", "Replay",
     "requests a second and card; 0 is four fifths of what a card could take by arithmetic", .min = 0, .max = 1e6},
    {"trace-requests", 0, FLAG_INT, &opt.replay.n_requests, "N", "Replay",
     "the first N of the trace, once for each engine, shifted in time", .min = 1, .max = MOST_TRACE_REQUESTS},
    {"max-num-batched-tokens", 0, FLAG_INT, &opt.replay.max_tokens, "N", "Replay", "tokens of a step, as of serve",
     .min = 1, .max = 1 << 20},
    {"max-num-seqs", 0, FLAG_INT, &opt.replay.max_seqs, "N", "Replay", "sequences of a step, as of serve", .min = 1,
     .max = 1 << 14},
    {"itl-target", 0, FLAG_REAL, &opt.replay.itl_target_ms, "MS", "Replay", "as of serve; 0 is no bound", .min = 0,
     .max = 1e6},
    {"all", 0, FLAG_BOOL, &opt.all, NULL, "Output", "also ways that another one beats, for a user and for a card"},
    {"json", 0, FLAG_BOOL, &opt.json, NULL, "Output", "one object, with what every number is made of"},
};

/* "8xH200", or "H200" for one. */
static enum status read_cards(const char *text, struct sizing *s, struct error *err) {
    enum { ROOM = 128 };
    char known[ROOM] = "";
    size_t n;
    const char *const *names = card_names(&n), *x = strchr(text, 'x');
    int64_t count = 1;
    char digits[24] = "";
    if (x && x > text) {
        snprintf(digits, sizeof digits, "%.*s", (int)MIN(x - text, (ptrdiff_t)sizeof digits), text);
        TRY(parse_int(digits, "--cards", false, &count, err));
    }
    s->card = card_find(x ? x + 1 : text);
    for (size_t i = 0; i < n; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", names[i]);
    if (!s->card)
        return fail(err, ERR_ARG, "--cards: %.40s: it is written NxCARD, as 8xH200, and known cards are %s", text,
                    known);
    if (count < 1 || count > MOST_CARDS)
        return fail(err, ERR_ARG, "--cards: %lld is not between 1 and %d", (long long)count, MOST_CARDS);
    s->n_cards = (int)count;
    return OK;
}

static enum status read_batches(struct sizing *s, struct error *err) {
    static int32_t usual[] = {1, 32, 128};
    if (!opt.batch.given)
        opt.batch.ids = usual, opt.batch.n = ARRAY_LEN(usual);
    if (opt.batch.n < 1 || opt.batch.n > MOST_BATCHES)
        return fail(err, ERR_ARG, "--batch: %zu numbers, 1 to %d may be given", opt.batch.n, MOST_BATCHES);
    for (size_t i = 0; i < opt.batch.n; i++) {
        if (opt.batch.ids[i] < 1 || opt.batch.ids[i] > 1 << 14)
            return fail(err, ERR_ARG, "--batch: %d is not between 1 and 16384", opt.batch.ids[i]);
        s->batches[s->n_batches++] = opt.batch.ids[i];
    }
    return OK;
}

static enum cache_format cache_format(const char *name) {
    return strcmp(name, "fp8") == 0 ? CACHE_FP8 : strcmp(name, "int4") == 0 ? CACHE_INT4 : CACHE_16_BITS;
}

static enum status read_options(struct sizing *s, struct error *err) {
    *s = (struct sizing){.link = link_find(opt.link),
                         .makes_fp8 = strcmp(opt.quantization, "fp8") == 0,
                         .cache = cache_format(opt.kv_cache_dtype),
                         .memory_share = opt.memory_share,
                         .block_size = (int)opt.block_size,
                         .n_input = (double)opt.input_len,
                         .n_output = (double)opt.output_len,
                         .only_tp = (int)opt.only_tp,
                         .only_pp = (int)opt.only_pp};
    TRY(read_cards(opt.cards, s, err));
    return read_batches(s, err);
}

static enum status open_model(const char *path, struct model **out, struct error *err) {
    TRY(model_path_check(path, MODEL_SETTINGS, err));
    bool has_weights = model_path_has_weights(path); // else settings are enough
    return model_open(path, &(struct model_options){has_weights ? LOAD_CHECKPOINT : LOAD_PHANTOM}, out, err);
}

static enum status replay(const struct model *m, const struct sizing *s, const struct layout *all, int n, json_t *into,
                          struct error *err) {
    struct plan_replay *p = &opt.replay;
    int32_t cards = s->n_cards;
    p->max_len = m->spec->max_positions;
    p->max_seqs = MIN(p->max_seqs, p->max_tokens);
    p->cards = opt.replay_cards.given ? opt.replay_cards.ids : &cards;
    p->n_cards = opt.replay_cards.given ? opt.replay_cards.n : 1;
    return p->trace ? plan_replay(p, s, all, n, into, err) : OK;
}

static int run(const struct verb_args *args) {
    struct error err;
    struct sizing s;
    struct model *m = NULL;
    struct layout *all = NULL;
    int n = 0;
    if (read_options(&s, &err) != OK)
        return verb_misused(args->spec, "%s", err.text);
    enum status st = open_model(args->operands[0], &m, &err);
    if (st == OK)
        st = layouts_find(m->program, &s, &all, &n, &err);
    json_t *replays = opt.json && opt.replay.trace ? json_array() : NULL;
    if (st == OK && !opt.json)
        plan_print(m, &s, all, n, opt.all);
    if (st == OK)
        st = replay(m, &s, all, n, replays, &err);
    if (st == OK && opt.json)
        plan_print_json(m, &s, all, n, replays);
    else
        json_decref(replays);
    layouts_free(all, n);
    model_free(m);
    return st == OK ? 0 : verb_failed(&err);
}

const struct verb_spec verb_plan = {
    "plan",
    "MODEL|config.json",
    "predicts how fast cards that need not be here would serve a model, and how to spread it over them",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .epilogue =
        "A model may be cut in three ways, which multiply:\n"
        "  TP  every layer is shared by TP cards, which sum twice a layer: less time for a user, more sums\n"
        "      (EP: they share its experts whole; else each expert is cut)\n"
        "  PP  stages of layers one behind the other: fits larger models over slow links, no faster for a user\n"
        "  DP  engines side by side: more users, nothing faster for one\n"
        "A step reads the weights and the cache of its sequences, multiplies, starts nodes and sums over cards. How "
        "much\n"
        "of a card's limits that reaches was fitted to what was measured (docs/scaling.md); 'limit' is what most of a\n"
        "step goes to. A line is 'fitted' if all that it is made of was measured on such cards, 'extrapolated' if\n"
        "something was measured on others or fewer, 'published' if something is from a data sheet, 'assumed' if a "
        "guess\n"
        "is in it. 'With prompts': a card that computes the prompts too, between steps.\n"
        "  gyre plan Llama-3.1-70B --cards 8xH200 --quantization fp8 --kv-cache-dtype fp8\n"
        "  gyre plan config.json --cards 16xH100 --link ib400 --input-len 8192 --batch 1,64 --all\n"
        "With --trace requests of a real service go through the scheduler of serve on a clock that is computed. Load "
        "grows\n"
        "with the cards: each engine gets a copy of the trace, so a card's tokens/s say how far it scales.\n"
        "  gyre plan config.json --trace conversation.csv --replay-cards 1,8,64,1024\n"};
