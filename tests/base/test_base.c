/* test_base.c - the leaves: errors, strings, arenas, JSON getters, maps, random numbers, threads. */
#include "check.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/histogram.h"
#include "base/json/json.h"
#include "base/machine_memory.h"
#include "base/pool.h"
#include "base/random.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void philox_gives_the_published_values(void **state) {
    (void)state; // known-answer vectors of Random123 1.09, philox4x32 10 rounds
    struct philox a = philox4x32(0, 0, 0);
    EXPECT(a.v[0] == 0x6627e8d5 && a.v[1] == 0xe169c58d && a.v[2] == 0xbc57ac4c && a.v[3] == 0x9b00dbd8);
    struct philox b = philox4x32(~0ull, ~0ull, ~0ull);
    EXPECT(b.v[0] == 0x408f276d && b.v[1] == 0x41c83b0e && b.v[2] == 0xa20bc7c6 && b.v[3] == 0x6d5451fd);
}

static void utf8_refuses_what_rfc3629_refuses(void **state) {
    (void)state;
    EXPECT(utf8_valid(STR("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x8A")));
    EXPECT(!utf8_valid(STR("\xC0\x80")));         // overlong
    EXPECT(!utf8_valid(STR("\xED\xA0\x80")));     // surrogate
    EXPECT(!utf8_valid(STR("\xF4\x90\x80\x80"))); // past U+10FFFF
    EXPECT(!utf8_valid(STR("\xE2\x82")));         // cut
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp >= 0xD800 && cp <= 0xDFFF)
            continue;
        char s[4];
        int32_t back;
        int n = utf8_encode(cp, s);
        if (utf8_decode(s, (size_t)n, &back) != n || back != (int32_t)cp)
            fail_msg("U+%04X does not survive", cp);
    }
}

static void incomplete_tail_is_what_more_bytes_could_finish(void **state) {
    (void)state;
    EXPECT_EQ(utf8_incomplete_tail(STR("abc")), 0);
    EXPECT_EQ(utf8_incomplete_tail(STR("ab\xF0\x9F\xA6")), 3);
    EXPECT_EQ(utf8_incomplete_tail(STR("ab\xF0\x9F")), 2);
    EXPECT_EQ(utf8_incomplete_tail(STR("ab\xE2")), 1);
    EXPECT_EQ(utf8_incomplete_tail(STR("ab\xE2\x82\xAC")), 0);
    EXPECT_EQ(utf8_incomplete_tail(STR("ab\xE0\x80")), 0); // overlong start, never completes
    EXPECT_EQ(utf8_incomplete_tail(STR("\x80\x80\x80")), 0);
}

static void a_long_sentence_is_cut_on_a_code_point(void **state) {
    (void)state;
    char text[2000];
    for (size_t i = 0; i + 3 < sizeof text; i += 3)
        memcpy(text + i, "\xE2\x82\xAC", 4);
    for (int shift = 0; shift < 3; shift++) {
        struct error err;
        EXPECT_EQ(fail(&err, ERR_FORMAT, "%.*s%s", shift, "abc", text), ERR_FORMAT);
        EXPECT(utf8_valid(str_of(err.text)));
        fail_within(&err, ERR_FORMAT, "model.json");
        EXPECT(str_starts(str_of(err.text), STR("model.json: ")));
    }
    struct error err;
    fail(&err, ERR_IO, "a\nb\x1b[31m");
    EXPECT_STR(err.text, "a?b?[31m");
    // CSI and OSC of eight bits, a line separator, text turned round, an invisible tag; letters and emoji stay
    fail(&err, ERR_IO,
         "\xC2\x9B"
         "2J\xC2\x9D\xE2\x80\xA8x\xE2\x80\xAEy\xE2\x81\xA7z\xD8\x9C\xF3\xA0\x81\xA1 "
         "\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x8A\x7F");
    EXPECT_STR(err.text, "?2J??x?y?z?? \xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x8A?");
    fail_within(&err, ERR_IO,
                "\xE2\x80\xAE"
                "f");
    EXPECT_STR(err.text, "?f: ?2J??x?y?z?? \xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x8A?");
}

