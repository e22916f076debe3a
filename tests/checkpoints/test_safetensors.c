/* test_safetensors.c - checkpoints: what is given back, and that each way to break a file ends in one
 * sentence naming file and tensor. Every case starts from a small valid file and changes one thing. */
#include "checkpoint_files.h"

#include <sys/mman.h>
#include <sys/stat.h>

static void tensors_come_back_by_name_and_in_order(void **state) {
    (void)state;
    const char *path = in_dir("good.safetensors");
    write_file(path, good, GOOD_BYTES);
    struct checkpoint *c;
    struct error err;
    EXPECT_OK(checkpoint_open(&c, path, &err), err);
    EXPECT_EQ(checkpoint_count(c), 2);
    struct stored_tensor *a = checkpoint_find(c, "a"), *b = checkpoint_find(c, "b");
    EXPECT(a == checkpoint_at(c, 0) && b == checkpoint_at(c, 1)); // by offset, not as the header lists them
    EXPECT(a->dtype == DT_F32 && a->rank == 2 && a->shape[0] == 2 && a->shape[1] == 2 && a->n_bytes == 16);
    EXPECT(b->dtype == DT_BF16 && b->rank == 1 && b->shape[0] == 3 && b->n_bytes == 6);
    for (int i = 0; i < 16; i++)
        EXPECT_EQ(((const uint8_t *)a->data)[i], i);
    EXPECT_EQ(*(const uint8_t *)b->data, 16);
    EXPECT(!a->consumed && !checkpoint_find(c, "__metadata__") && !checkpoint_find(c, "c"));
    EXPECT_STR(checkpoint_path(c, a), path);
    EXPECT_OK(checkpoint_check(c, &err), err);
    checkpoint_free(c);
}

struct told {
    int64_t done, total;
    int n;
};

static void tell(void *context, int64_t done, int64_t total) {
    struct told *t = context;
    EXPECT(done > t->done && done <= total && (t->n == 0 || total == t->total));
    *t = (struct told){done, total, t->n + 1};
}

/* Whether the system was asked for large pages of the map that `at` is in. */
static bool wants_large_pages(const char *at) {
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    bool is_in = false, wants = false;
    while (f && fgets(line, sizeof line, f)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            is_in = (uintptr_t)at >= begin && (uintptr_t)at < end;
        wants = wants || (is_in && strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " hg"));
    }
    if (f)
        fclose(f);
    return wants;
}

static void reading_ahead_reads_every_byte_and_tells_of_it(void **state) {
    (void)state;
    enum { DATA = (40 << 20) + 12344 };
    const char *path = in_dir("large.safetensors");
    char header[128];
    snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", DATA, DATA);
    write_file(path, header, DATA);
    int fd = open(path, O_RDONLY); // out of the page cache, where the file system has one
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    struct checkpoint *c;
    struct error err;
    EXPECT_OK(checkpoint_open(&c, path, &err), err);
    struct told told = {0};
    checkpoint_read_ahead(c, &(struct load_progress){tell, &told});
    EXPECT(told.done == told.total && told.total > DATA && told.n == 3);
    const char *data = checkpoint_find(c, "a")->data;
    EXPECT(wants_large_pages(data) || access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0);
    unsigned char in_memory[1];
    for (int64_t i = 0; i + 8192 < DATA; i += 1 << 20) {
        EXPECT_EQ(mincore((void *)((uintptr_t)(data + i) & ~(uintptr_t)4095), 1, in_memory), 0);
        EXPECT(in_memory[0] & 1);
    }
    checkpoint_free(c);
    remove(path);
}

static void scalars_and_empty_tensors_are_tensors(void **state) {
    (void)state;
    const char *path = in_dir("shapes.safetensors");
    write_file(path,
               "{\"e2\":{\"dtype\":\"U8\",\"shape\":[0,4],\"data_offsets\":[8,8]},\"s\":{\"dtype\":\"I64\",\"shape\":[]"
               ",\"data_offsets\":[0,8]},"
               "\"e1\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
               8);
    struct checkpoint *c;
    struct error err;
    EXPECT_OK(checkpoint_open(&c, path, &err), err);
    EXPECT(checkpoint_find(c, "s")->rank == 0 && checkpoint_find(c, "s")->n_bytes == 8);
    EXPECT(checkpoint_find(c, "e1")->n_bytes == 0 && checkpoint_find(c, "e2")->n_bytes == 0);
    checkpoint_free(c);
    write_file(path, "{}", 0); // no tensors at all is a valid file
    EXPECT_OK(checkpoint_open(&c, path, &err), err);
    EXPECT(checkpoint_count(c) == 0 && !checkpoint_find(c, "a"));
    checkpoint_free(c);
}

