/* memory_plan.h - what an open engine takes of its device's memory, part by part, and what one would take of a card
 * that need not be there; for whoever prints it. */
#pragma once

#include "core/backend.h"
#include "gyre.h"
#include "model/model.h"

enum { MAX_MEMORY_PARTS = MAX_CACHE_GROUPS + MAX_DEVICE_REPORTS + 2 };

struct memory_part {
    char what[64]; // "weights", "sliding window of 48, 5 layers", ...
    int64_t n;     // blocks or state slots of ...
    int64_t each;  // ... so many bytes; other parts are one
};

struct memory_plan {
    struct memory_part parts[MAX_MEMORY_PARTS];
    int n_parts;
    int64_t total, machine; // bytes; machine: that there is, 0 if it is not known
    int64_t taken;          // of it, now, by whomever; 0: not known
};

void memory_group_name(const struct cache_group *c, char *out, size_t size); // "cache, 28 layers"

/* Sums of what was asked for when the engine was opened; cache that nobody has used yet may not be resident. */
void memory_plan(const struct gyre *g, struct memory_plan *out);

// ---- of a card that need not be there: nothing is computed. The backend's own placing of weights and sizing of steps
// says what they take, and the engine's sizing of caches -----------------------------------------------------------

struct footprint_cache {
    char what[64];   // "cache, 28 layers"
    int64_t n_bytes; // of a token in all of them; of a state group, of a sequence
    bool is_state;
};

struct footprint {
    struct device_part parts[MAX_DEVICE_PARTS]; // all but caches
    struct footprint_cache caches[MAX_CACHE_GROUPS];
    int n_parts, n_caches;
    int64_t stored_bytes, n_bytes;     // of parts: in the model's files, and there
    int64_t memory_bytes, may_bytes;   // of the card, and of them, what may be taken
    int64_t cache_bytes, cache_tokens; // that there is room for, as far as sequences of the step can use it ...
    int64_t max_model_len;             // ... and how long one may be
    struct error no_room;              // text empty: it fits
};

/* o: as of gyre_open, with a backend whose probes have a footprint; nothing is read of it but what sizes depend on. The
 * model outlives the call. */
enum status engine_footprint(const struct gyre_options *o, const struct model *model, const struct phantom_card *card,
                             struct footprint *out, struct error *err);
