/* info_card.c - see info_card.h. */
#include "main/model/info_card.h"

#include "console/terminal.h"
#include "lib/backends.h"
#include "main/model/model_path.h"
#include "model/model.h"
#include "sizing/measured.h"

#include <stdio.h>
#include <string.h>

enum { GROWS_PER_CENT = 5 }; // scales and whole tiles add less

static enum status find_card(const char *name, const struct card **out, struct error *err) {
    char known[128] = "";
    size_t n;
    const char *const *names = card_names(&n);
    *out = card_find(name);
    for (size_t i = 0; i < n; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", names[i]);
    return *out ? OK : fail(err, ERR_ARG, "--card: %.40s is not known; known cards are %s", name, known);
}

/* With its weights, as those tell their formats; by its settings alone where it has none that can be read. */
static enum status open_model(const char *path, struct model **out, struct error *err) {
    bool has_weights = model_path_has_weights(path);
    return model_open(path, &(struct model_options){has_weights ? LOAD_CHECKPOINT : LOAD_PHANTOM}, out, err);
}

static const char *unless(const char *value, const char *none) { return strcmp(value, none) == 0 ? NULL : value; }

enum status card_footprint(const char *path, const char *device, const struct card_flags *f, struct footprint *out,
                           struct error *err) {
    const struct card *card;
    struct error e;
    struct model *m;
    struct gyre_options o = {.struct_size = sizeof o,
                             .model = path,
                             .dtype = unless(f->dtype, "auto"),
                             .kv_cache_dtype = unless(f->kv_cache_dtype, "auto"),
                             .quantization = unless(f->quantization, "none"),
                             .max_model_len = f->max_model_len,
                             .max_batched_tokens = (int)f->max_batched_tokens,
                             .max_seqs = (int)f->max_seqs,
                             .block_size = (int)f->block_size,
                             .gpu_memory_utilization = f->memory_share};
    TRY(find_card(f->card, &card, err));
    enum status st = backend_get(device, &o.backend, &e);
    if (st != OK)
        return fail(err, st, "--%s", e.text);
    TRY(open_model(path, &m, err));
    o.dummy_weights = !m->checkpoint;
    struct phantom_card phantom = {.name = card->name,
                                   .memory_bytes = (int64_t)card->memory_bytes.value,
                                   .capability = card->capability,
                                   .n_multiprocessors = card->n_multiprocessors};
    st = engine_footprint(&o, m, &phantom, out, err);
    model_free(m);
    return st;
}

// ---- for people -------------------------------------------------------------------------------------------------

static bool grows(const struct device_part *p) {
    return p->n_weights > 0 && p->n_bytes > p->stored_bytes + p->stored_bytes / 100 * GROWS_PER_CENT;
}

/* Columns: what, how many, in the files, on the card. */
static void print_line(const char *what, double n_bytes, const char *before, const char *behind) {
    printf("  %-83s %2s%10s%s\n", what, before, human_bytes(n_bytes).text, behind);
}

static void print_part(const struct device_part *p) {
    if (p->n_weights == 0) {
        print_line(p->what, (double)p->n_bytes, p->is_at_most ? "<=" : "", "");
        return;
    }
    printf("  %-27s %5d  %-12s %10s  %-25s %10s", p->what, p->n_weights, p->stored,
           human_bytes((double)p->stored_bytes).text, p->there, human_bytes((double)p->n_bytes).text);
    if (grows(p))
        printf("  grows %.2f times", (double)p->n_bytes / (double)p->stored_bytes);
    printf("\n");
}

static void print_caches(const struct footprint *p) {
    char room[128];
    for (int i = 0; i < p->n_caches; i++)
        print_line(p->caches[i].what, (double)p->caches[i].n_bytes, "",
                   p->caches[i].is_state ? " a sequence" : " a token");
    if (p->no_room.text[0]) {
        printf("  does not fit: %s\n", p->no_room.text);
        return;
    }
    snprintf(room, sizeof room, "room for %lld tokens together, in sequences of up to %lld",
             (long long)p->cache_tokens, (long long)p->max_model_len);
    print_line(room, (double)p->cache_bytes, "", "");
    print_line("total", (double)(p->n_bytes + p->cache_bytes), "", "");
}

void card_footprint_print(const struct card_flags *f, const struct footprint *p) {
    const struct card *card = card_find(f->card);
    if (!p)
        return;
    printf("\non one %s     %s (%s), of which %s may be taken; placed as a start would, and no card was asked\n",
           card->name, human_bytes((double)p->memory_bytes).text, card->memory_bytes.source,
           human_bytes((double)p->may_bytes).text);
    printf("  %-27s %5s  %-23s  %s\n", "weights", "", "in the model's files", "on the card");
    for (int i = 0; i < p->n_parts; i++)
        print_part(&p->parts[i]);
    printf("  %-27s %5s  %-12s %10s  %-25s %10s\n", "all but caches", "", "",
           human_bytes((double)p->stored_bytes).text, "", human_bytes((double)p->n_bytes).text);
    print_caches(p);
}

// ---- JSON -------------------------------------------------------------------------------------------------------

static json_t *part_json(const struct device_part *p) {
    json_t *o = json_pack("{s:s, s:I, s:b}", "what", p->what, "bytes", (json_int_t)p->n_bytes, "at_most",
                          p->is_at_most);
    if (p->n_weights > 0) {
        json_object_set_new(o, "weights", json_integer(p->n_weights));
        json_object_set_new(o, "stored", json_string(p->stored));
        json_object_set_new(o, "stored_bytes", json_integer(p->stored_bytes));
        json_object_set_new(o, "there", json_string(p->there));
        json_object_set_new(o, "grows", json_boolean(grows(p)));
    }
    return o;
}

json_t *card_footprint_json(const struct card_flags *f, const struct footprint *p) {
    if (!p)
        return json_null();
    json_t *parts = json_array(), *caches = json_array();
    for (int i = 0; i < p->n_parts; i++)
        json_array_append_new(parts, part_json(&p->parts[i]));
    for (int i = 0; i < p->n_caches; i++)
        json_array_append_new(caches, json_pack("{s:s, s:I}", "what", p->caches[i].what,
                                                p->caches[i].is_state ? "bytes_per_sequence" : "bytes_per_token",
                                                (json_int_t)p->caches[i].n_bytes));
    return json_pack("{s:s, s:I, s:I, s:o, s:I, s:I, s:o, s:I, s:I, s:I, s:o}", "card", f->card, "memory_bytes",
                     (json_int_t)p->memory_bytes, "may_be_taken_bytes", (json_int_t)p->may_bytes, "parts", parts,
                     "stored_bytes", (json_int_t)p->stored_bytes, "bytes_without_caches", (json_int_t)p->n_bytes,
                     "caches", caches, "cache_bytes", (json_int_t)p->cache_bytes, "cache_tokens",
                     (json_int_t)p->cache_tokens, "max_model_len", (json_int_t)p->max_model_len, "no_room",
                     p->no_room.text[0] ? json_string(p->no_room.text) : json_null());
}
