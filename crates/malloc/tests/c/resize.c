/* realloc and reallocarray. */
#include "case.h"

/* A block stays valid when growing it fails, which the compiler does not believe. */
#pragma GCC diagnostic ignored "-Wuse-after-free"

CASE(realloc_of_null_allocates, QUICK) {
    for (size_t size = 0; size < 4 * MIB; size = size * 3 + 1) {
        void *p = realloc(NULL, size);
        CHECK_BLOCK(p, size);
        memset(p, 1, size);
        free(p);
    }
}

CASE(realloc_to_zero_frees_and_returns_null, QUICK) {
    for (size_t size = 1; size <= 256 * MIB; size *= 4) {
        void *p = malloc(size);
        CHECK_BLOCK(p, size);
        errno = 0;
        void *volatile q = realloc(p, opaque(0));
        CHECK(q == NULL, "%p for size %zu", q, size);
        CHECK(errno == 0, "errno %d", errno);
    }
    /* It did free: a million blocks of 4 KiB would be 4 GiB. */
    for (int i = 0; i < 1000000; i++) {
        void *volatile gone = realloc(malloc(4096), opaque(0));
        CHECK(gone == NULL, "%p", gone);
    }
    CHECK(resident_bytes() < 256 * MIB, "%zu MiB resident", resident_bytes() / MIB);
}

/* Sizes on both sides of every size class of any reasonable allocator: eight to a doubling, and one byte around. */
static size_t boundary_sizes(size_t *sizes, size_t largest) {
    size_t n = 0;
    for (size_t base = 16; base <= largest; base *= 2)
        for (size_t eighth = 0; eighth < 8; eighth++)
            for (int off = -1; off <= 1; off++)
                sizes[n++] = base + base / 8 * eighth + (size_t)(ptrdiff_t)off;
    return n;
}

CASE(realloc_keeps_contents_across_class_boundaries, QUICK) {
    static size_t sizes[1024];
    size_t n = boundary_sizes(sizes, 128 * KIB);
    CHECK(n <= 1024, "%zu", n);
    uint64_t state = 42;
    for (size_t i = 0; i < n; i++)
        for (int repeat = 0; repeat < 8; repeat++) {
            size_t from = sizes[i];
            size_t to = repeat < 3 ? sizes[(i + 1 + (size_t)repeat) % n] : sizes[next_random(&state) % n];
            unsigned char *p = malloc(from);
            CHECK_BLOCK(p, from);
            fill(p, from, (unsigned)i);
            p = realloc(p, to);
            CHECK_BLOCK(p, to);
            CHECK_PATTERN(p, from < to ? from : to, (unsigned)i);
            fill(p, to, (unsigned)i + 1);
            p = realloc(p, from);
            CHECK_BLOCK(p, from);
            CHECK_PATTERN(p, from < to ? from : to, (unsigned)i + 1);
            free(p);
        }
}

CASE(realloc_grows_byte_by_byte, QUICK) {
    unsigned char *p = NULL;
    for (size_t size = 1; size <= 20000; size++) {
        p = realloc(p, size);
        CHECK_BLOCK(p, size);
        p[size - 1] = pattern_byte(size - 1, 3);
        if (size % 97 == 0)
            CHECK_PATTERN(p, size, 3);
    }
    for (size_t size = 20000; size >= 1; size--) {
        p = realloc(p, size);
        CHECK_BLOCK(p, size);
        if (size % 97 == 0)
            CHECK_PATTERN(p, size, 3);
    }
    free(p);
}

CASE(realloc_keeps_contents_of_large_blocks, QUICK) {
    static const size_t sizes[] = {64 * KIB, 65537,    100000,   128 * KIB, 256 * KIB, 300001,  MIB,
                                   3 * MIB,  5 * MIB + 1, 8 * MIB, 16 * MIB, 33 * MIB,  70 * MIB, 130 * MIB};
    enum { N = sizeof sizes / sizeof *sizes };
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < N; j++) {
            size_t from = sizes[i], to = sizes[j], kept = from < to ? from : to;
            unsigned char *p = malloc(from);
            CHECK_BLOCK(p, from);
            for (size_t at = 0; at < from; at += 4096)
                *(size_t *)(p + at / 8 * 8) = at ^ from;
            p[from - 1] = 0x77;
            p = realloc(p, to);
            CHECK_BLOCK(p, to);
            for (size_t at = 0; at + 8 < kept; at += 4096)
                CHECK(*(size_t *)(p + at) == (at ^ from), "%zu to %zu: byte %zu", from, to, at);
            CHECK(kept < from || p[from - 1] == 0x77, "%zu to %zu: the last byte", from, to);
            p[to - 1] = 1;
            free(p);
        }
}

/* A copy would have to bring in every page of the old block; moving page tables brings in none. */
CASE(a_large_block_grows_without_a_copy, QUICK) {
    unsigned char *p = malloc(256 * MIB);
    CHECK_BLOCK(p, 256 * MIB);
    p[0] = 1;
    p[256 * MIB - 1] = 2;
    void *neighbour = malloc(256 * MIB);
    CHECK_BLOCK(neighbour, 256 * MIB);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    p = realloc(p, 512 * MIB);
    CHECK_BLOCK(p, 512 * MIB);
    getrusage(RUSAGE_SELF, &after);
    long faults = after.ru_minflt - before.ru_minflt;
    CHECK(p[0] == 1 && p[256 * MIB - 1] == 2, "contents");
    CHECK(faults < 1000, "%ld pages were touched", faults);
    getrusage(RUSAGE_SELF, &before);
    p = realloc(p, 300 * MIB);
    CHECK_BLOCK(p, 300 * MIB);
    getrusage(RUSAGE_SELF, &after);
    faults = after.ru_minflt - before.ru_minflt;
    CHECK(p[0] == 1 && p[256 * MIB - 1] == 2, "contents");
    CHECK(faults < 1000, "%ld pages were touched when shrinking", faults);
    free(p);
    free(neighbour);
}

