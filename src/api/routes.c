/* routes.c - what is served where. A new endpoint is a file and a row. */
#include "api/answer/generation.h"
#include "api/endpoints.h"

#define ANSWERS(path, handler) \
    { HTTP_POST, path, handler, generation_fill, generation_gone, HTTP_JSON_BODY | HTTP_LONG, 0 }
#define JSON_POST(path, handler) \
    { HTTP_POST, path, handler, NULL, NULL, HTTP_JSON_BODY | HTTP_LONG, 0 }
#define SHORT_POST(path, handler) \
    { HTTP_POST, path, handler, NULL, NULL, HTTP_JSON_BODY, SHORT_BODY } // waits for nobody
#define POST(path, handler) \
    { HTTP_POST, path, handler, NULL, NULL, 0, SHORT_BODY }
#define GET(path, handler) \
    { HTTP_GET, path, handler, NULL, NULL, 0, 0 }
#define LONG_GET(path, handler) \
    { HTTP_GET, path, handler, NULL, NULL, HTTP_LONG, 0 }
#define DELETE(path, handler) \
    { HTTP_DELETE, path, handler, NULL, NULL, 0, 0 }

enum { SHORT_BODY = 1 << 20 };

const struct http_route api_routes[] = {
    ANSWERS("/v1/completions", endpoint_completions),
    ANSWERS("/v1/chat/completions", endpoint_chat),
    ANSWERS("/v1/responses", endpoint_responses),
    JSON_POST("/v1/responses/input_tokens", endpoint_input_tokens),
    LONG_GET("/v1/responses/{id}", endpoint_response),
    DELETE("/v1/responses/{id}", endpoint_delete_response),
    POST("/v1/responses/{id}/cancel", endpoint_cancel_response),
    LONG_GET("/v1/responses/{id}/input_items", endpoint_input_items),
    ANSWERS("/v1/messages", endpoint_messages),
    JSON_POST("/v1/messages/count_tokens", endpoint_count_tokens),
    ANSWERS("/v1/embeddings", endpoint_embeddings),
    GET("/", endpoint_page),
    GET("/v1/models", endpoint_models),
    GET("/v1/models/{id*}", endpoint_model),
    JSON_POST("/tokenize", endpoint_tokenize),
    JSON_POST("/detokenize", endpoint_detokenize),
    LONG_GET("/tokenizer_info", endpoint_tokenizer_info),
    SHORT_POST("/abort_requests", endpoint_abort),
    GET("/health", endpoint_ready),
    GET("/health/live", endpoint_live),
    GET("/health/ready", endpoint_ready),
    GET("/ping", endpoint_ready),
    POST("/ping", endpoint_ready),
    ANSWERS("/invocations", endpoint_invocations),
    GET("/load", endpoint_load),
    GET("/version", endpoint_version),
    GET("/server_info", endpoint_server_info),
    GET("/metrics", endpoint_metrics),
    GET("/openapi.json", endpoint_openapi),
    GET("/debug/requests", endpoint_debug_requests),
};
const size_t api_n_routes = sizeof api_routes / sizeof api_routes[0];
