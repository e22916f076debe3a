/* test_argmax_filter.cu - screening (src/backend/cuda/head/argmax_filter.cu) against lm_head.cu and SAMPLE, and its
 * bound against double precision.
 *
 *     test_argmax_filter [SEED|- [N [small]]]     N random cases; small: without the large ones. Without SEED
 *                                                 $GYRE_TEST_SEED or the clock.
 *
 * Of random heads of several kinds and steps of 1 to 512 rows:
 *     the tokens of lm_head.cu and SAMPLE, and their flags, from poisoned scratch, twice, and each row by itself
 *     the same with masks of several kinds, in steps where some rows have one, or all the same one
 *     where a step is left, what is learned from it: outlying channels of x are no reason to leave steps for ever
 *     what product ends with: of each token the best lower bound of all, and on its list all rows that reach it
 *     the largest logit in double precision, but for what float32 sums may be off
 *     |w.x - (what bytes say)| / bound of all pairs of a row of W and a token: never above 1, and as large as the
 *     rounding makes it, so that a bound that is too narrow or too wide shows: errors are sums of thousands of
 *     independent terms of a known variance, so normal logits of single rows, bit for bit those of lm_head.cu
 * The copy lies by flips and sides that are drawn, all of one side too, or are not known. */
#include "backend/cuda/head/argmax_filter.cu"
#include "backend/cuda/head/argmax_filter.h"
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/sample/sample.h"
#include "backend/cuda/value.h"

#include "products.cuh"

#include <algorithm>
#include <string.h>
#include <string>
#include <time.h>
#include <vector>

#include "argmax_filter_cases.cuh"
#include "argmax_filter_masks.cuh"

static cudaStream_t stream;
static unsigned long long n_bad, n_cases;
static constexpr int64_t MAX_OUT = 152064, MAX_IN = 5376, MAX_ROWS = 512, MOST_W = 152064ll * 3584 + 4096,
                         SOME = 32, // tokens looked at in double
    MOST_LISTS = MAX_ROWS * (MAX_OUT / 8 + 4);
static constexpr int64_t SMALL_WORK = 30000000; // products of a small case: its draws would take minutes from PTX

static struct {
    void *w, *x, *copy, *scratch;
    float *logits;
    double *exact;
    bound_counts *c;
    unsigned long long *counts;
    float *best; // of tokens; how many rows reach it
    int *reach;
    dbest *bests;
    drow *rows;
    dsampled *sampled;
    int32_t *row_token, *step_counts, *newest, *lists;
    dplaces *places;
    dfilter_state *state;
    int32_t *asked;
} d;

struct results {
    std::vector<dsampled> sampled;
    std::vector<int32_t> token;
    dfilter_state state;
};

