/* tool_derive.h - a format found by rendering a chat template: see tool_format.h. For this folder.
 *
 * Renderings have words in them that no template has. What stands between two of them, in the model's turn, is a mark
 * or several; two renderings that differ in one thing tell where one mark ends and the next begins. */
#pragma once

#include "text/tools/tool_format.h"

#define WORD_USER "muscovite"
#define WORD_CONTENT "hornblende"
#define WORD_REASON "glaucophane"
#define WORD_NAME "quartzite"
#define WORD_NAME_2 "jasperoid"
#define WORD_KEY "dolomite" // before the second one in the alphabet, as some templates sort them
#define WORD_KEY_2 "feldspar"
#define WORD_VALUE "obsidianite"
#define WORD_NUMBER "70193"
#define WORD_ID "call12345" // nine letters and digits, which is all that Mistral's templates take
#define WORD_ID_2 "call67890"

enum thinking { THINKING_NOT_SAID, THINKING_ON, THINKING_OFF };

struct rendering {
    json_t *messages; // behind the user's, which is put before them; NULL: none
    enum thinking thinking;
    bool generation_prompt;
};

struct deriver {
    const struct chat_template *chat;
    const struct chat_variant *variant;
    struct tool_format *f;
    json_t *tools;
    struct buf shown;
    struct error err;                         // why the last rendering failed
    struct str prompt, thinking, no_thinking; // what a generation prompt is behind the user's word; NULL: it failed
    struct str content;                       // a turn that says WORD_CONTENT, likewise
    struct str earlier;                       // such a turn before another one
};

/* What a rendering shows behind the user's word, kept in f->arena. Takes the messages. */
bool derive_show(struct deriver *d, struct rendering r, struct str *tail);

json_t *derive_turn(json_t *take_content, json_t *take_calls); // an assistant's message; either may be NULL
json_t *derive_call(const char *name, const char *id, json_t *take_arguments);
json_t *derive_arguments(const struct deriver *d, json_t *take_object); // as the template wants them

void derive_reasoning(struct deriver *d); // and what stands around contents
void derive_calls(struct deriver *d);

/* x, which precedes a call, without marks of a content that is empty. Takes the calls. */
struct str derive_without_content(struct deriver *d, json_t *take_calls, struct str x);

/* s without reasoning that is said to be empty, at its beginning. */
struct str derive_without_reasoning(const struct tool_format *f, struct str s);

struct str derive_keep(struct deriver *d, struct str s); // a copy in f->arena

/* ---- between the two files of calls ---- */

struct shown {
    struct str text;   // the turn, behind what all turns begin with
    size_t begin, end; // of the first call: from its first slot to behind its last
    json_t *value;     // what is there, if it is JSON
};

static inline struct str derive_span(struct str s, size_t begin, size_t end) {
    return (struct str){s.ptr + begin, end - begin};
}

/* A turn of calls, without what any turn begins with and without empty reasoning. */
bool derive_show_calls(struct deriver *d, json_t *take_calls, struct str *out);
json_t *derive_two_calls(const struct deriver *d);

bool derive_json_calls(struct deriver *d, struct shown *one); // those that are JSON: one->value
bool derive_is_arguments(const json_t *value);

/* The first array or object from `at` on that reaches beyond `word`; NULL: there is none. */
json_t *derive_json_around(struct str s, size_t at, size_t word, size_t *begin, size_t *end);

void derive_add_head(struct tool_format *f, struct str mark, enum tool_slot slot);
struct str derive_without_turn_end(const struct deriver *d, struct str s);
struct str derive_closing(struct str open, struct str close);

/* x: before the first call, middle: between two (NULL: none is known), close: behind the last. */
void derive_take_section(struct deriver *d, struct str x, struct str middle, struct str close);
