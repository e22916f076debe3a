/* tokenize.c - gyre tokenize TOK: text to token ids. */
#include "base/file.h"
#include "console/terminal.h"
#include "main/model/model_path.h"
#include "main/run/batch.h"
#include "main/verbs.h"
#include "text/tokenizer.h"

#include <stdio.h>

enum { MAX_TEXT_BYTES = 1 << 30 };

static struct {
    const char *prompt, *file, *output;
    bool special, parse_special, batch;
} opt = {.output = "ids", .special = true};

static const struct flag flags[] = {
    {"prompt", 'p', FLAG_STRING, &opt.prompt, "TEXT", "Input", "the text"},
    {"file", 'f', FLAG_STRING, &opt.file, "FILE", "Input", "the text is in FILE; - is standard input"},
    {"batch", 0, FLAG_BOOL, &opt.batch, NULL, "Input",
     "JSON lines in, each a string; JSON lines out, each what --output asks for, or an error"},
    {"special", 0, FLAG_BOOL, &opt.special, NULL, "Tokens",
     "add what the vocabulary puts around a text: BOS, EOS, [CLS] ..."},
    {"parse-special", 0, FLAG_BOOL, &opt.parse_special, NULL, "Tokens",
     "special tokens written in the text become their ids"},
    {"output", 0, FLAG_CHOICE, &opt.output, "ids|pieces|count", "Output", "what to print"},
    ALLOW_LINKS_FLAG,
};

struct job {
    const struct tokenizer *tok;
    struct encoder *enc;
    struct token_ids ids;
};

static enum status encode(struct job *job, struct str text, struct error *err) {
    job->ids.n = 0;
    int how = (opt.special ? ENCODE_ADD_SPECIAL : 0) | (opt.parse_special ? ENCODE_PARSE_SPECIAL : 0);
    return tokenizer_encode(job->enc, text, how, &job->ids, err);
}

/* Appends decimal digits; printf is too slow for a third of a million ids. */
static void put_number(struct buf *out, uint32_t n) {
    char digits[12];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + n % 10);
    while (n /= 10);
    buf_append(out, digits + at, sizeof digits - at);
}

static enum status answer(void *arg, const json_t *line, struct buf *out, struct error *err) {
    struct job *job = arg;
    if (!json_is_string(line))
        return fail(err, ERR_ARG, "the line is %s, it must be a string", jv_type_name(line));
    TRY(encode(job, (struct str){json_string_value(line), json_string_length(line)}, err));
    if (strcmp(opt.output, "count") == 0) {
        put_number(out, (uint32_t)job->ids.n);
        return OK;
    }
    buf_push(out, '[');
    for (size_t i = 0; i < job->ids.n; i++) {
        if (i)
            buf_str(out, STR(", "));
        if (strcmp(opt.output, "ids") == 0)
            put_number(out, (uint32_t)job->ids.ids[i]);
        else
            buf_json_string(out, tokenizer_token_text(job->tok, job->ids.ids[i]));
    }
    buf_push(out, ']');
    return OK;
}

static enum status print_one(struct job *job, struct error *err) {
    struct buf out = {0};
    if (opt.file)
        TRY(file_read(opt.file, MAX_TEXT_BYTES, &out, err));
    enum status st = encode(job, opt.file ? buf_view(&out) : str_of(opt.prompt), err);
    bool pieces = strcmp(opt.output, "pieces") == 0;
    buf_clear(&out);
    if (st == OK && strcmp(opt.output, "count") == 0)
        put_number(&out, (uint32_t)job->ids.n);
    else if (st == OK)
        for (size_t i = 0; i < job->ids.n; i++) {
            if (i)
                buf_push(&out, pieces ? '\n' : ',');
            if (pieces)
                buf_json_string(&out, tokenizer_token_text(job->tok, job->ids.ids[i]));
            else
                put_number(&out, (uint32_t)job->ids.ids[i]);
        }
    buf_push(&out, '\n');
    if (st == OK)
        terminal_print(stdout, buf_view(&out));
    buf_release(&out);
    return st;
}

static int run(const struct verb_args *args) {
    if ((opt.prompt != NULL) + (opt.file != NULL) + opt.batch != 1)
        return verb_misused(args->spec, "tokenize takes one text with -p or -f, or many with --batch");
    struct error err;
    struct tokenizer *tok;
    if (model_path_check(args->operands[0], MODEL_TOKENIZER, &err) != OK ||
        tokenizer_open(args->operands[0], &tok, &err) != OK)
        return verb_failed(&err);
    struct job job = {.tok = tok, .enc = encoder_open(tok)};
    int rc = 0;
    if (opt.batch)
        rc = batch_run(answer, &job, NULL);
    else if (print_one(&job, &err) != OK)
        rc = verb_failed(&err);
    token_ids_release(&job.ids);
    encoder_free(job.enc);
    tokenizer_free(tok);
    return rc;
}

const struct verb_spec verb_tokenize = {
    "tokenize",
    "TOK",
    "prints the token ids of a text",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .epilogue =
        "TOK is a model folder, a tokenizer.json, a SentencePiece .model, or a .tiktoken file with its pattern file\n"
        "beside it. Ids are printed in one line with commas between, as --prompt-ids reads them; pieces one a line, "
        "as\n"
        "JSON strings, written as the vocabulary writes them.\n"};
