/* speculation_flags.c - see speculation_flags.h. */
#include "main/flags/speculation_flags.h"

#include "base/json/json.h"

#include <stdio.h>
#include <string.h>

static const char flag_name[] = "--speculative-config", synthetic_key[] = "synthetic_acceptance_length",
                  acceptance_key[] = "draft_acceptance";

static bool is_given(const json_t *config, const char *key) {
    const json_t *value = json_object_get(config, key);
    return value && !json_is_null(value);
}

/* The strings are kept in `out`. Without a method the draft's own config says what it is. */
static enum status read_strings(const json_t *config, struct speculation *out, struct error *err) {
    const char *method = NULL, *model = NULL;
    if (is_given(config, "method") || !is_given(config, "model"))
        TRY(jv_string(config, flag_name, "method", &method, err));
    bool is_ngram = method && strcmp(method, "ngram") == 0;
    if (is_given(config, "model"))
        TRY(jv_string(config, flag_name, "model", &model, err));
    if (is_ngram && model)
        return fail(err, ERR_ARG, "%s: \"model\" is not for n-grams, which are of the text itself", flag_name);
    if ((model && strlen(model) >= sizeof out->model) || (method && strlen(method) >= sizeof out->method))
        return fail(err, ERR_LIMIT, "%s: \"model\" or \"method\" is too long", flag_name);
    snprintf(out->model, sizeof out->model, "%s", model ? model : "");
    snprintf(out->method, sizeof out->method, "%s", method && !is_ngram ? method : "");
    return OK;
}

static enum status read_object(const json_t *config, struct speculation *out, struct error *err) {
    const struct {
        const char *key;
        int *to;
        int64_t least, most;
    } numbers[] = {
        {"num_speculative_tokens", &out->n_guesses, 1, 16},
        {"prompt_lookup_min", &out->ngram_min, 1, 64},
        {"prompt_lookup_max", &out->ngram_max, 1, 64},
        {"disable_by_batch_size", &out->guess_seqs, 1, 4096},
        {"eagle_topk", &out->topk, 1, 8},
        {"num_draft_tokens", &out->rows, 2, 32},
    };
    const char *key;
    json_t *value;
    TRY(read_strings(config, out, err));
    out->n_guesses = 5;
    json_object_foreach((json_t *)config, key, value) {
        bool known = strcmp(key, "method") == 0 || strcmp(key, "model") == 0 || strcmp(key, synthetic_key) == 0 ||
                     strcmp(key, "adaptive") == 0 || strcmp(key, acceptance_key) == 0;
        for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
            int64_t n;
            if (strcmp(key, numbers[i].key) != 0)
                continue;
            known = true;
            TRY(jv_int(config, flag_name, key, numbers[i].least, numbers[i].most, &n, err));
            *numbers[i].to = (int)n;
        }
        if (!known)
            return fail(err, ERR_UNSUPPORTED, "%s: \"%.100s\" is not known", flag_name, key);
    }
    bool adaptive;
    const char *acceptance;
    TRY(jv_real_or(config, flag_name, synthetic_key, 0, &out->synthetic, err));
    TRY(jv_bool_or(config, flag_name, "adaptive", true, &adaptive, err));
    out->always = !adaptive;
    TRY(jv_string_or(config, flag_name, acceptance_key, "draw", &acceptance, err));
    out->rejects = strcmp(acceptance, "rejection") == 0;
    if (!out->rejects && strcmp(acceptance, "draw") != 0)
        return fail(err, ERR_ARG, "%s: \"%s\" is \"%.40s\", it must be draw or rejection", flag_name, acceptance_key,
                    acceptance);
    if (out->rows && out->topk < 2)
        return fail(err, ERR_ARG, "%s: \"num_draft_tokens\" is of trees, with an \"eagle_topk\" of at least 2",
                    flag_name);
    if (out->ngram_max && out->ngram_min > out->ngram_max)
        return fail(err, ERR_ARG, "%s: \"prompt_lookup_min\" is %d, above \"prompt_lookup_max\" %d", flag_name,
                    out->ngram_min, out->ngram_max);
    return OK;
}

enum status speculation_read(const char *text, struct speculation *out, struct error *err) {
    json_t *config;
    *out = (struct speculation){0};
    if (!text)
        return OK;
    TRY(jv_parse(str_of(text), flag_name, 0, &config, err));
    enum status st = json_is_object(config) ? read_object(config, out, err)
                                            : fail(err, ERR_ARG, "%s: it must be a JSON object", flag_name);
    json_decref(config);
    return st;
}
