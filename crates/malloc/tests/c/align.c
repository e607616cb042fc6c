/* posix_memalign, aligned_alloc, memalign, valloc and pvalloc. */
#include "case.h"

#define CHECK_ALIGNED(p, alignment, size)                                                                              \
    do {                                                                                                               \
        CHECK_BLOCK(p, size);                                                                                          \
        CHECK((uintptr_t)(p) % (alignment) == 0, "%p for alignment %zu", (void *)(p), (size_t)(alignment));            \
    } while (0)

CASE(posix_memalign_aligns_every_size, QUICK) {
    for (size_t alignment = sizeof(void *); alignment <= 64 * KIB; alignment *= 2)
        for (size_t size = 0; size <= 200000; size = size + 1 + size / 5) {
            void *p = NULL;
            int error = posix_memalign(&p, alignment, size);
            CHECK(error == 0, "alignment %zu, size %zu: %d", alignment, size, error);
            CHECK_ALIGNED(p, alignment, size);
            memset(p, 0xee, size);
            free(p);
        }
}

CASE(posix_memalign_refuses_bad_alignments_and_leaves_the_result, QUICK) {
    static const size_t bad[] = {0, 1, 2, 3, 4, 5, 7, 9, 12, 24, 40, 48, 100, 4095, 4097, 12288, SIZE_MAX, SIZE_MAX - 7};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        void *p = (void *)0x1234;
        errno = EDOM;
        int error = posix_memalign(&p, opaque(bad[i]), 64);
        CHECK(error == EINVAL, "alignment %zu: %d", bad[i], error);
        CHECK(p == (void *)0x1234, "alignment %zu wrote %p", bad[i], p);
        CHECK(errno == EDOM, "errno %d", errno);
    }
}

CASE(posix_memalign_too_large_gives_enomem_and_leaves_the_result, QUICK) {
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 64, SIZE_MAX - 4096, (size_t)PTRDIFF_MAX + 1, PTRDIFF_MAX, (size_t)1 << 48};
    for (size_t alignment = 8; alignment <= (size_t)1 << 40; alignment *= 16)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            void *p = (void *)0x1234;
            int error = posix_memalign(&p, alignment, opaque(sizes[i]));
            CHECK(error == ENOMEM, "alignment %zu, size %zu: %d", alignment, sizes[i], error);
            CHECK(p == (void *)0x1234, "%p", p);
        }
    void *p = (void *)0x1234;
    int error = posix_memalign(&p, (size_t)1 << 63, 64);
    CHECK(error == ENOMEM, "the largest power of two: %d", error);
    CHECK(p == (void *)0x1234, "%p", p);
}

CASE(aligned_alloc_too_large_gives_enomem, QUICK) {
    CHECK_NO_MEMORY(aligned_alloc(64, opaque(SIZE_MAX - 63)));
    CHECK_NO_MEMORY(aligned_alloc(4096, opaque((size_t)PTRDIFF_MAX + 1)));
    CHECK_NO_MEMORY(aligned_alloc(16, opaque(SIZE_MAX)));
    CHECK_NO_MEMORY(memalign(64, opaque(SIZE_MAX - 63)));
    CHECK_NO_MEMORY(memalign(4096, opaque((size_t)PTRDIFF_MAX + 1)));
    CHECK_NO_MEMORY(valloc(opaque(SIZE_MAX)));
    CHECK_NO_MEMORY(valloc(opaque(SIZE_MAX - 4095)));
    CHECK_NO_MEMORY(pvalloc(opaque(SIZE_MAX)));
    CHECK_NO_MEMORY(pvalloc(opaque(SIZE_MAX - 4094)));
    CHECK_NO_MEMORY(pvalloc(opaque((size_t)PTRDIFF_MAX + 1)));
}

CASE(huge_alignments_are_honoured, QUICK) {
    for (size_t alignment = 128 * KIB; alignment <= GIB; alignment *= 2) {
        void *blocks[3];
        for (int i = 0; i < 3; i++) {
            size_t size = (size_t)i * 100000 + 1;
            CHECK(posix_memalign(&blocks[i], alignment, size) == 0, "alignment %zu MiB", alignment / MIB);
            CHECK_ALIGNED(blocks[i], alignment, size);
            memset(blocks[i], i + 1, size);
        }
        for (int i = 0; i < 3; i++) {
            CHECK(*(unsigned char *)blocks[i] == i + 1, "overlap at alignment %zu MiB", alignment / MIB);
            free(blocks[i]);
        }
    }
}

/* An alignment costs address space for a moment, not memory for good. */
CASE(huge_alignments_do_not_leak, QUICK) {
    for (int i = 0; i < 3000; i++) {
        unsigned char *p = aligned_alloc(64 * MIB, 64 * KIB);
        CHECK_ALIGNED(p, 64 * MIB, 64 * KIB);
        memset(p, 1, 64 * KIB);
        free(p);
    }
    CHECK(resident_bytes() < 128 * MIB, "%zu MiB", resident_bytes() / MIB);
}

