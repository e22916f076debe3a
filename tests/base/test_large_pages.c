/* test_large_pages.c - a file's map, put in large pages: the same bytes at the same addresses, for readers beside it
 * too, and none of the file any more. */
#include "check.h"

#include "base/file.h"
#include "base/large_pages.h"
#include "base/random.h"

#include <pthread.h>
#include <unistd.h>

enum { N_BYTES = (9 << 20) + 4321, PAGE = 4096 };

static char path[] = "/tmp/gyre_large_XXXXXX";
static unsigned char *bytes; // [N_BYTES], of the file

static int write_it(void **state) {
    (void)state;
    bytes = malloc(N_BYTES);
    uint64_t seed = test_seed();
    for (int i = 0; i < N_BYTES; i++)
        bytes[i] = (unsigned char)philox_bits53(seed, (uint64_t)i, 0);
    int fd = mkstemp(path);
    return fd >= 0 && write(fd, bytes, N_BYTES) == N_BYTES && close(fd) == 0 ? 0 : -1;
}

static int remove_it(void **state) {
    (void)state;
    free(bytes);
    return unlink(path);
}

static bool system_has_large_pages(void) {
    char line[128] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    bool has = f && fgets(line, sizeof line, f) && !strstr(line, "[never]");
    if (f)
        fclose(f);
    return has;
}

static void the_bytes_stay_and_the_file_may_go(void **state) {
    (void)state;
    static const atomic_bool never = false;
    struct file_map map;
    struct error err;
    EXPECT_OK(file_map_open(&map, path, 0, &err), err);
    int64_t missing = large_pages_missing(map.bytes, map.n_bytes),
            put = large_pages_put(map.bytes, map.n_bytes, &never);
    EXPECT_EQ(put, missing); // nobody has read the map yet, so that no page of it is large
    EXPECT(put == 0 || put >= N_BYTES / 2);
    EXPECT((put > 0) == system_has_large_pages() || sysconf(_SC_PAGESIZE) != PAGE);
    EXPECT(memcmp(map.bytes, bytes, N_BYTES) == 0);
    EXPECT(truncate(path, 0) == 0); // what was put is the process's own: no page of it is lost
    uintptr_t large = 2 << 20, begin = ((uintptr_t)map.bytes + large - 1) / large * large - (uintptr_t)map.bytes;
    for (int64_t i = 0; i < put; i++)
        EXPECT_EQ((unsigned char)map.bytes[(int64_t)begin + i], bytes[(int64_t)begin + i]);
    EXPECT(!file_map_damaged(&map));
    file_map_close(&map);
    FILE *f = fopen(path, "w");
    EXPECT(f && fwrite(bytes, 1, N_BYTES, f) == N_BYTES && fclose(f) == 0);
}

struct reader {
    const char *at;
    atomic_bool stop;
    atomic_int n_passes;
    bool is_wrong;
};

static void *read_all(void *arg) {
    struct reader *r = arg;
    while (!atomic_load(&r->stop)) {
        r->is_wrong = r->is_wrong || memcmp(r->at, bytes, N_BYTES) != 0;
        atomic_fetch_add(&r->n_passes, 1);
    }
    return NULL;
}

static void readers_beside_it_see_the_same(void **state) {
    (void)state;
    static const atomic_bool never = false;
    for (int i = 0; i < 8; i++) {
        struct file_map map;
        struct error err;
        EXPECT_OK(file_map_open(&map, path, 0, &err), err);
        struct reader r = {.at = map.bytes};
        pthread_t thread;
        EXPECT(pthread_create(&thread, NULL, read_all, &r) == 0);
        while (atomic_load(&r.n_passes) == 0)
            ;
        large_pages_put(map.bytes, map.n_bytes, &never);
        int seen = atomic_load(&r.n_passes);
        while (atomic_load(&r.n_passes) < seen + 2)
            ;
        atomic_store(&r.stop, true);
        pthread_join(thread, NULL);
        EXPECT(!r.is_wrong);
        file_map_close(&map);
    }
}

static void nothing_is_put_once_it_is_stopped(void **state) {
    (void)state;
    static const atomic_bool stopped = true;
    struct file_map map;
    struct error err;
    EXPECT_OK(file_map_open(&map, path, 0, &err), err);
    EXPECT_EQ(large_pages_put(map.bytes, map.n_bytes, &stopped), 0);
    file_map_close(&map);
    EXPECT_EQ(large_pages_missing(bytes, 4096), 0); // no large page fits
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_stay_and_the_file_may_go),
        cmocka_unit_test(readers_beside_it_see_the_same),
        cmocka_unit_test(nothing_is_put_once_it_is_stopped),
    };
    return cmocka_run_group_tests(tests, write_it, remove_it);
}
