/* op_rig.c - see op_rig.h. */
#include "op_rig.h"

#include "op_oracle.h"

#include "base/random.h"
#include "lib/backends.h"

#include <inttypes.h>
#include <math.h>

/* ---- random numbers and memory ---- */

uint64_t rig_bits(struct rig *rig) {
    struct philox r = philox4x32(test_seed(), rig->random++, 1);
    return (uint64_t)r.v[0] << 32 | r.v[1];
}

double rig_uniform(struct rig *rig, double low, double high) {
    return low + (high - low) * (double)(rig_bits(rig) >> 11) * 0x1p-53;
}

int rig_between(struct rig *rig, int low, int high) { return low + (int)(rig_bits(rig) % (uint64_t)(high - low + 1)); }

double *rig_doubles(struct rig *rig, int64_t n) { return arena_calloc(&rig->arena, (size_t)n, sizeof(double)); }

/* ---- the rig ---- */

/* Linked into the tests of a build for GPUs alone; others take libgyre-cuda.so from $GYRE_PLUGINS. */
extern const struct backend_ops backend_cuda __attribute__((weak));

const struct backend_ops *rig_backend(void) {
    const char *name = getenv("GYRE_TEST_BACKEND");
    if (!name || strcmp(name, "cpu") == 0)
        return &backend_cpu;
    if (strcmp(name, "cuda") == 0 && &backend_cuda)
        return &backend_cuda;
    static const struct backend_ops *loaded;
    struct error err;
    if (!loaded)
        EXPECT_OK(backend_get(name, &loaded, &err), err);
    return loaded;
}

bool rig_takes_case(void) {
    static uint64_t n_cases, part, of, turn;
    const char *asked = getenv("GYRE_TEST_PART");
    if (!of && asked && (sscanf(asked, "%" SCNu64 "/%" SCNu64, &part, &of) != 2 || of == 0 || part == 0 || part > of))
        fail_msg("GYRE_TEST_PART=%s is not k/n with k from 1 to n", asked);
    if (of && n_cases == 0)
        turn =
            philox4x32(test_seed(), of, 2).v[0]; // not the seed: by its remainder tests choose among cases, and parts
    return of == 0 || (n_cases++ + turn) % of == part - 1;
}

bool rig_is_brief(void) { return test_is_brief(); }

struct how rig_how(const char *kernels, int n_threads) {
    bool cpu = rig_backend() == &backend_cpu;
    return (struct how){.n_threads = n_threads, .kernels = cpu ? kernels : NULL, .load.dtype = cpu ? NULL : kernels};
}

/* Where a program's time went; told at its end. */
static struct {
    double begun, opening, stepping;
    int n_rigs, n_steps;
} spent;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void tell_spent(void) {
    printf("rig: %d rigs opened in %.1f s, %d steps in %.1f s, all in %.1f s\n", spent.n_rigs, spent.opening,
           spent.n_steps, spent.stepping, seconds() - spent.begun);
}

enum { MOST_TOKENS = 8192 }; // of a step
static const int sizes_beyond_64[] = {65,  72,  80,  96,  97,  112, 128, 130, 160, 191,
                                      192, 224, 256, 257, 320, 384, 400, 448, 500, 512};
enum { N_SIZES = 64 + ARRAY_LEN(sizes_beyond_64) };
static int size_of_step(int i) { return i < 64 ? i + 1 : sizes_beyond_64[i - 64]; }

struct rig_options rig_sizes(struct rig_options o) {
    o.n_seqs = size_of_step(N_SIZES - 1);
    for (int s = 0; s < o.n_seqs; s++)
        for (int i = 0; i < N_SIZES; i++)
            o.lens[s] += size_of_step(i) > s;
    return o;
}

/* A device keeps a table in what products are made in. */
static float kept(const struct rig_options *o, double x) {
    if (rig_backend() != &backend_cpu)
        rig_round(o->kernels, &x, 1);
    return (float)x;
}

