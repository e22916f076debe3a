/* test_safetensors.c - checkpoints: what is given back, and that each way to break a file ends in one
 * sentence naming file and tensor. Every case starts from a small valid file and changes one thing. */
#include "check.h"

#include "base/file.h"
#include "base/folder.h"
#include "file/checkpoint.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/gyre_safetensors_XXXXXX";

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

// dir/name, in one of a few rotating buffers.
static const char *in_dir(const char *name) {
    static char paths[8][FOLDER_PATH_BYTES];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, FOLDER_PATH_BYTES, "%s/%s", dir, name);
    return p;
}

static void write_bytes(const char *path, const void *bytes, size_t n) {
    struct error err;
    EXPECT_OK(file_write(path, (struct str){bytes, n}, &err), err);
}

// A file of this header length, header, and n_data bytes 0, 1, 2 ...
static void write_raw(const char *path, uint64_t n_header, const char *header, size_t n_data) {
    struct buf b = {0};
    for (int i = 0; i < 8; i++)
        buf_push(&b, (char)(n_header >> 8 * i));
    buf_append(&b, header, strlen(header));
    for (size_t i = 0; i < n_data; i++)
        buf_push(&b, (char)i);
    write_bytes(path, b.ptr, b.len);
    buf_release(&b);
}

// The same with the true length, the header padded with spaces to a multiple of 8.
static void write_file(const char *path, const char *header, size_t n_data) {
    struct buf b = {0};
    buf_printf(&b, "%s", header);
    while (b.len % 8)
        buf_push(&b, ' ');
    write_raw(path, b.len, b.ptr, n_data);
    buf_release(&b);
}

static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[16,22]},"
                           "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}";
enum { GOOD_BYTES = 22 };

static void expect_refusal(const char *path, enum status status, const char *says, const char *and_says) {
    struct checkpoint *c = NULL;
    struct error err = {0};
    enum status st = checkpoint_open(&c, path, &err);
    checkpoint_free(c);
    if (st != status || !strstr(err.text, says) || !strstr(err.text, and_says))
        fail_msg("%s: status %s, \"%s\"; wanted %s with \"%s\" and \"%s\"", path, status_name(st), err.text,
                 status_name(status), says, and_says);
    EXPECT(!strchr(err.text, '\n'));
}

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

