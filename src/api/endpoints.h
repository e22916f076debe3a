/* endpoints.h - the handlers that routes.c names, one file each. */
#pragma once

#include "api/api.h"

void endpoint_completions(struct http_exchange *x); // completions.c
void endpoint_chat(struct http_exchange *x);        // chat.c
void endpoint_responses(struct http_exchange *x);   // responses/create.c
void endpoint_input_tokens(struct http_exchange *x);
void endpoint_response(struct http_exchange *x); // responses/stored.c
void endpoint_delete_response(struct http_exchange *x);
void endpoint_cancel_response(struct http_exchange *x);
void endpoint_input_items(struct http_exchange *x);
void endpoint_messages(struct http_exchange *x); // messages.c
void endpoint_count_tokens(struct http_exchange *x);
void endpoint_embeddings(struct http_exchange *x); // embeddings.c
void endpoint_models(struct http_exchange *x);     // models.c
void endpoint_model(struct http_exchange *x);
void endpoint_tokenize(struct http_exchange *x); // tokenize.c
void endpoint_detokenize(struct http_exchange *x);
void endpoint_tokenizer_info(struct http_exchange *x);
void endpoint_live(struct http_exchange *x); // health.c
void endpoint_ready(struct http_exchange *x);
void endpoint_invocations(struct http_exchange *x); // sagemaker.c
void endpoint_load(struct http_exchange *x);
void endpoint_version(struct http_exchange *x);
void endpoint_server_info(struct http_exchange *x);
void endpoint_page(struct http_exchange *x);           // page.c
void endpoint_metrics(struct http_exchange *x);        // metrics.c
void endpoint_abort(struct http_exchange *x);          // abort.c
void endpoint_openapi(struct http_exchange *x);        // openapi.c
void endpoint_debug_requests(struct http_exchange *x); // debug_requests.c
