/* names.c - see names.h. */
#include "quantize/names.h"

#include "model/gguf/gguf_keys.h"

#include <stdlib.h>

/* Everything before "embed_tokens." in the name of the table. */
static const char *find_prefix(struct arena *arena, const struct bound_list *taken) {
    for (size_t i = 0; i < taken->n; i++) {
        const char *at = strstr(taken->items[i].name, "embed_tokens.");
        if (at)
            return arena_strdup(arena, (struct str){taken->items[i].name, (size_t)(at - taken->items[i].name)});
    }
    return "";
}

void file_names_init(struct file_names *n, const struct model_spec *s, const struct bound_list *taken,
                     struct arena *arena) {
    *n = (struct file_names){s->gguf ? s->gguf : gguf_arch_for(s), find_prefix(arena, taken), arena};
}

const char *file_name(const struct file_names *n, const char *name) {
    size_t length = strlen(n->prefix);
    const char *head = strstr(name, "lm_head."), *usual = name;
    if (head)
        usual = head;
    else if (strncmp(name, n->prefix, length) == 0)
        usual = arena_printf(n->arena, "model.%s", name + length);
    const char *stored = n->arch ? gguf_stored_name(n->arch, usual, n->arena) : usual;
    return stored == usual ? NULL : stored;
}

int expert_of(const char *name) {
    const char *at = strstr(name, ".experts.");
    return at && at[9] >= '0' && at[9] <= '9' ? atoi(at + 9) : -1;
}