/* Headers of any length, as the first writers of the format left them. */
static void data_may_begin_anywhere(void **state) {
    (void)state;
    const char *path = in_dir("odd.safetensors");
    for (int n_blanks = 0; n_blanks < 8; n_blanks++) {
        char header[200];
        int n = snprintf(header, sizeof header,
                         "{\"d\":{\"dtype\":\"F64\",\"shape\":[600],\"data_offsets\":[0,4800]},"
                         "\"h\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[4800,4806]}}%*s",
                         n_blanks, "");
        write_raw(path, (uint64_t)n, header, 4806);
        struct checkpoint *c;
        struct error err;
        EXPECT_OK(checkpoint_open(&c, path, &err), err);
        struct told told = {0};
        checkpoint_read_ahead(c, &(struct load_progress){.step = tell, .context = &told});
        const struct stored_tensor *d = checkpoint_find(c, "d"), *h = checkpoint_find(c, "h");
        EXPECT((uintptr_t)d->data % 8 == 0 && (uintptr_t)h->data % 2 == 0);
        for (size_t i = 0; i < d->n_bytes; i++)
            EXPECT_EQ(((const uint8_t *)d->data)[i], i % 256);
        EXPECT_EQ(((const uint8_t *)h->data)[5], 4805 % 256);
        EXPECT_OK(checkpoint_check(c, &err), err);
        checkpoint_free(c);
    }
}

static void large_models_are_put_in_large_pages(void **state) {
    (void)state;
    static const atomic_bool never = false;
    enum { DATA = 264 << 20 };
    const char *path = in_dir("huge.safetensors");
    char header[128];
    snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", DATA, DATA);
    write_file(path, header, 0);
    EXPECT(truncate(path, 8 + ((off_t)strlen(header) + 7) / 8 * 8 + DATA) == 0); // zeros that take no room on the disk
    struct checkpoint *c;
    struct error err;
    EXPECT_OK(checkpoint_open(&c, path, &err), err);
    const bool wanted[] = {true}, unwanted[] = {false};
    EXPECT_EQ(checkpoint_put_in_large_pages(c, unwanted, 0, &never), 0);
    EXPECT_EQ(checkpoint_put_in_large_pages(c, wanted, INT64_MAX / 2, &never), 0); // no room beside what is reserved
    int64_t put = checkpoint_put_in_large_pages(c, wanted, 0, &never);
    EXPECT(put == 0 || put > DATA / 2);
    const char *a = checkpoint_find(c, "a")->data;
    for (int64_t i = 0; i < DATA; i += 4096)
        EXPECT_EQ(a[i], 0);
    checkpoint_free(c);
    remove(path);
}

static void a_broken_frame_is_refused(void **state) {
    (void)state;
    const char *path = in_dir("frame.safetensors");
    write_bytes(path, "", 0);
    expect_refusal(path, ERR_FORMAT, path, "has 0 bytes");
    write_bytes(path, "\1\0\0\0\0\0\0", 7);
    expect_refusal(path, ERR_FORMAT, path, "has 7 bytes");
    write_raw(path, 1ull << 63, good, GOOD_BYTES);
    expect_refusal(path, ERR_FORMAT, path, "9223372036854775808");
    write_raw(path, UINT64_MAX, good, GOOD_BYTES);
    expect_refusal(path, ERR_FORMAT, path, "18446744073709551615");
    write_raw(path, 100000001, good, GOOD_BYTES);
    expect_refusal(path, ERR_FORMAT, path, "over the limit");
    write_raw(path, strlen(good) + GOOD_BYTES + 1, good, GOOD_BYTES);
    expect_refusal(path, ERR_FORMAT, path, "cut short");
    write_raw(path, 0, "", 0);
    expect_refusal(path, ERR_FORMAT, path, "begin with '{'");
    write_raw(path, strlen(good) - 1, good, GOOD_BYTES);
    expect_refusal(path, ERR_FORMAT, path, "not valid JSON");
    write_file(path, " {}", 0);
    expect_refusal(path, ERR_FORMAT, path, "begin with '{'");
    write_file(path, "[]", 0);
    expect_refusal(path, ERR_FORMAT, path, "begin with '{'");
    write_file(path, "{} {}", 0);
    expect_refusal(path, ERR_FORMAT, path, "not valid JSON");
    write_file(path, "{\"\xff\":1}", 0);
    expect_refusal(path, ERR_FORMAT, path, "not valid JSON");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n";
    write_bytes(path, pointer, strlen(pointer));
    expect_refusal(path, ERR_FORMAT, path, "Git LFS");
}

