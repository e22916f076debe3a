/* test_remote.c - a node that reads, loads, compiles or makes room for longer than anybody is patient is waited for as
 * long as it says that it lives, and no longer: over TCP on the loopback, the node on a thread. */
#include "check.h"

#include "backend/ranks/stages.h"
#include "base/clock.h"
#include "dist/node_wire.h"
#include "dist/remote.h"
#include "dist/wire.h"
#include "dist/worker.h"
#include "engine/engine.h"
#include "model/model.h"

#include <pthread.h>
#include <unistd.h>

enum { IDENTITY = 7, LONG_US = 1600000, SECOND_US = 1000000 }; // patience is 1 s

static char address[40];

static void find_address(void) {
    struct error err;
    int fd, port;
    EXPECT_OK(wire_listen("127.0.0.1:0", &fd, &port, &err), err);
    wire_close_listening(fd);
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
}

static struct gyre_options options_on(const struct backend_ops *backend) {
    static const char *const patience[] = {"patience=1", NULL};
    return (struct gyre_options){.model = "tests/models/llama",
                                 .backend = backend,
                                 .dtype = "float32",
                                 .n_threads = 1,
                                 .block_size = 16,
                                 .max_batched_tokens = 64,
                                 .max_seqs = 2,
                                 .device_options = patience};
}

/* The engine of node 0, on such a backend, once node 1 has come. */
static int open_node_0_on(const struct backend_ops *of, struct gyre **g, struct gyre_error *why) {
    const struct backend_ops *hosts;
    struct error err;
    EXPECT_OK(remote_nodes_await(&(struct awaited){address, 2, IDENTITY, clock_us() + 60 * SECOND_US}, &err), err);
    EXPECT_OK(backend_stages_far(of, &backend_remote, 2, &hosts, &err), err);
    struct gyre_options o = options_on(hosts);
    return gyre_open(&o, g, why);
}
static int open_node_0(struct gyre **g, struct gyre_error *why) { return open_node_0_on(&backend_cpu, g, why); }

static bool has_read; // before it loaded

static int64_t stall_us, read_us, hang_us; // of the node: its reading moves, and then does not

static void slow_read(void *context, const struct program *stage, const struct load_progress *progress) {
    enum { N = 40 };
    (void)context;
    EXPECT(stage->n_taps > 0); // and not the whole model
    for (int i = 0; i < N; i++) {
        usleep((useconds_t)read_us / N);
        load_progress_step(progress, i + 1, N);
    }
    usleep((useconds_t)hang_us);
    has_read = true;
}

static enum status slow_load(struct device *d, const struct program *p, const struct load_options *o,
                             struct loaded **out, struct error *err) {
    EXPECT(has_read);
    usleep(LONG_US);
    return backend_cpu.load(d, p, o, out, err);
}

static enum status slow_alloc_cache(struct loaded *l, const struct cache_config *c, struct error *err) {
    usleep(LONG_US);
    return backend_cpu.alloc_cache(l, c, err);
}

static enum status slow_compile(struct loaded *l, struct bucket b, struct executable **out, struct error *err) {
    usleep(LONG_US);
    return backend_cpu.compile(l, b, out, err);
}

static void *slow_node(void *arg) {
    struct model *m;
    struct error err;
    struct backend_ops slow = backend_cpu;
    slow.load = slow_load, slow.alloc_cache = slow_alloc_cache, slow.compile = slow_compile;
    EXPECT_OK(model_open("tests/models/llama", &(struct model_options){.load = LOAD_CHECKPOINT}, &m, &err), err);
    struct worker_options o = {.address = address,
                               .rank = 1,
                               .n_nodes = 2,
                               .identity = IDENTITY,
                               .backend = &slow,
                               .program = m->program,
                               .device = {.n_threads = 1},
                               .load = {.dtype = "float32"},
                               .read_ahead = slow_read,
                               .stall_us = stall_us,
                               .until_us = clock_us() + 60 * SECOND_US};
    *(enum status *)arg = worker_run(&o, &err);
    model_free(m);
    return NULL;
}

static void who_takes_long_is_waited_for(void **state) {
    (void)state;
    pthread_t thread;
    enum status worked = ERR_IO;
    stall_us = 2 * LONG_US, read_us = 2 * stall_us + SECOND_US, hang_us = 0;
    struct gyre *g;
    struct gyre_error err;
    find_address();
    EXPECT_EQ(pthread_create(&thread, NULL, slow_node, &worked), 0);
    int64_t began = clock_us();
    EXPECT_OK(open_node_0(&g, &err), err);
    EXPECT(clock_us() - began >= read_us + 3 * LONG_US);
    gyre_close(g);
    remote_nodes_leave();
    pthread_join(thread, NULL);
    EXPECT_EQ(worked, OK);
}

