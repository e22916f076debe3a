/* layouts.c - see layouts.h. */
#include "sizing/layouts.h"

#include "core/pass/pass.h"

#include <math.h>
#include <stdlib.h>

/* Values of steps, graphs and the runtime itself. Assumed. */
static const double other_bytes = 2e9;

enum { CARDS_A_HOST = 8 };

// ---- what a program has -----------------------------------------------------------------------------------------

static int n_experts_of(const struct program *p) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_MOE_ROUTE)
            return p->ops[i].args.moe_route.n_experts;
    return 0;
}

static int n_layers_of(const struct program *p) {
    int n = 0;
    for (int i = 0; i < p->n_sections; i++)
        n += p->sections[i].layer >= 0;
    return n;
}

static int width_of(const struct program *p) { return val_given(p->hidden) ? p->hidden.width : p->ops[0].out[0].width; }

static int layers_a_stage(const struct layout *l) { return (n_layers_of(l->program) + l->pp - 1) / l->pp; }

// ---- time -------------------------------------------------------------------------------------------------------

/* Stages hand on the residual stream and what is to be added to it, in float32. */
static double hop_s(const struct layout *l, const struct sizing *s, double n_tokens) {
    bool in_host = l->tp * l->pp <= CARDS_A_HOST;
    const struct link *link = in_host ? s->link : link_find("ib400");
    return link_send_us(link, n_tokens * width_of(l->program) * 8) * 1e-6;
}

static void scale(struct step_time *t, double by) {
    t->nodes *= by, t->weights *= by, t->cache *= by, t->products *= by, t->sums *= by;
    t->layers *= by, t->ends *= by, t->total *= by;
}

/* As many parts as stages, if there are as many sequences. All stages take the time of the longest, which has the most
 * layers and the head. */
double layout_step_s(const struct layout *l, const struct sizing *s, const struct work_kind *kinds, int n_kinds,
                     struct step_time *parts) {
    enum { MOST_KINDS = 64 };
    struct work_kind part[MOST_KINDS];
    double n_seqs = 0, n_tokens = 0;
    BUG_IF(n_kinds > MOST_KINDS);
    for (int i = 0; i < n_kinds; i++)
        n_seqs += kinds[i].n_seqs;
    double n_parts = fmax(1, fmin(l->pp, n_seqs));
    for (int i = 0; i < n_kinds; i++) {
        part[i] = kinds[i];
        part[i].n_seqs /= n_parts;
        n_tokens += part[i].n_seqs * part[i].n_new;
    }
    step_model_time(l->model, part, n_kinds, parts);
    if (l->pp == 1)
        return parts->total;
    parts->basis = MAX(parts->basis, EXTRAPOLATED);
    double share = (double)layers_a_stage(l) / n_layers_of(l->program);
    double full = l->pp * (parts->layers * share + parts->ends), once = parts->layers + parts->ends;
    double fill = (n_parts - 1) / (l->pp - 1); // 1: each stage has always one to do
    double step = once + fill * (full - once) + l->pp * hop_s(l, s, n_tokens);
    scale(parts, step / parts->total);
    return step;
}

static const char *limit_of(const struct step_time *t) {
    struct {
        const char *name;
        double s;
    } most = {"nodes", t->nodes},
      all[] = {{"weights", t->weights}, {"cache", t->cache}, {"products", t->products}, {"sums", t->sums}};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i].s > most.s)
            most.name = all[i].name, most.s = all[i].s;
    return most.name;
}

static void speed_at(struct layout *l, const struct sizing *s, int batch) {
    struct layout_speed *v = &l->at[batch];
    double n = s->batches[batch], cards = l->tp * l->pp;
    struct work_kind kind = {n, s->n_input + s->n_output / 2, 1};
    *v = (struct layout_speed){.fits = n <= (double)l->most_seqs};
    v->step_s = layout_step_s(l, s, &kind, 1, &v->parts);
    v->user = 1 / v->step_s;
    v->card = n / v->step_s / cards;
    v->card_with_prompts = s->n_output / (l->prompt_s + s->n_output * v->step_s / n) / cards;
    v->limit = limit_of(&v->parts);
    v->basis = v->parts.basis;
}

