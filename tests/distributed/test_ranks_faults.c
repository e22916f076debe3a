/* test_ranks_faults.c - a rank that fails, or comes too late, at any op of a step: every request ends, with a sentence
 * that names the cause, within the patience that was asked for; the engine says that it is dead, and can be closed;
 * its memory comes back, and the next engine serves. */
#include "check.h"

#include "backend/ranks/ranks.h"
#include "base/clock.h"
#include "gyre.h"

#include <malloc.h>
#include <stdatomic.h>
#include <unistd.h>

enum { N_REQUESTS = 5, N_TOKENS = 30, FAULTY = 1, MOST_SECONDS = 20 };

/* The CPU, of which the rank FAULTY does something at its run number fails_at. */
static struct backend_ops faulty;
static atomic_int n_runs; // of all ranks
static int fails_at, sleeps_s;
static struct executable *of_faulty; // the second that was compiled

static enum status faulty_compile(struct loaded *l, struct bucket bucket, struct executable **out, struct error *err) {
    static int n_compiled;
    enum status st = backend_cpu.compile(l, bucket, out, err);
    if (n_compiled++ % 2 == FAULTY)
        of_faulty = *out;
    return st;
}

static atomic_bool has_returned; // another rank, from its run

static enum status faulty_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                              struct error *err) {
    static int n_of_faulty;
    if (atomic_fetch_add(&n_runs, 1) == 0)
        n_of_faulty = 0;
    if (exe == of_faulty && ++n_of_faulty == fails_at) {
        if (!sleeps_s)
            return fail(err, ERR_DEVICE, "the rank has been unplugged");
        sleep((unsigned)sleeps_s);
    }
    enum status st = backend_cpu.run(exe, plan, sample, err);
    if (exe != of_faulty)
        has_returned = true;
    return st;
}

/* An op of a step of the rank FAULTY at which it is held up, counted over its steps but for SAMPLE, behind which nobody
 * waits; 0: none. */
static struct {
    int at, n_seen, n_ops;
    const struct op *op;
} hang;

static void see(void *context, const struct op *op, const struct op_input in[OP_MAX_IN]) {
    (void)context, (void)in;
    if (op->code == OP_SAMPLE || ++hang.n_seen != hang.at)
        return;
    hang.op = op;
    has_returned = false;
    for (int i = 0; i < 60000 && !has_returned; i++) // until the others have waited for it in vain
        usleep(1000);
}

static enum status faulty_load(struct device *device, const struct program *p, const struct load_options *options,
                               struct loaded **out, struct error *err) {
    static const struct op_watch watch = {see, NULL};
    struct load_options one = *options;
    if (p->rank == FAULTY && hang.at)
        one.watch = &watch;
    hang.n_ops = p->n_ops - 1;
    return backend_cpu.load(device, p, &one, out, err);
}

static struct gyre *open_faulty(int at, int sleeps) {
    static const char *const own[] = {"patience=1", NULL};
    struct gyre_options o = {.model = "tests/models/llama", .n_threads = 2, .kv_cache_bytes = 64 << 20};
    struct gyre *g;
    struct gyre_error e;
    struct error err;
    faulty = backend_cpu;
    faulty.compile = faulty_compile;
    faulty.run = faulty_run;
    faulty.load = faulty_load;
    fails_at = at, sleeps_s = sleeps, n_runs = 0;
    EXPECT_OK(backend_ranks(&faulty, 2, false, &o.backend, &err), err);
    o.device_options = own;
    if (gyre_open(&o, &g, &e) != 0)
        fail_msg("%s", e.text);
    return g;
}

static int submit(struct gyre *g) {
    static const int32_t prompt[] = {5, 6, 7, 8, 9};
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error e;
    uint64_t id;
    q.prompt = prompt, q.n_prompt = 5, q.max_tokens = N_TOKENS, q.ignore_eos = true;
    return gyre_submit(g, &q, &id, &e);
}

/* How many ended with that in their sentence. */
static int ended_with(struct gyre *g, const char *words) {
    int n = 0;
    while (gyre_busy(g)) {
        struct gyre_event events[16];
        for (int i = 0, k = gyre_poll(g, events, 16); i < k; i++)
            if (events[i].kind == GYRE_DONE) {
                EXPECT(events[i].error != NULL);
                if (!strstr(events[i].error, words))
                    fail_msg("\"%s\" does not say \"%s\"", events[i].error, words);
                n++;
            }
    }
    return n;
}

static void check_fault(int at, int sleeps, const char *words) {
    struct gyre *g = open_faulty(at, sleeps);
    int64_t began = clock_us();
    for (int i = 0; i < N_REQUESTS; i++)
        EXPECT_EQ(submit(g), 0);
    EXPECT_EQ(ended_with(g, words), N_REQUESTS);
    EXPECT(clock_seconds_since(began) < MOST_SECONDS);
    if (submit(g) == 0) // it is taken, or refused; if it is, it ends likewise
        EXPECT_EQ(ended_with(g, words), 1);
    gyre_close(g);
}

static void a_rank_that_fails_ends_every_request_with_its_reason(void **state) {
    (void)state;
    for (int at = 1; at <= 7; at += 3)
        check_fault(at, 0, "the rank has been unplugged");
}

static void a_rank_that_comes_too_late_is_named(void **state) {
    (void)state;
    check_fault(3, 3, "rank 1 did not come within 1 s");
}

static size_t heap_bytes(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* Each third op of two steps, others in each run: of a prompt's and of the next, which decodes. */
static void a_rank_may_hang_at_any_op_and_memory_comes_back(void **state) {
    enum { EACH = 3, LEFT_BYTES = 1 << 18 };
    (void)state;
    size_t first = 0, most = 0;
    int n_sums = 0;
    hang.at = 1 + (int)(test_seed() % EACH);
    do {
        hang.n_seen = 0, hang.op = NULL;
        struct gyre *g = open_faulty(0, 0);
        most = MAX(most, heap_bytes());
        for (int i = 0; i < N_REQUESTS; i++)
            EXPECT_EQ(submit(g), 0);
        EXPECT_EQ(ended_with(g, "rank 1 did not come within 1 s"), N_REQUESTS);
        EXPECT(hang.op);
        n_sums += hang.op->code == OP_ALL_REDUCE;
        gyre_close(g);
        first = first ? first : heap_bytes(); // what is opened once stays
        if (heap_bytes() > first + LEFT_BYTES)
            fail_msg("%zu bytes are left behind a hang at op %d", heap_bytes() - first, hang.at);
        hang.at += EACH;
    } while (hang.at <= 2 * hang.n_ops);
    hang.at = 0;
    EXPECT(n_sums > 0);
    print_message("%zu bytes of heap while it is open, %zu behind\n", most, first); // 0: a sanitizer's heap
}

static void after_a_fault_another_engine_serves(void **state) {
    (void)state;
    struct gyre *g = open_faulty(0, 0);
    EXPECT_EQ(submit(g), 0);
    int n = 0;
    while (gyre_busy(g)) {
        struct gyre_event events[16];
        for (int i = 0, k = gyre_poll(g, events, 16); i < k; i++) {
            EXPECT(!events[i].error);
            n += events[i].kind == GYRE_TOKEN;
        }
    }
    EXPECT_EQ(n, N_TOKENS);
    gyre_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_fails_ends_every_request_with_its_reason),
        cmocka_unit_test(a_rank_that_comes_too_late_is_named),
        cmocka_unit_test(a_rank_may_hang_at_any_op_and_memory_comes_back),
        cmocka_unit_test(after_a_fault_another_engine_serves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
