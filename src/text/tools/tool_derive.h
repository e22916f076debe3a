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

/* s without reasoning that is said to be empty, at its beginning. */
struct str derive_without_reasoning(const struct tool_format *f, struct str s);

struct str derive_keep(struct deriver *d, struct str s); // a copy in f->arena
