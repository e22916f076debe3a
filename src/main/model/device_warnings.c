/* device_warnings.c - see device_warnings.h. */
#include "main/model/device_warnings.h"

#include "engine/inspect.h"

void device_warnings_print(const struct device_report *reports, int n, uint32_t *told, FILE *out) {
    for (int i = 0; i < n; i++) {
        const struct device_report *r = &reports[i];
        if (!r->warning || r->value == 0 || *told >> i & 1)
            continue;
        fprintf(out, "%s (%lld %s)\n", r->warning, (long long)r->value, r->unit);
        *told |= (uint32_t)1 << i;
    }
}
_Static_assert(MAX_DEVICE_REPORTS <= 32, "a bit each");

void device_warnings_of(const struct gyre *g) {
    struct device_report reports[MAX_DEVICE_REPORTS];
    uint32_t told = 0;
    if (!g)
        return;
    struct engine_parts e = engine_parts(g);
    device_warnings_print(reports, e.ops->report(e.exe, reports), &told, stderr);
}