// ---- memory -----------------------------------------------------------------------------------------------------

static void fill_memory(struct layout *l, const struct sizing *s) {
    double share = (double)layers_a_stage(l) / n_layers_of(l->program);
    l->weight_bytes = step_model_layer_bytes(l->model) * share + step_model_end_bytes(l->model);
    l->cache_room = s->card->memory_bytes.value * s->memory_share - other_bytes - l->weight_bytes;
    l->seq_bytes = step_model_cache_bytes(l->model, s->n_input + s->n_output, s->block_size) * share;
    l->most_seqs = l->cache_room > 0 ? (int64_t)(l->cache_room / fmax(l->seq_bytes, 1)) : 0;
}

// ---- all of them ------------------------------------------------------------------------------------------------

static enum status make(const struct program *whole, const struct sizing *s, struct layout *l, struct error *err) {
    struct shard_options cut = {0, l->tp, l->by_expert};
    TRY(pass_shard(whole, &cut, &l->program, err));
    l->model = step_model_new(l->program,
                              &(struct step_model_options){.card = s->card,
                                                           .link = s->link,
                                                           .makes_fp8 = s->makes_fp8,
                                                           .cache = s->cache,
                                                           .n_all_experts = l->by_expert ? n_experts_of(whole) : 0});
    struct work_kind prompt = {1, 0, s->n_input};
    struct step_time parts;
    fill_memory(l, s);
    l->prompt_s = layout_step_s(l, s, &prompt, 1, &parts);
    for (int i = 0; i < s->n_batches; i++)
        speed_at(l, s, i);
    return OK;
}

static void release(struct layout *l) {
    step_model_free(l->model);
    program_free(l->program);
}

void layouts_free(struct layout *l, int n) {
    for (int i = 0; l && i < n; i++)
        release(&l[i]);
    free(l);
}

/* Why none is there: what the roomiest lacked, or why the last could not be cut. */
struct refusal {
    double least_lack;
    struct layout closest;
    struct error cut;
};

static void try_one(const struct program *whole, const struct sizing *s, struct layout one, struct layout *out, int *n,
                    struct refusal *why) {
    if (make(whole, s, &one, &why->cut) != OK)
        return;
    double lack = one.seq_bytes - one.cache_room;
    if (one.most_seqs >= 1 && *n < MOST_LAYOUTS) {
        out[(*n)++] = one;
        return;
    }
    if (lack < why->least_lack)
        why->least_lack = lack, why->closest = one;
    release(&one);
}

static enum status refuse(const struct program *whole, const struct sizing *s, const struct refusal *why,
                          struct error *err) {
    const struct layout *c = &why->closest;
    if (!isfinite(why->least_lack) && why->cut.status == OK)
        return fail(err, ERR_ARG, "%d cards are in no engines of such a size", s->n_cards);
    if (!isfinite(why->least_lack)) {
        *err = why->cut;
        return err->status;
    }
    return fail(
        err, ERR_MEMORY,
        "%s: it does not fit on %d card%s of %.0f GB: over %d of them a card has %.1f GB of weights and %.2f GB of "
        "cache for one sequence, and lacks %.1f GB",
        whole->name, s->n_cards, s->n_cards > 1 ? "s" : "", s->card->memory_bytes.value * 1e-9, c->tp * c->pp,
        c->weight_bytes * 1e-9, c->seq_bytes * 1e-9, why->least_lack * 1e-9);
}

static bool is_asked_for(const struct sizing *s, int tp, int pp) {
    return (!s->only_tp || s->only_tp == tp) && (!s->only_pp || s->only_pp == pp);
}