/* Nothing else tells that its thread hangs: the process lives, and so does the link. */
static void who_does_not_move_is_not(void **state) {
    (void)state;
    pthread_t thread;
    enum status worked;
    struct gyre *g;
    struct gyre_error err;
    stall_us = LONG_US / 2, read_us = LONG_US, hang_us = 6 * SECOND_US;
    find_address();
    EXPECT_EQ(pthread_create(&thread, NULL, slow_node, &worked), 0);
    int64_t began = clock_us();
    EXPECT(open_node_0(&g, &err) != 0);
    EXPECT_STR(err.text, "node 1: the peer is late");
    EXPECT(clock_us() - began >= read_us + stall_us);
    remote_nodes_leave();
    pthread_join(thread, NULL);
}

enum { WORD_US = SECOND_US / 10 }; // a tenth of the patience

/* Says who it is, and so many times that it works on the first question; then nothing. */
static void *silent_node(void *arg) {
    struct node_hello h = {IDENTITY, 1, 2};
    struct error err;
    struct wire *w;
    while (wire_connect(address, 1000, &w, &err) != OK)
        usleep(10000);
    EXPECT_OK(wire_send(w, NODE_HELLO, (struct str){(const char *)&h, sizeof h}, clock_us() + SECOND_US, &err), err);
    for (int i = *(int *)arg; i > 0; i--) {
        usleep(WORD_US);
        EXPECT_OK(wire_send(w, NODE_STILL, (struct str){"", 0}, clock_us() + SECOND_US, &err), err);
    }
    EXPECT_OK(wire_await(w, clock_us() + 60 * SECOND_US, &err), err);
    while (!wire_is_closed(w)) {
        struct buf bytes = {0};
        uint32_t kind;
        (void)wire_receive(w, &kind, &bytes, 1 << 20, clock_us() + 60 * SECOND_US, &err);
        buf_release(&bytes);
    }
    wire_close(w);
    return NULL;
}

static void expect_given_up(int n_words) {
    pthread_t thread;
    struct gyre *g;
    struct gyre_error err;
    find_address();
    EXPECT_EQ(pthread_create(&thread, NULL, silent_node, &n_words), 0);
    int64_t began = clock_us();
    EXPECT(open_node_0(&g, &err) != 0);
    EXPECT_STR(err.text, "node 1: the peer is late");
    EXPECT(clock_us() - began >= SECOND_US + n_words * WORD_US);
    remote_nodes_leave();
    pthread_join(thread, NULL);
}

static void who_says_nothing_is_not(void **state) {
    (void)state;
    expect_given_up(0);
    expect_given_up(20);
}

/* Devices that have memory of their own, with room for so many blocks. */
enum { FEW_BLOCKS = 9, MANY_BLOCKS = 60 };
static int blocks_of_node;

static enum status room_for(struct loaded *l, int n_blocks, int block_size, int64_t *out) {
    *out = n_blocks * backend_cpu.cache_block_bytes(l, 0, block_size);
    return OK;
}
static enum status little_room(struct loaded *l, struct bucket b, int n, int block_size, const int *table_width,
                               double share, int64_t *out, struct error *err) {
    (void)b, (void)share, (void)err;
    EXPECT(n == 1 && table_width[0] > 0);
    return room_for(l, FEW_BLOCKS, block_size, out);
}
static enum status much_room(struct loaded *l, struct bucket b, int n, int block_size, const int *table_width,
                             double share, int64_t *out, struct error *err) {
    (void)b, (void)n, (void)table_width, (void)share, (void)err;
    return room_for(l, MANY_BLOCKS, block_size, out);
}
static enum status negative_room(struct loaded *l, struct bucket b, int n, int block_size, const int *table_width,
                                 double share, int64_t *out, struct error *err) {
    (void)l, (void)b, (void)n, (void)block_size, (void)table_width, (void)share, (void)err;
    *out = -5;
    return OK;
}
static enum status note_cache(struct loaded *l, const struct cache_config *c, struct error *err) {
    blocks_of_node = c->n_blocks[0];
    return backend_cpu.alloc_cache(l, c, err);
}

static bool slow_twice(struct executable *exe, int i, char *out, size_t n) {
    (void)exe;
    snprintf(out, n, "way %d is slow", i + 1);
    return i < 2;
}

