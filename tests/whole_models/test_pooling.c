/* test_pooling.c - a text as one vector: what transformers gives for it, whatever the steps that it was computed in. */
#include "check.h"

#include "base/json/json.h"
#include "gyre.h"

#include <math.h>

enum { MAX_IDS = 200, MAX_WIDTH = 512, MAX_CASES = 32 };

struct text {
    char model[64];
    int32_t ids[MAX_IDS];
    int n_ids;
    const json_t *json;
    int n_done;
};

static json_t *file;
static struct text texts[MAX_CASES];
static int n_texts;

static int read_texts(void **state) {
    (void)state;
    struct error err;
    json_t *list, *c;
    size_t i, k;
    EXPECT_OK(jv_load("build/data/pooling/states.json", 1 << 24, 0, &file, &err), err);
    list = json_object_get(file, "cases");
    json_array_foreach(list, i, c) {
        struct text *t = &texts[n_texts++];
        snprintf(t->model, sizeof t->model, "tests/models/%s", json_string_value(json_object_get(c, "model")));
        t->json = c;
        json_t *id;
        json_array_foreach(json_object_get(c, "ids"), k, id) t->ids[t->n_ids++] = (int32_t)json_integer_value(id);
    }
    EXPECT(n_texts >= 12);
    return 0;
}

static int drop_texts(void **state) {
    (void)state;
    json_decref(file);
    return 0;
}

static void check_vector(struct text *t, const char *key, const struct gyre_event *e, int width) {
    const json_t *wanted = json_object_get(t->json, key);
    EXPECT_EQ(e->finish, GYRE_LENGTH);
    EXPECT(e->pooled);
    EXPECT_EQ(json_array_size(wanted), width);
    double worst = 0, size = 0;
    for (int i = 0; i < width; i++) {
        double w = json_number_value(json_array_get(wanted, (size_t)i));
        worst = fmax(worst, fabs(w - (double)e->pooled[i]));
        size = fmax(size, fabs(w));
    }
    if (!(worst <= 2e-5 * (1 + size)))
        fail_msg("%s, %d tokens, %s: off by %g of %g", t->model, t->n_ids, key, worst, size);
    t->n_done++;
}

/* All texts of a model at once, twice, so that the second ones find their beginnings in the prefix cache. */
static void run_model(const char *model, enum gyre_pooling pooling, struct gyre_options options) {
    struct gyre *g;
    struct gyre_error err;
    options.model = model;
    options.backend = &backend_cpu;
    options.n_threads = 1;
    EXPECT_OK(gyre_open(&options, &g, &err), err);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n_texts; i++) {
            struct gyre_request r = gyre_request_default(g);
            uint64_t id;
            if (strcmp(texts[i].model, model) != 0)
                continue;
            r.prompt = texts[i].ids;
            r.n_prompt = texts[i].n_ids;
            r.max_tokens = 0;
            r.pooling = pooling;
            r.user = &texts[i];
            EXPECT_OK(gyre_submit(g, &r, &id, &err), err);
        }
        while (gyre_busy(g)) {
            struct gyre_event e[8];
            int n = gyre_poll(g, e, 8);
            for (int i = 0; i < n; i++)
                check_vector(e[i].user, pooling == GYRE_POOL_MEAN ? "mean" : "last", &e[i], gyre_info(g)->hidden_size);
        }
    }
    gyre_close(g);
}

static void run_all(struct gyre_options options) {
    for (int i = 0; i < n_texts; i++)
        texts[i].n_done = 0;
    for (int i = 0; i < n_texts; i++)
        if (i == 0 || strcmp(texts[i].model, texts[i - 1].model) != 0)
            for (int pooling = GYRE_POOL_LAST; pooling <= GYRE_POOL_MEAN; pooling++)
                run_model(texts[i].model, (enum gyre_pooling)pooling, options);
    for (int i = 0; i < n_texts; i++)
        EXPECT_EQ(texts[i].n_done, 4);
}

static void vectors_are_those_of_transformers(void **state) {
    (void)state;
    run_all((struct gyre_options){0});
}

static void chunks_and_shared_blocks_do_not_change_a_vector(void **state) {
    (void)state;
    run_all((struct gyre_options){.max_batched_tokens = 17, .max_seqs = 2, .block_size = 8});
}

static void a_vector_and_an_answer_at_once_are_refused(void **state) {
    (void)state;
    struct gyre *g;
    struct gyre_error err;
    EXPECT_OK(
        gyre_open(&(struct gyre_options){.model = texts[0].model, .backend = &backend_cpu, .n_threads = 1}, &g, &err),
        err);
    struct gyre_request r = gyre_request_default(g);
    uint64_t id;
    r.prompt = texts[0].ids;
    r.n_prompt = 1;
    r.max_tokens = 3;
    r.pooling = GYRE_POOL_LAST;
    EXPECT(gyre_submit(g, &r, &id, &err) != 0);
    EXPECT(strstr(err.text, "max_tokens"));
    r.max_tokens = 0;
    r.pooling = (enum gyre_pooling)9;
    EXPECT(gyre_submit(g, &r, &id, &err) != 0);
    EXPECT(strstr(err.text, "pooling"));
    gyre_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_those_of_transformers),
        cmocka_unit_test(chunks_and_shared_blocks_do_not_change_a_vector),
        cmocka_unit_test(a_vector_and_an_answer_at_once_are_refused),
    };
    return cmocka_run_group_tests(tests, read_texts, drop_texts);
}
