/* rm.c - gyre rm NAME: removes a model from the hub's cache. */
#include "console/terminal.h"
#include "main/model/model_pull.h"
#include "main/verbs.h"

#include <stdio.h>

static enum status remove_model(const char *text, struct error *err) {
    struct hub_name name;
    uint64_t n_bytes;
    if (!hub_name_read(text, &name))
        return fail(err, ERR_ARG,
                    "%s: is no name of the hub, which is ORG/NAME[@REVISION]; a folder is yours to remove", text);
    if (*name.quant)
        return fail(err, ERR_ARG, "%s: one type of a model is not removed alone; without :%s all of it goes", text,
                    name.quant);
    TRY(hub_cache_remove(&name, !strchr(text, '@'), &n_bytes, err));
    printf("%s: removed, %s\n", text, human_bytes((double)n_bytes).text);
    return OK;
}

static int run(const struct verb_args *args) {
    struct error err;
    for (size_t i = 0; i < args->n; i++)
        if (remove_model(args->operands[i], &err) != OK)
            return verb_failed(&err);
    return 0;
}

const struct verb_spec verb_rm = {
    "rm",
    "NAME...",
    "removes models from the hub's cache",
    NULL,
    0,
    1,
    64,
    .run = run,
    .epilogue = "With @REVISION only what that revision alone has. The hub's own tools see the same cache.\n"};
