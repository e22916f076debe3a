/* postprocessor.h - what is put around the ids of a text: BOS, EOS, [CLS] and [SEP].
 *
 * A list of templates, each applied to what the one before gave. Only what concerns a single text is kept: pairs
 * of texts are for classifiers. */
#pragma once

#include "base/json/json.h"
#include "text/token_ids.h"

enum { TEMPLATE_BODY = -1 }; // stands for the ids so far

struct postprocessor {
    struct token_ids *templates; // [n], owned; ids and TEMPLATE_BODY
    size_t n;
};

/* Reads the "post_processor" of a tokenizer.json; null is no template. */
enum status postprocessor_read(const json_t *value, const char *where, struct postprocessor *out, struct error *err);
void postprocessor_release(struct postprocessor *p);
void postprocessor_take_template(struct postprocessor *p, struct token_ids items);

/* Whether the ids of a text stay what they are. */
bool postprocessor_is_identity(const struct postprocessor *p, bool add_special);

/* Rewrites body by the templates; without add_special their own ids are left out. `spare` is overwritten. */
void postprocessor_run(const struct postprocessor *p, bool add_special, struct token_ids *body,
                       struct token_ids *spare);
