/* engine.h - what an engine is made of; for the files of this room and its tests. The contract is gyre.h.
 *
 *     gyre_submit -> request -> scheduler: waiting -> running ------------> ended -> DONE -> freed
 *                                             step: plan, run, collect, publish
 *
 * One request is one sequence. Everything that a step needs is allocated before it: a request's memory when it is
 * submitted, plan, results and events when the engine is opened. */
#pragma once

#include "base/arena.h"
#include "base/fair_share.h"
#include "core/backend.h"
#include "engine/constrain.h"
#include "engine/constraint.h"
#include "engine/draft/drafter.h"
#include "engine/draft/economy.h"
#include "engine/draft/ngram.h"
#include "engine/draft/prediction.h"
#include "engine/draft/suffix.h"
#include "engine/inspect.h"
#include "engine/telemetry.h"
#include "gyre.h"
#include "model/draft/draft.h"
#include "model/model.h"
#include "sched/branches.h"
#include "sched/scheduler.h"

struct request {
    struct arena arena;
    uint64_t id;
    struct gyre_request asked; // its arrays are copies in the arena
    struct sequence sequence;
    int32_t n_prompt;
    struct sample_params sample; // what stays the same from token to token
    int32_t *stops;              // eos unless ignored, and stop_ids: [n_stops]
    int n_stops;
    int32_t *banned; // eos and stop_ids, before min_tokens: [n_banned]
    int n_banned;
    struct constraint *constraint; // NULL: no grammar
    bool is_untold;                // tokens of it came that the grammar was not told of
    struct guess_luck luck;
    struct proposal draft;
    int32_t n_vocab;
    struct guess_record record;
    struct prediction prediction;
    struct suffix_match suffix;
    int32_t first_guess;     // position of the first token of its last draft
    bool is_predicted;       // which came from the prediction
    bool is_rejected;        // it is kept by rejection sampling
    bool is_held, is_paused; // its mask is late: it is in no step until that is there; who asked wants none
    struct request *next_held;
    float *pooled;     // [hidden_size], if asked
    double *sums;      // [hidden_size], of GYRE_POOL_MEAN: over the positions so far
    bool pooled_whole; // the vector is complete
    int64_t submitted_us, started_us, first_token_us, last_token_us;
    int64_t fair_cost, fair_tag;       // see base/fair_share.h
    int64_t accepted_step;             // steps that were planned before it came
    struct request_progress *progress; // NULL: nobody watches
    bool ended;
    enum gyre_finish finish;
    struct error error;
    struct request *next_ended;
    struct request *next_in_bucket; // of the table of requests
};

/* Requests by id, which counts up and is never 0. Nothing is allocated: an engine that has a request has its place. */
enum { REQUEST_BUCKETS = 4096 };
struct request_table {
    struct request *buckets[REQUEST_BUCKETS]; // lists, the last come first
    uint64_t last_id;
};

void request_table_add(struct request_table *t, struct request *r); // sets r->id
struct request *request_table_find(const struct request_table *t, uint64_t id);
void request_table_remove(struct request_table *t, struct request *r);

/* A request with everything copied and checked, or a sentence that names the field. Reads only what does not change
 * while the engine is open, so any thread may call it. */
enum status request_new(const struct gyre *g, const struct gyre_request *asked, struct request **out,
                        struct error *err);
void request_free(struct request *r);

/* An output row of a step: whose it is, and the position of the token that it was computed from. */
struct step_row {
    struct request *request;
    int32_t position;
    int32_t n_backs; // of the sequence when the step was planned: with another it is void
    int branch;      // likewise, unless the sequence went there (sched/branches.h); 0: the trunk
};

/* A step from its plan until it is collected. */
struct step {
    struct batch_plan plan;
    struct sample_params *sample; // [max_rows]
    struct step_row *rows;        // [max_rows]
    int64_t started_us;
    struct request **requests; // [max_seqs]
    int *branch;               // [max_seqs]: of the request's, which follow it; 0: the sequence itself
    int n_branches;            // of all requests
    bool is_late;              // it was started without its sample: rows wait for their masks
    double n_at_risk;          // sequences whose guesses will not all be right, so that what is started behind is void
    bool is_read_back; // logits or hidden states will be read on the host: nothing is started before it is collected
};

struct gyre {
    uint64_t number; // of engines that this process has opened
    const struct backend_ops *ops;
    struct device *device;
    struct loaded *loaded;
    struct executable *exe;
    struct model *model;       // NULL in tests that bring a program of their own
    struct settling *settling; // its weights, on their way into large pages; NULL: they are where they are
    struct draft *draft;       // beside it; NULL: none
    struct program *rings;     // the program, if it was made for rings; NULL: it is the model's, or its draft's target
    const struct program *program;
    struct gyre_info info;
    int32_t *eos; // that of info

    struct kv_pool pool;
    struct scheduler scheduler;
    struct drafter drafter;
    int n_back;                  // tokens that recurrent states can go back
    int64_t n_predictions;       // requests that came with one
    struct ngram ngram;          // of the drafter, if that is what it is
    struct suffix_index *suffix; // likewise; NULL: it is not
    struct mask_crew *mask_crew; // NULL: no request had a grammar yet
    int64_t mask_patience_us;    // that a step waits for the masks of its rows: slower ones are held
    struct request *held;        // a list
    int64_t n_late_steps, mask_wait_us, n_forced_tokens, n_held;
    struct request_table requests;

