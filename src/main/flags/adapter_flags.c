/* adapter_flags.c - see adapter_flags.h. */
#include "main/flags/adapter_flags.h"

#include "base/json/json.h"

#include <string.h>

static const char flag_name[] = "--lora-modules";

static enum status read_object(const char *text, struct gyre_adapter *out, struct error *err) {
    json_t *object; // as long as the process
    TRY(jv_parse(str_of(text), flag_name, 0, &object, err));
    if (!json_is_object(object))
        return fail(err, ERR_ARG, "%s: it must be NAME=PATH or a JSON object", flag_name);
    TRY(jv_string(object, flag_name, "name", &out->name, err));
    return jv_string(object, flag_name, "path", &out->folder, err);
}

static enum status read_one(const char *text, struct gyre_adapter *out, struct error *err) {
    const char *equals = strchr(text, '=');
    if (text[0] == '{')
        return read_object(text, out, err);
    if (!equals || equals == text || !equals[1])
        return fail(err, ERR_ARG, "%s: \"%.200s\" is not NAME=PATH", flag_name, text);
    char *name = xcalloc((size_t)(equals - text) + 1, 1); // as long as the process
    memcpy(name, text, (size_t)(equals - text));
    out->name = name;
    out->folder = equals + 1;
    return OK;
}

static bool is_among(const char *name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

enum status adapter_flags_read(struct adapter_flags *a, const char *const *taken, size_t n_taken,
                               struct engine_flags *engine, struct error *err) {
    a->all = xcalloc(a->modules.n + 1, sizeof *a->all);
    for (size_t i = 0; i < a->modules.n; i++) {
        TRY(read_one(a->modules.items[i], &a->all[i], err));
        const char *name = a->all[i].name;
        bool again = is_among(name, taken, n_taken);
        for (size_t k = 0; k < i; k++)
            again = again || strcmp(a->all[k].name, name) == 0;
        if (again)
            return fail(err, ERR_ARG, "%s: the name \"%.200s\" is given to two models", flag_name, name);
    }
    engine->adapters = a->all;
    engine->n_adapters = a->modules.n;
    return OK;
}
