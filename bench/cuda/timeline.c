/* timeline.c - what runs on the card during a step, and when: a library that the driver loads beside any program of
 * ours.
 *
 *     CUDA_INJECTION64_PATH=build/cuda/libtimeline.so  gyre bench decode ... --output-len 64
 *
 * CUPTI stamps the start and the end of every kernel, also of those inside a graph (its node level). When the program
 * ends, this prints for each graph that ran often, in the order in which they first ran, so one for each number of
 * sequences of `gyre bench decode`:
 *
 *   the step     from one graph's first kernel to the next graph's: median, how much of it no kernel ran, and between
 *                two graphs
 *   a layer      the nodes that repeat, each with its start from the layer's, how long it runs, and how long it runs by
 *                itself: from the end of the node before to its own; `early` is how long before that end it had begun
 *                (programmatic launch)
 *   by name      the same summed over the step, so that `alone` adds up to the step
 *
 * All are medians over layers and steps. What tracing costs is seen by the step that it prints beside the one that the
 * program prints, and that one beside the same command without this library.
 *
 *     TIMELINE_BURSTS=1  steps that no graph was made of, prompts', in place of graphs
 *     TIMELINE_NODES=1   also every node of the median step       TIMELINE_LEAST=24  launches from which a graph counts
 *     TIMELINE_CUPTI     the library, else libcupti.so.13 or libcupti.so where the loader finds them */
#include "backend/cuda/value.h"

#include <cupti.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node { // a kernel, or a copy or fill of memory
    const char *name;
    uint64_t start, end; // ns
    uint32_t graph, launch;
    int32_t grid, block, shared;
};

enum { BUFFER_BYTES = 8 << 20, MOST_PERIOD = 160, MOST_NAMES = 512, MOST_GRAPHS = 2048 };
static const double BURST_GAP_US = 150;
static const size_t MOST_NODES = (size_t)16 << 20;

static struct node *nodes;
static size_t n_nodes, cap_nodes, n_dropped;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *cupti;
static __typeof__(cuptiActivityGetNextRecord) *get_next;
static __typeof__(cuptiActivityFlushAll) *flush_all;

/* ---- records ---------------------------------------------------------------------------------------------------- */

static void keep(const struct node *n) {
    if (n_nodes == cap_nodes) {
        size_t cap = cap_nodes ? cap_nodes * 2 : 1 << 16;
        struct node *more = cap <= MOST_NODES ? realloc(nodes, cap * sizeof *nodes) : NULL;
        if (!more) {
            n_dropped++;
            return;
        }
        nodes = more, cap_nodes = cap;
    }
    nodes[n_nodes++] = *n;
}

static void take(const CUpti_Activity *record) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const void *)record;
        keep(&(struct node){k->name, k->start, k->end, k->graphId, k->correlationId, k->gridX * k->gridY * k->gridZ,
                            k->blockX * k->blockY * k->blockZ, k->staticSharedMemory + k->dynamicSharedMemory});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *m = (const void *)record;
        keep(&(struct node){"copy", m->start, m->end, m->graphId, m->correlationId, 0, 0, 0});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const void *)record;
        keep(&(struct node){"fill", m->start, m->end, m->graphId, m->correlationId, 0, 0, 0});
    }
}

static void CUPTIAPI buffer_wanted(uint8_t **buffer, size_t *n_bytes, size_t *most_records) {
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *n_bytes = *buffer ? BUFFER_BYTES : 0;
    *most_records = 0;
}

static void CUPTIAPI buffer_full(CUcontext context, uint32_t stream, uint8_t *buffer, size_t n_bytes, size_t n_valid) {
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)n_bytes;
    pthread_mutex_lock(&lock);
    while (n_valid && get_next(buffer, n_valid, &record) == CUPTI_SUCCESS)
        take(record);
    pthread_mutex_unlock(&lock);
    free(buffer);
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static char *(*demangle)(const char *, char *, size_t *, int *);

static void cut_out(char *s, const char *what) {
    for (char *at; (at = strstr(s, what));)
        memmove(at, at + strlen(what), strlen(at + strlen(what)) + 1);
}

