/* calibration_text.c - see calibration_text.h. */
#include "main/model/calibration_text.h"

#include "base/file.h"
#include "main/model/model_text.h"

enum { MAX_TEXT_BYTES = 1 << 30 };

enum status calibration_text(const char *model, const char *path, struct token_ids *out, struct error *err) {
    struct model_text text = {0};
    struct buf bytes = {0};
    enum status st = model_text_open(&text, model, err);
    if (st == OK)
        st = file_read(path, MAX_TEXT_BYTES, &bytes, err);
    if (st == OK)
        st = model_text_encode_plain(&text, buf_view(&bytes), out, err);
    buf_release(&bytes);
    model_text_release(&text);
    return st;
}