struct rig *rig_new(struct rig_options o) {
    struct rig *rig = xcalloc(1, sizeof *rig);
    if (spent.n_rigs++ == 0) {
        spent.begun = seconds();
        atexit(tell_spent);
    }
    static uint64_t next_stream;
    o.block_size = o.block_size ? o.block_size : 16;
    o.n_threads = o.n_threads ? o.n_threads : 2;
    o.spread = o.spread > 0 ? o.spread : 1;
    uint64_t stream = o.like ? o.like->stream : next_stream;
    *rig = (struct rig){.o = o, .ops = o.like ? &backend_cpu : rig_backend(), .random = stream, .stream = stream};
    next_stream += o.like ? 0 : 1ull << 40;
    for (int s = 0; s < o.n_seqs; s++)
        rig->n_rows += o.lens[s];
    for (int i = 0; i < RIG_MAX_IN; i++)
        rig->width += o.widths[i];
    rig->told = arena_calloc(&rig->arena, (size_t)rig->n_rows + 1, sizeof *rig->told);
    int64_t n = (int64_t)rig->n_rows * rig->width;
    rig->table = arena_calloc(&rig->arena, (size_t)(n + rig->width), sizeof(float));
    for (int64_t i = 0; i < n + rig->width; i++)
        rig->table[i] = i < n ? kept(&o, rig_uniform(rig, -o.spread, o.spread)) : NAN; // the last row is poison
    struct weight *w = arena_alloc(&rig->arena, sizeof *w);
    w->parts = arena_alloc(&rig->arena, sizeof *w->parts);
    *w->parts = (struct weight_part){.format = &qformat_plain,
                                     .dtype = DT_F32,
                                     .data = rig->table,
                                     .n_rows = rig->n_rows + 1,
                                     .row_stride = rig->width,
                                     .col_stride = 1};
    w->name = "rig.table";
    w->out = rig->n_rows + 1;
    w->in = rig->width;
    w->n_parts = 1;
    rig->p = program_new("rig");
    val all = op_embed(rig->p, w, 1);
    for (int i = 0, col = 0; i < RIG_MAX_IN && o.widths[i]; col += o.widths[i++])
        rig->in[i] = val_cols(all, col, o.widths[i]);
    return rig;
}

void rig_free(struct rig *rig) {
    on_device_close(&rig->at);
    program_free(rig->p);
    arena_release(&rig->arena);
    free(rig);
}

int rig_row(const struct rig *rig, int seq, int row) {
    for (int s = 0; s < seq; s++)
        row += rig->o.lens[s];
    return row;
}

const float *rig_input(const struct rig *rig, int i, int seq, int row) {
    const float *at = rig->table + (int64_t)rig_row(rig, seq, row) * rig->width;
    for (int k = 0; k < i; k++)
        at += rig->o.widths[k];
    return at;
}

void rig_draw_again(struct rig *rig, int seq, int row, int col, int n) {
    float *at = rig->table + (int64_t)rig_row(rig, seq, row) * rig->width + col;
    for (int i = 0; i < n; i++)
        at[i] = kept(&rig->o, rig_uniform(rig, -rig->o.spread, rig->o.spread));
}

double *rig_rows(struct rig *rig) { return rig_doubles(rig, (int64_t)rig->n_rows * rig->out.width); }

double *rig_at(const struct rig *rig, double *rows, int seq, int row) {
    return rows + (int64_t)rig_row(rig, seq, row) * rig->out.width;
}

const char *const *rig_kernels(void) {
    static const char *const all[] = {"reference", "amx", "avx512", "avx2", "neon", "portable"};
    static const char *const cuda[] = {"float32", "float16", "bfloat16", NULL}; // what products are made in
    static const char *const xla[] = {"float32", NULL};                         // whose bounds are the CPU's
    static const char *have[ARRAY_LEN(all) + 1];
    struct error err;
    if (rig_backend() != &backend_cpu)
        return strcmp(rig_backend()->name, "xla") == 0 ? xla : cuda;
    if (!have[0])
        for (size_t i = 0, n = 0; i < ARRAY_LEN(all); i++) {
            struct on_device at;
            if (on_device_open(&backend_cpu, (struct how){.n_threads = 1, .kernels = all[i]}, &at, &err) == OK)
                have[n++] = all[i];
            on_device_close(&at);
        }
    return have;
}

/* ---- running ---- */

