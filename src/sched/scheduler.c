/* scheduler.c - see scheduler.h. */
#include "sched/scheduler.h"

#include "sched/branches.h"
#include "sched/shared_prompt.h"

#include <stdlib.h>
#include <string.h>

static void list_append(struct sequence_list *list, struct sequence *seq) {
    seq->prev = list->tail;
    seq->next = NULL;
    *(list->tail ? &list->tail->next : &list->head) = seq;
    list->tail = seq;
    list->n++;
}

/* Most come last. */
static void list_insert(struct sequence_list *list, struct sequence *seq) {
    struct sequence *before = list->tail;
    while (before && sequence_before(seq, before))
        before = before->prev;
    seq->prev = before;
    seq->next = before ? before->next : list->head;
    *(seq->next ? &seq->next->prev : &list->tail) = seq;
    *(before ? &before->next : &list->head) = seq;
    list->n++;
}

static void list_remove(struct sequence_list *list, struct sequence *seq) {
    *(seq->prev ? &seq->prev->next : &list->head) = seq->next;
    *(seq->next ? &seq->next->prev : &list->tail) = seq->prev;
    seq->prev = seq->next = NULL;
    list->n--;
}

void scheduler_init(struct scheduler *s, struct kv_pool *pool, struct step_limits limits) {
    BUG_IF(limits.max_seqs < 1 || limits.max_rows < limits.max_seqs || limits.max_tokens < limits.max_seqs);
    *s = (struct scheduler){.pool = pool, .limits = limits};
    step_cost_init(&s->cost);
    s->running = xcalloc((size_t)limits.max_seqs, sizeof *s->running);
    s->step = xcalloc((size_t)limits.max_seqs, sizeof *s->step);
    for (int i = 0; i < MAX_STEPS_IN_FLIGHT; i++)
        s->in_flight[i].seqs = xcalloc((size_t)limits.max_seqs, sizeof *s->in_flight[i].seqs);
}

void scheduler_release(struct scheduler *s) {
    free(s->running);
    free(s->step);
    for (int i = 0; i < MAX_STEPS_IN_FLIGHT; i++)
        free(s->in_flight[i].seqs);
    *s = (struct scheduler){0};
}

static void wait_in_rank(struct scheduler *s, struct sequence *seq) {
    seq->place = SEQ_WAITING;
    list_insert(&s->waiting, seq);
    s->n_waiting_with_cache += sequence_holds_cache(seq);
    s->n_paused += seq->paused;
}

void scheduler_add(struct scheduler *s, struct sequence *seq) {
    BUG_IF(seq->place != SEQ_OUTSIDE || seq->n_tokens < 1 || seq->n_computed > 0);
    wait_in_rank(s, seq);
}

static void insert_running(struct scheduler *s, struct sequence *seq) {
    int i = s->n_running++;
    for (; i > 0 && sequence_before(seq, s->running[i - 1]); i--)
        s->running[i] = s->running[i - 1];
    s->running[i] = seq;
    seq->place = SEQ_RUNNING;
}

static void remove_running(struct scheduler *s, struct sequence *seq) {
    int i = 0;
    while (s->running[i] != seq)
        i++;
    memmove(&s->running[i], &s->running[i + 1], (size_t)(s->n_running - i - 1) * sizeof *s->running);
    s->n_running--;
}

static void take_out(struct scheduler *s, struct sequence *seq) {
    BUG_IF(seq->n_scheduled != 0);
    switch (seq->place) {
    case SEQ_WAITING:
        list_remove(&s->waiting, seq);
        s->n_waiting_with_cache -= sequence_holds_cache(seq);
        s->n_paused -= seq->paused;
        break;
    case SEQ_RUNNING: remove_running(s, seq); break;
    case SEQ_OUTSIDE:
    case SEQ_LEAVING: break;
    }
    seq->place = SEQ_OUTSIDE;
}

void scheduler_remove(struct scheduler *s, struct sequence *seq) {
    take_out(s, seq);
    if (seq->n_in_flight == 0) {
        kv_pool_drop(s->pool, seq);
        return;
    }
    seq->place = SEQ_LEAVING;
    list_append(&s->leaving, seq);
}