static void getters_name_the_file_and_the_field(void **state) {
    (void)state;
    struct error err = {0};
    json_t *doc;
    EXPECT_OK(jv_parse(STR("{\"n\": 1e6, \"big\": 99999999999, \"s\": 4}"), "config.json", 0, &doc, &err), err);
    int64_t n;
    EXPECT_OK(jv_int(doc, "config.json", "n", 0, 1 << 30, &n, &err), err);
    EXPECT_EQ(n, 1000000);
    EXPECT_EQ(jv_int(doc, "config.json", "big", 0, 1 << 30, &n, &err), ERR_FORMAT);
    EXPECT(strstr(err.text, "config.json") && strstr(err.text, "\"big\"") && strstr(err.text, "99999999999"));
    const char *s;
    EXPECT_EQ(jv_string(doc, "config.json", "s", &s, &err), ERR_FORMAT);
    EXPECT_EQ(jv_string(doc, "config.json", "absent", &s, &err), ERR_FORMAT);
    EXPECT(strstr(err.text, "missing"));
    json_decref(doc);
    EXPECT_EQ(jv_parse(STR("{\"a\":1,\"a\":2}"), "x", 0, &doc, &err), ERR_FORMAT);
    EXPECT_OK(jv_parse(STR("{\"a\":1,\"a\":2}"), "x", JV_ALLOW_DUPLICATES, &doc, &err), err);
    json_decref(doc);
}

static void a_file_cut_while_mapped_reads_as_damaged(void **state) {
    (void)state;
    char path[] = "/tmp/gyre-map-XXXXXX";
    int fd = mkstemp(path);
    EXPECT(fd >= 0);
    static char page[16384];
    memset(page, 7, sizeof page);
    EXPECT(write(fd, page, sizeof page) == sizeof page);
    struct file_map map;
    struct error err;
    EXPECT_OK(file_map_open(&map, path, 0, &err), err);
    EXPECT(!file_map_damaged(&map) && map.bytes[12288] == 7);
    EXPECT(ftruncate(fd, 4096) == 0);
    volatile const char *bytes = map.bytes;
    EXPECT(bytes[100] == 7 && !file_map_damaged(&map));
    EXPECT(bytes[12289] == 0 && file_map_damaged(&map));
    file_map_close(&map);
    close(fd);
    unlink(path);
}

static void arena_memory_is_zeroed_aligned_and_apart(void **state) {
    (void)state;
    struct arena a;
    arena_init(&a);
    unsigned char *last[200];
    for (int i = 0; i < 200; i++) {
        size_t n = (size_t)(i * 977 % 50000);
        last[i] = arena_alloc(&a, n);
        EXPECT(((uintptr_t)last[i] & 15) == 0);
        for (size_t j = 0; j < n; j++)
            EXPECT(last[i][j] == 0);
        memset(last[i], i, n);
    }
    for (int i = 0; i < 200; i++)
        for (size_t j = 0; j < (size_t)(i * 977 % 50000); j++)
            if (last[i][j] != i)
                fail_msg("allocation %d was overwritten", i);
    arena_release(&a);
}

static void json_string_escapes_round_trip(void **state) {
    (void)state;
    struct buf b = {0};
    buf_json_string(&b, (struct str){"a\"\\\n\x01\0\xC3\xA9\xFF", 9});
    EXPECT_STR(b.ptr, "\"a\\\"\\\\\\n\\u0001\\u0000\xC3\xA9\xEF\xBF\xBD\"");
    buf_clear(&b);
    buf_json_string(&b, STR("a\xC2\x85\xE2\x80\xA8\xE2\x80\xA9"));
    EXPECT_STR(b.ptr, "\"a\\u0085\\u2028\\u2029\"");
    buf_release(&b);
}

static void distance_counts_edits_and_swaps(void **state) {
    (void)state;
    EXPECT_EQ(str_distance(STR("temprature"), STR("temperature")), 1);
    EXPECT_EQ(str_distance(STR("tpo-k"), STR("top-k")), 1);
    EXPECT_EQ(str_distance(STR(""), STR("abc")), 3);
}

struct counting {
    struct pool *pool;
    atomic_int total;
    atomic_int first_half;
    atomic_int saw_everyone;
};

static void count_worker(void *arg, int worker, int n_workers) {
    struct counting *c = arg;
    atomic_fetch_add(&c->total, worker + 1);
    atomic_fetch_add(&c->first_half, 1);
    pool_barrier(c->pool);
    if (atomic_load(&c->first_half) % n_workers == 0)
        atomic_fetch_add(&c->saw_everyone, 1);
    pool_barrier(c->pool);
}