static int table_width(const struct rig *rig) {
    int longest = 1;
    for (int s = 0; s < rig->o.n_seqs; s++)
        longest = MAX(longest, rig->o.lens[s]);
    return (longest + rig->o.block_size - 1) / rig->o.block_size;
}

/* The poison fills every slot, in steps of so many. */
static struct bucket bucket_of(const struct rig *rig) {
    int n_tokens = MIN(rig->o.n_seqs * table_width(rig) * rig->o.block_size, MOST_TOKENS);
    return (struct bucket){n_tokens, rig->o.n_seqs, n_tokens, 0};
}

/* The CPU's plain functions; for a device its fast ones, which those have been held to. */
static const char *oracle_kernels(void) { return rig_backend() == &backend_cpu ? "reference" : NULL; }

static void refuse_what_is_timed(const struct rig *rig) {
    bool is_wide = rig->o.kernels && strcmp(rig->o.kernels, "float32") == 0;
    for (int i = 0; i < rig->p->n_ops; i++) {
        const struct op *op = &rig->p->ops[i];
        const struct weight *w = op->weights[0];
        if (op->code != OP_LINEAR)
            continue;
        bool is_narrow = rig->o.quantization || w->parts[0].dtype == DT_F8_E4M3;
        if (w->out * w->in * (is_wide ? 4 : is_narrow ? 1 : 2) >= RIG_TIMED_BYTES)
            fail_msg("a case in brief has a product of [%lld, %lld], which is timed", (long long)w->out,
                     (long long)w->in);
    }
}

void rig_result(struct rig *rig, val out) {
    struct program *p = rig->p;
    rig->out = out;
    op_sample(p, op_take_rows(p, out));
    bool cpu = rig->ops == &backend_cpu;
    if (rig_is_brief() && !cpu)
        refuse_what_is_timed(rig);
    double begun = seconds();
    struct how how = {.n_threads = rig->o.n_threads,
                      .kernels = rig->o.like ? oracle_kernels()
                                 : cpu       ? rig->o.kernels
                                             : NULL,
                      .rounds = rig->o.rounds,
                      .eager = rig_is_brief(),
                      .load = {.dtype = cpu ? NULL : rig->o.kernels,
                               .quantization = cpu ? NULL : rig->o.quantization,
                               .dummy_weights = rig->o.dummy_weights,
                               .n_back = rig->o.n_back,
                               .kv_dtype = cpu && !rig_is_int4(rig->o.kv_dtype) ? NULL : rig->o.kv_dtype}};
    struct cache_config config = {.block_size = rig->o.block_size, .n_states = rig->o.n_seqs};
    for (int g = 0; g < p->n_groups; g++)
        config.n_blocks[g] = rig->o.n_seqs * table_width(rig), config.table_width[g] = table_width(rig);
    on_device_compile(rig->ops, how, p, &config, bucket_of(rig), &rig->at);
    spent.opening += seconds() - begun;
}

