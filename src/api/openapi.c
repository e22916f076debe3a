/* openapi.c - GET /openapi.json: the description in openapi.json, which is in the program as it is in the file. */
#include "api/endpoints.h"

// The assembler copies the file; make runs where its path begins.
__asm__(".pushsection .rodata\n"
        "openapi_json: .incbin \"src/api/openapi.json\"\n"
        "openapi_json_end: .byte 0\n"
        ".popsection\n");
extern const char openapi_json[], openapi_json_end[];

void endpoint_openapi(struct http_exchange *x) {
    api_reply_json(x, 200, (struct str){openapi_json, (size_t)(openapi_json_end - openapi_json)});
}
