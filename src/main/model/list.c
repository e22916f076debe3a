/* list.c - gyre list: the models of the hub's cache. */
#include "console/terminal.h"
#include "main/model/model_pull.h"
#include "main/verbs.h"

#include <stdio.h>
#include <time.h>

static struct { bool json; } opt;

static const struct flag flags[] = {
    {"json", 0, FLAG_BOOL, &opt.json, NULL, "Output", "JSON lines"},
};

static bool print_json(const struct hub_entry *e) {
    json_t *line =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:b}", "name", e->repo, "revision", e->revision, "path", e->path, "bytes",
                  (json_int_t)e->n_bytes, "changed", (json_int_t)e->used, "whole", e->whole);
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    if (text)
        printf("%s\n", text);
    free(text);
    json_decref(line);
    return true;
}

static bool print_row(void *n, const struct hub_entry *e) {
    char when[32] = "";
    time_t changed = (time_t)e->used;
    struct tm tm;
    if (opt.json)
        return print_json(e);
    if ((*(int *)n)++ == 0)
        printf("%s%-44s %-12s %10s  %s%s\n", terminal_style(stdout, STYLE_DIM), "name", "revision", "size", "changed",
               terminal_style(stdout, STYLE_NONE));
    if (localtime_r(&changed, &tm))
        strftime(when, sizeof when, "%Y-%m-%d", &tm);
    terminal_print(stdout, str_of(e->repo));
    printf("%*s ", (int)MAX(0, 44 - (int)strlen(e->repo)), "");
    terminal_print(stdout, str_of(e->revision));
    printf("%*s %10s  %s%s\n", (int)MAX(0, 12 - (int)strlen(e->revision)), "", human_bytes((double)e->n_bytes).text,
           e->used ? when : "", e->whole ? "" : "  a part of a model");
    return true;
}

static int run(const struct verb_args *args) {
    struct error err;
    int n = 0;
    (void)args;
    if (hub_cache_each(print_row, &n, &err) != OK)
        return verb_failed(&err);
    if (n == 0 && !opt.json)
        fprintf(stderr, "no model of the hub is here; gyre pull ORG/NAME brings one\n");
    return 0;
}

const struct verb_spec verb_list = {
    "list",
    "",
    "lists the models of the hub that are in its cache",
    flags,
    ARRAY_LEN(flags),
    0,
    0,
    .run = run,
    .epilogue = "gyre pull brings them, gyre rm removes them; run, serve and the other verbs take their names.\n"};
