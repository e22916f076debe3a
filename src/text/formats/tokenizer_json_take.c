/* tokenizer_json_take.c - steps that the readers of JSON tokenizers share. */
#include "text/formats/tokenizer_json.h"

enum status json_take_section(struct json_reader *r, struct str *section, const char *name, struct error *err) {
    if (section->ptr)
        return fail(err, ERR_FORMAT, "%s: \"%s\" is there twice", r->where, name);
    return json_skip(r, section, err);
}

enum status json_take_item(struct json_reader *r, const char *wanted, struct error *err) {
    bool more;
    TRY(json_next_item(r, &more, err));
    return more ? OK : fail(err, ERR_FORMAT, "%s: %s", r->where, wanted);
}

enum status json_take_list_end(struct json_reader *r, const char *wanted, struct error *err) {
    bool more;
    TRY(json_next_item(r, &more, err));
    return more ? fail(err, ERR_FORMAT, "%s: %s", r->where, wanted) : OK;
}
