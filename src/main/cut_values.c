/* cut_values.c - see cut_values.h. */
#include "main/cut_values.h"

#include "engine/engine.h"

void cut_values_tell(int64_t n_rows, int64_t n_steps, FILE *out) {
    if (n_rows > 0)
        fprintf(
            out,
            "float16 cut values beyond 65504 in %lld row%s of what products read, in %lld step%s that %s looked at: answers may not be the "
            "checkpoint's; --dtype bfloat16 has the range\n",
            (long long)n_rows, n_rows == 1 ? "" : "s", (long long)n_steps, n_steps == 1 ? "" : "s", n_steps == 1 ? "was" : "were");
}

void cut_values_tell_of(const struct gyre *g) {
    struct device_counts c;
    if (!g || !g->ops->counts)
        return;
    g->ops->counts(g->backend, &c);
    cut_values_tell(c.n_rows_cut, c.n_watched, stderr);
}