/* Without namespaces, return type and parameters; template arguments stay. Kept for ever. */
static const char *short_name(const char *name) {
    static struct {
        const char *given;
        char *shown;
    } known[MOST_NAMES];
    static int n_known;
    for (int i = 0; i < n_known; i++)
        if (known[i].given == name)
            return known[i].shown;
    int status = -1;
    char *s = demangle && name ? demangle(name, NULL, NULL, &status) : NULL;
    if (!s || status != 0)
        s = strdup(name ? name : "?");
    cut_out(s, "void ");
    cut_out(s, "(anonymous namespace)::");
    int depth = 0;
    for (char *c = s; *c; c++) {
        depth += (*c == '<') - (*c == '>');
        if (*c == '(' && depth == 0)
            *c-- = '\0';
        if (*c == '\0')
            break;
    }
    cut_out(s, "(int)"), cut_out(s, "(bool)"), cut_out(s, "(element)"), cut_out(s, "cutlass::");
    if (n_known < MOST_NAMES)
        known[n_known].given = name, known[n_known++].shown = s;
    return s;
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static int by_start(const void *a, const void *b) {
    const struct node *x = a, *y = b;
    return x->start != y->start ? (x->start > y->start) - (x->start < y->start) : (x->end > y->end) - (x->end < y->end);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, size_t n) {
    if (n == 0)
        return 0;
    qsort(x, n, sizeof *x, by_value);
    return x[n / 2];
}

/* What a node adds to the time that has passed when the nodes before it, in order of their start, have ended. */
struct place {
    double start, duration, alone, early, gap; // us; start: from the step's. gap: nothing ran before it for so long
};

struct step {
    const struct node **node; // [n], by start
    struct place *place;      // [n]
    double begin, end;        // us
    double between_busy;      // until the next step begins: of kernels outside of graphs
};

struct graph {
    uint32_t id;
    size_t n_nodes, n_steps, n_seen; // n_seen: launches; n_steps: those of n_nodes nodes
    struct step *steps;
};

static double us(uint64_t ns, uint64_t from) { return (double)(int64_t)(ns - from) * 1e-3; }

static void place_nodes(struct step *s, size_t n) {
    uint64_t begin = s->node[0]->start, latest = begin;
    for (size_t i = 0; i < n; i++) {
        const struct node *k = s->node[i];
        struct place *p = &s->place[i];
        p->start = us(k->start, begin);
        p->duration = us(k->end, k->start);
        p->gap = k->start > latest ? us(k->start, latest) : 0;
        p->early = k->start < latest ? us(latest, k->start) : 0;
        p->alone = k->end > latest ? us(k->end, latest) : 0;
        latest = k->end > latest ? k->end : latest;
    }
    s->end = us(latest, begin);
}

static struct graph *graph_of(struct graph *graphs, int *n, uint32_t id) {
    for (int i = 0; i < *n; i++)
        if (graphs[i].id == id)
            return &graphs[i];
    if (*n == MOST_GRAPHS)
        return NULL;
    graphs[*n] = (struct graph){.id = id};
    return &graphs[(*n)++];
}

/* Nodes of a launch stand together once sorted by launch; launches are in order. */
static int by_launch(const void *a, const void *b) {
    const struct node *x = a, *y = b;
    if (x->launch != y->launch)
        return x->launch < y->launch ? -1 : 1;
    return by_start(a, b);
}

static void add_step(struct graph *g, const struct node *first, size_t n) {
    g->n_seen++;
    if (g->n_nodes == 0)
        g->n_nodes = n;
    if (n != g->n_nodes)
        return;
    if ((g->n_steps & (g->n_steps - 1)) == 0)
        g->steps = realloc(g->steps, (g->n_steps ? g->n_steps * 2 : 1) * sizeof *g->steps);
    struct step *s = &g->steps[g->n_steps++];
    *s = (struct step){.node = calloc(n, sizeof *s->node), .place = calloc(n, sizeof *s->place)};
    for (size_t i = 0; i < n; i++)
        s->node[i] = &first[i];
    place_nodes(s, n);
}

/* ---- printing --------------------------------------------------------------------------------------------------- */

static bool same_node(const struct node *a, const struct node *b) {
    return a->name == b->name && a->grid == b->grid && a->block == b->block;
}

/* How many nodes repeat in the middle of a step; 0: none do. */
static size_t period_of(const struct step *s, size_t n) {
    size_t low = n / 5, high = n - n / 5;
    for (size_t p = 2; p <= MOST_PERIOD && low + 2 * p < high; p++) {
        size_t i = low;
        while (i + p < high && same_node(s->node[i], s->node[i + p]))
            i++;
        if (i + p >= high)
            return p;
    }
    return 0;
}

/* Where the first repeated group begins: as early as it repeats, at the widest gap of names is not known; so at the
 * first node. */
static size_t first_of(const struct step *s, size_t n, size_t period) {
    size_t i = n / 2;
    while (i > 0 && same_node(s->node[i - 1], s->node[i - 1 + period]))
        i--;
    return i;
}

enum column { START, DURATION, ALONE, EARLY, GAP };
static double value_of(const struct place *p, enum column c) {
    return c == START ? p->start : c == DURATION ? p->duration : c == ALONE ? p->alone : c == EARLY ? p->early : p->gap;
}

/* Of node `at` of a layer, over layers and steps; starts from the layer's first node. */
static double over_layers(const struct graph *g, size_t first, size_t period, size_t at, enum column c, double *room) {
    size_t n = 0;
    for (size_t s = g->n_steps > 4 ? 2 : 0; s < g->n_steps; s++)
        for (size_t i = first;
             i + period <= g->n_nodes && same_node(g->steps[0].node[i + at], g->steps[s].node[i + at]) &&
             same_node(g->steps[0].node[first + at], g->steps[s].node[i + at]);
             i += period)
            room[n++] = value_of(&g->steps[s].place[i + at], c) - (c == START ? g->steps[s].place[i].start : 0);
    return median(room, n);
}

/* How many nodes of a period are alike, and how often they stand one behind the other at its beginning: five sliding
 * layers and a global one. */
static size_t alike_of(const struct step *s, size_t first, size_t period, size_t *times) {
    for (size_t n = 2; n <= period / 2; n++) {
        size_t i = 0;
        while (i + n < period && same_node(s->node[first + i], s->node[first + i + n]))
            i++;
        *times = i / n + 1;
        if (*times > 1 && *times * n > period / 2)
            return n;
    }
    *times = 1;
    return period;
}

static void print_layer(const struct graph *g, double *room) {
    const struct step *s = &g->steps[0];
    size_t period = period_of(s, g->n_nodes), times;
    if (period == 0) {
        printf("  no nodes repeat\n");
        return;
    }
    size_t first = first_of(s, g->n_nodes, period), alike = alike_of(s, first, period, &times);
    double sum = 0;
    printf("  layer of %zu nodes: from the %zuth node of %zu on", period, first, g->n_nodes);
    if (times > 1)
        printf("; the first %zu of them stand %zu times", alike, times);
    printf("\n");
    printf("    %8s %8s %8s %8s %8s %6s %6s %7s  kernel\n", "start", "runs", "alone", "early", "gap", "grid", "block",
           "shared");
    for (size_t k = 0; k < period; k++) {
        const struct node *node = s->node[first + k];
        double alone = over_layers(g, first, period, k, ALONE, room), gap = over_layers(g, first, period, k, GAP, room);
        sum += alone;
        if (k >= alike && k < alike * times)
            continue;
        printf("    %8.2f %8.2f %8.2f %8.2f %8.2f %6d %6d %7d  %.110s\n", over_layers(g, first, period, k, START, room),
               over_layers(g, first, period, k, DURATION, room), alone, over_layers(g, first, period, k, EARLY, room),
               gap, node->grid, node->block, node->shared, short_name(node->name));
    }
    printf("    %8.2f us in all\n", sum);
}

static void print_names(const struct graph *g, double *room) {
    const struct step *s = &g->steps[0];
    double *alone = calloc(g->n_nodes, sizeof *alone), *runs = calloc(g->n_nodes, sizeof *runs), total = 0;
    bool *told = calloc(g->n_nodes, sizeof *told);
    for (size_t i = 0; i < g->n_nodes; i++) {
        for (size_t k = 0; k < g->n_steps; k++)
            room[k] = g->steps[k].place[i].alone;
        alone[i] = median(room, g->n_steps);
        for (size_t k = 0; k < g->n_steps; k++)
            room[k] = g->steps[k].place[i].duration;
        runs[i] = median(room, g->n_steps);
        total += alone[i];
    }
    printf("  by name:\n    %6s %10s %7s %8s %8s  kernel\n", "nodes", "alone us", "share", "a node", "runs");
    for (;;) { // the largest first; a step has few names
        double best = -1, best_runs = 0;
        size_t at = 0, n_best = 0;
        for (size_t i = 0; i < g->n_nodes; i++) {
            double sum = 0, sum_runs = 0;
            size_t n = 0;
            for (size_t k = i; k < g->n_nodes && !told[i]; k++)
                if (same_node(s->node[i], s->node[k]))
                    sum += alone[k], sum_runs += runs[k], n++;
            if (n && sum > best)
                best = sum, at = i, n_best = n, best_runs = sum_runs;
        }
        if (best < 0)
            break;
        for (size_t k = 0; k < g->n_nodes; k++)
            told[k] = told[k] || same_node(s->node[at], s->node[k]);
        if (best > 0.002 * total)
            printf("    %6zu %10.1f %6.1f%% %8.2f %8.2f  %.110s, %d x %d\n", n_best, best, 100 * best / total,
                   best / (double)n_best, best_runs / (double)n_best, short_name(s->node[at]->name), s->node[at]->grid,
                   s->node[at]->block);
    }
    free(alone), free(runs), free(told);
}

static void print_nodes(const struct graph *g) {
    const struct step *s = &g->steps[g->n_steps / 2];
    printf("  every node of a step:\n");
    for (size_t i = 0; i < g->n_nodes; i++)
        printf("    %9.2f %8.2f %8.2f %8.2f %8.2f  %.110s\n", s->place[i].start, s->place[i].duration,
               s->place[i].alone, s->place[i].early, s->place[i].gap, short_name(s->node[i]->name));
}

/* Between two steps in a row of this graph: from the last node's end to the next one's begin, and what of that other
 * kernels ran. */
static void print_between(const struct graph *g, const struct node *others, size_t n_others, double *room) {
    size_t n = 0, n_inside = 0, at = 0;
    double *busy = calloc(g->n_steps, sizeof *busy), *step = calloc(g->n_steps, sizeof *step),
           *idle = calloc(g->n_steps, sizeof *idle);
    const char *name = NULL;
    for (size_t i = 0; i + 1 < g->n_steps; i++) {
        uint64_t begin = g->steps[i].node[0]->start, next = g->steps[i + 1].node[0]->start;
        double end = g->steps[i].end, wait = us(next, begin) - end;
        if (wait > 3000) // a run ended there
            continue;
        while (at < n_others && us(others[at].start, begin) < end)
            at++;
        for (; at < n_others && others[at].start < next; at++) {
            busy[n] += us(others[at].end, others[at].start);
            name = others[at].name;
            n_inside++;
        }
        double gaps = 0;
        for (size_t k = 0; k < g->n_nodes; k++)
            gaps += g->steps[i].place[k].gap;
        idle[n] = gaps;
        step[n] = us(next, begin);
        room[n++] = wait;
    }
    printf("  step %.1f us: %zu nodes in %.1f, of which nothing ran %.1f; then %.1f to the next, of which other "
           "kernels %.1f (%.1f each, "
           "%s)\n",
           median(step, n), g->n_nodes, g->n_steps ? g->steps[g->n_steps / 2].end : 0, median(idle, n), median(room, n),
           median(busy, n), n ? (double)n_inside / (double)n : 0, name ? short_name(name) : "none");
    free(busy), free(step), free(idle);
}

static void print_graph(const struct graph *g, const struct node *others, size_t n_others) {
    double *room = calloc(g->n_steps * (g->n_nodes + 1) + 1, sizeof *room);
    printf("\n== graph %u: %zu launches of %zu nodes\n", g->id, g->n_seen, g->n_nodes);
    print_between(g, others, n_others, room);
    print_layer(g, room);
    print_names(g, room);
    if (getenv("TIMELINE_NODES"))
        print_nodes(g);
    fflush(stdout);
    free(room);
}

static int by_first_start(const void *a, const void *b) {
    const struct graph *x = a, *y = b;
    return x->steps[0].node[0]->start < y->steps[0].node[0]->start ? -1 : 1;
}

/* ---- begin and end ---------------------------------------------------------------------------------------------- */

/* Kernels outside of graphs with no more than BURST_GAP_US between two become one launch of a graph numbered by how
 * many they are. */
static size_t take_bursts(const struct node *others, size_t n) {
    uint32_t launch = 0;
    for (size_t i = 0, end; i < n; i = end, launch++) {
        uint64_t latest = others[i].end;
        for (end = i + 1; end < n && (others[end].start < latest || us(others[end].start, latest) < BURST_GAP_US);
             end++)
            latest = others[end].end > latest ? others[end].end : latest;
        for (size_t k = i; k < end; k++) {
            nodes[k] = others[k];
            nodes[k].graph = (uint32_t)(end - i);
            nodes[k].launch = launch;
        }
    }
    return n;
}

static void report(void) {
    static struct graph graphs[MOST_GRAPHS];
    int n_graphs = 0;
    size_t least = getenv("TIMELINE_LEAST") ? strtoul(getenv("TIMELINE_LEAST"), NULL, 10) : 24, n_kept = 0,
           n_others = 0;
    flush_all(1);
    pthread_mutex_lock(&lock);
    struct node *others = calloc(n_nodes + 1, sizeof *others);
    for (size_t i = 0; i < n_nodes; i++)
        if (nodes[i].graph == 0)
            others[n_others++] = nodes[i];
        else
            nodes[n_kept++] = nodes[i];
    qsort(others, n_others, sizeof *others, by_start);
    if (getenv("TIMELINE_BURSTS"))
        n_kept = take_bursts(others, n_others);
    qsort(nodes, n_kept, sizeof *nodes, by_launch);
    printf("timeline  %zu kernels in graphs, %zu outside, %zu without room\n", n_kept, n_others, n_dropped);
    for (size_t i = 0, end; i < n_kept; i = end) {
        for (end = i; end < n_kept && nodes[end].launch == nodes[i].launch;)
            end++;
        struct graph *g = graph_of(graphs, &n_graphs, nodes[i].graph);
        if (g && end - i > 8)
            add_step(g, &nodes[i], end - i);
    }
    int n = 0;
    for (int i = 0; i < n_graphs; i++)
        if (graphs[i].n_steps >= least)
            graphs[n++] = graphs[i];
    qsort(graphs, (size_t)n, sizeof *graphs, by_first_start);
    for (int i = 0; i < n; i++)
        print_graph(&graphs[i], others, n_others);
    pthread_mutex_unlock(&lock);
}

static bool open_cupti(void) {
    const char *names[] = {getenv("TIMELINE_CUPTI"), "libcupti.so.13", "libcupti.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !cupti; i++)
        if (names[i])
            cupti = dlopen(names[i], RTLD_NOW);
    void *cxx = dlopen("libstdc++.so.6", RTLD_NOW);
    if (cxx)
        *(void **)&demangle = dlsym(cxx, "__cxa_demangle");
    return cupti != NULL;
}

/* The driver calls this when it is initialised. */
int InitializeInjection(void);
int InitializeInjection(void) {
    static bool done;
    __typeof__(cuptiActivityEnable) *enable;
    __typeof__(cuptiActivityRegisterCallbacks) *callbacks;
    if (done)
        return 1;
    done = true;
    if (!open_cupti()) {
        fprintf(stderr, "timeline: libcupti is not found; TIMELINE_CUPTI names it: %s\n", dlerror());
        return 0;
    }
    *(void **)&enable = dlsym(cupti, "cuptiActivityEnable");
    *(void **)&callbacks = dlsym(cupti, "cuptiActivityRegisterCallbacks");
    *(void **)&get_next = dlsym(cupti, "cuptiActivityGetNextRecord");
    *(void **)&flush_all = dlsym(cupti, "cuptiActivityFlushAll");
    if (!enable || !callbacks || !get_next || !flush_all || callbacks(buffer_wanted, buffer_full) != CUPTI_SUCCESS ||
        enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        enable(CUPTI_ACTIVITY_KIND_MEMCPY) != CUPTI_SUCCESS || enable(CUPTI_ACTIVITY_KIND_MEMSET) != CUPTI_SUCCESS) {
        fprintf(stderr, "timeline: CUPTI cannot trace here\n");
        return 0;
    }
    atexit(report);
    return 1;
}