static void leave(struct scheduler *s, struct sequence *seq) {
    list_remove(&s->leaving, seq);
    seq->place = SEQ_OUTSIDE;
    kv_pool_drop(s->pool, seq);
}

void scheduler_pause(struct scheduler *s, struct sequence *seq, bool paused) {
    if (seq->place == SEQ_WAITING)
        s->n_paused += paused - seq->paused;
    seq->paused = paused;
}

/* Those that are paused wait from now on, but for those that a step in flight has. */
static void set_paused_aside(struct scheduler *s) {
    for (int i = s->n_running - 1; i >= 0; i--) {
        struct sequence *seq = s->running[i];
        if (!seq->paused || seq->n_in_flight > 0)
            continue;
        remove_running(s, seq);
        sequence_expect_no_more(seq);
        kv_pool_remember(s->pool, seq);
        kv_pool_truncate(s->pool, seq);
        wait_in_rank(s, seq);
    }
}

/* The first that waits for its turn. */
static struct sequence *first_queued(const struct scheduler *s) {
    struct sequence *seq = s->waiting.head;
    while (seq && seq->paused)
        seq = seq->next;
    return seq;
}

// ---- making room ------------------------------------------------------------------------------------------------

/* The last come of those that wait with cache, are not `needed` and are paused, or not; NULL: there is none. */
static struct sequence *find_spare(const struct scheduler *s, const struct sequence *needed, bool paused) {
    for (struct sequence *w = s->waiting.tail; w && s->n_waiting_with_cache > 0; w = w->prev)
        if (w->paused == paused && w != needed && sequence_holds_cache(w))
            return w;
    return NULL;
}

/* Takes the cache of one sequence that waits with some and is not `needed`, of those that are paused first. */
static bool drop_spare(struct scheduler *s, const struct sequence *needed) {
    struct sequence *spare = s->n_paused > 0 ? find_spare(s, needed, true) : NULL;
    if (!spare)
        spare = find_spare(s, needed, false);
    if (!spare)
        return false;
    s->n_waiting_with_cache--;
    kv_pool_drop(s->pool, spare);
    return true;
}

/* Whether copying its cache out and in again takes less time than computing it again, as far as that is known. */
static bool swapping_is_cheaper(const struct scheduler *s, const struct sequence *seq) {
    int64_t n = seq->n_computed, bytes = kv_pool_held_bytes(s->pool, seq);
    double computing = step_cost_predict(&s->cost, (struct step_work){.tokens = n, .pairs = n * (n + 1) / 2});
    double nothing = step_cost_predict(&s->cost, (struct step_work){0}); // steps there are in any case
    double copying = step_cost_predict(&s->cost, (struct step_work){.copied = 2 * bytes}) - nothing;
    return s->always_swap || copying < computing - nothing;
}

/* What the last running sequence has computed goes to the host's memory, or is lost but for what is remembered of it.
 */
static void preempt_last(struct scheduler *s) {
    struct sequence *seq = s->running[--s->n_running];
    BUG_IF(seq->n_in_flight > 0);
    sequence_expect_no_more(seq);
    kv_pool_truncate(s->pool, seq); // a plan that had to wait may have given it blocks for guesses
    if (swapping_is_cheaper(s, seq) && kv_pool_swap_out(s->pool, seq))
        s->n_swapped++;
    else
        kv_pool_drop(s->pool, seq);
    wait_in_rank(s, seq);
    seq->n_preempted++;
    s->n_preempted++;
}

enum room {
    ROOM,
    ROOM_GAVE_WAY, // it was itself the one that had to
    ROOM_LATER,    // somebody has to, and a step is in flight
};

/* Cache for the next n tokens of running[at]. What the step in flight fills is remembered before a window gives it
 * back. */
