/* malloc_usable_size, malloc_trim, mallopt, mallinfo, mallinfo2, malloc_info, malloc_stats. */
#include "case.h"

CASE(usable_size_of_null_is_zero, QUICK) {
    void *volatile null = NULL;
    CHECK(malloc_usable_size(null) == 0, "%zu", malloc_usable_size(null));
}

CASE(usable_size_is_constant_and_not_wasteful, QUICK) {
    for (size_t size = 1; size <= 64 * MIB; size = size + 1 + size / 9) {
        void *p = malloc(size);
        CHECK_BLOCK(p, size);
        size_t usable = malloc_usable_size(p);
        memset(p, 0, size < MIB ? size : MIB);
        CHECK(malloc_usable_size(p) == usable, "changed for size %zu", size);
        CHECK(usable <= size + size / 4 + 64 * KIB, "%zu for %zu", usable, size);
        CHECK(size > 32 * KIB || usable <= size + size / 4 + 64, "%zu for %zu", usable, size);
        free(p);
    }
}

CASE(malloc_trim_returns_zero_or_one, QUICK) {
    enum { N = 20000 };
    static void *blocks[N];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            blocks[i] = malloc(4000);
            CHECK_BLOCK(blocks[i], 4000);
            memset(blocks[i], 1, 4000);
        }
        for (int i = 0; i < N; i++)
            free(blocks[i]);
        int trimmed = malloc_trim(opaque(0));
        CHECK(trimmed == 0 || trimmed == 1, "%d", trimmed);
        trimmed = malloc_trim(opaque(MIB));
        CHECK(trimmed == 0 || trimmed == 1, "%d", trimmed);
    }
}

/* Freed memory between live blocks goes back at malloc_trim, and it says that it did. */
CASE(malloc_trim_gives_free_memory_back, QUICK) {
    enum { N = 4096 };
    static void *blocks[N];
    for (int i = 0; i < N; i++) {
        blocks[i] = malloc(64 * KIB - 64);
        CHECK_BLOCK(blocks[i], 64 * KIB - 64);
        memset(blocks[i], 1, 64 * KIB - 64);
    }
    size_t before = resident_bytes();
    for (int i = 0; i < N; i++)
        if (i % 64)
            free(blocks[i]);
    size_t freed = resident_bytes();
    int trimmed = malloc_trim(0);
    size_t after = resident_bytes();
    CHECK(after < before / 4, "%zu MiB of %zu MiB stayed", after / MIB, before / MIB);
    CHECK(trimmed == 1 || freed < before / 4, "malloc_trim returned %d", trimmed);
    for (int i = 0; i < N; i += 64) {
        CHECK(*(unsigned char *)blocks[i] == 1, "block %d", i);
        free(blocks[i]);
    }
}

CASE(mallopt_accepts_the_known_parameters, QUICK) {
    static const int parameters[][2] = {{M_MXFAST, 64},        {M_TRIM_THRESHOLD, 256 * 1024}, {M_TOP_PAD, 64 * 1024},
                                        {M_MMAP_THRESHOLD, 1 << 20}, {M_MMAP_MAX, 1000},       {M_CHECK_ACTION, 3},
                                        {M_ARENA_TEST, 4},     {M_ARENA_MAX, 2},               {M_PERTURB, 0}};
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++) {
        int accepted = mallopt(parameters[i][0], parameters[i][1]);
        CHECK(accepted == 1, "parameter %d: %d", parameters[i][0], accepted);
        void *p = malloc(3 * MIB);
        CHECK_BLOCK(p, 3 * MIB);
        free(p);
    }
}

CASE(mallinfo2_follows_live_memory, QUICK) {
    enum { N = 32768, SIZE = 2000 };
    static void *blocks[N];
    free(malloc(1));
    struct mallinfo2 start = mallinfo2();
    for (int i = 0; i < N; i++)
        blocks[i] = malloc(SIZE);
    struct mallinfo2 full = mallinfo2();
    CHECK(full.uordblks + full.hblkhd >= start.uordblks + start.hblkhd + (size_t)N * SIZE, "%zu, then %zu", start.uordblks,
          full.uordblks);
    CHECK(full.uordblks + full.hblkhd < start.uordblks + start.hblkhd + (size_t)N * SIZE * 3 / 2, "%zu", full.uordblks);
    CHECK(full.arena + full.hblkhd >= full.uordblks, "arena %zu, in use %zu", full.arena, full.uordblks);
    for (int i = 0; i < N; i++)
        free(blocks[i]);
    struct mallinfo2 end = mallinfo2();
    CHECK(end.uordblks + end.hblkhd < start.uordblks + start.hblkhd + (size_t)N * SIZE / 4, "%zu still in use", end.uordblks);
}

