/* test_text_places.c - whose text is where in a draft's cache, and in which of its tokens: under random schedules, of
 * more texts than places and blocks for a few of them. After each step the draft's tokens have the bytes of the text,
 * rows that count as there are of those tokens, and each block is of one place or free.
 *
 * Not in make test-fast: long schedules. */
#include "check.h"
#include "engine/draft/text_drafter_parts.h"

#include "base/random.h"

#include <stdlib.h>
#include <string.h>

enum { N_REQUESTS = 9, N_PLACES = 4, LONGEST = 900, BLOCK = 8, N_BLOCKS = 260, N_STEPS = 20000, MOST_WORDS = 64 };

static uint64_t n_drawn;
static int below(int n) { return (int)(philox_uniform(test_seed(), n_drawn++, 0) * (double)n); }

struct words {
    char bytes[2048];
    uint32_t start[MOST_WORDS + 1];
    struct gyre_token_bytes view;
};

static void add(struct words *w, const char *bytes, int n) {
    int32_t i = w->view.n++;
    memcpy(w->bytes + w->start[i], bytes, (size_t)n);
    w->start[i + 1] = w->start[i] + (uint32_t)n;
    w->view.bytes = w->bytes, w->view.start = w->start;
}

/* All letters, special tokens of which the other vocabulary has some, and words. */
static void make_words(struct words *w, const char *specials) {
    *w = (struct words){.view.first = -1};
    for (char c = 'a'; c <= 'd'; c++)
        add(w, &c, 1);
    for (; *specials; specials++)
        add(w, (char[]){(char)0xff, *specials}, 2);
    while (w->view.n < MOST_WORDS - 1) {
        char word[6];
        int n = 1 + below(6);
        for (int k = 0; k < n; k++)
            word[k] = (char)('a' + below(4));
        add(w, word, n);
    }
    add(w, "", 0);
}

struct world {
    struct text_drafter d;
    struct request requests[N_REQUESTS];
    int32_t tokens[N_REQUESTS][2 * LONGEST];
    int32_t rows[N_PLACES][LONGEST]; // the tokens that the rows were computed of
    struct words target, own;
};

/* Of the words that are there. */
static void open_places(struct world *w) {
    struct text_drafter *d = &w->d;
    struct error err;
    EXPECT_OK(token_bytes_init(&d->target, &w->target.view, MOST_WORDS, &err), err);
    EXPECT_OK(token_bytes_init(&d->own, &w->own.view, MOST_WORDS, &err), err);
    d->special = xcalloc(MOST_WORDS, sizeof *d->special);
    for (int32_t i = 0; i < MOST_WORDS; i++)
        d->special[i] = token_is_special(&d->target, i) ? token_find(&d->own, token_at(&d->target, i), 2) : -1;
    d->n_places = N_PLACES, d->longest = LONGEST, d->block_size = BLOCK;
    d->places = xcalloc(N_PLACES, sizeof *d->places);
    d->free_blocks = xcalloc(N_BLOCKS, sizeof *d->free_blocks);
    for (int32_t b = 0; b < N_BLOCKS; b++)
        d->free_blocks[d->n_free++] = b;
    for (int i = 0; i < N_PLACES; i++) {
        d->places[i].ids = xcalloc(LONGEST + MOST_GUESSES, sizeof(int32_t));
        d->places[i].blocks = xcalloc(LONGEST / BLOCK + 1, sizeof(int32_t));
    }
}

static void open_world(struct world *w) {
    memset(w, 0, sizeof *w);
    make_words(&w->target, "xyz");
    make_words(&w->own, "wxy");
    w->own.view.first = below(2) ? 4 : -1; // its "w", which no target says
    open_places(w);
}

static void close_world(struct world *w) {
    token_bytes_release(&w->d.target), token_bytes_release(&w->d.own);
    for (int i = 0; i < N_PLACES; i++)
        free(w->d.places[i].ids), free(w->d.places[i].blocks);
    free(w->d.places), free(w->d.special), free(w->d.free_blocks);
}

/* Another text under another id, or some tokens more. */
static void change(struct world *w, int i) {
    struct request *r = &w->requests[i];
    struct sequence *seq = &r->sequence;
    seq->tokens = w->tokens[i];
    if (seq->n_known == 0 || below(60) == 0) {
        r->id++, r->id += N_REQUESTS - r->id % N_REQUESTS + (uint64_t)i; // of no other
        seq->n_known = 1 + below(below(5) ? 40 : 2 * LONGEST - 100);
        for (int32_t k = 0; k < seq->n_known; k++)
            w->tokens[i][k] = below(MOST_WORDS);
    }
    for (int n = below(6); n > 0 && seq->n_known < 2 * LONGEST; n--)
        w->tokens[i][seq->n_known++] = below(MOST_WORDS);
}

static int bytes_of(const struct token_bytes *t, int32_t id, char *out) {
    memcpy(out, token_length(t, id) ? token_at(t, id) : "", (size_t)token_length(t, id));
    return token_length(t, id);
}

static int text_of(const struct world *w, const struct sequence *seq, char *out) {
    int n = 0;
    for (int32_t k = 0; k < seq->n_known; k++)
        if (!token_is_special(&w->d.target, seq->tokens[k]) || w->d.special[seq->tokens[k]] >= 0)
            n += bytes_of(&w->d.target, seq->tokens[k], out + n);
    return n;
}

