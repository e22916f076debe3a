/* completion.c - completion scripts for bash, zsh and fish, written from the verbs' flag tables.
 *
 * The scripts know verbs, flags and the values of a choice; anything else completes as a file name, which
 * is what models, prompts and requests are. */
#include "main/flags/help.h"
#include "main/verbs.h"

#include <string.h>

/* Text within '...' of a shell. In zsh's _arguments brackets and colons would also end a description. */
static void put_quoted(const char *text, FILE *out) {
    for (const char *p = text; *p; p++) {
        if (*p == '\'')
            fputs("'\\''", out);
        else if (strchr("[]:\\", *p))
            fputc(' ', out);
        else
            fputc(*p, out);
    }
}

static void put_choices(const struct flag *f, FILE *out) {
    for (const char *p = f->metavar; *p; p++)
        fputc(*p == '|' ? ' ' : *p, out);
}

/* "serve" of "bench serve"; NULL for a verb of one word. */
static const char *second_word(const struct verb_spec *verb) {
    const char *blank = strchr(verb->name, ' ');
    return blank ? blank + 1 : NULL;
}

// ---- bash -----------------------------------------------------------------------------------------------------------

static void bash_verb(const struct verb_spec *verb, FILE *out) {
    fprintf(out, "    '%s') flags=\"--help", verb->name);
    for (size_t i = 0; i < verb->n_flags; i++) {
        fprintf(out, " --%s", verb->flags[i].name);
        if (verb->flags[i].kind == FLAG_BOOL)
            fprintf(out, " --no-%s", verb->flags[i].name);
    }
    fputs("\"\n        case $before in\n", out);
    for (size_t i = 0; i < verb->n_flags; i++)
        if (verb->flags[i].kind == FLAG_CHOICE) {
            fprintf(out, "        --%s) values=\"", verb->flags[i].name);
            put_choices(&verb->flags[i], out);
            fputs("\" ;;\n", out);
        }
    fputs("        esac ;;\n", out);
}

void completion_bash(FILE *out) {
    fputs("# bash completion for gyre; made by: gyre help --format bash\n"
          "_gyre() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} flags=\"\" values=\"\"\n"
          "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
          "        COMPREPLY=($(compgen -W \"",
          out);
    for (size_t i = 0; i < n_verbs; i++)
        if (!second_word(verbs[i]))
            fprintf(out, "%s%s", i ? " " : "", verbs[i]->name);
    fputs("\" -- \"$word\"))\n"
          "        return\n"
          "    fi\n"
          "    local verb=${COMP_WORDS[1]} more=\"\"\n"
          "    case \"$verb ${COMP_WORDS[2]}\" in\n",
          out);
    for (size_t i = 0; i < n_verbs; i++)
        if (second_word(verbs[i]))
            fprintf(out, "    '%s') verb='%s' ;;\n", verbs[i]->name, verbs[i]->name);
    fputs("    esac\n    case $COMP_CWORD$verb in\n", out);
    for (size_t i = 0; i < n_verbs; i++)
        if (second_word(verbs[i]))
            fprintf(out, "    2%.*s) more=\"$more %s\" ;;&\n", (int)strcspn(verbs[i]->name, " "), verbs[i]->name,
                    second_word(verbs[i]));
    fputs("    esac\n    case $verb in\n", out);
    for (size_t i = 0; i < n_verbs; i++)
        bash_verb(verbs[i], out);
    fputs("    esac\n"
          "    if [ -n \"$values\" ]; then\n"
          "        COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
          "    elif [[ $word == -* ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
          "    else\n"
          "        COMPREPLY=($(compgen -W \"$more\" -- \"$word\") $(compgen -f -- \"$word\"))\n"
          "    fi\n"
          "}\n"
          "complete -o filenames -F _gyre gyre\n",
          out);
}

// ---- zsh ------------------------------------------------------------------------------------------------------------