static void every_faulty_entry_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *header;
        int n_data;
        enum status status;
        const char *says;
    } cases[] = {
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
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *path = in_dir("entry.safetensors");
        write_file(path, cases[i].header, (size_t)cases[i].n_data);
        expect_refusal(path, cases[i].status, path, cases[i].says);
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

/* dir/NAME/ with two shards and an index of this text. */
static const char *make_sharded(const char *name, const char *index) {
    char path[FOLDER_PATH_BYTES];
    const char *folder = in_dir(name);
    mkdir(folder, 0755);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    write_bytes(path, index, strlen(index));
    snprintf(path, sizeof path, "%s/one.safetensors", folder);
    write_file(path, good, GOOD_BYTES);
    snprintf(path, sizeof path, "%s/two.safetensors", folder);
    write_file(path, "{\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
    return folder;
}

#define INDEX(map) "{\"metadata\":{\"total_size\":26},\"weight_map\":{" map "}}"
#define GOOD_INDEX INDEX("\"c\":\"two.safetensors\",\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"")

static void shards_are_one_checkpoint(void **state) {
    (void)state;
    struct checkpoint *c;
    struct error err;
    EXPECT_OK(checkpoint_open(&c, make_sharded("sharded", GOOD_INDEX), &err), err);
    EXPECT_EQ(checkpoint_count(c), 3);
    EXPECT(strstr(checkpoint_path(c, checkpoint_find(c, "c")), "/two.safetensors"));
    EXPECT(strstr(checkpoint_path(c, checkpoint_find(c, "a")), "/one.safetensors"));
    EXPECT_EQ(((const uint8_t *)checkpoint_find(c, "c")->data)[3], 3);
    checkpoint_free(c);
    write_file(in_dir("sharded/model.safetensors"), "{}", 0); // the single file wins
    EXPECT_OK(checkpoint_open(&c, in_dir("sharded"), &err), err);
    EXPECT_EQ(checkpoint_count(c), 0);
    checkpoint_free(c);
}

static void every_faulty_index_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *index;
        enum status status;
        const char *says;
    } cases[] = {
        {"", ERR_FORMAT, "not valid JSON"},
        {"[]", ERR_FORMAT, "is an array"},
        {"{}", ERR_FORMAT, "\"weight_map\""},
        {INDEX(""), ERR_FORMAT, "\"weight_map\""},
        {"{\"weight_map\":[]}", ERR_FORMAT, "\"weight_map\" is an array"},
        {"{\"metadata\":7,\"weight_map\":{\"a\":\"one.safetensors\"}}", ERR_FORMAT, "\"metadata\" is an integer"},
        {"{\"metadata\":{\"total_size\":\"x\"},\"weight_map\":{\"a\":\"one.safetensors\"}}", ERR_FORMAT,
         "\"total_size\" is a string"},
        {"{\"metadata\":{\"total_size\":-1},\"weight_map\":{\"a\":\"one.safetensors\"}}", ERR_FORMAT,
         "\"total_size\" is negative"},
        {INDEX("\"a\":7"), ERR_FORMAT, "tensor a: the file name is an integer"},
        {INDEX("\"a\":\"one.safetensors\",\"a\":\"one.safetensors\""), ERR_FORMAT, "duplicate"},
        {INDEX("\"a\":\"../one.safetensors\""), ERR_FORMAT, "tensor a: \"../one.safetensors\""},
        {INDEX("\"a\":\"/etc/one.safetensors\""), ERR_FORMAT, "tensor a: \"/etc/one.safetensors\""},
        {INDEX("\"a\":\"./one.safetensors\""), ERR_FORMAT, "tensor a: \"./one.safetensors\""},
        {INDEX("\"a\":\"..\""), ERR_FORMAT, "tensor a: \"..\""},
        {INDEX("\"a\":\"\""), ERR_FORMAT, "tensor a: \"\""},
        {INDEX("\"a\":\"one.bin\""), ERR_FORMAT, "tensor a: \"one.bin\""},
        {INDEX("\"a\":\"one\\u0000.safetensors\""), ERR_FORMAT, "tensor a: the file name"},
        {INDEX("\"a\":\"three.safetensors\""), ERR_IO, "shard three.safetensors is missing"},
        {INDEX("\"a\":\"one.safetensors\",\"b\":\"one.safetensors\",\"c\":\"one.safetensors\""), ERR_FORMAT,
         "tensor c is not in one.safetensors"},
        {INDEX("\"a\":\"two.safetensors\",\"b\":\"one.safetensors\",\"c\":\"two.safetensors\""), ERR_FORMAT,
         "tensor a is not in two.safetensors but in one.safetensors"},
        {INDEX(
             "\"a\":\"one.safetensors\",\"b\":\"one.safetensors\",\"c\":\"two.safetensors\",\"d\":\"two.safetensors\""),
         ERR_FORMAT, "tensor d is not in two.safetensors"},
        {INDEX("\"c\":\"two.safetensors\",\"b\":\"one.safetensors\""), ERR_FORMAT,
         "one.safetensors: 1 tensor is not listed"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *folder = make_sharded("faulty", cases[i].index);
        expect_refusal(folder, cases[i].status, folder, cases[i].says);
    }
}

static void extra_tensors_are_named(void **state) {
    (void)state;
    const char *folder = make_sharded("extra", GOOD_INDEX);
    write_file(in_dir("extra/two.safetensors"),
               "{\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"x1\":{\"dtype\":\"U8\",\"shape\":[1],"
               "\"data_offsets\":[1,2]},"
               "\"x2\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
               4);
    expect_refusal(folder, ERR_FORMAT, "two.safetensors: 2 tensors are not listed", "x1, x2");
}

static void a_tensor_in_two_shards_is_refused(void **state) {
    (void)state;
    const char *folder = make_sharded("twice", GOOD_INDEX);
    write_file(in_dir("twice/two.safetensors"), "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
    expect_refusal(folder, ERR_FORMAT, "one.safetensors: tensor a is also in", "two.safetensors");
}

static void a_broken_shard_is_named(void **state) {
    (void)state;
    const char *folder = make_sharded("cutshard", GOOD_INDEX);
    struct stat st;
    EXPECT_EQ(stat(in_dir("cutshard/one.safetensors"), &st), 0);
    EXPECT_EQ(truncate(in_dir("cutshard/one.safetensors"), st.st_size - 10), 0);
    expect_refusal(folder, ERR_FORMAT, "one.safetensors", "cut short");
}

/* models--o--n/snapshots/REV/x -> ../../blobs/HASH is how the hub's cache stores every file. */
static void links_of_the_hub_cache_are_followed(void **state) {
    (void)state;
    static const char *const folders[] = {"hub", "hub/snapshots", "hub/snapshots/rev", "hub/blobs"};
    for (size_t i = 0; i < ARRAY_LEN(folders); i++)
        mkdir(in_dir(folders[i]), 0755);
    write_file(in_dir("hub/blobs/0123"), good, GOOD_BYTES);
    EXPECT_EQ(symlink("../../blobs/0123", in_dir("hub/snapshots/rev/model.safetensors")), 0);
    EXPECT_EQ(symlink(in_dir("hub/snapshots/rev"), in_dir("shortcut")), 0); // the user's own link to the folder
    struct checkpoint *c;
    struct error err;
    EXPECT_OK(checkpoint_open(&c, in_dir("hub/snapshots/rev"), &err), err);
    checkpoint_free(c);
    EXPECT_OK(checkpoint_open(&c, in_dir("shortcut"), &err), err);
    checkpoint_free(c);
}

static void links_out_of_the_folder_are_refused(void **state) {
    (void)state;
    mkdir(in_dir("jail"), 0755);
    mkdir(in_dir("jail/blobs"), 0755);
    mkdir(in_dir("jail/model"), 0755);
    write_file(in_dir("jail/secret.safetensors"), good, GOOD_BYTES);
    write_file(in_dir("jail/blobs/0123"), good, GOOD_BYTES);
    const char *link = in_dir("jail/model/model.safetensors");
    static const char *const targets[] = {"../secret.safetensors", "../blobs/0123", "/etc/hostname"};
    for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
        EXPECT_EQ(symlink(targets[i], link), 0);
        expect_refusal(in_dir("jail/model"), ERR_FORMAT, "model.safetensors", "outside the model's folder");
        unlink(link);
    }
    EXPECT_EQ(symlink("gone", link), 0);
    expect_refusal(in_dir("jail/model"), ERR_IO, "model.safetensors", "cannot open");
    unlink(link);
    EXPECT_EQ(symlink("model.safetensors", link), 0); // a loop
    expect_refusal(in_dir("jail/model"), ERR_IO, "model.safetensors", "cannot open");
    unlink(link);
    mkdir(link, 0755);
    expect_refusal(in_dir("jail/model"), ERR_IO, "model.safetensors", "not a regular file");
    // A snapshot may reach its own blobs and nothing else.
    static const char *const folders[] = {"cache", "cache/snapshots", "cache/snapshots/rev", "cache/blobs",
                                          "cache/blobs/deep"};
    for (size_t i = 0; i < ARRAY_LEN(folders); i++)
        mkdir(in_dir(folders[i]), 0755);
    write_file(in_dir("cache/blobs/deep/0123"), good, GOOD_BYTES);
    EXPECT_EQ(symlink("../../blobs/deep/0123", in_dir("cache/snapshots/rev/model.safetensors")), 0);
    expect_refusal(in_dir("cache/snapshots/rev"), ERR_FORMAT, "model.safetensors", "outside the model's folder");
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
    enum { N = 100000 };
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
    EXPECT_EQ(checkpoint_count(c), N);
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
        cmocka_unit_test(tensors_come_back_by_name_and_in_order),
        cmocka_unit_test(scalars_and_empty_tensors_are_tensors),
        cmocka_unit_test(a_broken_frame_is_refused),
        cmocka_unit_test(nesting_of_100000_arrays_is_refused),
        cmocka_unit_test(every_faulty_entry_is_refused_by_name),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(shards_are_one_checkpoint),
        cmocka_unit_test(every_faulty_index_is_refused_by_name),
        cmocka_unit_test(extra_tensors_are_named),
        cmocka_unit_test(a_tensor_in_two_shards_is_refused),
        cmocka_unit_test(a_broken_shard_is_named),
        cmocka_unit_test(links_of_the_hub_cache_are_followed),
        cmocka_unit_test(links_out_of_the_folder_are_refused),
        cmocka_unit_test(what_is_no_checkpoint_is_said),
        cmocka_unit_test(a_hundred_thousand_tensors_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