static struct backend_ops device_of_node(void) {
    struct backend_ops device = backend_cpu;
    device.cache_room = little_room, device.alloc_cache = note_cache, device.in_place = false;
    return device;
}

static struct backend_ops device; // of the node
static enum status worked_on_device;

static void *node_on_device(void *arg) {
    struct model *m;
    struct error err;
    EXPECT_OK(model_open("tests/models/llama", &(struct model_options){.load = LOAD_CHECKPOINT}, &m, &err), err);
    struct worker_options o = {.address = address,
                               .rank = 1,
                               .n_nodes = 2,
                               .identity = IDENTITY,
                               .backend = &device,
                               .program = m->program,
                               .device = {.n_threads = 1},
                               .load = {.dtype = "float32"},
                               .until_us = clock_us() + 60 * SECOND_US};
    *(enum status *)arg = worker_run(&o, &err);
    model_free(m);
    return NULL;
}

static pthread_t start_node_on_device(void) {
    pthread_t thread;
    worked_on_device = ERR_IO;
    find_address();
    EXPECT_EQ(pthread_create(&thread, NULL, node_on_device, &worked_on_device), 0);
    return thread;
}

static enum status end_node(pthread_t thread) {
    remote_nodes_leave();
    pthread_join(thread, NULL);
    return worked_on_device;
}

/* Of node 0. */
static const struct backend_ops *roomy_device(void) {
    static struct backend_ops roomy;
    roomy = backend_cpu, roomy.cache_room = much_room, roomy.in_place = false;
    return &roomy;
}

static void the_cache_is_as_large_as_the_fullest_device_has_room_for(void **state) {
    (void)state;
    struct gyre *g;
    struct gyre_error err;
    device = device_of_node();
    pthread_t thread = start_node_on_device();
    EXPECT_OK(open_node_0_on(roomy_device(), &g, &err), err);
    gyre_close(g);
    EXPECT_EQ(end_node(thread), OK);
    EXPECT(blocks_of_node > 0 && blocks_of_node <= FEW_BLOCKS);
}

static void no_room_is_less_than_none(void **state) {
    (void)state;
    struct gyre *g;
    struct gyre_error err;
    device = device_of_node(), device.cache_room = negative_room;
    pthread_t thread = start_node_on_device();
    EXPECT(open_node_0_on(roomy_device(), &g, &err) != 0);
    EXPECT_STR(err.text, "node 1: it says that its cache has room for -5 bytes");
    (void)end_node(thread);
}

static void what_a_node_compiles_slowly_it_says(void **state) {
    (void)state;
    struct gyre *g;
    struct gyre_error err;
    char said[4096];
    FILE *file = tmpfile();
    EXPECT(file);
    int old = dup(STDERR_FILENO);
    device = device_of_node(), device.warning = slow_twice;
    dup2(fileno(file), STDERR_FILENO);
    pthread_t thread = start_node_on_device();
    int opened = open_node_0_on(roomy_device(), &g, &err);
    dup2(old, STDERR_FILENO);
    close(old);
    EXPECT_OK(opened, err);
    gyre_close(g);
    EXPECT_EQ(end_node(thread), OK);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = '\0';
    fclose(file);
    EXPECT(strstr(said, "gyre: node 1: way 1 is slow\ngyre: node 1: way 2 is slow\n"));
    EXPECT(!strstr(said, "way 3"));
}

static int64_t rings_beyond_nothing(const char *const *own) {
    (void)own;
    return 0;
}

/* They record the program as the model has it, and node 0 asks for as many rows back as its own is to keep. */
static void windows_over_hosts_are_no_rings(void **state) {
    (void)state;
    static struct backend_ops with_rings;
    const struct backend_ops *here, *hosts;
    struct error err;
    with_rings = backend_cpu, with_rings.rings_beyond = rings_beyond_nothing;
    EXPECT_OK(backend_stages(&with_rings, 2, &here, &err), err);
    EXPECT_OK(backend_stages_far(&with_rings, &backend_remote, 2, &hosts, &err), err);
    EXPECT(here->rings_beyond == rings_beyond_nothing && !hosts->rings_beyond);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_takes_long_is_waited_for),
        cmocka_unit_test(who_does_not_move_is_not),
        cmocka_unit_test(who_says_nothing_is_not),
        cmocka_unit_test(the_cache_is_as_large_as_the_fullest_device_has_room_for),
        cmocka_unit_test(no_room_is_less_than_none),
        cmocka_unit_test(what_a_node_compiles_slowly_it_says),
        cmocka_unit_test(windows_over_hosts_are_no_rings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