static void nesting_of_100000_arrays_is_refused(void **state) {
    (void)state;
    const char *path = in_dir("deep.safetensors");
    struct buf b = {0};
    buf_printf(&b, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        buf_push(&b, '[');
    write_file(path, b.ptr, 0);
    expect_refusal(path, ERR_FORMAT, path, "not valid JSON");
    buf_release(&b);
}

static const struct {
    const char *header;
    int n_data;
    enum status status;
    const char *says;
} faulty_entries[] = {
    {"{\"ten\":[1]}", 0, ERR_FORMAT, "tensor ten is an array"},
    {"{\"ten\":null}", 0, ERR_FORMAT, "tensor ten is null"},
    {"{\"ten\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ERR_FORMAT, "tensor ten: \"dtype\" is missing"},
    {"{\"ten\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ERR_FORMAT,
     "tensor ten: \"dtype\" is an integer"},
    {"{\"ten\":{\"dtype\":\"Q9\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ERR_UNSUPPORTED,
     "tensor ten: dtype \"Q9\""},
    {"{\"ten\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, ERR_FORMAT, "tensor ten: \"shape\" is missing"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, ERR_FORMAT,
     "tensor ten: dimension 0"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1,2.5],\"data_offsets\":[0,1]}}", 1, ERR_FORMAT,
     "tensor ten: dimension 1"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}", 1, ERR_FORMAT,
     "tensor ten: dimension 0"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, ERR_UNSUPPORTED,
     "tensor ten: \"shape\" has 9"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1, ERR_FORMAT,
     "\"shape\" is not a whole number"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, ERR_FORMAT,
     "tensor ten: the product"},
    {"{\"ten\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0, ERR_FORMAT,
     "tensor ten: the product"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0, ERR_FORMAT,
     "tensor ten: the product"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[4611686018427387904,2,0],\"data_offsets\":[0,0]}}", 0, ERR_FORMAT,
     "tensor ten: the product"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, ERR_FORMAT, "tensor ten: \"data_offsets\""},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, ERR_FORMAT,
     "tensor ten: \"data_offsets\""},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, ERR_FORMAT,
     "tensor ten: \"data_offsets\""},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, ERR_FORMAT,
     "tensor ten: \"data_offsets\""},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[\"0\",1]}}", 1, ERR_FORMAT,
     "tensor ten: \"data_offsets\""},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, ERR_FORMAT,
     "tensor ten: \"data_offsets\" ends at 0 before"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", 8, ERR_FORMAT,
     "tensor ten ends at byte 9 of the data, the file has 8"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,9223372036854775807]}}", 1, ERR_FORMAT,
     "tensor ten ends at byte"},
    {"{\"ten\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, ERR_FORMAT,
     "tensor ten: \"data_offsets\" spans 4 bytes"},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"ten\":{\"dtype\":\"F16\",\"shape\":[1],"
     "\"data_offsets\":[1,3]}}",
     3, ERR_UNSUPPORTED, "tensor ten begins at byte"},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"ten\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[2,4]}}",
     4, ERR_FORMAT, "tensors b and ten overlap"},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"ten\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[0,2]}}",
     2, ERR_FORMAT, "tensors b and ten overlap"},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"ten\":{\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[2,3]}}",
     3, ERR_FORMAT, "bytes 1 to 2 of the data, before tensor ten,"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, ERR_FORMAT,
     "bytes 0 to 1 of the data, before tensor ten,"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 4, ERR_FORMAT, "the last 3 bytes"},
    {"{}", 1, ERR_FORMAT, "the last 1 bytes"},
    {"{\"__metadata__\":[]}", 0, ERR_FORMAT, "\"__metadata__\" is an array"},
    {"{\"__metadata__\":{\"format\":1}}", 0, ERR_FORMAT, "\"format\" is an integer"},
    {"{\"ten\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"ten\":{\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[1,2]}"
     "}",
     2, ERR_FORMAT, "duplicate"},
    {"{\"ten\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ERR_FORMAT,
     "duplicate"},
};

