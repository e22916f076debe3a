/* template.h - chat templates: a Jinja engine of our own, byte for byte what Jinja2 3.1 prints.
 *
 * The settings are those that Hugging Face transformers renders chat templates with: an immutable sandbox,
 * trim_blocks, lstrip_blocks, break and continue, {% generation %}, autoescape off, tojson that writes
 * plain JSON, and the functions raise_exception and strftime_now.
 *
 *     struct template *t;
 *     TRY(template_parse(text, "chat_template.jinja", &t, err));       // once
 *     TRY(template_render(t, context, &(struct template_options){0}, &out, err));   // any number of times
 *     template_free(t);
 *
 * A template and a context both come from strangers. Nothing of the host can be reached from one: there are
 * no files, no imports, no attributes but those listed in jinja_methods*.c, and values cannot be changed
 * once made. Work is bounded by struct template_limits; integers are 64 bits wide and overflow is an error.
 * Refused by name: include, import, from, extends, autoescape, and the filters pprint, random, striptags,
 * urlize and wordwrap. */
#pragma once

#include "base/buf.h"
#include "base/json/json.h"
#include "base/status.h"

#include <time.h>

struct template;

/* A field that is 0 stands for its default. Reaching one is ERR_LIMIT. The C stack needs about 0.6 KiB for
 * each level of max_depth. */
struct template_limits {
    uint64_t max_steps;      // 200 million: statements, expressions and items visited
    int max_depth;           // 1,000: statements, expressions, macros and values inside one another
    size_t max_output_bytes; // 64 MiB
    size_t max_memory_bytes; // 256 MiB: every value made while rendering, and the captured text
    int64_t max_time_us;     // 5 seconds of wall time
};

struct template_options {
    struct template_limits limits;
    const struct tm *now;       // what strftime_now formats; NULL: the local time
    struct jv_numbers *numbers; // of the context, which are printed as they were written; NULL: there are none
    struct buf
        *raised; // may be NULL; gets the whole sentence when the template calls raise_exception, which err may cut
};

/* Parses UTF-8 text. name is copied and opens every error: "name:line: sentence". On success *out is owned
 * by the caller. ERR_FORMAT for a fault of the text, ERR_UNSUPPORTED for what is refused by name. */
enum status template_parse(struct str text, const char *name, struct template **out, struct error *err);

/* Appends what the template makes of context, a JSON object. On an error nothing is appended. The template
 * is not changed: many threads may render one at the same time. ERR_ARG when template and context do not
 * fit together, and for raise_exception, whose message is in the error. */
enum status template_render(const struct template *t, const json_t *context, const struct template_options *options,
                            struct buf *out, struct error *err);

void template_free(struct template *t); // NULL is fine

/* Reads "YYYY-MM-DD HH:MM:SS", a moment of local time, for template_options.now. `what` names the text in
 * the error. */
enum status template_read_time(const char *text, const char *what, struct tm *out, struct error *err);
