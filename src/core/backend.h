/* backend.h - what a device must do: hold programs with their weights and caches, and run steps of them.
 *
 *     open a device -> load a program -> alloc_cache -> compile -> run, collect, run, collect ...
 *
 * Each physical device is opened once. Many programs may be loaded on it (a target and its draft), with weights and
 * caches of their own, and unloaded while others stay. An executable takes steps up to a size, in shapes of its own.
 * run() is asynchronous where the device is. Steps of one device run in the order they were started, whatever their
 * executable; those of one executable are collected in that order, and at most max_in_flight of them are started and
 * not collected. What a step writes to the cache the next one sees, so a block may be given to another sequence while
 * a step that reads it is in flight. A device's first fault is sticky: later calls return ERR_DEVICE, and its sentence.
 * load() and compile() refuse what the backend cannot do, naming op and program. They take no slower path silently. */
#pragma once

#include "core/backend_handover.h"
#include "core/backend_types.h"
#include "core/plan.h"
#include "core/program.h"
#include "core/sample.h"

struct backend_ops {
    const char *name;
    bool ragged;                             // takes steps with sequences of unequal length
    bool in_place;                           // computes with weights where the checkpoint's map has them: read ahead
    bool no_weights;                         // computes without weights: a model is opened by its config alone
    bool makes_dummies;                      // fills dummy weights: matrices N(0, 1/in), vectors in [0.9, 1.1]
    bool rejects;                            // rows may be drawn with a guess (sample_params.guess)
    bool branches;                           // takes plans with `also`
    int default_tokens, default_seqs;        // of a step, where the user does not say; 0: the engine's
    int default_chunk;                       // of those tokens, that one sequence takes; 0: all
    int max_back;                            // the most that load_options.n_back may be
    int max_in_flight, tokens_ahead;         // 1: run() computes, 2: the device, meanwhile; held (plan.h) beyond a step
    int stage, n_stages;                     // of a pipeline over hosts, what is computed here; n_stages 0: all is
    int n_devices;                           // of the machine's, that open takes from device_options.index on; 0: one
    const struct backend_option *options;    // up to one without a name; NULL: none
    const struct backend_probes *probes;     // NULL: none
    const struct backend_handover *handover; // NULL: a cache cannot be handed to another engine

    enum status (*open)(const struct device_options *options, struct device **out, struct error *err);
    void (*memory)(const struct device *d, struct device_memory *out);
    void (*close)(struct device *d); // nothing is loaded any more

    /* Sequences that may grow beyond so many tokens have rings (pass/pass.h); own: as in device_options. NULL: none. */
    int64_t (*rings_beyond)(const char *const *own);

    /* Places the program's weights. The program, and what it borrows, outlives what is loaded. */
    enum status (*load)(struct device *d, const struct program *p, const struct load_options *options,
                        struct loaded **out, struct error *err);
    void (*unload)(struct loaded *l); // after its executables are freed

    /* Makes programs of ranks 0 .. n-1 of one model, each loaded on a device of its own, meet in their collective ops;
     * once, before they are compiled. From then on each step is run by all of them, each on a thread of its own. NULL:
     * load refuses programs of ranks. */
    enum status (*join)(struct loaded *const *ranks, int n, struct error *err);

    /* Zeroed memory for caches of the program's groups, once, unless it reads another's; ERR_MEMORY says of what. */
    enum status (*alloc_cache)(struct loaded *l, const struct cache_config *config, struct error *err);

    /* Makes blocks 0 .. n-1 of a KV or latent group usable, at least, and gives the device back what those behind
     * took; *n becomes how many are usable then. Where blocks are does not change, and what becomes usable is zeroed
     * before the next step. ERR_MEMORY, which is not sticky, if the device has no memory left: nothing has changed.
     * What is given back no step in flight reads. NULL: alloc_cache makes all usable, by_need is not asked for. */
    enum status (*commit_cache)(struct loaded *l, int group, int *n, struct error *err);

    /* Bytes of one block of a group over all its layers (a state slot for state groups). */
    int64_t (*cache_block_bytes)(const struct loaded *l, int group, int block_size);

    /* Between steps: whether what runs them answers, unasked. A fault is sticky. NULL: the next step tells. */
    enum status (*check)(struct device *d, struct error *err);

    /* Bytes that caches may take: `share` (0: the backend's choice) of the device's memory, less what is taken of it
     * by whomever and what n executables for the bucket, with blocks of so many tokens and plans of these tables,
     * will take. ERR_MEMORY says why nothing is left. NULL: the memory is the host's, and the engine decides. */
    enum status (*cache_room)(struct loaded *l, struct bucket bucket, int n, int block_size, const int *table_width,
                              double share, int64_t *out, struct error *err);

    enum status (*compile)(struct loaded *l, struct bucket bucket, struct executable **out, struct error *err);
    void (*free_executable)(struct executable *exe); // waits for what is in flight

    /* Between steps, sentence i, from 0, on how it was compiled, for whoever starts it; false: no more. NULL: none. */
    bool (*warning)(struct executable *exe, int i, char *out, size_t n);

    /* What there is to tell of an executable and what it runs on, between steps or while some are in flight; returns
     * how many. Always the same names in the same order. */
    int (*report)(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]);

    /* How often tokens were sent to each expert of a layer, over all layers, since the program was loaded: to out
     * [most]; returns how many experts a layer has, 0 if none has some. Any thread. NULL: the device does not count. */
    int (*expert_loads)(const struct executable *exe, int64_t *out, int most);

    /* Steps that are computed already, a token more of each sequence; until they are run nobody new begins. NULL: 0. */
    int (*foreseen)(const struct executable *exe);

    /* Starts a step, which draws what `sample` [n_rows] asks for. What it takes of the step before (from_row,
     * newest_row) is read on the device: that step of this executable need not have been collected. With sample NULL
     * the step is late: it leaves what rows are drawn from on the device, and draw comes before the next run. Plan and
     * sample, and what that points to, stay as they are until collect. */
    enum status (*run)(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                       struct error *err);

    /* Draws the rows of the late step started last, with what came meanwhile (a mask, penalties), as if run had it. */
    enum status (*draw)(struct executable *exe, const struct sample_params *sample, struct error *err);

    /* Waits for the oldest step in flight and fills results[n_rows]. */
    enum status (*collect)(struct executable *exe, struct sample_result *results, struct error *err);

    /* After collect and until the next run: row r's raw logits [vocab_size], if its want_logits was set. Nothing is
     * started while a step with such a row is in flight. */
    enum status (*logits)(struct executable *exe, int row, const float **out, struct error *err);

    /* Likewise of token row t the state behind the last norm, [program.hidden.width], of a program that has one; or
     * with `tap` from 1 on that of program.taps[tap - 1]. NULL: the device keeps none. */
    enum status (*hidden)(struct executable *exe, int tap, int t, const float **out, struct error *err);

    /* From where STATES of exe takes its rows, without the host: source i, below STATE_SOURCES, is what `from` keeps as
     * `tap`, as hidden has it, of its step that was started last; exe itself: of the step before. Between compile and
     * the first run; `from`, of the same device, outlives the last. NULL: rows come with the plan. */
    enum status (*states_from)(struct executable *exe, int i, struct executable *from, int tap, struct error *err);
};

extern const struct backend_ops backend_cpu;