static void expect_text(const struct world *w, const struct text_place *t, const struct sequence *seq) {
    static char said[2 * LONGEST * MOST_TOKEN_BYTES], cut[(LONGEST + MOST_GUESSES) * MOST_TOKEN_BYTES];
    bool begins = w->d.own.first >= 0;
    int n = 0;
    EXPECT(!begins || t->ids[0] == w->d.own.first);
    for (int32_t k = begins; k < t->n_ids; k++)
        n += bytes_of(&w->d.own, t->ids[k], cut + n);
    EXPECT_EQ(n, text_of(w, seq, said));
    EXPECT(memcmp(said, cut, (size_t)n) == 0);
}

static void expect_blocks(const struct world *w) {
    bool seen[N_BLOCKS] = {false};
    int n = w->d.n_free;
    for (int32_t b = 0; b < w->d.n_free; b++) {
        EXPECT(!seen[w->d.free_blocks[b]]);
        seen[w->d.free_blocks[b]] = true;
    }
    for (int i = 0; i < N_PLACES; i++)
        for (int32_t b = 0; b < w->d.places[i].n_blocks; b++, n++) {
            EXPECT(!seen[w->d.places[i].blocks[b]]);
            seen[w->d.places[i].blocks[b]] = true;
        }
    EXPECT_EQ(n, N_BLOCKS);
}

/* As a follow does: some rows are computed, and perhaps guesses come behind them. */
static void compute(struct world *w, struct text_place *t, int n_ahead) {
    int32_t *rows = w->rows[t - w->d.places];
    for (int32_t k = 0; k < t->n_rows; k++)
        EXPECT_EQ(rows[k], t->ids[k]);
    int32_t end = below(3) ? t->n_ids : t->n_rows + below(t->n_ids - t->n_rows + 1);
    for (; t->n_rows < end; t->n_rows++)
        rows[t->n_rows] = t->ids[t->n_rows];
    for (int n = below(n_ahead + 1); t->n_rows == t->n_ids && n > 0; n--) {
        t->ids[t->n_ids++] = below(MOST_WORDS - 1);
        if (n > 1)
            rows[t->n_rows] = t->ids[t->n_rows], t->n_rows++;
    }
    EXPECT(t->n_ids <= t->n_blocks * BLOCK);
}

static void places_hold_the_texts_they_should(void **state) {
    (void)state;
    static struct world w;
    int n_held = 0, n_kept = 0, n_refused = 0;
    for (int round = 0; round < 4; round++) {
        open_world(&w);
        for (int step = 0; step < N_STEPS / 4; step++) {
            w.d.n_follows++;
            for (int n = 1 + below(N_PLACES), i = below(N_REQUESTS); n > 0; n--, i = (i + 1) % N_REQUESTS) {
                int n_ahead = 1 + below(5);
                change(&w, i);
                struct text_place *t = text_place_for(&w.d, &w.requests[i], n_ahead);
                expect_blocks(&w);
                n_refused += !t;
                if (!t)
                    continue;
                n_held++, n_kept += t->n_rows > t->n_closed_ids;
                expect_text(&w, t, &w.requests[i].sequence);
                EXPECT(t->used == w.d.n_follows && t->owner == w.requests[i].id);
                compute(&w, t, n_ahead);
            }
        }
        close_world(&w);
    }
    EXPECT(n_held > N_STEPS && n_kept > N_STEPS / 10 && n_refused > 100);
}

/* Few of them fill the bytes that are cut at a time. */
static void tokens_may_be_long(void **state) {
    (void)state;
    enum { N_LONG = 7, N_TOKENS = 180 };
    static const int lengths[][N_LONG] = {{128, 128, 128, 128, 128, 128, 128},
                                          {MOST_TOKEN_BYTES, MOST_TOKEN_BYTES, 255, 254, 250, 200, 192},
                                          {1, 127, 128, 129, MOST_TOKEN_BYTES, MOST_TOKEN_BYTES + 1, 300}};
    static const int longest_piece[] = {64, 128, 64};
    static struct world w;
    char spaces[512];
    memset(spaces, ' ', sizeof spaces);
    for (size_t c = 0; c < ARRAY_LEN(lengths); c++) {
        struct sequence *seq = &w.requests[0].sequence;
        int n_held = 0;
        memset(&w, 0, sizeof w);
        w.target.view.first = w.own.view.first = -1;
        for (int i = 0; i < N_LONG; i++)
            add(&w.target, spaces, lengths[c][i]);
        for (int n = 1; n <= longest_piece[c]; n *= 2) // by which they join
            add(&w.own, spaces, n);
        open_places(&w);
        seq->tokens = w.tokens[0];
        for (int i = 0; i < N_TOKENS; i++)
            w.tokens[0][i] = below(N_LONG);
        for (seq->n_known = 1; seq->n_known <= N_TOKENS; seq->n_known += 1 + below(n_held ? 3 : 120)) {
            struct text_place *t = text_place_for(&w.d, &w.requests[0], 1);
            w.d.n_follows++;
            if (!t)
                continue;
            n_held++;
            expect_text(&w, t, seq);
        }
        EXPECT(n_held > 5);
        close_world(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_hold_the_texts_they_should),
        cmocka_unit_test(tokens_may_be_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