CASE(mallinfo2_counts_large_blocks, QUICK) {
    struct mallinfo2 start = mallinfo2();
    void *p = malloc(200 * MIB);
    CHECK_BLOCK(p, 200 * MIB);
    struct mallinfo2 full = mallinfo2();
    size_t grown = full.uordblks + full.hblkhd - start.uordblks - start.hblkhd;
    CHECK(grown >= 200 * MIB && grown < 260 * MIB, "%zu MiB", grown / MIB);
    free(p);
    struct mallinfo2 end = mallinfo2();
    CHECK(end.uordblks + end.hblkhd < full.uordblks + full.hblkhd - 150 * MIB, "%zu", end.uordblks + end.hblkhd);
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
CASE(mallinfo_agrees_with_mallinfo2, QUICK) {
    void *p = malloc(5000);
    struct mallinfo2 wide = mallinfo2();
    struct mallinfo narrow = mallinfo();
    long apart = (long)wide.uordblks - narrow.uordblks;
    CHECK(narrow.uordblks > 0 && apart < 65536 && apart > -65536, "%d and %zu", narrow.uordblks, wide.uordblks);
    free(p);
}

CASE(malloc_info_writes_xml, QUICK) {
    void *live = malloc(12345);
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    int result = malloc_info(0, stream);
    fclose(stream);
    CHECK(result == 0, "%d", result);
    CHECK(strncmp(text, "<malloc", 7) == 0, "%.20s", text);
    char *end = text + length;
    while (end > text && (end[-1] == '\n' || end[-1] == ' '))
        end--;
    CHECK(end - text > 9 && memcmp(end - 9, "</malloc>", 9) == 0, "%.20s", end - 9);
    /* Well formed: every element that is opened is closed, in order. */
    const char *open[64];
    size_t lengths[64];
    int depth = 0;
    for (const char *at = strchr(text, '<'); at; at = strchr(at + 1, '<')) {
        const char *close = strchr(at, '>');
        CHECK(close != NULL, "an unfinished element: %.20s", at);
        if (at[1] == '?' || at[1] == '!')
            continue;
        if (at[1] == '/') {
            CHECK(depth > 0, "%.20s closes nothing", at);
            depth--;
            CHECK((size_t)(close - at - 2) == lengths[depth] && memcmp(at + 2, open[depth], lengths[depth]) == 0,
                  "%.20s closes %.20s", at, open[depth]);
        } else if (close[-1] != '/') {
            CHECK(depth < 64, "too deep");
            open[depth] = at + 1;
            lengths[depth++] = strcspn(at + 1, " >");
        }
    }
    CHECK(depth == 0, "%d elements are open", depth);
    free(text);
    free(live);
}

CASE(malloc_info_refuses_options, QUICK) {
    FILE *null = fopen("/dev/null", "w");
    CHECK(malloc_info(1, null) == EINVAL, "%d", malloc_info(1, null));
    CHECK(malloc_info(-1, null) == EINVAL, "%d", malloc_info(-1, null));
    fclose(null);
}

CASE(malloc_stats_prints_on_stderr, QUICK) {
    char name[] = "/tmp/malloc-stats-XXXXXX";
    int file = mkstemp(name), kept = dup(2);
    CHECK(file >= 0 && kept >= 0, "errno %d", errno);
    unlink(name);
    dup2(file, 2);
    malloc_stats();
    fflush(stderr);
    dup2(kept, 2);
    off_t length = lseek(file, 0, SEEK_END);
    CHECK(length > 20, "%ld bytes", (long)length);
    char text[4096] = "";
    CHECK(pread(file, text, sizeof text - 1, 0) > 0, "errno %d", errno);
    CHECK(strpbrk(text, "0123456789") != NULL, "no figure in: %.60s", text);
    close(file);
    close(kept);
}
