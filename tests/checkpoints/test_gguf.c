/* test_gguf.c - GGUF files: metadata and tensors come back, and each way to break a file ends in one sentence naming
 * file and key or tensor. Cases begin from a small valid file and change one thing. */
#include "check.h"

#include "base/file.h"
#include "base/gguf/gguf.h"
#include "base/gguf/gguf_find.h"
#include "file/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/gyre_gguf_XXXXXX";

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : 1;
}

static int remove_dir(void **state) {
    (void)state;
    char command[200];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static const char *in_dir(const char *name) {
    static char paths[8][FOLDER_PATH_BYTES];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, FOLDER_PATH_BYTES, "%s/%s", dir, name);
    return p;
}

/* ---- a writer ---- */

static void put(struct buf *b, uint64_t v, int n) {
    for (int i = 0; i < n; i++)
        buf_push(b, (char)(v >> 8 * i));
}

static void put_string(struct buf *b, const char *s) {
    put(b, strlen(s), 8);
    buf_append(b, s, strlen(s));
}

static void put_key(struct buf *b, const char *key, enum gguf_type type) {
    put_string(b, key);
    put(b, type, 4);
}

static void put_tensor(struct buf *b, const char *name, int n_dims, const uint64_t *dims, unsigned type,
                       uint64_t offset) {
    put_string(b, name);
    put(b, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++)
        put(b, dims[i], 8);
    put(b, type, 4);
    put(b, offset, 8);
}

/* What a file is made of; what is 0 or NULL is as in the good one. */
struct plan {
    const char *magic;
    uint32_t version;
    uint64_t n_tensors, n_keys;
    void (*more_keys)(struct buf *b); // one key more
    void (*more_tensors)(struct buf *b);
    uint64_t row; // of the blocks
    unsigned type;
    uint64_t offset;
    int64_t lost; // bytes at the end
};

static void write_file(const char *path, struct plan p) {
    struct buf b = {0};
    struct error err;
    buf_printf(&b, "%s", p.magic ? p.magic : "GGUF");
    put(&b, p.version ? p.version : 3, 4);
    put(&b, p.n_tensors ? p.n_tensors : p.more_tensors ? 3 : 2, 8);
    put(&b, p.n_keys ? p.n_keys : p.more_keys ? 6 : 5, 8);
    put_key(&b, "general.architecture", GGUF_STRING);
    put_string(&b, "llama");
    put_key(&b, "llama.block_count", GGUF_U32);
    put(&b, 12, 4);
    put_key(&b, "llama.epsilon", GGUF_F32);
    put(&b, 0x3F000000, 4);
    put_key(&b, "tokens", GGUF_ARRAY);
    put(&b, GGUF_STRING, 4);
    put(&b, 2, 8);
    put_string(&b, "one");
    put_string(&b, "");
    put_key(&b, "types", GGUF_ARRAY);
    put(&b, GGUF_I32, 4);
    put(&b, 2, 8);
    put(&b, 7, 4);
    put(&b, (uint64_t)-3, 4);
    if (p.more_keys)
        p.more_keys(&b);
    put_tensor(&b, "a", 2, (uint64_t[]){p.row ? p.row : 64, 3}, p.type ? p.type : 8, 0); // Q8_0
    put_tensor(&b, "b", 1, (uint64_t[]){5}, 0, p.offset ? p.offset : 224);
    if (p.more_tensors)
        p.more_tensors(&b);
    while (b.len % 32)
        buf_push(&b, 0);
    for (int i = 0; i < 244 - p.lost; i++)
        buf_push(&b, (char)i);
    EXPECT_OK(file_write(path, buf_view(&b), &err), err);
    buf_release(&b);
}

static void expect_refusal(struct plan plan, enum status status, const char *says) {
    const char *path = in_dir("bad.gguf");
    struct checkpoint *c = NULL;
    struct error err = {0};
    write_file(path, plan);
    enum status st = checkpoint_open(&c, path, &err);
    checkpoint_free(c);
    if (st != status || !strstr(err.text, path) || !strstr(err.text, says) || strchr(err.text, '\n'))
        fail_msg("status %s, \"%s\"; wanted %s with \"%s\"", status_name(st), err.text, status_name(status), says);
}

