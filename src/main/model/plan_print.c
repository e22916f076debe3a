/* plan_print.c - see plan_print.h. */
#include "main/model/plan_print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// 1234567.8 as 1,234,568; below 100 with a decimal.
static const char *grouped(double x, char out[32]) {
    char digits[32];
    int n = snprintf(digits, sizeof digits, x < 100 ? "%.1f" : "%.0f", x), at = 0;
    int whole = n - (x < 100 ? 2 : 0);
    for (int i = 0; i < n; i++) {
        if (i && i < whole && (whole - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

// ---- text -------------------------------------------------------------------------------------------------------

static void print_constant(const char *what, const struct constant *c, double unit, const char *unit_name) {
    printf("  %-16s %8.4g %-9s %-12s %s\n", what, c->value / unit, unit_name, basis_name(c->basis), c->source);
}

static void print_head(const struct model *m, const struct sizing *s) {
    printf("%s on %d x %s, %s: %.0f tokens in, %.0f out\n", m->spec->path, s->n_cards, s->card->name, s->link->name,
           s->n_input, s->n_output);
    print_constant("memory", &s->card->memory_bytes, 1e9, "GB");
    print_constant("reads", &s->card->read_bytes_per_s, 1e12, "TB/s");
    print_constant("multiplies FP8", &s->card->narrow_flops_per_s, 1e12, "TFLOP/s");
    print_constant("16 bits", &s->card->wide_flops_per_s, 1e12, "TFLOP/s");
    if (s->n_cards > 1) {
        print_constant("a sum's latency", &s->link->latency_us, 1, "us");
        print_constant("link", &s->link->bytes_per_s, 1e9, "GB/s");
    }
    if (s->link->timed_source && s->n_cards > 1)
        printf("  %-16s %8s %-9s %-12s %s\n", "sums of 2 cards", "table", "", basis_name(MEASURED),
               s->link->timed_source);
    printf("  %-16s %8s %-9s %-12s %s\n", "what is reached", "", "", "fitted", reach_source);
}

static void print_row(const struct layout *l, const struct layout_speed *v, int n_seqs) {
    char user[32], card[32], served[32], ep[8] = "-";
    if (l->by_expert)
        snprintf(ep, sizeof ep, "%d", l->tp);
    printf("%4d %3d %3s %5d %9.1f %9lld", l->tp, l->pp, ep, l->dp, l->weight_bytes * 1e-9, (long long)l->most_seqs);
    if (v->fits)
        printf(" %10.2f %10s %10s %12s  %-9s %s\n", v->step_s * 1e3, grouped(v->user, user), grouped(v->card, card),
               grouped(v->card_with_prompts, served), v->limit, basis_of_prediction(v->basis));
    else
        printf("   the cache has no room for %d sequences\n", n_seqs);
}

static void print_batch(const struct sizing *s, const struct layout *all, int n, int batch, bool dominated_too) {
    int n_hidden = 0, n_full = 0;
    printf("\n%d sequence%s an engine\n", s->batches[batch], s->batches[batch] > 1 ? "s" : "");
    printf("  TP  PP  EP    DP   weights sequences         ms   tokens/s   tokens/s   a card with\n"
           "                    GB a card  that fit     a step     a user     a card      prompts  limit     basis\n");
    for (int i = 0; i < n; i++) {
        const struct layout_speed *v = &all[i].at[batch];
        if (!dominated_too && !v->fits)
            n_full++;
        else if (!dominated_too && layout_is_dominated(all, n, i, batch))
            n_hidden++;
        else
            print_row(&all[i], v, s->batches[batch]);
    }
    if (n_hidden + n_full > 0)
        printf("  (%d more are beaten by one of these for the user and the card; of %d the cache has no room: --all)\n",
               n_hidden, n_full);
}

/* A request takes a card a prompt and a share of steps; engines that do one of both stand in that ratio. */
static void print_roles(const struct sizing *s, const struct layout *all, int n, int batch) {
    const struct layout *best = NULL;
    for (int i = 0; i < n; i++)
        if (all[i].at[batch].fits && (!best || all[i].at[batch].card > best->at[batch].card))
            best = &all[i];
    if (!best || best->dp < 2)
        return;
    const struct layout_speed *v = &best->at[batch];
    double decode = s->n_output * v->step_s / s->batches[batch], share = best->prompt_s / (best->prompt_s + decode);
    int prompts = (int)fmin(fmax(round(best->dp * share), 1), best->dp - 1), answers = best->dp - prompts;
    double requests = fmin(prompts / best->prompt_s, answers / decode);
    char apart[32], together[32];
    printf("\nPrefill apart from decode, %d sequences a decoding engine: %d engines of TP %d, PP %d for prompts and %d "
           "for "
           "answers give\n%s tokens/s a card, and %s where each does both. Answers then wait for no prompt. %s\n",
           s->batches[batch], prompts, best->tp, best->pp, answers, grouped(requests * s->n_output / s->n_cards, apart),
           grouped(v->card_with_prompts, together), "Extrapolated.");
}

static void print_split(const struct sizing *s, const struct layout *all, int n, int batch) {
    const struct layout *best = NULL;
    struct layout_split split;
    char apart[32], together[32];
    for (int i = 0; i < n; i++)
        if (all[i].pp == 1 && all[i].at[batch].fits && (!best || all[i].at[batch].card > best->at[batch].card))
            best = &all[i];
    if (!best || !layout_split(best, s, batch, &split))
        return;
    printf(
        "\nAttention apart from feed-forward, which is %.0f %% of such a step: %d engines of TP %d that attend and %d "
        "that feed forward give\n%s tokens/s a card, %.1f ms a step, and %s where each does both. Extrapolated; gyre "
        "cannot run it.\n",
        100 * split.ffn_share, split.attention, best->tp, split.ffn, grouped(split.card, apart), split.step_s * 1e3,
        grouped(best->at[batch].card, together));
}

void plan_print(const struct model *m, const struct sizing *s, const struct layout *all, int n, bool dominated_too) {
    print_head(m, s);
    for (int i = 0; i < s->n_batches; i++)
        print_batch(s, all, n, i, dominated_too);
    print_roles(s, all, n, s->n_batches - 1);
    print_split(s, all, n, s->n_batches - 1);
}

// ---- JSON -------------------------------------------------------------------------------------------------------

static json_t *constant_json(const struct constant *c) {
    return json_pack("{s:f, s:s, s:s}", "value", c->value, "basis", basis_name(c->basis), "source", c->source);
}

static json_t *speed_json(const struct layout_speed *v, int n_seqs) {
    json_t *parts = json_pack("{s:f, s:f, s:f, s:f, s:f}", "nodes_ms", v->parts.nodes * 1e3, "weights_ms",
                              v->parts.weights * 1e3, "cache_ms", v->parts.cache * 1e3, "products_ms",
                              v->parts.products * 1e3, "sums_ms", v->parts.sums * 1e3);
    return json_pack("{s:i, s:b, s:f, s:f, s:f, s:f, s:s, s:s, s:o}", "batch", n_seqs, "fits", v->fits, "step_ms",
                     v->step_s * 1e3, "tokens_per_s_a_user", v->user, "tokens_per_s_a_card", v->card,
                     "tokens_per_s_a_card_with_prompts", v->card_with_prompts, "limit", v->limit, "basis",
                     basis_of_prediction(v->basis), "parts", parts);
}

static json_t *layout_json(const struct sizing *s, const struct layout *l) {
    json_t *speeds = json_array();
    for (int i = 0; i < s->n_batches; i++)
        json_array_append_new(speeds, speed_json(&l->at[i], s->batches[i]));
    return json_pack("{s:i, s:i, s:i, s:i, s:f, s:f, s:I, s:f, s:o}", "tensor_parallel_size", l->tp,
                     "pipeline_parallel_size", l->pp, "expert_parallel_size", l->by_expert ? l->tp : 1,
                     "data_parallel_size", l->dp, "weight_bytes_a_card", l->weight_bytes, "cache_bytes_a_sequence",
                     l->seq_bytes, "max_sequences", (json_int_t)l->most_seqs, "prompt_ms", l->prompt_s * 1e3, "speeds",
                     speeds);
}

void plan_print_json(const struct model *m, const struct sizing *s, const struct layout *all, int n,
                     json_t *take_replays) {
    json_t *layouts = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(layouts, layout_json(s, &all[i]));
    json_t *card = json_pack(
        "{s:s, s:o, s:o, s:o, s:o}", "name", s->card->name, "memory_bytes", constant_json(&s->card->memory_bytes),
        "read_bytes_per_s", constant_json(&s->card->read_bytes_per_s), "fp8_flops_per_s",
        constant_json(&s->card->narrow_flops_per_s), "wide_flops_per_s", constant_json(&s->card->wide_flops_per_s));
    json_t *link = json_pack("{s:s, s:o, s:o}", "name", s->link->name, "latency_us",
                             constant_json(&s->link->latency_us), "bytes_per_s", constant_json(&s->link->bytes_per_s));
    json_t *json = json_pack("{s:s, s:i, s:f, s:f, s:o, s:o, s:s, s:o}", "model", m->spec->path, "cards", s->n_cards,
                             "input_len", s->n_input, "output_len", s->n_output, "card", card, "link", link, "reach",
                             reach_source, "layouts", layouts);
    if (take_replays)
        json_object_set_new(json, "replays", take_replays);
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    puts(text);
    free(text);
    json_decref(json);
}