static void zsh_flag(const struct flag *f, const char *prefix, FILE *out) {
    fprintf(out, "                '%s--%s%s[", f->kind == FLAG_LIST ? "*" : "", prefix, f->name);
    put_quoted(f->help, out);
    fputc(']', out);
    if (f->kind == FLAG_CHOICE) {
        fprintf(out, ":%s:(", f->name);
        put_choices(f, out);
        fputc(')', out);
    } else if (f->kind != FLAG_BOOL) {
        fprintf(out, ":%s:_files", f->name);
    }
    fputs("' \\\n", out);
}

void completion_zsh(FILE *out) {
    fputs("#compdef gyre\n"
          "# zsh completion for gyre; made by: gyre help --format zsh\n"
          "_gyre() {\n"
          "    if (( CURRENT == 2 )); then\n"
          "        local -a verbs=(\n",
          out);
    for (size_t i = 0; i < n_verbs; i++) {
        if (second_word(verbs[i]))
            continue;
        fprintf(out, "            '%s:", verbs[i]->name);
        put_quoted(verbs[i]->summary, out);
        fputs("'\n", out);
    }
    fputs("        )\n"
          "        _describe verb verbs\n"
          "        return\n"
          "    fi\n"
          "    local verb=$words[2]\n"
          "    case \"$verb $words[3]\" in\n",
          out);
    for (size_t i = 0; i < n_verbs; i++)
        if (second_word(verbs[i]))
            fprintf(out, "        '%s') verb='%s'; shift words; (( CURRENT-- )) ;;\n", verbs[i]->name, verbs[i]->name);
    fputs("    esac\n"
          "    shift words\n"
          "    (( CURRENT-- ))\n"
          "    case $verb in\n",
          out);
    for (size_t i = 0; i < n_verbs; i++) {
        fprintf(out, "        '%s')\n            _arguments \\\n", verbs[i]->name);
        for (size_t k = 0; k < verbs[i]->n_flags; k++) {
            zsh_flag(&verbs[i]->flags[k], "", out);
            if (verbs[i]->flags[k].kind == FLAG_BOOL)
                zsh_flag(&verbs[i]->flags[k], "no-", out);
        }
        fputs("                '--help[lists the flags]' \\\n                '*:file:_files' ;;\n", out);
    }
    fputs("    esac\n"
          "}\n"
          "_gyre \"$@\"\n",
          out);
}

// ---- fish -----------------------------------------------------------------------------------------------------------

static void fish_flag(const struct verb_spec *verb, const struct flag *f, const char *prefix, FILE *out) {
    const char *second = second_word(verb);
    fprintf(out, "complete -c gyre -n '__fish_seen_subcommand_from %.*s%s%s' -l %s%s", (int)strcspn(verb->name, " "),
            verb->name, second ? "; and __fish_seen_subcommand_from " : "", second ? second : "", prefix, f->name);
    if (f->short_name && !*prefix)
        fprintf(out, " -s %c", f->short_name);
    if (f->kind == FLAG_CHOICE) {
        fputs(" -x -a '", out);
        put_choices(f, out);
        fputc('\'', out);
    } else if (f->kind != FLAG_BOOL) {
        fputs(" -r", out);
    }
    fputs(" -d '", out);
    for (const char *p = f->help; *p; p++) // fish wants \' where the other shells want '\''
        fprintf(out, *p == '\'' || *p == '\\' ? "\\%c" : "%c", *p);
    fputs("'\n", out);
}

void completion_fish(FILE *out) {
    fputs("# fish completion for gyre; made by: gyre help --format fish\n", out);
    for (size_t i = 0; i < n_verbs; i++) {
        const struct verb_spec *verb = verbs[i];
        if (second_word(verb))
            fprintf(out, "complete -c gyre -f -n '__fish_seen_subcommand_from %.*s' -a %s -d '",
                    (int)strcspn(verb->name, " "), verb->name, second_word(verb));
        else
            fprintf(out, "complete -c gyre -f -n __fish_use_subcommand -a %s -d '", verb->name);
        put_quoted(verb->summary, out);
        fputs("'\n", out);
        for (size_t k = 0; k < verb->n_flags; k++) {
            fish_flag(verb, &verb->flags[k], "", out);
            if (verb->flags[k].kind == FLAG_BOOL)
                fish_flag(verb, &verb->flags[k], "no-", out);
        }
    }
}
