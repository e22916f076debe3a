/* quantize.h - a model written anew in fewer bits.
 *
 *     struct quantize_job job = {.model = "models/story", .out = "story.gguf", .type = "q4_k_m"};
 *     TRY(quantize_gguf(&job, &err));
 *
 * Nothing is there at the end but the whole file: it is written beside its place, read again as a model, compared with
 * the description of what was read, and only then gets its name. What cannot be said in the new format is refused. */
#pragma once

#include "quantize/store.h"

/* One tensor that was written. from, to: names of storages ("bf16", "q4_k"). */
struct tensor_report {
    const char *name, *from, *to;
    struct loss loss;
    uint64_t n_bytes;
};

struct quantize_job {
    const char *model, *out; // a model folder or a GGUF file; the file to write
    const char *type;        // of the mix: "q8_0", "q4_k_m" ...
    bool may_requantize;     // weights that are in blocks already
    const char *imatrix;     // a file that says how much columns matter; NULL: all the same
    const int32_t *tokens;   // [n_tokens] of the text to calibrate with, read `chunk` at a time; NULL: none
    int64_t n_tokens;
    int chunk;
    bool (*read)(void *context, int64_t done, int64_t total); // tokens of the text; as progress.step
    int n_threads;                                            // 0: one a processor
    struct store_progress progress;
    void (*report)(void *context, const struct tensor_report *r); // called for each tensor; NULL: none
    void (*note)(void *context, const char *sentence);            // of what is left as it was; NULL: none
    void *context;
};

/* ERR_ARG: no such type, or `out` is a file that is read (file/overwrite.h). ERR_FULL: the disk has no room, which is
 * asked before anything is written. */
enum status quantize_gguf(const struct quantize_job *job, struct error *err);

/* A folder of compressed-tensors: type is fp8, int8, int4, nvfp4 or mxfp4, and with a
 * text gptq-int4, awq-int4 or smoothquant-int8 (calibrated.h). `out` must not be there, or be an empty
 * folder. Settings, tokenizer and templates are copied, code is not. Refused: what is quantised already, and GGUF
 * files. Matrices whose columns are no whole number of groups stay plain, which is noted. */
enum status quantize_safetensors(const struct quantize_job *job, struct error *err);