/* ---- claims ---- */

static void metadata_come_back_by_key_and_kind(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        const char *path = in_dir("good.gguf");
        struct gguf g;
        struct error err;
        struct str s;
        int64_t i;
        double x;
        const struct gguf_value *v;
        write_file(path, (struct plan){.version = version});
        EXPECT_OK(gguf_open(path, &g, &err), err);
        EXPECT_EQ(g.version, version);
        EXPECT_OK(gguf_string(&g, "general.architecture", &s, &err), err);
        EXPECT(str_eq(s, STR("llama")));
        EXPECT_OK(gguf_int(&g, "llama.block_count", 1, 100, &i, &err), err);
        EXPECT_EQ(i, 12);
        EXPECT_OK(gguf_real_or(&g, "llama.epsilon", 0, &x, &err), err);
        EXPECT(x == 0.5);
        EXPECT_OK(gguf_int_or(&g, "llama.absent", 0, 9, 5, &i, &err), err);
        EXPECT_EQ(i, 5);
        EXPECT_OK(gguf_strings(&g, "tokens", &v, &err), err);
        const char *at = v->at;
        EXPECT_EQ(v->n, 2);
        EXPECT(str_eq(gguf_next_string(&at, v->end), STR("one")) && str_eq(gguf_next_string(&at, v->end), STR("")));
        EXPECT_OK(gguf_ints(&g, "types", &v, &err), err);
        EXPECT(v->n == 2 && gguf_item_int(v, 0) == 7 && gguf_item_int(v, 1) == -3);
        EXPECT(gguf_int(&g, "llama.block_count", 13, 100, &i, &err) == ERR_FORMAT);
        EXPECT(strstr(err.text, "llama.block_count is 12, it must be from 13 to 100"));
        EXPECT(gguf_int(&g, "general.architecture", 0, 1, &i, &err) == ERR_FORMAT);
        EXPECT(strstr(err.text, "general.architecture must be a whole number"));
        EXPECT(gguf_string(&g, "general.name", &s, &err) == ERR_FORMAT);
        EXPECT(strstr(err.text, "general.name is missing"));
        gguf_release(&g);
    }
}

static void tensors_come_back_turned_round_and_in_blocks(void **state) {
    (void)state;
    const char *path = in_dir("good.gguf");
    struct checkpoint *c;
    struct error err;
    write_file(path, (struct plan){0});
    EXPECT_OK(checkpoint_open(&c, path, &err), err);
    EXPECT_EQ(checkpoint_count(c), 2);
    const struct stored_tensor *a = checkpoint_find(c, "a"), *b = checkpoint_find(c, "b");
    EXPECT(a->format == qformat_of_blocks(QFORMAT_Q8_0) && a->dtype == DT_U8 && a->rank == 2);
    EXPECT(a->shape[0] == 3 && a->shape[1] == 64 && a->n_bytes == 3 * 2 * 34);
    EXPECT(!b->format && b->dtype == DT_F32 && b->rank == 1 && b->shape[0] == 5 && b->n_bytes == 20);
    EXPECT_EQ(*(const uint8_t *)b->data, 224);
    checkpoint_free(c);
}

