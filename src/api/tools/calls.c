/* calls.c - see calls.h. */
#include "api/tools/calls.h"

#include "base/status.h"

#include <stdlib.h>
#include <sys/random.h>

static char *owned(struct str s) {
    char *copy = xmalloc(s.len + 1);
    memcpy(copy, s.ptr, s.len);
    copy[s.len] = '\0';
    return copy;
}

/* The model's own id, or one of the form that its template takes. */
static char *id_of(const struct tool_calls *calls, const struct tool_format *f, int n_before,
                   const struct tool_event *e) {
    if (e->id.len)
        return owned(e->id);
    uint64_t random[2];
    struct buf id = {0};
    if (getrandom(random, sizeof random, 0) != sizeof random)
        random[0] = (uint64_t)(uintptr_t)&id, random[1] = (uint64_t)calls->n;
    tool_format_make_id(f, e->text, n_before + calls->n, random, &id);
    char *copy = owned(buf_view(&id));
    buf_release(&id);
    return copy;
}

static void take_arguments(struct tool_call *call, struct str text) {
    if (call->is_custom)
        custom_input_feed(&call->input, text, &call->arguments);
    else
        buf_str(&call->arguments, text);
}

static void end(struct tool_call *call) {
    if (call->is_custom)
        custom_input_finish(&call->input, &call->arguments);
    call->ended = true;
}

void tool_calls_take(struct tool_calls *calls, const struct tool_format *f, const struct tool_ask *ask,
                     const struct tool_event *e) {
    if (e->kind == TOOL_EVENT_CALL) {
        struct tool_call call = {.id = id_of(calls, f, ask->n_before, e),
                                 .name = owned(e->text),
                                 .is_custom = custom_is(ask->tools, e->text)};
        calls->all = xrealloc(calls->all, (size_t)calls->n + 1, sizeof *calls->all);
        calls->all[calls->n++] = call;
    } else if (e->kind == TOOL_EVENT_ARGUMENTS)
        take_arguments(&calls->all[e->index], e->text);
    else if (e->kind == TOOL_EVENT_END)
        end(&calls->all[e->index]);
    // TOOL_EVENT_ID: a stream has told its own by then, so a whole answer does too.
}

bool tool_calls_have_news(const struct tool_calls *calls) {
    for (int i = calls->n_over; i < calls->n; i++)
        if (!calls->all[i].begun || tool_call_news(&calls->all[i]).len || calls->all[i].ended)
            return true;
    return false;
}

void tool_calls_written(struct tool_calls *calls) {
    for (int i = calls->n_over; i < calls->n; i++) {
        calls->all[i].begun = true;
        calls->all[i].n_written = calls->all[i].arguments.len;
        if (calls->all[i].ended && i == calls->n_over)
            calls->n_over++;
    }
}

void tool_calls_release(struct tool_calls *calls) {
    for (int i = 0; i < calls->n; i++) {
        free(calls->all[i].id);
        free(calls->all[i].name);
        buf_release(&calls->all[i].arguments);
        custom_input_release(&calls->all[i].input);
    }
    free(calls->all);
    *calls = (struct tool_calls){0};
}
