/* sagemaker.c - /invocations and /load, and in routes.c /ping: what SageMaker and those who run vLLM there ask. */
#include "api/endpoints.h"

/* Which endpoint a body is meant for, by the field that it cannot do without; NULL: none. */
static void (*handler_of(const json_t *body))(struct http_exchange *x) {
    static const struct {
        const char *field;
        void (*handle)(struct http_exchange *x);
    } by_field[] = {{"messages", endpoint_chat}, {"prompt", endpoint_completions}, {"input", endpoint_embeddings}};
    for (size_t i = 0; i < ARRAY_LEN(by_field); i++)
        if (json_object_get(body, by_field[i].field))
            return by_field[i].handle;
    return NULL;
}

/* The endpoint is given the body that was read here. */
void endpoint_invocations(struct http_exchange *x) {
    json_t *body;
    if (!api_read_body(x, &body))
        return;
    void (*handle)(struct http_exchange * x) = handler_of(body);
    json_decref(body);
    if (handle)
        handle(x);
    else
        api_reply_error(x, 400, NULL, "the body is of no known kind: it needs \"messages\", \"prompt\" or \"input\"");
}

void endpoint_load(struct http_exchange *x) {
    struct records *r = &api_of(x)->records;
    int n = 0;
    pthread_mutex_lock(&r->lock);
    for (const struct api_record *rec = r->in_flight; rec; rec = rec->next)
        n += rec->generation != NULL;
    pthread_mutex_unlock(&r->lock);
    struct buf body = {0};
    buf_printf(&body, "{\"server_load\":%d}", n);
    api_reply_json(x, 200, buf_view(&body));
    buf_release(&body);
}