/* Rows of which the best is wanted, or more; of the masks, if there are some, from row `first` on. */
static launch step_of(int n_launched, int n_rows, bool best, const masks *m = nullptr, int first = 0) {
    std::vector<drow> rows(MAX_ROWS);
    int counts[5] = {n_rows, n_rows, n_rows, 0, best ? 0 : n_rows};
    memset(rows.data(), 0, rows.size() * sizeof(drow));
    for (int i = 0; i < MAX_ROWS; i++) {
        drow &r = rows[i];
        r.top_p = r.repetition = 1, r.target = -1;
        r.mask = i < n_rows ? (m ? m->at[first + i] : -1) : 1 << 30; // behind the step's rows nobody looks
        r.is_plain = best && r.mask < 0, r.is_changed = r.mask >= 0;
        counts[3] += i < n_rows && !r.is_plain;
    }
    if (m && !m->words.empty())
        MUST(cudaMemcpy(d.lists, m->words.data(), m->words.size() * 4, cudaMemcpyHostToDevice));
    MUST(cudaMemcpy(d.rows, rows.data(), rows.size() * sizeof(drow), cudaMemcpyHostToDevice));
    MUST(cudaMemcpy(d.step_counts, counts, sizeof counts, cudaMemcpyHostToDevice));
    MUST(cudaMemset(d.sampled, 0xee, MAX_ROWS * sizeof(dsampled)));
    MUST(cudaMemset(d.row_token, 0xee, MAX_ROWS * 4));
    launch l = {};
    l.stream = stream;
    l.n_rows = n_launched;
    l.plan.counts = d.step_counts;
    l.plan.rows = d.rows;
    l.plan.places = d.places;
    l.plan.newest = d.newest;
    return l;
}
static results collect() {
    MUST(cudaStreamSynchronize(stream));
    results r = {std::vector<dsampled>(MAX_ROWS), std::vector<int32_t>(MAX_ROWS), {}};
    MUST(cudaMemcpy(&r.state, d.state, sizeof r.state, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(r.sampled.data(), d.sampled, MAX_ROWS * sizeof(dsampled), cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(r.token.data(), d.row_token, MAX_ROWS * 4, cudaMemcpyDeviceToHost));
    return r;
}

struct problem {
    int out, in, n_launched, n, what;
    element e;
    float cap;
    int64_t x_stride;
    int budget;
    const dl2_sides *sides; // any
    const uint32_t *flips;
    dweight w() const { return {d.w, out, in, e, nullptr}; }
    dmat x(int row = 0) const { return {static_cast<char *>(d.x) + row * x_stride * 2, x_stride, in, e}; }
    dfilter screen() const { return {w(), cap, budget, d.copy, d.scratch, d.state, d.asked, nullptr, sides, flips}; }
};

/* Head and SAMPLE; with done, where that is 0. */
static void put_head(const launch &l, const problem &p, int first, bool plain, const int32_t *done) {
    dlm_head h = {p.w(), nullptr, p.cap};
    dmat logits = {d.logits, p.out, p.out, ELEMENT_F32};
    MUST(launch_lm_head(&l, l.n_rows, &h, p.x(first), logits, d.bests, done));
    launch_sample(&l, logits, plain ? dbests{d.bests, head_parts(&h, l.n_rows), done} : dbests{}, nullptr);
}
static results by_head(const problem &p, bool plain, const masks *m = nullptr) {
    launch l = step_of(p.n_launched, p.n, plain, m);
    put_head(l, p, 0, plain, nullptr);
    return collect();
}
/* As a step has it. Poison comes before the rows of the plan, and nothing is kept of steps before but what `keeps`
 * says. */
static results by_screen(const problem &p, int first, int n_launched, int n, bool best = true, bool keeps = false,
                         const masks *m = nullptr) {
    launch l = step_of(n_launched, n, best, m, first);
    dfilter s = p.screen();
    MUST(cudaMemsetAsync(d.scratch, 0xff, filter_scratch_bytes(p.w(), n_launched), stream));
    if (!keeps)
        MUST(cudaMemsetAsync(d.state, 0, sizeof *d.state, stream));
    MUST(launch_filter(&l, n_launched, &s, p.x(first)));
    put_head(l, p, first, true, &d.state->is_done);
    return collect();
}

static bool say(bool fine, const char *what, unsigned long long n = 0) {
    if (!fine) {
        printf("; %s", what);
        if (n)
            printf(" (%llu)", n);
    }
    return fine;
}

/* Rows of x that are not finite. */
static void spoil(const problem &p, uint64_t seed) {
    uint16_t nan = 0x7fff, inf = p.e == ELEMENT_F16 ? 0x7c00 : 0x7f80;
    for (int i = 0; i < 3; i++) {
        int row = hash(seed + i) % p.n, k = hash(seed + 7 + i) % p.in;
        MUST(cudaMemcpy(static_cast<char *>(d.x) + (row * p.x_stride + k) * 2, i ? &inf : &nan, 2,
                        cudaMemcpyHostToDevice));
    }
}

static bool check_tokens(const problem &p, const results &got, const results &head, const results &plain,
                         const std::vector<double> &logits) {
    unsigned long long other = 0, wrong = 0, flags = 0, stray = 0;
    for (int r = 0; r < MAX_ROWS; r++) {
        const dsampled &s = got.sampled[r];
        if (r >= p.n) {
            stray += s.token != (int)0xeeeeeeee || got.token[r] != (int)0xeeeeeeee;
            continue;
        }
        bool finite = !(head.sampled[r].flags & SAMPLED_NOT_FINITE);
        flags += s.flags != head.sampled[r].flags || s.token != s.argmax || got.token[r] != s.token;
        other += s.token != plain.sampled[r].token ||
                 (finite && s.token != head.sampled[r].token); // of what is not finite lm_head.cu's parts tell
        if (r < SOME && finite) {
            const double *of_row = logits.data() + (int64_t)r * p.out;
            double most = *std::max_element(of_row, of_row + p.out), size = 0;
            for (int i = 0; i < p.out; i++)
                size = std::max(size, fabs(of_row[i]));
            wrong += p.cap == 0 && !(of_row[s.token] >= most - 1e-3 * (size + 1e-3));
        }
    }
    bool fine = say(!stray, "STRAY", stray);
    fine &= say(!flags, "FLAGS", flags);
    fine &= say(!wrong, "NOT THE LARGEST", wrong);
    return say(!other, "OTHER TOKENS THAN lm_head.cu", other) && fine;
}

static bool check_rows_alone(const problem &p, const results &got, uint64_t seed) {
    unsigned long long other = 0;
    for (int i = 0; i < 3; i++) {
        int r = hash(seed + 100 + i) % p.n;
        results alone = by_screen(p, r, 1, 1);
        other += alone.token[0] != got.token[r];
    }
    return say(!other, "OTHER TOKENS ALONE", other);
}

/* Steps with rows that are not plain are left to others, as are those that are paused; so are all where they were left
 * too often. */
static bool check_pauses(const problem &p, const results &got) {
    dfilter_state paused = {1, 2};
    results mixed = by_screen(p, 0, p.n_launched, p.n, false);
    bool fine =
        say(!mixed.state.is_done && !mixed.state.n_done && !mixed.state.n_left, "SCREENED ROWS THAT ARE NOT PLAIN");
    MUST(cudaMemcpy(d.state, &paused, sizeof paused, cudaMemcpyHostToDevice));
    for (int i = 0; i < 3; i++) {
        results r = by_screen(p, 0, p.n_launched, p.n, true, true);
        bool tried = r.state.n_done + r.state.n_left > 0;
        fine &= say(tried == (i == 2) && r.token == got.token && (tried || r.state.paused == 1 - i),
                    "NO PAUSE OF TWO STEPS");
    }
    if (got.state.n_left)
        for (int i = 0; i < screen::TOO_OFTEN; i++)
            fine &=
                say((by_screen(p, 0, p.n_launched, p.n, true, i > 0).state.paused > 0) == (i + 1 == screen::TOO_OFTEN),
                    "NO PAUSE AFTER MANY");
    return fine;
}

static bool check_bounds(const problem &p) {
    int n = std::min(p.n, (int)SOME);
    dfilter s = p.screen();
    screen::placing at = {static_cast<char *>(d.scratch), 0};
    screen::scratch scratch = screen::scratch_at(at, p.in, p.n_launched);
    MUST(cudaMemset(d.c, 0, sizeof *d.c));
    dim3 grid((p.out + 7) / 8, n), block(32, 8);
    check_bound<<<grid, block, 0, stream>>>(screen::units_of(&s), screen::rows_of(&s), screen::columns_of(&s), scratch,
                                            d.w, d.x, p.e, p.out, p.in, p.x_stride, d.exact, d.c);
    bound_counts c;
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(&c, d.c, sizeof c, cudaMemcpyDeviceToHost));
    double most;
    memcpy(&most, &c.most, 8);
    double spread = c.n ? sqrt(c.squares / c.n) : 1;
    printf(", errors %.3f of their deviation, at most %.3f of the bound, of %llu", spread, most, c.n);
    bool many = c.n > 200000 && p.what != SPARSE,
         even = many && (outlying(p.what) == 1 || p.in > 3000); // else of few columns, which all rows share
    return say(!c.beyond, "BEYOND THE BOUND", c.beyond) &
           say(!even || (spread > 0.9 && spread < 1.1), "NOT THE ERRORS OF SUCH ROUNDING") &
           say(!many || p.what == WIDE || p.in < 64 || c.beyond_twentieth, "A BOUND THAT NO ERROR IS NEAR");
}

/* What product left of a step without rows that are not finite, and whether as many rows of the head reach some token's
 * best as may be too many for a list, which is some times as long where that best is found late. */
static bool check_lists(const problem &p, bool *may_be_left) {
    dfilter head = p.screen();
    screen::placing at = {static_cast<char *>(d.scratch), 0};
    screen::scratch s = screen::scratch_at(at, p.in, p.n_launched);
    dim3 grid((p.out + 7) / 8, p.n), block(32, 8);
    std::vector<float> best(p.n, -INFINITY), told(p.n);
    std::vector<int> reach(p.n), n_found(p.n);
    std::vector<screen::candidate> found((size_t)p.n * screen::MOST_FOUND);
    unsigned long long untold = 0, lacking = 0;
    MUST(cudaMemcpy(d.best, best.data(), p.n * 4, cudaMemcpyHostToDevice));
    MUST(cudaMemset(d.reach, 0, p.n * 4));
    look_at_all<<<grid, block, 0, stream>>>(screen::units_of(&head), screen::rows_of(&head), s, d.rows, d.lists, p.out,
                                            p.in, d.best, nullptr);
    before_caps<<<1, p.n, 0, stream>>>(s, p.cap, d.best);
    look_at_all<<<grid, block, 0, stream>>>(screen::units_of(&head), screen::rows_of(&head), s, d.rows, d.lists, p.out,
                                            p.in, d.best, d.reach);
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(best.data(), d.best, p.n * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(reach.data(), d.reach, p.n * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(told.data(), s.bests, p.n * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(n_found.data(), s.n_found, p.n * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(found.data(), s.found, found.size() * sizeof found[0], cudaMemcpyDeviceToHost));
    for (int j = 0; j < p.n; j++) {
        const screen::candidate *of = found.data() + (size_t)j * screen::MOST_FOUND;
        untold += told[j] != best[j] && !(p.cap > 0 && fabsf(told[j] - best[j]) <= 1e-5f * fabsf(best[j]));
        lacking += n_found[j] <= screen::MOST_FOUND &&
                   std::count_if(of, of + n_found[j], [&](const screen::candidate &c) { return c.upper >= best[j]; }) !=
                       reach[j];
    }
    int most = *std::max_element(reach.begin(), reach.end());
    printf(", best reached by %d", most);
    *may_be_left = most > screen::MOST_EXACT / 2;
    return say(!untold, "BEST BOUNDS THAT WERE NOT TOLD", untold) & say(!lacking, "LISTS THAT LACK ROWS", lacking);
}

/* Steps that are left have their columns watched and ask for a copy with better scales, once a pause; with that they
 * are screened. */
static bool check_learning(const problem &p, const results &got) {
    dfilter s = p.screen();
    unsigned long long other = 0;
    bool asked = false, may_be_left = false;
    results r;
    *d.asked = 0;
    for (int i = 0; i < screen::TOO_OFTEN + screen::WATCHED && !asked; i++) {
        r = by_screen(p, 0, p.n_launched, p.n, true, i > 0);
        other += r.token != got.token;
        asked = *d.asked;
    }
    bool fine = say(asked == (r.state.n_left == screen::TOO_OFTEN), "ASKED WITHOUT A REASON, OR NOT");
    if (asked) {
        launch_filter_again(stream, &s);
        r = by_screen(p, 0, p.n_launched, p.n, true, true);
        printf(", learned: %s", r.state.n_done ? "done" : r.state.n_again ? "left" : "not worth a copy");
        fine &=
            say(r.state.n_again == 0 || (r.state.n_done + r.state.n_left == screen::TOO_OFTEN + 1), "NOT TRIED AGAIN");
        fine &= say(r.state.n_again == 1 || r.state.paused == screen::PAUSE - screen::WATCHED - 1, "NO PAUSE GOES ON");
        fine &= check_bounds(p);
        if (r.state.n_again)
            fine &= check_lists(p, &may_be_left);
        other += r.token != got.token;
    }
    bool is_helped = p.in >= 1000 && (p.what == OUTLIERS || p.what == FAR || p.what == FARTHER || p.what == COLUMNS);
    return say(!other, "OTHER TOKENS WHILE LEARNING", other) &
           say(!is_helped || r.state.n_done || (r.state.n_again && may_be_left), "NOT LEARNED") & fine;
}

/* Of a step with masks: the tokens and flags that SAMPLE has from all logits, by itself and of rows alone, and lists. A
 * row without any token is left to it. */
static bool check_masks(const problem &p, const results &plain, uint64_t seed) {
    std::vector<int> best(p.n);
    unsigned long long other = 0;
    bool may_be_left, is_normal = (p.what == NORMAL || p.what == PEAKED) && p.in >= 500;
    for (int r = 0; r < p.n; r++)
        best[r] = plain.token[r];
    masks m = some_masks(p.n, p.out, best.data(), seed);
    if (m.words.size() * 4 > MOST_LISTS)
        return true;
    results want = by_head(p, false, &m), got = by_screen(p, 0, p.n_launched, p.n, true, false, &m);
    printf(", masks: %s", got.state.n_done ? "done" : "left");
    bool fine = check_lists(p, &may_be_left) & say(!is_normal || got.state.n_done, "LEFT");
    for (int r = 0; r < p.n; r++)
        other += got.token[r] != want.token[r] || got.sampled[r].flags || want.sampled[r].flags;
    for (int i = 0; i < 3; i++) {
        int r = hash(seed + 200 + i) % p.n;
        other += by_screen(p, r, 1, 1, true, false, &m).token[0] != want.token[r];
    }
    for (int r = 0; r < p.n; r++)
        if (m.at[r] >= 0) {
            std::fill_n(m.words.begin() + m.at[r], m.n_words, 0);
            results nothing = by_screen(p, 0, p.n_launched, p.n, true, false, &m);
            fine &= say(nothing.state.n_left && nothing.sampled[r].flags == SAMPLED_NOTHING_LEFT, "SOMETHING LEFT");
            break;
        }
    return say(!other, "OTHER TOKENS OF MASKS", other) & fine;
}

static bool check_bits(const problem &p) {
    MUST(cudaMemset(d.counts, 0, 16));
    auto kernel = p.e == ELEMENT_BF16 ? compare_bits<true> : compare_bits<false>;
    int shared = screen::exact_logits<true>::RING;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    screen::ending e = {{}, {}, p.x(), static_cast<char *>(d.w), p.in, 0, p.cap, nullptr};
    kernel<<<dim3(64, std::min(p.n, 16)), screen::CHOICE_THREADS, shared, stream>>>(e, p.out, d.logits, d.counts);
    unsigned long long c[2];
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(c, d.counts, 16, cudaMemcpyDeviceToHost));
    return say(c[0] == 0, "LOGITS OF OTHER BITS", c[0]) & say(c[1] > 0, "NO LOGITS");
}

static void check(int out, int in, int n, int n_launched, int what, element e, float cap, uint64_t seed, bool spoilt) {
    uint32_t flips[screen::MOST_PAGES / 32];
    dl2_sides sides = {};
    for (int i = 0; i < screen::MOST_PAGES / 32; i++)
        flips[i] = (uint32_t)hash(seed + 1000 + i);
    sides.hash = (uint32_t)hash(seed + 3000);
    for (int i = 0; i < SIDES_MOST_SMS / 32; i++)
        sides.sm[i] = (uint32_t)hash(seed + 2000 + i) | (seed % 4 == 0 ? ~0u : 0); // all of one side too
    problem p = {
        out, in, n_launched, n, what, e, cap, in + 8 * (int64_t)(seed % 3), 0, seed % 4 == 1 ? nullptr : &sides, flips};
    printf("%d x %d, %d rows of %d, %s %s%s%s", out, in, n, n_launched, e == ELEMENT_BF16 ? "bf16" : "f16", KINDS[what],
           cap > 0 ? ", cap" : "", spoilt ? ", spoilt" : "");
    fflush(stdout);
    n_cases++;
    MUST(cudaMemset(d.x, 0xff, MAX_ROWS * (MAX_IN + 16) * 2)); // NaN beyond the rows
    make_x<<<512, 256, 0, stream>>>(d.x, e, n, in, p.x_stride, what, seed);
    make_w<<<4096, 256, 0, stream>>>(d.w, e, out, in, d.x, p.x_stride, n, what, seed + 1);
    MUST(cudaStreamSynchronize(stream));
    if (spoilt)
        spoil(p, seed);
    dlm_head h = {p.w(), nullptr, cap};
    if (!filter_takes(&h, p.x(), n_launched) || filter_copy_bytes(p.w()) > MOST_W + (8 << 20)) {
        printf(": REFUSED\n");
        n_bad++;
        return;
    }
    MUST(cudaMemset(d.copy, 0x80, filter_copy_bytes(p.w())));
    MUST(cudaMemset(d.counts, 0, 8));
    dfilter s = p.screen();
    launch_filter_copy(stream, &s, d.counts);
    unsigned long long not_finite;
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(&not_finite, d.counts, 8, cudaMemcpyDeviceToHost));
    bool fine = say(!not_finite, "NOT FINITE WEIGHTS", not_finite);

    results plain = by_head(p, true), head = by_head(p, false), got = by_screen(p, 0, n_launched, n);
    int some = std::min(n, (int)SOME), n_left = (int)got.state.n_left;
    exact_logits<<<dim3((out + 7) / 8, some), dim3(32, 8), 0, stream>>>(d.w, d.x, e, out, in, p.x_stride, d.exact);
    std::vector<double> exact((int64_t)some * out);
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(exact.data(), d.exact, exact.size() * 8, cudaMemcpyDeviceToHost));
    fine &= check_tokens(p, got, head, plain, exact);
    bool may_be_left;
    if (!spoilt)
        fine &= check_bounds(p) & check_lists(p, &may_be_left) & check_bits(p);
    if (!spoilt)
        fine &= check_masks(p, plain, seed);
    results again = by_screen(p, 0, n_launched, n);
    fine &= say(again.token == got.token, "ANOTHER TIME OTHER TOKENS");
    fine &= check_rows_alone(p, got, seed);
    fine &= say(got.state.n_left + got.state.n_done == 1 && got.state.is_done == (int)got.state.n_done,
                "NEITHER DONE NOR LEFT");
    if (spoilt && got.sampled[0].flags)
        fine &= say(n_left > 0, "DONE IN SPITE OF ALL");
    if ((what == NORMAL || what == PEAKED) && in >= 500 && !spoilt)
        fine &= say(n_left == 0, "LEFT");
    fine &= check_pauses(p, got);
    if (!spoilt)
        fine &= check_learning(p, got);
    if (what == NORMAL && in >= 500 && out >= 5000 && n >= 30 && !spoilt) {
        p.budget = 1; // some row has two that may win
        results left = by_screen(p, 0, n_launched, n);
        fine &= say(left.state.n_left == 1 && left.token == got.token, "DONE WITHOUT A BUDGET");
    }
    n_bad += !fine;
    printf(fine ? ", %s\n" : ", %s: WRONG\n", n_left ? "left" : "done");
    fflush(stdout);
}

static void open_memory() {
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMalloc(&d.w, MOST_W * 2));
    MUST(cudaMalloc(&d.copy, MOST_W + (8 << 20)));
    MUST(cudaMalloc(&d.x, MAX_ROWS * (MAX_IN + 16) * 2));
    dweight most = {nullptr, MAX_OUT, MAX_IN, ELEMENT_F16, nullptr};
    MUST(cudaMalloc(&d.scratch, filter_scratch_bytes(most, MAX_ROWS)));
    MUST(cudaMalloc(&d.logits, MAX_ROWS * MAX_OUT * 4));
    MUST(cudaMalloc(&d.exact, SOME * MAX_OUT * 8));
    MUST(cudaMalloc(&d.c, sizeof *d.c));
    MUST(cudaMalloc(&d.counts, 16));
    MUST(cudaMalloc(&d.best, MAX_ROWS * 4));
    MUST(cudaMalloc(&d.reach, MAX_ROWS * 4));
    MUST(cudaMalloc(&d.bests, HEAD_MAX_ROWS * HEAD_BESTS * sizeof(dbest)));
    MUST(cudaMalloc(&d.rows, MAX_ROWS * sizeof(drow)));
    MUST(cudaMalloc(&d.sampled, MAX_ROWS * sizeof(dsampled)));
    MUST(cudaMalloc(&d.row_token, MAX_ROWS * 4));
    MUST(cudaMalloc(&d.step_counts, 20));
    MUST(cudaMalloc(&d.newest, MAX_ROWS * 4));
    MUST(cudaMemset(d.newest, 0xff, MAX_ROWS * 4));
    MUST(cudaMalloc(&d.lists, MOST_LISTS));
    MUST(cudaMalloc(&d.state, sizeof *d.state));
    MUST(cudaMallocHost(&d.asked, sizeof *d.asked));
    MUST(cudaMalloc(&d.places, sizeof *d.places));
    dplaces places = {d.lists, d.sampled, nullptr, nullptr, d.row_token};
    MUST(cudaMemcpy(d.places, &places, sizeof places, cudaMemcpyHostToDevice));
}

