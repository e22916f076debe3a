/* think_filter.h - parts a model's reasoning from its answer in a stream of text.
 *
 *     "<think>" reasoning "</think>" content
 *
 * The block is open from the beginning where the prompt opened it, or when the text begins with <think> (after
 * blanks). What could be part of a tag is held back until more text decides. Blanks right after the closing tag are
 * dropped. Text without a block is content, byte for byte. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

enum think_state { THINK_UNDECIDED, THINK_OPEN, THINK_CLOSING, THINK_CONTENT };

struct think_filter {
    enum think_state state;
    struct buf held;
};

/* prompt_opens: the prompt ended inside the block. With enabled false everything is content. */
void think_filter_init(struct think_filter *f, bool enabled, bool prompt_opens);
void think_filter_release(struct think_filter *f);
void think_filter_feed(struct think_filter *f, struct str piece, struct buf *reasoning, struct buf *content);
void think_filter_finish(struct think_filter *f, struct buf *reasoning, struct buf *content);

#define THINK_BEGIN "<think>"
#define THINK_END "</think>"

/* Whether a rendered prompt ends right behind a block: nothing but blanks follows its last </think>. */
bool think_prompt_ends(struct str prompt);

/* Whether a rendered prompt ends inside a block: its last tag is <think>. */
bool think_prompt_opens(struct str prompt);
