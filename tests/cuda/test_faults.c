/* test_faults.c - what is said when a device fails, on a device that is made to: each in a process of its own, since a
 * context that failed is lost.
 *
 *     build/cuda/test_faults        in the root of the sources; wants a GPU */
#include "backend/cuda/device/device.h"
#include "backend/cuda/rows/elementwise.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/value.h"
#include "check.h"

#include "backend/cuda/cuda.h"
#include "engine/engine.h"

#include <sys/wait.h>
#include <unistd.h>

extern const struct backend_ops backend_cuda;

/* The claim must be the first to use the device. */
static void in_a_process(void (*claim)(void)) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        claim();
        fflush(NULL);
        _exit(0);
    }
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define CLAIM(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

static struct gyre *open_llama(void) {
    struct gyre_error e;
    struct gyre *g;
    struct gyre_options o = {.model = "tests/models/llama",
                             .backend = &backend_cuda,
                             .dtype = "float16",
                             .max_seqs = 2,
                             .max_batched_tokens = 64};
    if (gyre_open(&o, &g, &e) != 0) {
        fprintf(stderr, "%s\n", e.text);
        _exit(1);
    }
    return g;
}

/* How a request ended, and why. */
static enum gyre_finish ask(struct gyre *g, char why[800]) {
    static const int32_t prompt[] = {5, 6, 7, 8, 9};
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error e;
    uint64_t id;
    enum gyre_finish finish = GYRE_FAILED;
    q.prompt = prompt, q.n_prompt = 5, q.max_tokens = 4, q.ignore_eos = true;
    why[0] = '\0';
    if (gyre_submit(g, &q, &id, &e) != 0)
        return snprintf(why, 800, "%s", e.text), GYRE_FAILED;
    while (gyre_busy(g)) {
        struct gyre_event events[8];
        for (int i = 0, n = gyre_poll(g, events, 8); i < n; i++)
            if (events[i].kind == GYRE_DONE) {
                finish = events[i].finish;
                snprintf(why, 800, "%s", events[i].error ? events[i].error : "");
            }
    }
    return finish;
}

/* The cache's memory is taken away under it. */
static void read_nothing(void) {
    char first[800], again[800];
    struct error err;
    struct gyre *g = open_llama();
    CLAIM(ask(g, first) == GYRE_LENGTH);
    CLAIM(virtual_map(&g->loaded->caches[0].map, 0, 0, &err) == OK);
    CLAIM(ask(g, first) == GYRE_FAILED);
    printf("%s\n", first);
    CLAIM(strstr(first, "CUDA device 0") && strstr(first, "tokens") && strstr(first, "sequences") &&
          strstr(first, "CUDA_LAUNCH_BLOCKING"));
    CLAIM(ask(g, again) == GYRE_FAILED && strcmp(first, again) == 0); // sticky
    gyre_close(g);
}

static void a_kernel_that_faults_ends_every_request_with_the_same_sentence(void **state) {
    (void)state;
    in_a_process(read_nothing);
}

static void launch_nothing(void) {
    struct gyre *g = open_llama();
    struct device *d = g->device;
    struct error err;
    char why[800];
    struct launch l = {.stream = d->stream};
    struct dmat x = {g->exe->memory, 64, 64, ELEMENT_F32};
    launch_softcap(&l, 0, 1, x, x); // a grid of nothing
    CLAIM(device_fault(d, &err, cudaGetLastError(), "capping %d rows", 0) == ERR_DEVICE);
    printf("%s\n", err.text);
    CLAIM(strstr(err.text, "capping 0 rows") && strstr(err.text, "softcap") && strstr(err.text, "grid ") &&
          strstr(err.text, "stream of steps"));
    CLAIM(strstr(err.text, "bytes of shared memory of at most") && strstr(err.text, "invalid"));
    CLAIM(ask(g, why) == GYRE_FAILED && strcmp(why, err.text) == 0);
    gyre_close(g);
}

static void a_launch_that_is_refused_is_told_with_kernel_grid_and_limits(void **state) {
    (void)state;
    in_a_process(launch_nothing);
}

static void name_an_op(void) {
    struct gyre *g = open_llama();
    char what[280];
    bool told = false;
    for (int i = 0; i < g->program->n_ops; i++) {
        op_described(g->exe, &g->exe->ops[i], 3, what, sizeof what);
        CLAIM(strstr(what, op_name(g->program->ops[i].code)) && strstr(what, "3 rows"));
        told = told || (strstr(what, "down_proj") && strstr(what, "LINEAR"));
    }
    CLAIM(told);
    gyre_close(g);
}

static void an_op_is_told_with_its_weight_and_shape(void **state) {
    (void)state;
    in_a_process(name_an_op);
}

static void fill_the_device(void) {
    struct gyre_error e;
    struct gyre *g;
    void *hog;
    size_t size = (size_t)256 << 30;
    for (; size >= 2 << 20; size /= 2)
        while (cudaMalloc(&hog, size) == cudaSuccess)
            ;
    cudaGetLastError();
    struct gyre_options o = {.model = "tests/models/llama", .backend = &backend_cuda, .kv_cache_bytes = 1 << 20};
    CLAIM(gyre_open(&o, &g, &e) != 0);
    printf("%s\n", e.text);
    CLAIM(e.status == ERR_MEMORY || e.status == ERR_UNSUPPORTED || e.status == ERR_DEVICE);
    CLAIM(strlen(e.text) > 20);
}

static void a_full_device_refuses_to_start_with_a_sentence(void **state) {
    (void)state;
    in_a_process(fill_the_device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_that_faults_ends_every_request_with_the_same_sentence),
        cmocka_unit_test(a_launch_that_is_refused_is_told_with_kernel_grid_and_limits),
        cmocka_unit_test(an_op_is_told_with_its_weight_and_shape),
        cmocka_unit_test(a_full_device_refuses_to_start_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