int main(int argc, char **argv) {
    const char *given = argc > 1 && strcmp(argv[1], "-") ? argv[1] : getenv("GYRE_TEST_SEED");
    uint64_t seed = given ? strtoull(given, nullptr, 10) : (uint64_t)time(nullptr);
    int n_random = argc > 2 ? atoi(argv[2]) : 60;
    printf("seed %llu\n", (unsigned long long)seed);
    open_memory();
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    check(1, 8, 1, 1, NORMAL, ELEMENT_F16, 0, seed++, false);
    check(5000, 512, 7, 8, NORMAL, ELEMENT_F16, 0, seed++, true);
    bool small = argc > 3; // for a sanitizer
    for (int n : small ? std::vector<int>{} : std::vector<int>{1, 33, 128, 200, 256, 512})
        check(152064, 3584, n, n,
              n == 33    ? FARTHER
              : n == 200 ? OUTLIERS
              : n == 256 ? PEAKED
                         : NORMAL,
              n % 3 ? ELEMENT_F16 : ELEMENT_BF16, 0, seed++, false);
    for (int what = 0; what < N_KINDS && !small; what++)
        check(20011, 1000 + 8 * what, 77, 80, what, what % 2 ? ELEMENT_F16 : ELEMENT_BF16, what == CLOSE ? 3.0f : 0,
              seed++, false);
    for (int i = 0; i < n_random; i++) {
        int out = 1 + random(i % 4 || small ? 3000 : 60000), in = 8 * (1 + random(i % 4 ? 80 : 600));
        int most = small ? (int)std::min<int64_t>(MAX_ROWS, 1 + SMALL_WORK / ((int64_t)out * in)) : MAX_ROWS;
        int n = 1 + random(std::min(i % 3 ? 70 : (int)MAX_ROWS, most));
        int launched = std::min(n + random(9), (int)MAX_ROWS);
        int what = random(N_KINDS);
        element e = random(2) ? ELEMENT_F16 : ELEMENT_BF16;
        float cap = random(4) ? 0 : 30.0f;
        check(out, in, n, launched, what, e, cap, seed++, random(5) == 0);
    }
    printf(n_bad ? "%llu of %llu CASES FAILED\n" : "all fine\n", n_bad, n_cases);
    return n_bad != 0;
}
