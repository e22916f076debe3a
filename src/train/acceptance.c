/* acceptance.c - see acceptance.h. */
#include "train/acceptance.h"

void acceptance_add(struct acceptance *a, const int32_t *ids, int64_t prompt, int64_t n_made,
                    int32_t (*guess)(const void *context, int i, int64_t row), const void *context) {
    double made_all = a->mean_length * (double)a->n_steps;
    for (int64_t made = 1; made < ACCEPTANCE_TOKENS && made + ACCEPTANCE_GUESSES <= n_made;) {
        int64_t newest = prompt + made - 1; // its row is not there yet: the last row joins the one before with it
        int n = 0;
        for (; n < ACCEPTANCE_GUESSES; n++) {
            bool is_right = guess(context, n, newest - 1 + n) == ids[newest + 1 + n];
            a->n_reached[n]++;
            a->n_right[n] += is_right;
            if (!is_right)
                break;
        }
        made += n + 1;
        made_all += n + 1;
        a->n_steps++;
    }
    a->mean_length = a->n_steps ? made_all / (double)a->n_steps : 0;
}