static enum room make_room(struct scheduler *s, int at, int n) {
    struct sequence *seq = s->running[at];
    kv_pool_remember(s->pool, seq);
    while (kv_pool_extend(s->pool, seq, seq->n_computed + n) != OK) {
        if (drop_spare(s, seq))
            continue;
        if (s->n_in_flight > 0)
            return ROOM_LATER;
        bool itself = s->n_running - 1 == at;
        // It was checked that the pool can hold it, if there is memory and nobody from outside holds some of it.
        if (itself && at == 0 && s->pool->n_handovers == 0) {
            BUG_IF(!kv_pool_is_short(s->pool));
            s->starved = seq;
        }
        preempt_last(s);
        if (itself)
            return ROOM_GAVE_WAY;
    }
    return ROOM;
}

// ---- planning a step --------------------------------------------------------------------------------------------

/* What a step holds back for the decoding sequences that it has not come to yet: a token and a row each. */
struct reserve {
    int n_later, n_all;
};

/* How many tokens of seq still go into this step. */
static int tokens_that_fit(const struct scheduler *s, const struct sequence *seq, struct reserve decoding) {
    bool decodes = sequence_decodes(seq),
         has_reserve = decodes && seq->place == SEQ_RUNNING; // of its own token; not of guesses
    int reserved = decoding.n_later;
    int n = MIN(seq->n_tokens - seq->n_computed, s->limits.max_tokens - s->n_step_tokens - reserved);
    n = MIN(n, s->pool->max_chunk);
    n = MIN(n, kv_pool_tokens_to_checkpoint(s->pool, seq));
    if (n > 1 && !decodes && decoding.n_all > 0 && s->limits.itl_target_us > 0) {
        struct step_work work = s->step_work; // the decoding ones to come look at contexts like those of this step
        work.tokens += reserved;
        n = step_cost_chunk(&s->cost, work, seq->n_computed, n, s->limits.itl_target_us);
    }
    int surplus = sequence_rows(seq, n) - (s->limits.max_rows - s->n_step_rows - reserved);
    return MAX(has_reserve, surplus > 0 ? n - surplus : n); // rows come last, one a token
}

static void put_in_step(struct scheduler *s, struct sequence *seq, int n) {
    s->n_step_rows += sequence_rows(seq, n);
    s->n_step_tokens += n;
    s->step_work.tokens += n;
    s->step_work.pairs += (int64_t)n * seq->n_computed + (int64_t)n * (n + 1) / 2;
    seq->n_scheduled = n;
    s->step[s->n_step++] = seq;
}

static struct reserve count_decoding(const struct scheduler *s) {
    struct reserve r = {0};
    for (int i = 0; i < s->n_running; i++)
        r.n_all += !s->running[i]->paused && sequence_decodes(s->running[i]);
    r.n_later = r.n_all;
    return r;
}

/* Whoever runs could have a block each, still, and whoever is in its prompt those of a chunk. */
static void take_ahead(struct scheduler *s, struct sequence *seq, int n, struct reserve decoding) {
    int a_chunk = (MIN(s->pool->max_chunk, s->limits.max_tokens) - 1) / s->pool->block_size + 1;
    int32_t end = MIN(seq->n_computed + MIN(n + s->limits.n_ahead, s->pool->max_chunk), seq->capacity);
    if (s->limits.n_ahead > 0 && sequence_decodes(seq))
        kv_pool_extend_spare(s->pool, seq, end, s->n_running + MAX(s->n_running - decoding.n_all, 0) * a_chunk);
}

/* False when it must wait for the step in flight; the blocks that some were given already are then theirs. */
static bool plan_running(struct scheduler *s, struct reserve *decoding) {
    for (int at = 0; at < s->n_running; at++) {
        if (s->running[at]->paused)
            continue;
        decoding->n_later -= sequence_decodes(s->running[at]);
        int n = tokens_that_fit(s, s->running[at], *decoding);
        if (n == 0)
            continue;
        enum room room = make_room(s, at, n);
        if (room == ROOM_LATER)
            return false;
        if (room == ROOM) {
            take_ahead(s, s->running[at], n, *decoding);
            put_in_step(s, s->running[at], n);
        }
    }
    return true;
}

/* Tokens of a waiting sequence's text that others may have computed. */
static int32_t most_reusable(const struct sequence *seq) {
    return seq->whole ? 0 : MIN(seq->first_row, seq->n_tokens - 1);
}

