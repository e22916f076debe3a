/* pull.c - gyre pull NAME: brings a model of the hub into its cache. */
#include "console/terminal.h"
#include "main/model/model_pull.h"
#include "main/verbs.h"

#include <stdio.h>

static enum status pull(const char *text, struct error *err) {
    struct hub_name name;
    struct hub_report report;
    char path[FOLDER_PATH_BYTES];
    if (!hub_name_read(text, &name))
        return fail(err, ERR_ARG, "%s: is no name of the hub, which is ORG/NAME[:QUANT][@REVISION]", text);
    if (hub_is_offline())
        return fail(err, ERR_ARG, "%s: HF_HUB_OFFLINE is set, and forbids to ask the hub", text);
    TRY(model_pull(&name, &report, path, err));
    fprintf(stderr, "%s at %.8s: %zu files, %s, %s fetched\n", name.repo, report.commit, report.n_files,
            human_bytes((double)report.n_bytes).text,
            report.n_fetched ? human_bytes((double)report.n_fetched).text : "nothing had to be");
    printf("%s\n", path);
    return OK;
}

static int run(const struct verb_args *args) {
    struct error err;
    return pull(args->operands[0], &err) == OK ? 0 : verb_failed(&err);
}

const struct verb_spec verb_pull = {
    "pull",
    "NAME",
    "brings a model of the hub into its cache, and prints where it is",
    NULL,
    0,
    1,
    1,
    .run = run,
    .epilogue =
        "NAME is ORG/NAME[:QUANT][@REVISION], or the address of the model's page. Weights (safetensors, or the GGUF\n"
        "file of that type), settings and tokenizer are fetched, and never code; every file is checked. What was "
        "broken\n"
        "off goes on. Read from the environment: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.\n"
        "  gyre pull Qwen/Qwen3-0.6B\n"
        "  gyre pull unsloth/Qwen3-0.6B-GGUF:Q4_K_M\n"
        "  gyre run Qwen/Qwen3-0.6B          pulls, too, what is not here\n"};