static void every_worker_runs_once_and_meets_the_others(void **state) {
    (void)state;
    for (int n = 1; n <= 5; n++) {
        struct counting c = {.pool = pool_open(n)};
        EXPECT_EQ(pool_size(c.pool), n);
        for (int i = 0; i < 300; i++) {
            if (i % 100 == 50)
                usleep(3000); // long enough for the workers to park
            pool_run(c.pool, count_worker, &c);
        }
        EXPECT_EQ(c.total, 300 * n * (n + 1) / 2);
        EXPECT_EQ(c.saw_everyone, 300 * n);
        pool_free(c.pool);
    }
}

/* Processor time that this process has used, in microseconds. */
static int64_t used_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* A worker that looked for 100 us at each of 4,000 barriers would use 0.4 s while the other cannot run. */
static void workers_of_one_processor_hand_it_over(void **state) {
    (void)state;
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    struct counting c = {.pool = pool_open(2)};
    int64_t began = used_us();
    for (int i = 0; i < 2000; i++)
        pool_run(c.pool, count_worker, &c);
    int64_t used = used_us() - began;
    pool_free(c.pool);
    sched_setaffinity(0, sizeof all, &all);
    EXPECT_EQ(c.saw_everyone, 4000);
    print_message("4,000 barriers used %lld us of a processor\n", (long long)used);
    EXPECT(used < 4000 * 50);
}

static void shares_cover_everything_once(void **state) {
    (void)state;
    for (int64_t n = 0; n < 70; n++)
        for (int w = 1; w < 9; w++) {
            int64_t next = 0;
            for (int i = 0; i < w; i++) {
                int64_t b, e;
                pool_share(n, 4, i, w, &b, &e);
                EXPECT_EQ(b, next);
                EXPECT(b <= e && (b % 4 == 0 || b == n));
                next = e;
            }
            EXPECT_EQ(next, n);
        }
}

enum { RANGE_ITEMS = 1003 };
struct plain_thread {
    pthread_barrier_t *barrier;
    int n;
};
static void *meet_plainly(void *arg) {
    struct plain_thread *t = arg;
    for (int i = 0; i < t->n; i++)
        pthread_barrier_wait(t->barrier);
    return NULL;
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Two workers on one processor with two other processes that want it: 600 barriers take no longer than those of threads
 * that sleep. A worker that offers its processor at a barrier waits for a turn of each neighbour: seconds in all. */
static void neighbours_do_not_hold_up_workers(void **state) {
    (void)state;
    enum { RUNS = 300, NEIGHBOURS = 2 };
    cpu_set_t all, one;
    pid_t neighbours[NEIGHBOURS];
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    for (int i = 0; i < NEIGHBOURS; i++)
        if ((neighbours[i] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile unsigned turn = 0;; turn++)
                ;
        }
    double least_of_pool = 1e9, least_of_plain = 1e9;
    struct counting c = {.pool = pool_open(2)};
    for (int round = 0; round < 3; round++) {
        double began = seconds_now();
        for (int i = 0; i < RUNS; i++)
            pool_run(c.pool, count_worker, &c);
        least_of_pool = MIN(least_of_pool, seconds_now() - began);
        pthread_barrier_t barrier;
        pthread_barrier_init(&barrier, NULL, 2);
        struct plain_thread t = {&barrier, 2 * RUNS};
        pthread_t other;
        began = seconds_now();
        EXPECT_EQ(pthread_create(&other, NULL, meet_plainly, &t), 0);
        meet_plainly(&t);
        pthread_join(other, NULL);
        least_of_plain = MIN(least_of_plain, seconds_now() - began);
        pthread_barrier_destroy(&barrier);
    }
    pool_free(c.pool);
    for (int i = 0; i < NEIGHBOURS; i++) {
        kill(neighbours[i], SIGKILL);
        waitpid(neighbours[i], NULL, 0);
    }
    sched_setaffinity(0, sizeof all, &all);
    EXPECT_EQ(c.saw_everyone, 3 * 2 * RUNS);
    if (least_of_pool > 4 * least_of_plain + 0.25)
        fail_msg("600 barriers take %.3f s, of threads that sleep %.3f", least_of_pool, least_of_plain);
}

struct range_run {
    struct pool *pool;
    struct pool_range *range;
    atomic_int taken[RANGE_ITEMS];
    atomic_int rounds;
};

/* Worker 0 dawdles, so that others take from its part. */
static void take_pieces(void *arg, int worker, int n_workers) {
    (void)n_workers;
    struct range_run *run = arg;
    for (int round = 0; round < 20; round++) {
        if (worker == 0)
            pool_range_deal(run->range, RANGE_ITEMS, 1 + round);
        pool_barrier(run->pool);
        int64_t begin, end;
        while (pool_range_take(run->range, worker, &begin, &end)) {
            for (int64_t i = begin; i < end; i++)
                atomic_fetch_add(&run->taken[i], 1);
            if (worker == 0)
                sched_yield();
        }
        pool_barrier(run->pool);
    }
}

static void a_range_gives_every_item_once_whoever_takes_it(void **state) {
    (void)state;
    static struct range_run run;
    run.pool = pool_open(3);
    run.range = pool_range_new(pool_size(run.pool));
    pool_run(run.pool, take_pieces, &run);
    for (int i = 0; i < RANGE_ITEMS; i++)
        EXPECT_EQ(run.taken[i], 20);
    pool_range_free(run.range);
    pool_free(run.pool);
}

static void a_histogram_counts_each_value_in_the_first_bucket_that_holds_it(void **state) {
    (void)state;
    static const int64_t bounds[] = {10, 20, 50};
    static const struct {
        int64_t value;
        int bucket;
    } cases[] = {{-5, 0}, {0, 0}, {10, 0}, {11, 1}, {20, 1}, {21, 2}, {50, 2}, {51, 3}, {INT32_MAX, 3}};
    struct histogram h;
    int64_t sum = 0, want[4] = {0};
    histogram_init(&h, bounds, 3);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        histogram_add(&h, cases[i].value);
        sum += cases[i].value;
        want[cases[i].bucket]++;
    }
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(counter_get(&h.counts[i]), want[i]);
    EXPECT_EQ(counter_get(&h.sum), sum);
}