    struct step steps[MAX_STEPS_IN_FLIGHT]; // by turns: plans A and B
    int64_t n_steps, n_collected;           // steps started, and collected
    int64_t n_collected_seqs;               // of those, together
    int64_t collected_us;                   // when the last one was
    int64_t checked_us;                     // when the device was asked last whether it is there
    struct sample_result *results;          // [max_rows], of the step collected last; its events point in here

    struct gyre_event
        *events; // [2 * max_rows + MAX_FORCED * max_seqs], those of the last step that were not handed out yet
    int first_event, n_events;
    struct request *ended_head, *ended_tail; // their DONE was not handed out yet
    struct request *delivered;               // DONE was handed out by the last poll: its pointers are still good
    enum gyre_policy policy;
    struct cache_config cache; // as allocated
    int64_t cache_idle_us;     // without work, until the cache's memory goes back to the device; 0: never
    int64_t refused_us;        // when the device had no memory for the cache; 0: it had
    bool holds_spare;          // memory was taken since the last time that it was given back
    int64_t weight_bytes;      // as stored
    struct open_times open_us;
    struct fair_share fair;
    unsigned char salt_key[32]; // random: what salts are hashed with
    int64_t n_accepted;
    int64_t n_busy;              // accepted, DONE not handed out
    struct error failed;         // of the device; sticky
    struct error cache_fault;    // likewise, when it was asked for the cache's memory, and no step has told it yet
    struct telemetry *telemetry; // NULL: nobody measures
};

/* What gyre_open does once a model is there. The program is borrowed. */
struct engine_model {
    const struct program *program;
    int64_t max_positions;
    int32_t bos;
    const int32_t *eos;
    int n_eos;
    int64_t weight_bytes;        // as stored
    int64_t made_bytes;          // of them, those for which memory is still to be taken
    int64_t mapped_bytes;        // of them, those of a file's map, which are in memory as far as there is room
    const struct draft *draft;   // that guesses beside it; NULL: none
    const struct model *to_read; // brought into memory before the first step; NULL: none
    const struct program *own;   // what of it this process computes; NULL: all. Memory is counted for that
};
enum status engine_open(const struct gyre_options *options, const struct engine_model *model, struct gyre **out,
                        struct error *err);

/* Queues a request; it is the engine's from here on. */
void engine_accept(struct gyre *g, struct request *r);

/* Starts the next step, if there is anything to compute, and collects the one before (or this, if the device has room
 * for one only), whose events it queues. */
void engine_step(struct gyre *g);

/* Whether engine_step has something to do: a request that has not ended and is not paused, or a step in flight. */
bool engine_has_work(const struct gyre *g);

/* draft/draft.c: before a step is planned, guesses for those that decode; those that it took are counted; before the
 * event's token is known, whether it was guessed, and the guess right; before that, the token that is taken for the
 * one drawn at a position; after a step's tokens are known; whether what comes behind a request's tokens may be
 * guessed. */
void engine_draft(struct gyre *g);
double engine_count_guesses(struct gyre *g, struct request *r);
void engine_judge(struct gyre *g, struct request *r, const struct gyre_event *e);
int32_t engine_synthetic(const struct gyre *g, const struct request *r, int32_t position, int32_t token);
enum status engine_draft_follow(struct gyre *g, const struct step *step);
bool engine_may_guess(const struct request *r);
struct sample_guess engine_guess_at(const struct request *r, int32_t position); // that the row before is drawn with
void engine_draft_end(struct gyre *g, const struct request *r); // it is over: others' guesses may come of its answer

/* Who guesses, as the options say: checked before anything is opened, and once the cache is there. */
enum status engine_draft_check(const struct gyre_options *o, struct error *err);
enum status engine_draft_open(struct gyre *g, const struct gyre_options *o, const struct draft *draft,
                              struct error *err);

/* The request is in a step for the first time. */
void engine_started(struct gyre *g, struct request *r, int64_t now_us);

/* Nothing is computed for the request from the next plan on, or something is again (scheduler_pause). What steps in
 * flight give it is handed out. */
void engine_pause(struct gyre *g, uint64_t id, bool paused);

/* The request is over: out of the scheduler, DONE next. For FAILED, err says why. */
void engine_end(struct gyre *g, struct request *r, enum gyre_finish finish, const struct error *err);

/* Frees the requests whose DONE was handed out by the last poll, but for those that a step in flight still has. */
void engine_free_delivered(struct gyre *g);

/* Takes what the step that was just collected adds to the vectors that requests asked for (pooling.c). Fails with the
 * device. */
enum status engine_pool_step(struct gyre *g, const struct step *step);

/* lifecycle.c: how long until something is to be done though nothing runs (-1: there is nothing to wait for); that, if
 * the time has come. A device that nobody asks for a step is asked whether it is there. */
int64_t engine_rest_us(const struct gyre *g);
void engine_rest(struct gyre *g);

/* commit.c: memory behind the cache's blocks. The pool's kv_commit, of a struct gyre; what the first batch will want,
 * before there is one; a little more of it, while a step runs; how long until some may go back (-1: none may); that;
 * and the end of a request that nothing else keeps from its cache than the device's memory. */
int engine_commit(void *context, int group, int n);
void engine_commit_first(struct gyre *g, int max_seqs);
void engine_commit_ahead(struct gyre *g);
int64_t engine_spare_us(const struct gyre *g);
void engine_give_spare(struct gyre *g);
void engine_end_starved(struct gyre *g);

/* Writes a sentence to the caller and returns its status. */
int engine_report(struct gyre_error *out, const struct error *err);
