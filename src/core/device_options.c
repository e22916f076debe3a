/* device_options.c - options that one backend alone understands, and what some backends refuse: see backend_types.h. */
#include "core/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The value, if the option has this name; else NULL. */
static const char *value_of(const char *option, const char *name) {
    size_t n = strlen(name);
    return strncmp(option, name, n) == 0 && option[n] == '=' ? option + n + 1 : NULL;
}

const char *device_option(const char *const *own, const char *name) {
    const char *found = NULL;
    for (; own && *own; own++)
        if (value_of(*own, name))
            found = value_of(*own, name);
    return found;
}

bool device_option_is_off(const char *const *own, const char *name) {
    const char *value = device_option(own, name);
    return value && strcmp(value, "0") == 0;
}

bool device_option_is_on(const char *const *own, const char *name) {
    return device_option(own, name) && !device_option_is_off(own, name);
}

enum status device_option_patience(const char *const *own, int *seconds, struct error *err) {
    enum { USUAL = 30, MOST = 86400 };
    const char *said = device_option(own, "patience");
    *seconds = said ? atoi(said) : USUAL;
    if (*seconds < 1 || *seconds > MOST)
        return fail(err, ERR_ARG, "patience: of 1 to %d seconds, not \"%.40s\"", MOST, said);
    return OK;
}

enum status backend_refuse_ranks(const char *name, const struct program *p, struct error *err) {
    return p->n_ranks <= 1
               ? OK
               : fail(err, ERR_UNSUPPORTED, "%s: ALL_REDUCE: device %s does not run rank %d of %d of a model", p->name,
                      name, p->rank, p->n_ranks);
}

static bool is_known(const struct backend_ops *ops, const char *option) {
    for (const struct backend_option *o = ops->options; o && o->name; o++)
        if (value_of(option, o->name))
            return true;
    return false;
}

enum status device_options_check(const struct backend_ops *ops, const char *const *own, struct error *err) {
    for (; own && *own; own++) {
        char all[512] = "none";
        size_t n = 0;
        if (is_known(ops, *own))
            continue;
        for (const struct backend_option *o = ops->options; o && o->name && n < sizeof all; o++)
            n += (size_t)snprintf(all + n, sizeof all - n, "%s%s=%s (%s)", n ? ", " : "", o->name, o->value, o->help);
        return fail(err, ERR_ARG, "device-option: --device %s has no \"%.60s\"; it has: %s", ops->name, *own, all);
    }
    return OK;
}
