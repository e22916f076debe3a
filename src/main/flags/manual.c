/* manual.c - the manual page gyre(1), written from the verbs' flag tables. */
#include "main/flags/flag_help.h"
#include "main/flags/help.h"
#include "main/verbs.h"

#include <string.h>

/* Text for roff: a backslash or minus would be read as something else, and so would a dot that begins a line. */
static void put_text(const char *text, FILE *out) {
    bool line_begins = true;
    for (const char *p = text; *p; p++) {
        if (line_begins && (*p == '.' || *p == '\''))
            fputs("\\&", out);
        if (*p == '\\')
            fputs("\\e", out);
        else if (*p == '-')
            fputs("\\-", out);
        else
            fputc(*p, out);
        line_begins = *p == '\n';
    }
}

static void put_flag(const struct flag *f, FILE *out) {
    char name[128], limits[256];
    help_flag_name(f, name, sizeof name);
    help_flag_limits(f, limits, sizeof limits);
    fputs(".TP\n.B ", out);
    put_text(name + strspn(name, " "), out);
    fputc('\n', out);
    put_text(f->help, out);
    if (limits[0]) {
        fputc(' ', out);
        put_text(limits, out);
    }
    fputc('\n', out);
}

static void put_verb(const struct verb_spec *verb, FILE *out) {
    fprintf(out, ".SS gyre %s %s\n", verb->name, verb->operands);
    put_text(verb->summary, out);
    fputs(".\n", out);
    const char *topics[HELP_MAX_TOPICS];
    size_t n = help_topics(verb, topics);
    for (size_t t = 0; t < n; t++) {
        fprintf(out, ".PP\n.I %s\n", topics[t]);
        for (size_t i = 0; i < verb->n_flags; i++)
            if (strcmp(verb->flags[i].topic, topics[t]) == 0)
                put_flag(&verb->flags[i], out);
    }
    if (verb->epilogue) {
        fputs(".PP\n.nf\n", out);
        put_text(verb->epilogue, out);
        fputs("\n.fi\n", out);
    }
}

void manual_page(FILE *out) {
    fputs(".TH GYRE 1 \"\" \"gyre " GYRE_VERSION "\" \"User commands\"\n"
          ".SH NAME\n"
          "gyre \\- runs large language models from Hugging Face folders\n"
          ".SH SYNOPSIS\n"
          ".B gyre\n"
          ".I VERB\n"
          "[ARGUMENTS] [FLAGS]\n"
          ".SH DESCRIPTION\n"
          "gyre loads a checkpoint, records the model's forward pass as a flat program, compiles it for a backend and\n"
          "generates text. MODEL is a folder with config.json, safetensors files and tokenizer.json.\n"
          ".PP\n"
          "Flags and arguments may come in any order; \\-\\- ends the flags. A value follows its flag or is joined to "
          "it\n"
          "with =. Numbers may be written as 32k or 4M, sizes as 16GiB.\n"
          ".SH VERBS\n",
          out);
    for (size_t i = 0; i < n_verbs; i++)
        put_verb(verbs[i], out);
    fputs(
        ".SH EXIT STATUS\n"
        "0 on success, 1 on a fault of input or environment (one sentence on standard error names the file and the\n"
        "field), 2 on misuse of the command line.\n"
        ".SH ENVIRONMENT\n"
        "Every flag can be set by a variable: \\-\\-some\\-flag by GYRE_SOME_FLAG. The command line wins. Colours are\n"
        "not used when NO_COLOR is set. GYRE_PLUGINS is the folder of libgyre\\-cuda.so, which is otherwise looked for "
        "beside the command\n"
        "and in ../lib/gyre from there. GYRE_HISTORY is the file that conversations remember lines in, otherwise "
        "~/.gyre_history; set\n"
        "empty, none is. Timed plans for a GPU are kept in $XDG_CACHE_HOME/gyre, otherwise ~/.cache/gyre.\n",
        out);
}
