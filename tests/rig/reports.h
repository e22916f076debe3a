/* reports.h - what a device tells of itself (core/backend.h), by name. */
#pragma once

#include "check.h"
#include "core/backend.h"

#include <string.h>

/* Fails the test where there is none of that name. */
static inline int64_t report_of(const struct backend_ops *ops, const struct executable *exe, const char *name) {
    struct device_report all[MAX_DEVICE_REPORTS];
    int n = ops->report(exe, all);
    for (int i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].value;
    fail_msg("%s: there is no report %s", ops->name, name);
    return 0;
}