/* Whether seq waits for a running one to compute what both begin with; then it needs nothing that is remembered of it
 * yet. */
static bool waits_for_shared(struct scheduler *s, struct sequence *seq) {
    if (seq->swapped || !shared_prompt_is_coming(s->pool, s->running, s->n_running, seq, most_reusable(seq)))
        return false;
    s->n_waiting_with_cache -= sequence_holds_cache(seq);
    kv_pool_drop(s->pool, seq);
    return true;
}

/* What is remembered of a waiting sequence's text; it then waits with cache until it is admitted or others need it. */
static void recall(struct scheduler *s, struct sequence *seq) {
    if (seq->n_computed > 0)
        return;
    int32_t most = most_reusable(seq);
    enum gyre_cache_miss miss = kv_pool_recall(s->pool, seq, most);
    shared_prompt_copy(s->pool, s->running, s->n_running, seq, most);
    if ((miss == GYRE_MISS_NONE || miss == GYRE_MISS_SHORT) && most < seq->n_tokens - 1)
        miss = GYRE_MISS_SCORED;
    if (seq->n_recalled < 0)
        seq->miss = miss;
    s->n_waiting_with_cache += seq->n_computed > 0;
}

static bool find_room(struct scheduler *s, const struct sequence *seq) {
    while (!kv_pool_has_room(s->pool, seq, seq->n_tokens, s->n_running > 0))
        if (!drop_spare(s, seq))
            return false;
    return true;
}

/* It then waits with cache, as after recall. When the list of copies is full, with what nobody runs to begin a step
 * with, it loses its cache. */
static bool swap_in(struct scheduler *s, struct sequence *seq) {
    bool in = kv_pool_swap_in(s->pool, seq);
    s->n_waiting_with_cache += in;
    if (!in && s->n_running == 0)
        kv_pool_drop(s->pool, seq);
    return in;
}

/* From the head of the queue, while each finds room for all of its known tokens: admitting one on the strength of
 * its first chunk would only have it preempted in the middle of its prompt. Who waits for a running one to compute what
 * both begin with is passed over; that ends, as the running one ranks before it. */
static enum admission admit_waiting(struct scheduler *s, struct reserve decoding) {
    enum admission all = ADMITTED_ALL;
    struct sequence *next;
    for (struct sequence *seq = s->waiting.head; seq; seq = next) {
        next = seq->next;
        if (seq->paused)
            continue;
        if (s->n_running >= s->limits.max_seqs)
            return BLOCKED_SEQS;
        if (waits_for_shared(s, seq)) {
            all = BLOCKED_SHARED;
            continue;
        }
        recall(s, seq);
        int n = tokens_that_fit(s, seq, decoding);
        if (n <= 0)
            return BLOCKED_TOKENS;
        if (!find_room(s, seq))
            return BLOCKED_CACHE;
        if (seq->swapped && !swap_in(s, seq)) {
            if (s->n_running > 0)
                return BLOCKED_CACHE;
            next = seq; // now without cache
            continue;
        }
        take_out(s, seq);
        if (seq->n_recalled < 0)
            seq->n_recalled = seq->n_computed;
        insert_running(s, seq);
        enum status st = kv_pool_extend(s->pool, seq, seq->n_computed + n);
        BUG_IF(st != OK); // there was room for more than that
        put_in_step(s, seq, n);
    }
    return all;
}

/* Nothing is planned yet, so whoever is less important than the first that waits can still give way; but not while a
 * step is in flight: then false. */
static bool give_way_to_priority(struct scheduler *s) {
    struct sequence *first = first_queued(s);
    if (first && waits_for_shared(s, first))
        return true;
    while (first && s->n_running > 0 && first->rank.priority < s->running[s->n_running - 1]->rank.priority) {
        if (s->n_running < s->limits.max_seqs && kv_pool_has_room(s->pool, first, first->n_tokens, s->n_running > 0))
            return true;
        if (s->n_in_flight > 0)
            return false;
        preempt_last(s);
        first = first_queued(s);
    }
    return true;
}