static void shuffle(struct rig *rig, int32_t *x, int n) {
    for (int i = 0; i < n; i++)
        x[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = rig_between(rig, 0, i);
        int32_t t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

/* A plan whose tables and slots are random permutations of all there is. */
static void make_plan(struct rig *rig, struct batch_plan *plan) {
    int widths[MAX_CACHE_GROUPS], n = rig->o.n_seqs * table_width(rig);
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        widths[g] = table_width(rig);
    batch_plan_init(plan, bucket_of(rig), rig->p->n_groups, widths);
    for (int g = 0; g < rig->p->n_groups; g++)
        shuffle(rig, plan->block_table[g], n);
    shuffle(rig, plan->state_slot, rig->o.n_seqs);
}

/* Rows [done, done + count) of the sequences with count > 0, in one step. Only they have a place in the plan. */
struct piece {
    int done[RIG_MAX_SEQS], count[RIG_MAX_SEQS];
    int wrong[RIG_MAX_SEQS], sure[RIG_MAX_SEQS]; // rows behind that are another's; of count, those that are sure
};

/* Which of a step's tokens have a row among its results: all; or, of the last step and of one in three before, few: the
 * first, the last and some between. */
static void choose_rows(struct rig *rig, struct batch_plan *plan, struct sample_params *sample, bool all, bool last) {
    enum { FEW = 4, DECODING = 8 };
    int n = plan->n_tokens,
        most = n == plan->n_seqs ? DECODING : FEW; // steps of one row a sequence are what graphs are made of
    int n_asked = all ? n : !last && rig_between(rig, 0, 2) > 0 ? 0 : n <= most ? n : FEW;
    for (int r = 0; r < n_asked; r++) {
        int from = (int)((int64_t)r * (n - 1) / MAX(n_asked - 1, 1)),
            to = (int)((int64_t)(r + 1) * (n - 1) / MAX(n_asked - 1, 1));
        plan->out_row[r] = n_asked == n                 ? r
                           : r == 0 || r == n_asked - 1 ? from
                                                        : rig_between(rig, from, MAX(from, to - 1));
        sample[r] = sample_params_default();
        sample[r].want_logits = true;
    }
    plan->n_rows = n_asked;
}

static void run_piece(struct rig *rig, const struct batch_plan *home, const struct piece *piece, bool poison, bool last,
                      double *out) {
    struct batch_plan plan;
    struct error err;
    double begun = seconds();
    make_plan(rig, &plan);
    int rows[MOST_TOKENS];
    for (int s = 0; s < rig->o.n_seqs; s++) {
        if (!piece->count[s])
            continue;
        int at = plan.n_seqs++;
        for (int i = 0; i < piece->count[s] + piece->wrong[s]; i++) {
            int t = plan.n_tokens++;
            BUG_IF(t >= (int)ARRAY_LEN(rows));
            rows[t] = poison ? 0 : i < piece->count[s] ? rig_row(rig, s, piece->done[s] + i) : -1;
            plan.token_id[t] = poison ? rig->n_rows : rows[t] >= 0 ? rows[t] : rig_between(rig, 0, rig->n_rows - 1);
            plan.position[t] = piece->done[s] + i;
        }
        plan.query_start[at + 1] = plan.n_tokens;
        plan.seq_len[at] = piece->done[s] + piece->count[s] + piece->wrong[s];
        plan.n_sure[at] = piece->done[s] + (piece->wrong[s] > 0 ? piece->sure[s] : piece->count[s]);
        plan.n_known[at] = rig->o.lens[s];
        plan.state_slot[at] = home->state_slot[s];
        plan.adapter[at] = s % (rig->o.n_adapters + 1);
        for (int g = 0; g < rig->p->n_groups; g++)
            memcpy(plan.block_table[g] + at * table_width(rig), home->block_table[g] + s * table_width(rig),
                   (size_t)table_width(rig) * sizeof(int32_t));
    }
    struct sample_params *sample = xcalloc((size_t)plan.n_tokens + 1, sizeof *sample);
    choose_rows(rig, &plan, sample, poison || !rig_is_sparse(rig), last);
    struct sample_result *results = xcalloc((size_t)plan.n_rows + 1, sizeof *results);
    EXPECT_OK(rig->ops->run(rig->at.exe, &plan, sample, &err), err);
    EXPECT_OK(rig->ops->collect(rig->at.exe, results, &err), err);
    for (int r = 0; !poison && r < plan.n_rows; r++) {
        int row = rows[plan.out_row[r]];
        if (row < 0)
            continue;
        rig->told[row] = true;
        const float *logits;
        EXPECT_OK(rig->ops->logits(rig->at.exe, r, &logits, &err), err);
        for (int i = 0; i < rig->out.width; i++)
            out[(int64_t)row * rig->out.width + i] = (double)logits[i];
    }
    free(results);
    free(sample);
    batch_plan_release(&plan);
    spent.stepping += seconds() - begun;
    spent.n_steps++;
}

/* Of one sequence under CHUNK_1: what leads to a random place in one step, some tokens one by one, the rest in one
 * step. */
static int by_ones(struct rig *rig, int s, int done) {
    enum { LONG = 100 };
    int len = rig->o.lens[s], ones = rig_is_brief() ? 3 : len > LONG ? 50 : len;
    if (done == 0 && len > ones)
        rig->ones_end[s] = ones + rig_between(rig, 0, len - ones);
    else if (done == 0)
        rig->ones_end[s] = len;
    int first = rig->ones_end[s] - ones;
    return done < first ? first - done : done < rig->ones_end[s] ? 1 : len - done;
}

/* Some tokens, now and then many, and as many wrong ones as the state can go back behind what is sure. */
static int guessed(struct rig *rig, int s, int left, struct piece *piece) {
    int most = rig_between(rig, 0, 4) ? rig_between(rig, 1, 6) : rig_between(rig, 17, 40), n = MIN(most, left);
    int sure = rig_between(rig, 1, n);
    piece->sure[s] = MAX(sure, n - rig->o.n_back + 1);
    int wrong = rig_between(rig, 0, rig->o.n_back - (n - piece->sure[s]));
    piece->wrong[s] = MIN(wrong, left - n);
    return n;
}

/* How many rows of each sequence the next step takes. */
static void next_counts(struct rig *rig, enum rig_schedule schedule, struct piece *piece) {
    bool taken = false;
    int size = schedule == SCHEDULE_SIZES ? size_of_step(rig->sizes_left[--rig->n_sizes_left]) : 0;
    for (int s = 0; s < rig->o.n_seqs; s++) {
        int left = rig->o.lens[s] - piece->done[s], want = left;
        switch (schedule) {
        case SCHEDULE_ONE_BY_ONE: want = taken ? 0 : left; break;
        case SCHEDULE_CHUNK_1: want = left > 0 ? by_ones(rig, s, piece->done[s]) : 0; break;
        case SCHEDULE_CHUNK_7: want = 7; break;
        case SCHEDULE_CHUNK_64: want = 64; break;
        case SCHEDULE_RAGGED: want = rig_between(rig, 0, 2) ? rig_between(rig, 1, 9) : 0; break;
        case SCHEDULE_SIZES: want = s < size; break;
        case SCHEDULE_BACK: want = left > 0 && rig_between(rig, 0, 2) ? guessed(rig, s, left, piece) : 0; break;
        default: break;
        }
        piece->count[s] = MIN(want, left);
        taken = taken || piece->count[s] > 0;
    }
}

static int rows_taken(const struct rig *rig, const struct piece *piece) {
    int n = 0;
    for (int s = 0; s < rig->o.n_seqs; s++)
        n += piece->count[s];
    return n;
}

static void poison_all(struct rig *rig, const struct batch_plan *home) {
    int each = table_width(rig) * rig->o.block_size, at_once = MOST_TOKENS / each;
    BUG_IF(at_once < 1);
    for (int first = 0; first < rig->o.n_seqs; first += at_once) {
        struct piece piece = {0};
        for (int s = first; s < MIN(first + at_once, rig->o.n_seqs); s++)
            piece.count[s] = each;
        run_piece(rig, home, &piece, true, false, NULL);
    }
}

double *rig_run(struct rig *rig, enum rig_schedule schedule) {
    if (rig_is_brief() && schedule == SCHEDULE_RAGGED)
        schedule = SCHEDULE_CHUNK_1;
    double *out = rig_rows(rig);
    for (int64_t i = 0; i < (int64_t)rig->n_rows * rig->out.width; i++)
        out[i] = NAN;
    memset(rig->told, 0, (size_t)rig->n_rows);
    struct batch_plan home;
    make_plan(rig, &home);
    struct piece piece = {0};
    if (!rig->o.like && !rig->o.begins_clean && !rig_is_brief()) // initcheck finds what was never written
        poison_all(rig, &home);
    if (schedule == SCHEDULE_SIZES)
        shuffle(rig, rig->sizes_left, rig->n_sizes_left = N_SIZES);
    for (int left = rig->n_rows; left > 0;) {
        next_counts(rig, schedule, &piece);
        if (rows_taken(rig, &piece) == 0)
            continue;
        run_piece(rig, &home, &piece, false, left == rows_taken(rig, &piece), out);
        for (int s = 0; s < rig->o.n_seqs; s++)
            piece.done[s] += piece.count[s];
        left -= rows_taken(rig, &piece);
    }
    batch_plan_release(&home);
    return out;
}

bool rig_is_sparse(const struct rig *rig) { return rig_is_brief() && !rig->o.like && !rig->tells_all; }

bool rig_tells(const struct rig *rig, int row) { return rig->told[row] || !rig_is_sparse(rig); }