static void key_again(struct buf *b) {
    put_key(b, "tokens", GGUF_U8);
    put(b, 1, 1);
}
static void strange_type(struct buf *b) { put_key(b, "odd", 13); }
static void nested(struct buf *b) {
    put_key(b, "odd", GGUF_ARRAY);
    put(b, GGUF_ARRAY, 4);
    put(b, 1, 8);
}
static void endless(struct buf *b) {
    put_key(b, "odd", GGUF_ARRAY);
    put(b, GGUF_U64, 4);
    put(b, UINT64_MAX / 8 + 2, 8);
}
static void endless_strings(struct buf *b) {
    put_key(b, "odd", GGUF_ARRAY);
    put(b, GGUF_STRING, 4);
    put(b, 1ull << 40, 8);
}
static void odd_alignment(struct buf *b) {
    put_key(b, "general.alignment", GGUF_U32);
    put(b, 24, 4);
}
static void nameless(struct buf *b) { put_key(b, "", GGUF_U8), put(b, 1, 1); }
static void no_text(struct buf *b) { put_key(b, "\xFF", GGUF_U8), put(b, 1, 1); }
static void five_dims(struct buf *b) { put_tensor(b, "c", 5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 0); }
static void negative(struct buf *b) { put_tensor(b, "c", 1, (uint64_t[]){1ull << 63}, 0, 0); }
static void no_rows(struct buf *b) { put_tensor(b, "c", 2, (uint64_t[]){32, 0}, 0, 0); }
static void empty_rows(struct buf *b) { put_tensor(b, "c", 2, (uint64_t[]){0, 1ull << 50}, 0, 0); }
static void huge(struct buf *b) { put_tensor(b, "c", 4, (uint64_t[]){1ull << 31, 1ull << 31, 1ull << 31, 1}, 0, 0); }
static void tensor_again(struct buf *b) { put_tensor(b, "a", 1, (uint64_t[]){1}, 0, 256 - 32); }
static void overlapping(struct buf *b) { put_tensor(b, "c", 1, (uint64_t[]){4}, 0, 64); }
static void far(struct buf *b) { put_tensor(b, "c", 1, (uint64_t[]){1}, 0, ~31ull); }

static void a_broken_file_is_refused_by_key_or_tensor(void **state) {
    (void)state;
    expect_refusal((struct plan){.magic = "GGML"}, ERR_FORMAT, "does not begin with GGUF");
    expect_refusal((struct plan){.magic = "<!DO"}, ERR_FORMAT, "looks like a web page and is no GGUF file");
    expect_refusal((struct plan){.magic = "version https://git-lfs"}, ERR_FORMAT, "Git LFS pointer");
    expect_refusal((struct plan){.version = 1}, ERR_UNSUPPORTED, "GGUF version 1, gyre reads 2 and 3");
    expect_refusal((struct plan){.version = 3 << 24}, ERR_UNSUPPORTED, "big-endian");
    expect_refusal((struct plan){.n_keys = 1ull << 60}, ERR_LIMIT, "keys of metadata");
    expect_refusal((struct plan){.n_keys = 60000}, ERR_FORMAT, "cut short");
    expect_refusal((struct plan){.n_tensors = 1ull << 60}, ERR_FORMAT, "the table of tensors");
    expect_refusal((struct plan){.more_keys = key_again}, ERR_FORMAT, "the key tokens is there twice");
    expect_refusal((struct plan){.more_keys = strange_type}, ERR_FORMAT, "odd has the type 13");
    expect_refusal((struct plan){.more_keys = nested}, ERR_UNSUPPORTED, "odd is an array of arrays");
    expect_refusal((struct plan){.more_keys = endless}, ERR_FORMAT, "odd has 2305843009213693953 items");
    expect_refusal((struct plan){.more_keys = endless_strings}, ERR_FORMAT, "odd has 1099511627776 items");
    expect_refusal((struct plan){.more_keys = odd_alignment}, ERR_FORMAT, "general.alignment is 24");
    expect_refusal((struct plan){.more_keys = nameless}, ERR_FORMAT, "a key of the metadata has 0 bytes");
    expect_refusal((struct plan){.more_keys = no_text}, ERR_FORMAT, "is not text in UTF-8");
    expect_refusal((struct plan){.more_tensors = five_dims}, ERR_FORMAT, "tensor c has 5 dimensions");
    expect_refusal((struct plan){.more_tensors = negative}, ERR_FORMAT, "tensor c has a dimension of more than 63");
    expect_refusal((struct plan){.more_tensors = no_rows}, ERR_FORMAT, "tensor c has a dimension of 0");
    expect_refusal((struct plan){.more_tensors = empty_rows}, ERR_FORMAT, "tensor c has a dimension of 0");
    expect_refusal((struct plan){.more_tensors = huge}, ERR_FORMAT, "tensor c multiply to more than");
    expect_refusal((struct plan){.more_tensors = tensor_again}, ERR_FORMAT, "overlap");
    expect_refusal((struct plan){.more_tensors = overlapping}, ERR_FORMAT, "tensors a and c overlap");
    expect_refusal((struct plan){.more_tensors = far}, ERR_FORMAT, "tensor c ends at byte");
    expect_refusal((struct plan){.type = 9}, ERR_UNSUPPORTED, "tensor a is of type Q8_1 (9), which is not supported");
    expect_refusal((struct plan){.type = 4}, ERR_UNSUPPORTED, "tensor a is of type unknown (4)");
    expect_refusal((struct plan){.row = 60}, ERR_FORMAT,
                   "tensor a has rows of 60 elements, Q8_0 needs a multiple of 32");
    expect_refusal((struct plan){.offset = 230}, ERR_FORMAT, "tensor b begins at byte 230");
    expect_refusal((struct plan){.lost = 1}, ERR_FORMAT, "tensor b ends at byte 244 of the data, the file has 243");
}

