/* template.c - see template.h: where faults come back to, and what lives how long. */
#include "jinja/template.h"

#include "jinja/jinja_eval.h"
#include "jinja/values/jinja_format.h"

#include <stdio.h>
#include <stdlib.h>

enum status template_parse(struct str text, const char *name, struct template **out, struct error *err) {
    struct error ignored;
    struct template *t = xcalloc(1, sizeof *t);
    struct jinja *j = xmalloc(sizeof *j);
    t->name = xstrdup(name);
    jinja_begin(j, t->name, &(struct template_limits){0}, err ? err : &ignored);
    j->err->status = OK;
    if (setjmp(j->exit) == 0) {
        jinja_parse(j, text, t);
        jinja_number_variables(j, t);
    }
    enum status status = j->err->status; // jinja_fail set it
    t->arena = j->arena;
    sinks_release(j);
    free(j);
    *out = t;
    if (status != OK) {
        template_free(t);
        *out = NULL;
    }
    return status;
}

static void run(struct jinja *j, const json_t *context) {
    const struct template *t = j->tmpl;
    j->context = jinja_from_json(j, context).d;
    j->exports = jval_dict(j).d;
    j->act = activation_new(j, &t->fn, NULL);
    scope_enter(j, &t->fn.scope);
    jinja_exec(j, &t->body);
}

enum status template_render(const struct template *t, const json_t *context, const struct template_options *options,
                            struct buf *out, struct error *err) {
    struct error ignored;
    struct tm local;
    if (!json_is_object(context))
        return fail(err, ERR_ARG, "%s: what a template is rendered with must be a JSON object, this is %s", t->name,
                    jv_type_name(context));
    struct jinja *j = xmalloc(sizeof *j);
    jinja_begin(j, t->name, &options->limits, err ? err : &ignored);
    j->first.buf = out;
    j->out_start = out->len;
    j->raised = options->raised;
    j->tmpl = t;
    j->now = options->now;
    j->numbers = options->numbers;
    if (!j->now) {
        time_t now = time(NULL);
        j->now = localtime_r(&now, &local);
    }
    j->err->status = OK;
    if (setjmp(j->exit) == 0)
        run(j, context);
    enum status status = j->err->status; // jinja_fail set it
    if (status != OK && out->ptr) {
        out->len = j->out_start;
        out->ptr[out->len] = '\0';
    }
    sinks_release(j);
    arena_release(&j->arena);
    free(j);
    return status;
}

void template_free(struct template *t) {
    if (!t)
        return;
    arena_release(&t->arena);
    free((char *)t->name);
    free(t);
}

enum status template_read_time(const char *text, const char *what, struct tm *out, struct error *err) {
    int year, end = 0;
    struct tm t = {.tm_isdst = -1};
    int n =
        sscanf(text, "%4d-%2d-%2d %2d:%2d:%2d%n", &year, &t.tm_mon, &t.tm_mday, &t.tm_hour, &t.tm_min, &t.tm_sec, &end);
    t.tm_year = n == 6 ? year - 1900 : 0;
    t.tm_mon--;
    struct tm normal = t;
    normal.tm_isdst = 0;
    timegm(&normal); // carries what is out of range over, which shows, and finds the day of the week
    if (n != 6 || text[end] || normal.tm_mday != t.tm_mday || normal.tm_mon != t.tm_mon ||
        normal.tm_hour != t.tm_hour || normal.tm_min != t.tm_min || normal.tm_sec != t.tm_sec)
        return fail(err, ERR_ARG, "%s: '%.80s' is not a time of the form YYYY-MM-DD HH:MM:SS", what, text);
    *out = normal;
    return OK;
}
