/* dialogue.c - see dialogue.h.
 *
 * Lines are edited with libedit and remembered in ~/.gyre_history (or $GYRE_HISTORY). Ctrl-C stops an answer, or clears
 * the line; what was said until then stays in the conversation. */
#include "console/dialogue.h"

#include "base/file.h"
#include "console/interrupt.h"
#include "console/terminal.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { HISTORY_LINES = 1000 };

struct conversation {
    const struct dialogue_model *model;
    json_t *messages;
    char *system;
    bool over;
};

// ---- the conversation -------------------------------------------------------------------------------------------

/* False when the text is not UTF-8, which JSON cannot hold. */
static bool add_message(struct conversation *c, const char *role, struct str content) {
    json_t *text = json_stringn(content.ptr, content.len);
    if (!text)
        return false;
    json_array_append_new(c->messages, json_pack("{s:s, s:o}", "role", role, "content", text));
    return true;
}

static json_t *last_message(const struct conversation *c) {
    return json_array_get(c->messages, json_array_size(c->messages) - 1);
}

static void drop_messages(struct conversation *c, size_t from) {
    while (json_array_size(c->messages) > from)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

static void begin_anew(struct conversation *c) {
    json_array_clear(c->messages);
    if (c->system && !add_message(c, "system", str_of(c->system)))
        fprintf(stderr, "the system message is not UTF-8, and left out\n");
}

// ---- the terminal -----------------------------------------------------------------------------------------------

struct editor {
    EditLine *line;
    History *history;
    char path[4096];
    char *first;  // what stands before a line
    bool goes_on; // the line before ended with a backslash
};

static char *prompt_text(EditLine *line) {
    static char next[] = "... ";
    const struct editor *e;
    el_get(line, EL_CLIENTDATA, &e);
    return e->goes_on ? next : e->first;
}

static void find_history(struct editor *e) {
    const char *given = getenv("GYRE_HISTORY"), *home = getenv("HOME");
    if (given)
        snprintf(e->path, sizeof e->path, "%s", given);
    else if (home)
        snprintf(e->path, sizeof e->path, "%s/.gyre_history", home);
}

static void editor_open(struct editor *e) {
    HistEvent event;
    *e = (struct editor){.history = history_init(), .first = "> "};
    setlocale(LC_CTYPE, ""); // libedit moves over characters, not bytes
    find_history(e);
    history(e->history, &event, H_SETSIZE, HISTORY_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    if (e->path[0])
        history(e->history, &event, H_LOAD, e->path); // the first time there is none
    e->line = el_init("gyre", stdin, stdout, stderr);
    el_set(e->line, EL_CLIENTDATA, e);
    el_set(e->line, EL_PROMPT, prompt_text);
    el_set(e->line, EL_EDITOR, "emacs");
    el_set(e->line, EL_HIST, history, e->history);
}

static void editor_close(struct editor *e) {
    HistEvent event;
    if (e->path[0])
        history(e->history, &event, H_SAVE, e->path);
    el_end(e->line);
    history_end(e->history);
}

enum input { INPUT_LINE, INPUT_CLEARED, INPUT_END };

/* One line, or several that are joined, without the last newline. */
static enum input read_input(struct editor *e, struct buf *out) {
    buf_clear(out);
    e->goes_on = false;
    for (;;) {
        int n;
        const char *line = el_gets(e->line, &n);
        if (!line && n < 0 && interrupt_taken()) {
            putchar('\n');
            return INPUT_CLEARED;
        }
        if (!line || n <= 0)
            return INPUT_END;
        size_t len = (size_t)n - (line[n - 1] == '\n');
        e->goes_on = len > 0 && line[len - 1] == '\\';
        buf_append(out, line, len - e->goes_on);
        if (!e->goes_on)
            return INPUT_LINE;
        buf_push(out, '\n');
    }
}

// ---- an answer --------------------------------------------------------------------------------------------------

static void say_styled(enum style style, const char *text) {
    printf("%s", terminal_style(stdout, style));
    terminal_print(stdout, str_of(text));
    printf("%s\n", terminal_style(stdout, STYLE_NONE));
}

/* The person is the tool: shows each call and takes its result from the keyboard. False when they leave off. */
static bool answer_calls(struct conversation *c, struct editor *e, const json_t *calls) {
    struct buf line = {0};
    enum input input = INPUT_LINE;
    for (size_t i = 0; i < json_array_size(calls) && input == INPUT_LINE; i++) {
        const json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
        struct buf shown = {0};
        buf_printf(&shown, "%s %s", json_string_value(json_object_get(function, "name")),
                   json_string_value(json_object_get(function, "arguments")));
        say_styled(STYLE_BOLD, shown.ptr);
        buf_release(&shown);
        e->first = "result> ";
        input = read_input(e, &line);
        e->first = "> ";
        if (input == INPUT_LINE && !add_message(c, "tool", buf_view(&line))) {
            printf("that is not UTF-8\n");
            input = INPUT_CLEARED;
        }
        if (input == INPUT_LINE)
            json_object_set(last_message(c), "tool_call_id", json_object_get(call, "id"));
    }
    buf_release(&line);
    return input == INPUT_LINE;
}

/* One answer to what was said until now, put behind it with its calls. */
static enum status take_answer(struct conversation *c, struct dialogue_answer *a, struct error *err) {
    interrupt_taken();
    enum status st = c->model->answer(c->model->self, c->messages, a, err);
    if (a->text.len > 0 && a->text.ptr[a->text.len - 1] != '\n')
        putchar('\n');
    TRY(st);
    if (!add_message(c, "assistant", buf_view(&a->text)))
        return fail(err, ERR_FORMAT, "the answer is not UTF-8, and left out of the conversation");
    if (a->calls)
        json_object_set(last_message(c), "tool_calls", a->calls);
    printf("%s[%s]%s\n", terminal_style(stdout, STYLE_DIM), a->note, terminal_style(stdout, STYLE_NONE));
    return OK;
}

static void dialogue_answer_release(struct dialogue_answer *a) {
    buf_release(&a->text);
    json_decref(a->calls);
    *a = (struct dialogue_answer){0};
}

/* A turn that fails, or whose calls get no result, is taken back, so that the next one does not fail for it again. */
static void say(struct conversation *c, struct editor *e, struct str line) {
    struct dialogue_answer a = {0};
    struct error err;
    size_t before = json_array_size(c->messages);
    bool more = true;
    if (!add_message(c, "user", line)) {
        printf("that is not UTF-8\n");
        return;
    }
    while (more) {
        dialogue_answer_release(&a);
        enum status st = take_answer(c, &a, &err);
        if (st != OK)
            say_styled(STYLE_RED, err.text);
        more = st == OK && a.calls;
        bool left = more && !answer_calls(c, e, a.calls);
        if (left)
            say_styled(STYLE_RED, "a call has no result; this turn is taken back");
        more &= !left;
        if (st != OK || left)
            drop_messages(c, before);
    }
    dialogue_answer_release(&a);
}

// ---- commands ---------------------------------------------------------------------------------------------------

static void command_help(struct conversation *c, const char *argument) {
    (void)c, (void)argument;
    printf("/reset          begin a new conversation\n"
           "/system TEXT    begin anew with this system message; without TEXT, with none\n"
           "/save FILE      write the conversation as JSON\n"
           "/exit           end; Ctrl-D does too\n"
           "Ctrl-C stops an answer. A line that ends with \\ goes on in the next.\n");
}

static void command_reset(struct conversation *c, const char *argument) {
    (void)argument;
    begin_anew(c);
}

static void command_system(struct conversation *c, const char *argument) {
    free(c->system);
    c->system = *argument ? xstrdup(argument) : NULL;
    begin_anew(c);
}

static void command_save(struct conversation *c, const char *argument) {
    struct error err;
    if (!*argument) {
        printf("/save needs the name of a file\n");
        return;
    }
    char *text = json_dumps(c->messages, JSON_INDENT(2));
    if (file_write(argument, str_of(text), &err) != OK)
        printf("%s\n", err.text);
    free(text);
}

static void command_exit(struct conversation *c, const char *argument) {
    (void)argument;
    c->over = true;
}

static void do_command(struct conversation *c, const char *line) {
    static const struct {
        const char *name;
        void (*run)(struct conversation *c, const char *argument);
    } commands[] = {
        {"/help", command_help}, {"/reset", command_reset}, {"/system", command_system},
        {"/save", command_save}, {"/exit", command_exit},
    };
    size_t n = strcspn(line, " \t");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strlen(commands[i].name) == n && strncmp(commands[i].name, line, n) == 0) {
            commands[i].run(c, line + n + strspn(line + n, " \t"));
            return;
        }
    printf("there is no command %.*s; /help lists them\n", (int)n, line);
}

static void talk(struct conversation *c, struct editor *e) {
    struct buf line = {0};
    HistEvent event;
    enum input input;
    while (!c->over && (input = read_input(e, &line)) != INPUT_END) {
        if (input == INPUT_CLEARED || line.len == 0)
            continue;
        history(e->history, &event, H_ENTER, line.ptr);
        if (line.ptr[0] == '/')
            do_command(c, line.ptr);
        else
            say(c, e, buf_view(&line));
    }
    buf_release(&line);
}

int dialogue(const struct dialogue_model *model, const char *system) {
    struct conversation c = {.model = model, .messages = json_array()};
    struct editor e;
    c.system = system ? xstrdup(system) : NULL;
    begin_anew(&c);
    editor_open(&e);
    interrupt_catch();
    printf("%s/help lists the commands, Ctrl-D ends%s\n", terminal_style(stdout, STYLE_DIM),
           terminal_style(stdout, STYLE_NONE));
    talk(&c, &e);
    interrupt_release();
    editor_close(&e);
    json_decref(c.messages);
    free(c.system);
    return 0;
}