static void every_way_to_cut_a_header_is_refused(void **state) {
    (void)state;
    struct buf b = {0};
    struct error err;
    const char *path = in_dir("good.gguf");
    write_file(path, (struct plan){0});
    EXPECT_OK(file_read(path, 1 << 20, &b, &err), err);
    for (size_t n = 0; n < b.len - 244 - 32; n++) {
        struct gguf g;
        err = (struct error){0};
        char *cut = malloc(n + 1); // of its own, so that a sanitizer sees what is read beyond
        memcpy(cut, b.ptr, n);
        if (gguf_parse(cut, n, "cut", &g, &err) == OK)
            fail_msg("%zu bytes are taken for a file", n);
        EXPECT(strstr(err.text, "cut: ") == err.text && g.n_values == 0 && !g.values);
        free(cut);
    }
    buf_release(&b);
}

/* As of a file that is written while it is mapped. */
static void lengths_that_change_lead_nowhere(void **state) {
    (void)state;
    static const uint64_t lengths[] = {1ull << 40, UINT64_MAX, 4, 10, 11, 12}; // 11: all there is, 4: leaves 7 bytes
    struct buf b = {0};
    struct error err;
    const char *path = in_dir("good.gguf");
    write_file(path, (struct plan){0});
    EXPECT_OK(file_read(path, 1 << 20, &b, &err), err);
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        struct gguf g;
        struct str s;
        const struct gguf_value *v;
        EXPECT_OK(gguf_parse(b.ptr, b.len, path, &g, &err), err);
        EXPECT_OK(gguf_strings(&g, "tokens", &v, &err), err);
        char *first = b.ptr + (v->at - b.ptr), kept[8];
        const char *at = v->at;
        memcpy(kept, first, sizeof kept);
        for (int k = 0; k < 8; k++)
            first[k] = (char)(lengths[i] >> 8 * k);
        EXPECT_EQ(v->end - v->at, 8 + 3 + 8);
        EXPECT_EQ(gguf_next_string(&at, v->end).len, lengths[i] <= 11 ? lengths[i] : 0);
        EXPECT(gguf_next_string(&at, v->end).len == 0 && at == v->end);
        memcpy(first, kept, sizeof kept);
        v = gguf_get(&g, "general.architecture");
        char *length = b.ptr + (v->at - b.ptr);
        length[0] = 6;
        EXPECT_OK(gguf_string(&g, "general.architecture", &s, &err), err);
        EXPECT_EQ(s.len, 0);
        length[0] = 5;
        gguf_release(&g);
    }
    buf_release(&b);
}

/* ---- split files, and what a path is ---- */

static uint64_t split_no, split_count, split_tensors;

