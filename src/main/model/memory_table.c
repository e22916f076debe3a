/* memory_table.c - see memory_table.h. */
#include "main/model/memory_table.h"

#include "console/terminal.h"
#include "engine/inspect.h"
#include "engine/memory_plan.h"

static void print_part(const struct memory_part *p, FILE *out) {
    fprintf(out, "  %-34s", p->what);
    if (p->n > 1)
        fprintf(out, " %8lld x %-10s", (long long)p->n, human_bytes((double)p->each).text);
    else
        fprintf(out, " %21s", "");
    fprintf(out, " %10s\n", human_bytes((double)p->n * (double)p->each).text);
}

void memory_table_print(const struct gyre *g, FILE *out) {
    const struct gyre_info *info = gyre_info(g);
    struct memory_plan plan;
    memory_plan(g, &plan);
    fprintf(out, "memory, cache in blocks of %d tokens:\n", info->block_size);
    for (int i = 0; i < plan.n_parts; i++)
        print_part(&plan.parts[i], out);
    fprintf(out, "  %-56s %10s", "total", human_bytes((double)plan.total).text);
    if (plan.machine)
        fprintf(out, " of %s%s", human_bytes((double)plan.machine).text,
                plan.total > plan.machine ? ": MORE THAN THERE IS" : "");
    if (plan.taken)
        fprintf(out, ", %s of which are taken by now", human_bytes((double)plan.taken).text);
    fputc('\n', out);
    if (info->max_model_len < info->model_max_len)
        fprintf(out, "context: %lld of the model's %lld tokens; see --max-model-len and --kv-cache-memory\n",
                (long long)info->max_model_len, (long long)info->model_max_len);
    struct engine_parts e = engine_parts(g);
    if (program_rope_depends_on_length(e.program))
        fprintf(out, "prefix cache: none, as this model turns keys by how long their text is\n");
    char warning[320];
    for (int i = 0; e.ops->warning && e.ops->warning(e.exe, i, warning, sizeof warning); i++)
        fprintf(out, "device: %s\n", warning);
}
