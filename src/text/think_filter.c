/* think_filter.c - see think_filter.h. */
#include "text/think_filter.h"

#include "base/status.h"

static const struct str open_tag = {THINK_BEGIN, sizeof THINK_BEGIN - 1}, close_tag = {THINK_END, sizeof THINK_END - 1};

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

void think_filter_init(struct think_filter *f, bool enabled, bool prompt_opens) {
    *f = (struct think_filter){.state = !enabled ? THINK_CONTENT : prompt_opens ? THINK_OPEN : THINK_UNDECIDED};
}

void think_filter_release(struct think_filter *f) { buf_release(&f->held); }

static void drop_front(struct buf *b, size_t n) {
    memmove(b->ptr, b->ptr + n, b->len - n);
    b->len -= n;
    b->ptr[b->len] = '\0';
}

static void move_front(struct buf *from, size_t n, struct buf *to) {
    buf_append(to, from->ptr, n);
    drop_front(from, n);
}

/* How many bytes at the end of text could be the beginning of tag. */
static size_t tag_at_end(struct str text, struct str tag) {
    for (size_t n = MIN(text.len, tag.len - 1); n > 0; n--)
        if (memcmp(text.ptr + text.len - n, tag.ptr, n) == 0)
            return n;
    return 0;
}

/* Undecided: blanks, then the whole tag, or anything else. */
static bool decide(struct think_filter *f) {
    size_t blanks = 0;
    while (blanks < f->held.len && is_blank(f->held.ptr[blanks]))
        blanks++;
    struct str rest = {f->held.ptr + blanks, f->held.len - blanks};
    if (str_starts(rest, open_tag)) {
        drop_front(&f->held, blanks + open_tag.len);
        f->state = THINK_OPEN;
        return true;
    }
    if (rest.len < open_tag.len && memcmp(rest.ptr, open_tag.ptr, rest.len) == 0)
        return false;
    f->state = THINK_CONTENT;
    return true;
}

static bool read_reasoning(struct think_filter *f, struct buf *reasoning) {
    char *end = f->held.len ? memmem(f->held.ptr, f->held.len, close_tag.ptr, close_tag.len) : NULL;
    if (end) {
        move_front(&f->held, (size_t)(end - f->held.ptr), reasoning);
        drop_front(&f->held, close_tag.len);
        f->state = THINK_CLOSING;
        return true;
    }
    move_front(&f->held, f->held.len - tag_at_end(buf_view(&f->held), close_tag), reasoning);
    return false;
}

static bool skip_blanks(struct think_filter *f) {
    size_t blanks = 0;
    while (blanks < f->held.len && is_blank(f->held.ptr[blanks]))
        blanks++;
    drop_front(&f->held, blanks);
    if (f->held.len == 0)
        return false;
    f->state = THINK_CONTENT;
    return true;
}

void think_filter_feed(struct think_filter *f, struct str piece, struct buf *reasoning, struct buf *content) {
    if (f->state == THINK_CONTENT) { // the common case copies once
        buf_str(content, piece);
        return;
    }
    buf_str(&f->held, piece);
    for (bool go_on = true; go_on;)
        switch (f->state) {
        case THINK_UNDECIDED: go_on = decide(f); break;
        case THINK_OPEN: go_on = read_reasoning(f, reasoning); break;
        case THINK_CLOSING: go_on = skip_blanks(f); break;
        case THINK_CONTENT:
            move_front(&f->held, f->held.len, content);
            go_on = false;
            break;
        }
}

void think_filter_finish(struct think_filter *f, struct buf *reasoning, struct buf *content) {
    buf_str(f->state == THINK_OPEN ? reasoning : content, buf_view(&f->held));
    buf_clear(&f->held);
}

bool think_prompt_opens(struct str prompt) {
    for (size_t i = prompt.len; i-- > 0;) {
        struct str at = {prompt.ptr + i, prompt.len - i};
        if (str_starts(at, close_tag))
            return false;
        if (!str_starts(at, open_tag))
            continue;
        for (size_t k = open_tag.len; k < at.len; k++) // reasoning that is already under way is an earlier turn's
            if (!is_blank(at.ptr[k]))
                return false;
        return true;
    }
    return false;
}

bool think_prompt_ends(struct str prompt) {
    size_t n = prompt.len;
    while (n > 0 && is_blank(prompt.ptr[n - 1]))
        n--;
    return n >= close_tag.len && memcmp(prompt.ptr + n - close_tag.len, close_tag.ptr, close_tag.len) == 0;
}