static enum status check_cache(const struct program *p, enum cache_format cache, struct error *err) {
    for (int g = 0; g < p->n_groups; g++)
        if (p->groups[g].kind == CACHE_LATENT && cache != CACHE_16_BITS)
            return fail(err, ERR_UNSUPPORTED,
                        "kv_cache_dtype: %s has a latent cache (MLA), which cards keep in 16 bits", p->name);
    return OK;
}

enum status layouts_find(const struct program *whole, const struct sizing *s, struct layout **out, int *n,
                         struct error *err) {
    TRY(check_cache(whole, s->cache, err));
    struct layout *all = xcalloc(MOST_LAYOUTS, sizeof *all);
    struct refusal why = {.least_lack = INFINITY};
    int most_tp = s->link->cards ? MIN(s->link->cards, s->n_cards) : MIN(s->n_cards, 64),
        n_experts = n_experts_of(whole);
    *n = 0;
    for (int tp = 1; tp <= most_tp; tp *= 2)
        for (int pp = 1; tp * pp <= s->n_cards && pp <= MIN(n_layers_of(whole), 64); pp *= 2)
            for (int apart = 0; apart <= (tp > 1 && n_experts > 0) && s->n_cards % (tp * pp) == 0; apart++)
                if (is_asked_for(s, tp, pp))
                    try_one(whole, s,
                            (struct layout){.tp = tp, .pp = pp, .dp = s->n_cards / (tp * pp), .by_expert = apart}, all,
                            n, &why);
    if (*n == 0) {
        free(all);
        return refuse(whole, s, &why, err);
    }
    *out = all;
    return OK;
}

/* Of half of an engine's sequences, in each layer there and back; a link's rate is each card's. */
static double exchange_s(const struct layout *l, const struct sizing *s, double n_seqs) {
    const struct link *link = l->tp * l->dp <= CARDS_A_HOST ? s->link : link_find("ib400");
    return 2 * n_layers_of(l->program) * link_send_us(link, n_seqs * width_of(l->program) * 4 / l->tp) * 1e-6;
}

/* While one half attends the other feeds forward: the slower side sets the pace, unless a half's own way round is
 * longer. */
static double split_step_s(const struct layout *l, const struct sizing *s, double n_seqs, int attention, int ffn) {
    struct work_kind mine = {n_seqs / 2, s->n_input + s->n_output / 2, 1},
                     theirs = {n_seqs / 2 * attention / ffn, 1, 1};
    struct step_time attend, feed;
    step_model_time(l->model, &mine, 1, &attend);
    step_model_time(l->model, &theirs, 1, &feed);
    double a = attend.total - attend.ffn, f = feed.ffn;
    return fmax(2 * fmax(a, f), a + f + exchange_s(l, s, n_seqs / 2));
}

bool layout_split(const struct layout *l, const struct sizing *s, int batch, struct layout_split *out) {
    double n = s->batches[batch];
    struct work_kind kind = {n, s->n_input + s->n_output / 2, 1};
    struct step_time whole;
    *out = (struct layout_split){0};
    if (l->pp > 1 || l->dp < 2)
        return false;
    step_model_time(l->model, &kind, 1, &whole);
    for (int attention = 1; attention < l->dp; attention++) {
        double step = split_step_s(l, s, n, attention, l->dp - attention);
        double card = n * attention / step / (l->dp * l->tp);
        if (card > out->card)
            *out = (struct layout_split){attention, l->dp - attention,       step,
                                         card,      whole.ffn / whole.total, MAX(whole.basis, EXTRAPOLATED)};
    }
    return true;
}

bool layout_is_dominated(const struct layout *all, int n, int i, int batch) {
    const struct layout_speed *mine = &all[i].at[batch];
    for (int k = 0; k < n; k++) {
        const struct layout_speed *v = &all[k].at[batch];
        bool as_good = v->user >= mine->user && v->card >= mine->card;
        if (k != i && v->fits && as_good && (v->user > mine->user || v->card > mine->card || k < i))
            return true;
    }
    return false;
}
