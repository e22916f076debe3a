/* test_shards.c - checkpoints in several files, and links among them. */
#include "checkpoint_files.h"

#include <sys/stat.h>

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

static void shards_may_lie_in_folders_below(void **state) {
    (void)state;
    static const char index[] =
        INDEX("\"c\":\"two.safetensors\",\"a\":\"sub/x/one.safetensors\",\"b\":\"sub/x/one.safetensors\"");
    const char *folder = make_sharded("below", index);
    EXPECT_EQ(mkdir(in_dir("below/sub"), 0755) | mkdir(in_dir("below/sub/x"), 0755), 0);
    EXPECT_EQ(rename(in_dir("below/one.safetensors"), in_dir("below/sub/x/one.safetensors")), 0);
    struct checkpoint *c;
    struct error err;
    EXPECT_OK(checkpoint_open(&c, folder, &err), err);
    EXPECT(strstr(checkpoint_path(c, checkpoint_find(c, "a")), "/below/sub/x/one.safetensors"));
    EXPECT_EQ(checkpoint_count(c), 3);
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
        {INDEX("\"a\":\"sub/../one.safetensors\""), ERR_FORMAT, "tensor a: \"sub/../one.safetensors\""},
        {INDEX("\"a\":\"sub//one.safetensors\""), ERR_FORMAT, "tensor a: \"sub//one.safetensors\""},
        {INDEX("\"a\":\"..\""), ERR_FORMAT, "tensor a: \"..\""},
        {INDEX("\"a\":\"\""), ERR_FORMAT, "tensor a: \"\""},
        {INDEX("\"a\":\"one.bin\""), ERR_FORMAT, "tensor a: \"one.bin\""},
        {INDEX("\"a\":\"one\\u0000.safetensors\""), ERR_FORMAT, "tensor a: the file name"},
        {INDEX("\"a\":\"three.safetensors\""), ERR_IO, "shard three.safetensors is missing"},
        {INDEX("\"a\":\"one.safetensors\",\"b\":\"one.safetensors\",\"c\":\"one.safetensors\""), ERR_FORMAT,
         "tensor c is not in one.safetensors"},
        {INDEX(
             "\"a\":\"one.safetensors\",\"b\":\"one.safetensors\",\"c\":\"two.safetensors\",\"d\":\"two.safetensors\""),
         ERR_FORMAT, "tensor d is not in two.safetensors"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *folder = make_sharded("faulty", cases[i].index);
        expect_refusal(folder, cases[i].status, folder, cases[i].says);
    }
}

/* transformers reads the files that an index names, whole. */
static void tensors_that_the_index_does_not_list_are_read(void **state) {
    (void)state;
    const char *const indices[] = {INDEX("\"c\":\"two.safetensors\",\"b\":\"one.safetensors\""),
                                   INDEX("\"a\":\"two.safetensors\",\"b\":\"one.safetensors\""), GOOD_INDEX};
    for (size_t i = 0; i < ARRAY_LEN(indices); i++) {
        struct error err;
        struct checkpoint *c;
        EXPECT_OK(checkpoint_open(&c, make_sharded("unlisted", indices[i]), &err), err);
        EXPECT_EQ(checkpoint_unlisted(c), i < 2);
        EXPECT_EQ(checkpoint_count(c), 3);
        for (const char *name = "abc"; *name; name++)
            EXPECT(checkpoint_find(c, (char[]){*name, 0}) != NULL);
        checkpoint_free(c);
    }
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_are_one_checkpoint),
        cmocka_unit_test(shards_may_lie_in_folders_below),
        cmocka_unit_test(every_faulty_index_is_refused_by_name),
        cmocka_unit_test(tensors_that_the_index_does_not_list_are_read),
        cmocka_unit_test(a_tensor_in_two_shards_is_refused),
        cmocka_unit_test(a_broken_shard_is_named),
        cmocka_unit_test(links_of_the_hub_cache_are_followed),
        cmocka_unit_test(links_out_of_the_folder_are_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
