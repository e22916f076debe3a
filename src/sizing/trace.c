/* trace.c - see trace.h. */
#include "sizing/trace.h"

#include "base/file.h"
#include "base/json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LONGEST = 1 << 24, MOST_BYTES = 1 << 30, LINE = 256 };

struct reading {
    struct trace *trace;
    const char *path;
    int line, cap;
    double first_s; // of the file's own clock
};

static enum status wrong(const struct reading *r, struct error *err, const char *what) {
    return fail(err, ERR_FORMAT, "%s: line %d: %s", r->path, r->line, what);
}

static enum status add(struct reading *r, struct trace_request one, struct error *err) {
    struct trace *t = r->trace;
    if (t->n == MOST_TRACE_REQUESTS)
        return fail(err, ERR_LIMIT, "%s: more than %d requests", r->path, MOST_TRACE_REQUESTS);
    if (t->n == 0)
        r->first_s = one.at_s;
    one.at_s -= r->first_s;
    if (t->n > 0 && one.at_s < t->requests[t->n - 1].at_s)
        return wrong(r, err, "its time is before that of the line above");
    if (t->n == r->cap) {
        r->cap = MAX(2 * r->cap, 1024);
        t->requests = xrealloc(t->requests, (size_t)r->cap, sizeof *t->requests);
    }
    t->requests[t->n++] = one;
    return OK;
}

// ---- Azure ------------------------------------------------------------------------------------------------------

/* Whole days and all are counted, so that a trace may pass midnight. */
static bool read_time(const char *text, double *out) {
    struct tm tm = {0};
    double seconds;
    int used = 0;
    if (sscanf(text, "%4d-%2d-%2d %2d:%2d:%lf%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min,
               &seconds, &used) != 6 ||
        text[used] || !(seconds >= 0 && seconds < 61))
        return false;
    tm.tm_year -= 1900, tm.tm_mon -= 1;
    *out = (double)timegm(&tm) + seconds;
    return true;
}

static bool read_length(const char *text, int32_t *out) {
    char *end;
    long n = strtol(text, &end, 10);
    *out = (int32_t)n;
    return end != text && !*end && n >= 1 && n <= LONGEST;
}

static enum status read_azure(struct reading *r, const char *line, struct error *err) {
    char when[LINE], input[LINE], output[LINE];
    struct trace_request one = {0};
    if (sscanf(line, "%255[^,],%255[^,],%255[^,]", when, input, output) != 3)
        return wrong(r, err, "it has not three fields");
    if (!read_time(when, &one.at_s))
        return wrong(r, err, "TIMESTAMP is not as 2023-11-16 18:15:46.68");
    if (!read_length(input, &one.n_input))
        return wrong(r, err, "ContextTokens is not between 1 and 2^24");
    if (!read_length(output, &one.n_output))
        return wrong(r, err, "GeneratedTokens is not between 1 and 2^24");
    return add(r, one, err);
}

// ---- Mooncake ---------------------------------------------------------------------------------------------------

static enum status take_blocks(struct reading *r, const json_t *ids, struct trace_request *one, struct error *err) {
    size_t n = json_array_size(ids), needed = ((size_t)one->n_input + TRACE_BLOCK - 1) / TRACE_BLOCK;
    if (!ids)
        return OK;
    if (!json_is_array(ids) || n > needed)
        return wrong(r, err, "hash_ids is not an array of an id for each 512 tokens");
    int32_t *blocks = arena_calloc(&r->trace->memory, n, sizeof *blocks);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return wrong(r, err, "hash_ids has something else than ids from 0 to 2^31 - 1");
        blocks[i] = (int32_t)json_integer_value(id);
    }
    one->blocks = blocks, one->n_blocks = (int)n;
    return OK;
}

static enum status read_mooncake(struct reading *r, struct str line, struct error *err) {
    enum { WHERE = 320 };
    char where[WHERE];
    json_t *json;
    int64_t n_input, n_output;
    struct trace_request one = {0};
    snprintf(where, sizeof where, "%.256s: line %d", r->path, r->line);
    TRY(jv_parse(line, where, 0, &json, err));
    enum status st = json_is_object(json) ? OK : wrong(r, err, "it is no object");
    if (st == OK)
        st = jv_real(json, where, "timestamp", &one.at_s, err);
    if (st == OK)
        st = jv_int(json, where, "input_length", 1, LONGEST, &n_input, err);
    if (st == OK)
        st = jv_int(json, where, "output_length", 1, LONGEST, &n_output, err);
    if (st == OK) {
        one.at_s *= 1e-3, one.n_input = (int32_t)n_input, one.n_output = (int32_t)n_output;
        st = take_blocks(r, json_object_get(json, "hash_ids"), &one, err);
    }
    if (st == OK)
        st = add(r, one, err);
    json_decref(json);
    return st;
}

// ---- both -------------------------------------------------------------------------------------------------------

static enum status read_line(struct reading *r, struct str line, bool is_azure, struct error *err) {
    static const char header[] = "TIMESTAMP,ContextTokens,GeneratedTokens";
    char text[LINE];
    if (line.len == 0)
        return OK;
    if (!is_azure)
        return read_mooncake(r, line, err);
    if (line.len >= sizeof text)
        return wrong(r, err, "it is longer than 255 bytes");
    snprintf(text, sizeof text, "%.*s", STR_ARG(line));
    if (r->line == 1)
        return strcmp(text, header) == 0 ? OK : wrong(r, err, "it is neither an object nor the header of a trace");
    return read_azure(r, text, err);
}

static enum status read_all(struct reading *r, struct str all, struct error *err) {
    bool is_azure = all.len > 0 && all.ptr[0] != '{';
    while (all.len > 0) {
        const char *end = memchr(all.ptr, '\n', all.len);
        struct str line = {all.ptr, end ? (size_t)(end - all.ptr) : all.len};
        size_t used = line.len + (end != NULL);
        if (line.len > 0 && line.ptr[line.len - 1] == '\r')
            line.len--;
        r->line++;
        TRY(read_line(r, line, is_azure, err));
        all.ptr += used, all.len -= used;
    }
    return r->trace->n > 0 ? OK : fail(err, ERR_FORMAT, "%s: there is no request in it", r->path);
}

enum status trace_open(struct trace *t, const char *path, struct error *err) {
    struct buf text = {0};
    struct reading r = {.trace = t, .path = path};
    *t = (struct trace){0};
    enum status st = file_read(path, MOST_BYTES, &text, err);
    if (st == OK)
        st = read_all(&r, buf_view(&text), err);
    buf_release(&text);
    if (st != OK)
        trace_release(t);
    return st;
}

void trace_release(struct trace *t) {
    free(t->requests);
    arena_release(&t->memory);
    *t = (struct trace){0};
}