/* What a shrunken large block no longer needs goes back. */
CASE(a_shrunken_large_block_gives_memory_back, QUICK) {
    unsigned char *p = malloc(256 * MIB);
    CHECK_BLOCK(p, 256 * MIB);
    memset(p, 7, 256 * MIB);
    p = realloc(p, 16 * MIB);
    CHECK_BLOCK(p, 16 * MIB);
    CHECK(p[0] == 7 && p[16 * MIB - 1] == 7, "contents");
    CHECK(resident_bytes() < 96 * MIB, "%zu MiB resident", resident_bytes() / MIB);
    free(p);
}

/* Appending to a buffer must not cost a copy of everything at every step. */
CASE(growing_in_small_steps_is_not_quadratic, QUICK) {
    double start = seconds();
    unsigned char *p = NULL;
    for (size_t size = 16 * KIB; size <= 256 * MIB; size += 16 * KIB) {
        p = realloc(p, size);
        CHECK(p != NULL, "size %zu", size);
        p[size - 1] = 1;
    }
    free(p);
    CHECK(seconds() - start < 10, "took %.1f s", seconds() - start);
}

CASE(realloc_that_fails_keeps_the_block, QUICK) {
    static const size_t too_large[] = {SIZE_MAX, SIZE_MAX - 4096, (size_t)PTRDIFF_MAX + 1, PTRDIFF_MAX, (size_t)1 << 48};
    for (size_t size = 1; size <= 64 * MIB; size *= 8)
        for (size_t i = 0; i < sizeof too_large / sizeof *too_large; i++) {
            unsigned char *p = malloc(size);
            CHECK_BLOCK(p, size);
            size_t checked = size < 100000 ? size : 100000;
            fill(p, checked, 9);
            CHECK_NO_MEMORY(realloc(p, opaque(too_large[i])));
            CHECK_PATTERN(p, checked, 9);
            CHECK_NO_MEMORY(reallocarray(p, opaque(too_large[i]), 2));
            CHECK_PATTERN(p, checked, 9);
            free(p);
        }
}

CASE(realloc_of_null_too_large_gives_enomem, QUICK) {
    CHECK_NO_MEMORY(realloc(NULL, opaque(SIZE_MAX)));
    CHECK_NO_MEMORY(realloc(NULL, opaque((size_t)PTRDIFF_MAX + 1)));
    CHECK_NO_MEMORY(reallocarray(NULL, opaque(SIZE_MAX), 1));
}

CASE(reallocarray_multiplies, QUICK) {
    unsigned char *p = reallocarray(NULL, 10, 10);
    CHECK_BLOCK(p, 100);
    fill(p, 100, 1);
    p = reallocarray(p, 1000, 1000);
    CHECK_BLOCK(p, 1000000);
    CHECK_PATTERN(p, 100, 1);
    p = reallocarray(p, 7, 9);
    CHECK_BLOCK(p, 63);
    CHECK_PATTERN(p, 63, 1);
    free(p);
}

CASE(reallocarray_overflow_gives_enomem_and_keeps_the_block, QUICK) {
    unsigned char *p = malloc(64);
    fill(p, 64, 5);
    static const size_t factors[][2] = {
        {SIZE_MAX, 2}, {2, SIZE_MAX}, {(size_t)1 << 32, (size_t)1 << 32}, {SIZE_MAX / 8 + 2, 8}, {SIZE_MAX, SIZE_MAX}};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        CHECK_NO_MEMORY(reallocarray(p, opaque(factors[i][0]), opaque(factors[i][1])));
        CHECK_NO_MEMORY(reallocarray(NULL, opaque(factors[i][0]), opaque(factors[i][1])));
        CHECK_PATTERN(p, 64, 5);
    }
    free(p);
}

CASE(reallocarray_to_zero_frees_and_returns_null, QUICK) {
    void *volatile p = reallocarray(malloc(100), opaque(0), 8);
    CHECK(p == NULL, "%p", p);
    p = reallocarray(malloc(100), 8, opaque(0));
    CHECK(p == NULL, "%p", p);
    p = reallocarray(NULL, opaque(0), 8);
    CHECK(p != NULL, "reallocarray of NULL to nothing is malloc(0)");
    free(p);
}

/* The alignment a block was asked for need not survive, but its contents must. */
CASE(realloc_of_an_aligned_block_keeps_contents, QUICK) {
    for (size_t alignment = 32; alignment <= 4 * MIB; alignment *= 4)
        for (size_t size = 1; size <= MIB; size = size * 5 + 3) {
            void *p;
            CHECK(posix_memalign(&p, alignment, size) == 0, "%zu %zu", alignment, size);
            fill(p, size, 11);
            p = realloc(p, size * 2);
            CHECK_BLOCK(p, size * 2);
            CHECK_PATTERN(p, size, 11);
            p = realloc(p, size / 2 + 1);
            CHECK_BLOCK(p, size / 2 + 1);
            CHECK_PATTERN(p, size / 2 + 1, 11);
            free(p);
        }
}