static void every_faulty_entry_is_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(faulty_entries); i++) {
        const char *path = in_dir("entry.safetensors");
        write_file(path, faulty_entries[i].header, (size_t)faulty_entries[i].n_data);
        expect_refusal(path, faulty_entries[i].status, path, faulty_entries[i].says);
    }
}

/* However a valid file is cut, it is refused; there is no length at which half a checkpoint looks whole. */
static void a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    const char *path = in_dir("cut.safetensors");
    write_file(path, good, GOOD_BYTES);
    struct stat st;
    EXPECT_EQ(stat(path, &st), 0);
    for (off_t n = st.st_size - 1; n >= 0; n--) {
        EXPECT_EQ(truncate(path, n), 0);
        expect_refusal(path, ERR_FORMAT, path, "");
    }
}

static void a_file_cut_while_mapped_is_told(void **state) {
    (void)state;
    const char *path = in_dir("shrinks.safetensors");
    write_file(path, "{\"a\":{\"dtype\":\"U8\",\"shape\":[100000],\"data_offsets\":[0,100000]}}", 100000);
    struct checkpoint *c;
    struct error err;
    EXPECT_OK(checkpoint_open(&c, path, &err), err);
    EXPECT_EQ(truncate(path, 4096), 0);
    const struct stored_tensor *a = checkpoint_find(c, "a");
    unsigned sum = 0;
    for (size_t i = 0; i < a->n_bytes; i++)
        sum += ((const volatile uint8_t *)a->data)[i];
    EXPECT(sum > 0); // and we live
    EXPECT_EQ(checkpoint_check(c, &err), ERR_IO);
    EXPECT(strstr(err.text, path));
    checkpoint_free(c);
}

static void what_is_no_checkpoint_is_said(void **state) {
    (void)state;
    mkdir(in_dir("empty"), 0755);
    expect_refusal(in_dir("empty"), ERR_IO, "model.safetensors", "index.json");
    expect_refusal(in_dir("nowhere"), ERR_IO, "nowhere", "no such file");
    write_bytes(in_dir("weights.bin"), "x", 1);
    expect_refusal(in_dir("weights.bin"), ERR_UNSUPPORTED, "weights.bin", ".safetensors");
}

static void a_hundred_thousand_tensors_are_found_by_name(void **state) {
    (void)state;
    struct buf b = {0};
    const int N = test_is_brief() ? 20000 : 100000;
    for (int i = 0; i < N; i++)
        buf_printf(&b,
                   "%c\"model.layers.%d.mlp.experts.%d.gate_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_"
                   "offsets\":[%d,%d]}",
                   i ? ',' : '{', i / 256, i % 256, 2 * i, 2 * i + 2);
    buf_push(&b, '}');
    const char *path = in_dir("many.safetensors");
    write_file(path, b.ptr, 2 * N);
    buf_release(&b);
    struct checkpoint *c;
    struct error err;
    clock_t start = clock();
    EXPECT_OK(checkpoint_open(&c, path, &err), err);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC; // of this process: others may be busy
    printf("%d tensors opened in %.3f s\n", N, seconds);
    EXPECT_EQ(checkpoint_count(c), (size_t)N);
    char name[80];
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.weight", i / 256, i % 256);
        EXPECT(checkpoint_find(c, name) == checkpoint_at(c, (size_t)i));
    }
    checkpoint_free(c);
    EXPECT(seconds < 5); // generous: sanitizers
}

int main(void) {
    const struct CMUnitTest tests[] = {
        // First: the SIGBUS handler is installed with the first map, and cmocka puts its own in at each test.

        cmocka_unit_test(a_file_cut_while_mapped_is_told),
        cmocka_unit_test(reading_ahead_reads_every_byte_and_tells_of_it),
        cmocka_unit_test(large_models_are_put_in_large_pages),
        cmocka_unit_test(tensors_come_back_by_name_and_in_order),
        cmocka_unit_test(scalars_and_empty_tensors_are_tensors),
        cmocka_unit_test(data_may_begin_anywhere),
        cmocka_unit_test(a_broken_frame_is_refused),
        cmocka_unit_test(nesting_of_100000_arrays_is_refused),
        cmocka_unit_test(every_faulty_entry_is_refused_by_name),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(what_is_no_checkpoint_is_said),
        cmocka_unit_test(a_hundred_thousand_tensors_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