CASE(aligned_alloc_takes_any_size, QUICK) {
    for (size_t alignment = 1; alignment <= MIB; alignment *= 2)
        for (size_t size = 0; size < 40000; size = size * 3 + 1) {
            void *p = aligned_alloc(alignment, size);
            CHECK_ALIGNED(p, alignment, size);
            memset(p, 0x11, size);
            free(p);
        }
}

/* Up to glibc 2.37 aligned_alloc rounds such an alignment up as memalign does; from 2.38 it fails with EINVAL. */
CASE(aligned_alloc_of_no_power_of_two_rounds_up_or_is_invalid, QUICK) {
    static const size_t alignments[][2] = {{3, 4}, {24, 32}, {48, 64}, {100, 128}, {5000, 8192}, {65537, 131072}};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        errno = 0;
        void *p = aligned_alloc(opaque(alignments[i][0]), 100);
        if (p == NULL) {
            CHECK(errno == EINVAL, "alignment %zu: errno %d", alignments[i][0], errno);
        } else {
            CHECK_ALIGNED(p, alignments[i][1], 100);
            free(p);
        }
    }
    errno = 0;
    void *p = aligned_alloc(opaque(SIZE_MAX / 2 + 2), 1);
    CHECK(p == NULL && errno == EINVAL, "%p, errno %d", p, errno);
}

CASE(memalign_rounds_the_alignment_up_to_a_power_of_two, QUICK) {
    static const size_t alignments[][2] = {{0, 16},  {1, 16},      {3, 16},      {17, 32},        {24, 32},      {33, 64},
                                           {48, 64}, {100, 128},   {4095, 4096}, {4097, 8192},    {5000, 8192},  {65537, 131072},
                                           {MIB + 1, 2 * MIB}};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++)
        for (size_t size = 0; size < 300000; size = size * 7 + 1) {
            void *p = memalign(opaque(alignments[i][0]), size);
            CHECK_ALIGNED(p, alignments[i][1], size);
            memset(p, 1, size);
            free(p);
        }
}

CASE(memalign_refuses_an_alignment_beyond_the_largest_power_of_two, QUICK) {
    for (size_t over = 1; over < 100; over += 7) {
        errno = 0;
        void *p = memalign(opaque(SIZE_MAX / 2 + 1 + over), 16);
        CHECK(p == NULL && errno == EINVAL, "%p, errno %d", p, errno);
    }
}

CASE(valloc_gives_whole_pages, QUICK) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t size = 0; size < 8 * MIB; size = size * 3 + 1) {
        void *p = valloc(size);
        CHECK_ALIGNED(p, page, size);
        memset(p, 1, size);
        free(p);
    }
}

CASE(pvalloc_rounds_the_size_up_to_pages, QUICK) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t size = 1; size < 8 * MIB; size = size * 3 + 1) {
        size_t rounded = (size + page - 1) / page * page;
        void *p = pvalloc(size);
        CHECK_ALIGNED(p, page, rounded);
        memset(p, 1, rounded);
        free(p);
    }
    void *p = pvalloc(0);
    CHECK(p != NULL && (uintptr_t)p % page == 0, "%p", p);
    free(p);
}

CASE(aligned_blocks_do_not_overlap, QUICK) {
    enum { N = 3000 };
    static unsigned char *blocks[N];
    static size_t sizes[N];
    uint64_t state = 7;
    for (int i = 0; i < N; i++) {
        size_t alignment = (size_t)8 << next_random(&state) % 12;
        sizes[i] = 1 + next_random(&state) % 5000;
        void *p;
        CHECK(posix_memalign(&p, alignment, sizes[i]) == 0, "%zu", alignment);
        CHECK_ALIGNED(p, alignment, sizes[i]);
        blocks[i] = p;
        fill(p, sizes[i], (unsigned)i);
    }
    for (int i = 0; i < N; i++) {
        CHECK_PATTERN(blocks[i], sizes[i], (unsigned)i);
        free(blocks[i]);
    }
}

/* Code generators and garbage collectors change the protection of page-aligned blocks and set it back. */
CASE(page_aligned_blocks_may_be_protected_and_reused, QUICK) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int round = 0; round < 200; round++) {
        unsigned char *p = aligned_alloc(page, 4 * page);
        CHECK_ALIGNED(p, page, 4 * page);
        fill(p, 4 * page, (unsigned)round);
        CHECK(mprotect(p, 4 * page, PROT_READ) == 0, "errno %d", errno);
        unsigned char *others[16];
        for (int i = 0; i < 16; i++) {
            others[i] = malloc((size_t)i * 1000 + 1);
            memset(others[i], 1, (size_t)i * 1000 + 1);
        }
        CHECK_PATTERN(p, 4 * page, (unsigned)round);
        CHECK(mprotect(p, 4 * page, PROT_READ | PROT_WRITE) == 0, "errno %d", errno);
        for (int i = 0; i < 16; i++)
            free(others[i]);
        free(p);
    }
}