static void clear_step(struct scheduler *s) {
    for (int i = 0; i < s->n_step; i++)
        s->step[i]->n_scheduled = 0;
    s->n_step = s->n_step_tokens = s->n_step_rows = s->n_step_branches = 0;
    s->step_work = (struct step_work){0};
}

static bool plan(struct scheduler *s) {
    s->n_step = 0; // those of the last one may be gone
    s->starved = NULL;
    clear_step(s);
    set_paused_aside(s);
    if (!s->holds_new && !give_way_to_priority(s))
        return false;
    int64_t n_preempted = s->n_preempted;
    struct reserve decoding = count_decoding(s);
    if (!plan_running(s, &decoding)) {
        clear_step(s);
        return false;
    }
    if (s->holds_new && s->n_step > 0)
        s->blocked = scheduler_n_queued(s) > 0 ? BLOCKED_AHEAD : ADMITTED_ALL;
    else
        s->blocked = s->n_preempted == n_preempted ? admit_waiting(s, decoding) : BLOCKED_PREEMPTED;
    s->step_work.copied = kv_pool_copied_bytes(s->pool);
    bool stands = s->n_step == 0 && s->n_in_flight == 0 && s->pool->n_handovers == 0;
    if (stands && s->n_running == 0 && s->blocked == BLOCKED_CACHE && kv_pool_is_short(s->pool))
        s->starved = first_queued(s);
    BUG_IF(stands && !s->starved && (s->n_running > 0 || scheduler_n_queued(s) > 0));
    return s->n_step > 0;
}

bool scheduler_plan(struct scheduler *s) {
    bool planned = plan(s);
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *seq = s->running[i];
        sequence_drop_guesses(seq);
        if (seq->branches)
            scheduler_plan_branches(s, seq, planned && seq->n_scheduled > 0);
    }
    return planned;
}

// ---- starting and collecting it ---------------------------------------------------------------------------------

void scheduler_start(struct scheduler *s) {
    BUG_IF(s->n_in_flight == MAX_STEPS_IN_FLIGHT || s->n_step == 0);
    struct step_in_flight *f = &s->in_flight[s->n_in_flight++];
    kv_pool_step_started(s->pool);
    f->n_seqs = s->n_step;
    f->work = s->step_work;
    for (int i = 0; i < s->n_step; i++) {
        struct sequence *seq = f->seqs[i] = s->step[i];
        seq->n_computed += seq->n_scheduled;
        seq->state_base = MIN(seq->n_known, seq->n_computed);
        seq->n_scheduled = 0;
        seq->n_in_flight++;
        sequence_expect(seq);
    }
}

void scheduler_append(struct scheduler *s, struct sequence *seq, int32_t token) {
    bool was_guessed = seq->n_computed > seq->n_known;
    int branch = branches_with(seq, token);
    if (branch > 0)
        kv_pool_take_branch(s->pool, seq, branch);
    if (!sequence_append(seq, token))
        kv_pool_truncate(s->pool, seq);
    if (was_guessed) // now: the sequence may end, and the next step moves a state on, past where it can be kept
        kv_pool_remember(s->pool, seq);
}

void scheduler_collect(struct scheduler *s, double us) {
    BUG_IF(s->n_in_flight == 0);
    struct step_in_flight f = s->in_flight[0];
    kv_pool_step_collected(s->pool);
    if (us > 0)
        step_cost_learn(&s->cost, f.work, us);
    for (int i = 0; i < f.n_seqs; i++) {
        f.seqs[i]->n_in_flight--;
        if (f.seqs[i]->place != SEQ_LEAVING)
            kv_pool_remember(s->pool, f.seqs[i]);
        else if (f.seqs[i]->n_in_flight == 0)
            leave(s, f.seqs[i]);
    }
    s->n_in_flight--;
    memmove(&s->in_flight[0], &s->in_flight[1], (MAX_STEPS_IN_FLIGHT - 1) * sizeof f);
    s->in_flight[MAX_STEPS_IN_FLIGHT - 1] = f; // its array is used again
}