/* A root folder with these files; a name that ends the list is NULL. */
static const char *fake_root(const char *const (*files)[2]) {
    static char root[] = "/tmp/gyre-root-XXXXXX";
    strcpy(root, "/tmp/gyre-root-XXXXXX");
    EXPECT(mkdtemp(root) != NULL);
    for (; (*files)[0]; files++) {
        char path[256], command[600];
        snprintf(path, sizeof path, "%s/%s", root, (*files)[0]);
        snprintf(command, sizeof command, "mkdir -p $(dirname %s)", path);
        EXPECT_EQ(system(command), 0);
        struct error err;
        EXPECT_OK(file_write(path, str_of((*files)[1]), &err), err);
    }
    return root;
}

#define MEMINFO \
    { "proc/meminfo", "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n" }
enum { KIB = 1024 };

static const struct memory_case {
    const char *files[10][2];
    int64_t total, available;
    const char *whose;
    int64_t of_these; // 0: the total
} bounds_of_memory[] = {
    {{MEMINFO}, 1000 * KIB, 600 * KIB, "the machine's"},
    {{MEMINFO,
      {"proc/self/cgroup", "0::/a/b\n"},
      {"sys/fs/cgroup/a/b/memory.max", "409600\n"},
      {"sys/fs/cgroup/a/b/memory.current", "307200\n"},
      {"sys/fs/cgroup/a/b/memory.stat", "anon 9\ninactive_file 51200\nactive_file 51200\n"}},
     400 * KIB,
     200 * KIB,
     "the control group's"},
    {{MEMINFO,
      {"proc/self/cgroup", "0::/a/b\n"},
      {"sys/fs/cgroup/a/b/memory.max", "max\n"},
      {"sys/fs/cgroup/a/b/memory.current", "9\n"},
      {"sys/fs/cgroup/a/memory.max", "102400\n"},
      {"sys/fs/cgroup/a/memory.current", "0\n"}}, // the group above it is bounded
     100 * KIB,
     100 * KIB,
     "the control group's"},
    {{MEMINFO,
      {"proc/self/cgroup", "0::/on/the/host\n"},
      {"sys/fs/cgroup/memory.max", "102400\n"}, // of a container
      {"sys/fs/cgroup/memory.current", "51200\n"}},
     100 * KIB,
     50 * KIB,
     "the control group's"},
    {{MEMINFO,
      {"proc/self/cgroup", "0::/\n"},
      {"sys/fs/cgroup/memory.max", "102400\n"},
      {"sys/fs/cgroup/memory.high", "51200"},
      {"sys/fs/cgroup/memory.current", "0\n"}},
     50 * KIB,
     50 * KIB,
     "the control group's"},
    {{MEMINFO,
      {"proc/self/cgroup", "5:cpu,memory:/x\n1:cpuset:/\n0::/\n"},
      {"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "102400\n"},
      {"sys/fs/cgroup/memory/x/memory.usage_in_bytes", "92160\n"},
      {"sys/fs/cgroup/memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 10240\ntotal_active_file 0\n"}},
     100 * KIB,
     20 * KIB,
     "the control group's"},
    {{MEMINFO,
      {"proc/self/cgroup", "4:memory:/\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"sys/fs/cgroup/memory/memory.usage_in_bytes", "92160\n"}},
     1000 * KIB,
     600 * KIB,
     "the machine's"},
    {{MEMINFO,
      {"proc/self/cgroup", "0::/a\n"},
      {"sys/fs/cgroup/a/memory.max", "102400\n"},
      {"sys/fs/cgroup/a/memory.current", "204800\n"}},
     100 * KIB,
     0,
     "the control group's"}, // beyond it already
    {{MEMINFO, {"proc/self/cgroup", "nonsense\n0\n0:\n:::\n\n0::/../../..\n"}}, 1000 * KIB, 600 * KIB, "the machine's"},
    {{MEMINFO,
      {"proc/self/cgroup", "0::/a\n"},
      {"sys/fs/cgroup/a/memory.max", "819200\n"},
      {"sys/fs/cgroup/a/memory.current", "102400\n"}}, // of which more is free than the machine has
     800 * KIB,
     600 * KIB,
     "the machine's",
     1000 * KIB},
    {{{"proc/self/other", "x"}}, (int64_t)4 << 30, (int64_t)4 << 30, "the machine's"},
};

static void memory_is_what_the_tightest_bound_leaves(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bounds_of_memory); i++) {
        const struct memory_case *want = &bounds_of_memory[i];
        struct machine_memory m;
        char command[64];
        const char *root = fake_root(want->files);
        machine_memory_read(root, &m);
        if (m.total != want->total || m.available != want->available || strcmp(m.whose, want->whose) != 0)
            fail_msg("case %zu: %lld and %lld of %s", i, (long long)m.total, (long long)m.available, m.whose);
        EXPECT_EQ(m.of_these, want->of_these ? want->of_these : want->total);
        snprintf(command, sizeof command, "rm -r %s", root);
        EXPECT_EQ(system(command), 0);
    }
    struct machine_memory m;
    machine_memory_get(&m);
    EXPECT(m.available > 0 && m.available <= m.total);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_what_the_tightest_bound_leaves),
        cmocka_unit_test(a_histogram_counts_each_value_in_the_first_bucket_that_holds_it),
        cmocka_unit_test(philox_gives_the_published_values),
        cmocka_unit_test(utf8_refuses_what_rfc3629_refuses),
        cmocka_unit_test(incomplete_tail_is_what_more_bytes_could_finish),
        cmocka_unit_test(a_long_sentence_is_cut_on_a_code_point),
        cmocka_unit_test(getters_name_the_file_and_the_field),
        cmocka_unit_test(a_file_cut_while_mapped_reads_as_damaged),
        cmocka_unit_test(arena_memory_is_zeroed_aligned_and_apart),
        cmocka_unit_test(json_string_escapes_round_trip),
        cmocka_unit_test(distance_counts_edits_and_swaps),
        cmocka_unit_test(every_worker_runs_once_and_meets_the_others),
        cmocka_unit_test(workers_of_one_processor_hand_it_over),
        cmocka_unit_test(neighbours_do_not_hold_up_workers),
        cmocka_unit_test(shares_cover_everything_once),
        cmocka_unit_test(a_range_gives_every_item_once_whoever_takes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
