/* inbox.c - see lane_parts.h: how tickets come to the engine, at once or when their prompts were computed elsewhere. */
#include "engine/lanes/lane_parts.h"

/* Under the lock. */
static void put_in_inbox(struct lane *s, struct ticket *t) {
    *s->inbox_end = t;
    s->inbox_end = &t->next_inbox;
    s->n_inbox++;
    pthread_cond_signal(&s->work);
}

void lane_enqueue(struct lane *s, struct ticket *t) {
    bool is_fetched = s->fetch.wants && !t->waiter && s->fetch.wants(s->fetch.of, t->request);
    s->n_fetching += is_fetched;
    if (is_fetched)
        s->fetch.push(s->fetch.of, t);
    else
        put_in_inbox(s, t);
}

/* Under the lock. */
static void take_back(struct lane *s, struct ticket *t) {
    s->n_fetching--;
    s->has_wishes = true; // it may have been cancelled meanwhile
    put_in_inbox(s, t);
}

void lane_fetched(struct lane *s, struct ticket *t) {
    pthread_mutex_lock(&s->lock);
    take_back(s, t);
    pthread_mutex_unlock(&s->lock);
}

void lane_cancel_fetch(struct lane *s, struct ticket *t) {
    if (s->fetch.cancel && s->fetch.cancel(s->fetch.of, t))
        take_back(s, t);
}

void lane_set_fetch(struct lane *s, const struct lane_fetch *fetch) {
    pthread_mutex_lock(&s->lock);
    s->fetch = *fetch;
    pthread_mutex_unlock(&s->lock);
}

void lane_close_fetch(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    struct lane_fetch fetch = s->fetch;
    s->fetch = (struct lane_fetch){0};
    pthread_mutex_unlock(&s->lock);
    if (fetch.close)
        fetch.close(fetch.of);
}