static void split_keys(struct buf *b) {
    put_key(b, "split.no", GGUF_U16), put(b, split_no, 2);
    put_key(b, "split.count", GGUF_U16), put(b, split_count, 2);
    put_key(b, "split.tensors.count", GGUF_I32), put(b, split_tensors, 4);
}

static void write_part(const char *path, uint64_t no, uint64_t count, uint64_t n_tensors, const char *name) {
    struct buf b = {0};
    struct error err;
    split_no = no, split_count = count, split_tensors = n_tensors;
    buf_printf(&b, "GGUF");
    put(&b, 3, 4), put(&b, 1, 8), put(&b, 3, 8);
    split_keys(&b);
    put_tensor(&b, name, 1, (uint64_t[]){2}, 0, 0);
    while (b.len % 32 || b.len == 0)
        buf_push(&b, 0);
    put(&b, no, 8);
    EXPECT_OK(file_write(path, buf_view(&b), &err), err);
    buf_release(&b);
}

static void expect_open(const char *path, int n_tensors, const char *says) {
    struct checkpoint *c = NULL;
    struct error err = {0};
    enum status st = checkpoint_open(&c, path, &err);
    if (says ? st == OK || !strstr(err.text, says) : st != OK || checkpoint_count(c) != (size_t)n_tensors)
        fail_msg("%s: %s", path, err.text);
    checkpoint_free(c);
}

static void a_split_model_is_opened_by_any_of_its_files(void **state) {
    (void)state;
    const char *folder = in_dir("split"), *first = in_dir("split/m-00001-of-00002.gguf"),
               *second = in_dir("split/m-00002-of-00002.gguf");
    EXPECT_EQ(mkdir(folder, 0700), 0);
    write_part(first, 0, 2, 2, "a");
    expect_open(first, 0, "m-00002-of-00002.gguf is missing beside it");
    write_part(second, 1, 2, 2, "b");
    expect_open(first, 2, NULL);
    expect_open(second, 2, NULL);
    expect_open(folder, 2, NULL);
    write_part(second, 0, 2, 2, "b");
    expect_open(first, 0, "is file 1 of 2 by split.no and split.count, and 2 of 2 by its name");
    write_part(second, 1, 2, 3, "b");
    expect_open(first, 0, "split.tensors.count is 3, and the files have 2 tensors");
    write_part(second, 1, 2, 2, "a");
    expect_open(first, 0, "tensor a is also in");
}

static void a_folder_with_several_models_is_refused_by_their_names(void **state) {
    (void)state;
    const char *folder = in_dir("several");
    EXPECT_EQ(mkdir(folder, 0700), 0);
    write_file(in_dir("several/m-Q8_0.gguf"), (struct plan){0});
    write_file(in_dir("several/mmproj-m.gguf"), (struct plan){0}); // a tower
    expect_open(folder, 2, NULL);
    write_file(in_dir("several/m-Q4_0.gguf"), (struct plan){0});
    expect_open(folder, 0, "has several GGUF models, m-Q4_0.gguf and m-Q8_0.gguf among them");
    expect_open(in_dir("several/m-Q4_0.gguf"), 2, NULL);
    EXPECT_EQ(symlink("/etc/passwd", in_dir("several/x.gguf")), 0);
    EXPECT_EQ(unlink(in_dir("several/m-Q4_0.gguf")), 0);
    EXPECT_EQ(unlink(in_dir("several/m-Q8_0.gguf")), 0);
    expect_open(folder, 0, "x.gguf"); // leads out of the folder
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_come_back_by_key_and_kind),
        cmocka_unit_test(tensors_come_back_turned_round_and_in_blocks),
        cmocka_unit_test(a_broken_file_is_refused_by_key_or_tensor),
        cmocka_unit_test(every_way_to_cut_a_header_is_refused),
        cmocka_unit_test(lengths_that_change_lead_nowhere),
        cmocka_unit_test(a_split_model_is_opened_by_any_of_its_files),
        cmocka_unit_test(a_folder_with_several_models_is_refused_by_their_names),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
