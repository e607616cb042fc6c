/* malloc, calloc and free: sizes, alignment, zeroes, errors. */
#include "case.h"
#include <dlfcn.h>

CASE(malloc_of_zero_is_unique_and_freeable, QUICK) {
    enum { N = 1000 };
    static void *blocks[N];
    for (int i = 0; i < N; i++) {
        blocks[i] = malloc(opaque(0));
        CHECK(blocks[i] != NULL, "block %d", i);
        *(uintptr_t *)(malloc_usable_size(blocks[i]) >= sizeof(uintptr_t) ? blocks[i] : &(uintptr_t){0}) = (uintptr_t)i;
    }
    for (int i = 0; i < N; i++)
        for (int j = i + 1; j < N; j++)
            CHECK(blocks[i] != blocks[j], "%d and %d are both %p", i, j, blocks[i]);
    for (int i = 0; i < N; i++)
        free(blocks[i]);
}

CASE(calloc_of_zero_is_unique_and_freeable, QUICK) {
    void *a = calloc(opaque(0), 8), *b = calloc(8, opaque(0)), *c = calloc(opaque(0), opaque(0));
    CHECK(a && b && c && a != b && b != c && a != c, "%p %p %p", a, b, c);
    free(a);
    free(b);
    free(c);
}

CASE(every_size_up_to_70000_is_aligned_and_fits, QUICK) {
    for (size_t size = 1; size <= 70000; size++) {
        unsigned char *p = malloc(size);
        CHECK_BLOCK(p, size);
        p[0] = p[size - 1] = 0xa5;
        free(p);
    }
}

CASE(live_blocks_of_every_size_do_not_overlap, QUICK) {
    enum { N = 4096 };
    static unsigned char *blocks[N];
    for (size_t i = 0; i < N; i++) {
        blocks[i] = malloc(i + 1);
        CHECK_BLOCK(blocks[i], i + 1);
        fill(blocks[i], i + 1, (unsigned)i);
    }
    for (size_t i = 0; i < N; i++)
        CHECK_PATTERN(blocks[i], i + 1, (unsigned)i);
    /* Every other one goes and comes back while the rest must stay. */
    for (size_t i = 0; i < N; i += 2)
        free(blocks[i]);
    for (size_t i = 0; i < N; i += 2) {
        blocks[i] = malloc(i + 1);
        fill(blocks[i], i + 1, (unsigned)(i + 7));
    }
    for (size_t i = 0; i < N; i++) {
        CHECK_PATTERN(blocks[i], i + 1, (unsigned)(i % 2 ? i : i + 7));
        free(blocks[i]);
    }
}

CASE(the_whole_usable_size_can_be_written, QUICK) {
    enum { N = 600 };
    static unsigned char *blocks[N];
    for (size_t i = 0; i < N; i++) {
        blocks[i] = malloc(1 + i * i);
        CHECK_BLOCK(blocks[i], 1 + i * i);
        fill(blocks[i], malloc_usable_size(blocks[i]), (unsigned)i);
    }
    for (size_t i = 0; i < N; i++) {
        CHECK_PATTERN(blocks[i], malloc_usable_size(blocks[i]), (unsigned)i);
        free(blocks[i]);
    }
}

CASE(large_blocks_are_aligned_fit_and_hold_contents, QUICK) {
    for (size_t size = 64 * KIB; size <= 512 * MIB; size *= 2)
        for (int off = -1; off <= 1; off++) {
            size_t n = size + (size_t)(ptrdiff_t)off;
            unsigned char *p = malloc(n);
            CHECK_BLOCK(p, n);
            for (size_t at = 0; at < n; at += MIB)
                p[at] = (unsigned char)(at >> 20);
            p[n - 1] = 0x5a;
            for (size_t at = 0; at + 1 < n; at += MIB)
                CHECK(p[at] == (unsigned char)(at >> 20), "size %zu at %zu", n, at);
            free(p);
        }
}

CASE(malloc_too_large_gives_enomem, QUICK) {
    const size_t sizes[] = {SIZE_MAX,          SIZE_MAX - 1,      SIZE_MAX - 15,     SIZE_MAX - 16,
                            SIZE_MAX - 4095,   SIZE_MAX - 4096,   SIZE_MAX - 65535,  (size_t)PTRDIFF_MAX + 1,
                            PTRDIFF_MAX,       PTRDIFF_MAX - 15,  PTRDIFF_MAX - 4096, (size_t)1 << 62,
                            (size_t)1 << 48,   (size_t)1 << 47};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK_NO_MEMORY(malloc(opaque(sizes[i])));
        CHECK_NO_MEMORY(calloc(1, opaque(sizes[i])));
        CHECK_NO_MEMORY(calloc(opaque(sizes[i]), 1));
    }
    void *p = malloc(100);
    CHECK_BLOCK(p, 100);
    free(p);
}

CASE(calloc_overflow_gives_enomem, QUICK) {
    const size_t factors[][2] = {{SIZE_MAX, 2},
                                 {2, SIZE_MAX},
                                 {SIZE_MAX, SIZE_MAX},
                                 {(size_t)1 << 32, (size_t)1 << 32},
                                 {((size_t)1 << 32) + 1, ((size_t)1 << 32) + 1},
                                 {SIZE_MAX / 2 + 1, 2},
                                 {SIZE_MAX / 16 + 2, 16},
                                 {3, SIZE_MAX / 3 + 1}};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        CHECK_NO_MEMORY(calloc(opaque(factors[i][0]), opaque(factors[i][1])));
}

static void check_zero(const unsigned char *p, size_t size) {
    for (size_t i = 0; i < size; i++)
        CHECK(p[i] == 0, "byte %zu of %zu is %#x", i, size, p[i]);
}

CASE(calloc_is_zero_after_reuse_of_dirty_memory, QUICK) {
    enum { N = 8 };
    unsigned char *blocks[N];
    for (size_t size = 1; size <= 300000; size += 1 + size / 48) {
        for (int i = 0; i < N; i++) {
            blocks[i] = malloc(size);
            CHECK_BLOCK(blocks[i], size);
            memset(blocks[i], 0xff, malloc_usable_size(blocks[i]));
        }
        for (int i = 0; i < N; i++)
            free(blocks[i]);
        for (int i = 0; i < N; i++) {
            blocks[i] = i % 2 ? calloc(size, 1) : calloc(1, size);
            CHECK_BLOCK(blocks[i], size);
            check_zero(blocks[i], size);
        }
        for (int i = 0; i < N; i++)
            free(blocks[i]);
    }
}

CASE(large_calloc_is_zero_after_reuse_of_dirty_memory, QUICK) {
    for (size_t size = 256 * KIB; size <= 64 * MIB; size *= 4)
        for (int round = 0; round < 3; round++) {
            unsigned char *p = malloc(size);
            CHECK_BLOCK(p, size);
            memset(p, 0xff, size);
            free(p);
            p = calloc(size / 16, 16);
            CHECK_BLOCK(p, size);
            check_zero(p, size);
            free(p);
        }
}

/* Zeroed memory that is known to be zero is not written: a large calloc brings in almost no pages. */
CASE(a_large_calloc_does_not_touch_fresh_memory, QUICK) {
    size_t before = resident_bytes();
    unsigned char *p = calloc(1, 512 * MIB);
    CHECK_BLOCK(p, 512 * MIB);
    size_t grown = resident_bytes() - before;
    CHECK(grown < 32 * MIB || resident_bytes() < before, "%zu MiB became resident", grown / MIB);
    CHECK(p[0] == 0 && p[256 * MIB] == 0 && p[512 * MIB - 1] == 0, "not zero");
    free(p);
}

CASE(free_of_null_does_nothing, QUICK) {
    void *volatile null = NULL;
    for (int i = 0; i < 1000; i++)
        free(null);
}

CASE(free_keeps_errno, QUICK) {
    for (size_t size = 1; size <= 256 * MIB; size *= 2) {
        void *p = malloc(size), *q = malloc(size);
        CHECK(p && q, "size %zu", size);
        memset(p, 1, size < MIB ? size : MIB);
        errno = EDOM;
        free(p);
        CHECK(errno == EDOM, "size %zu set errno to %d", size, errno);
        errno = 0;
        free(q);
        CHECK(errno == 0, "size %zu set errno to %d", size, errno);
    }
    errno = ERANGE;
    free(NULL);
    CHECK(errno == ERANGE, "errno %d", errno);
    /* Many frees, so that those that give memory back are among them. */
    enum { N = 200000 };
    static void *blocks[N];
    for (int i = 0; i < N; i++)
        CHECK((blocks[i] = malloc(1 + (size_t)i % 700)) != NULL, "block %d", i);
    errno = EXDEV;
    for (int i = 0; i < N; i++)
        free(blocks[i]);
    CHECK(errno == EXDEV, "errno %d", errno);
}

/* C23; absent before glibc 2.43, so looked up at run time. */
CASE(free_sized_frees, QUICK) {
    void (*free_sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    if (free_sized == NULL)
        SKIP("this C library has no free_sized");
    free_sized(NULL, 10);
    for (size_t size = 0; size <= 8 * MIB; size = size * 2 + 1)
        for (int i = 0; i < 100; i++) {
            void *p = i % 2 ? malloc(size) : calloc(1, size);
            CHECK_BLOCK(p, size);
            errno = EDOM;
            free_sized(p, size);
            CHECK(errno == EDOM, "errno %d", errno);
        }
}

CASE(free_aligned_sized_frees, QUICK) {
    void (*free_aligned_sized)(void *, size_t, size_t) =
        (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    if (free_aligned_sized == NULL)
        SKIP("this C library has no free_aligned_sized");
    free_aligned_sized(NULL, 64, 64);
    for (size_t alignment = 1; alignment <= 4 * MIB; alignment *= 2)
        for (int i = 0; i < 50; i++) {
            void *p = aligned_alloc(alignment, alignment * 2);
            CHECK(p != NULL && (uintptr_t)p % alignment == 0, "%p for %zu", p, alignment);
            errno = EDOM;
            free_aligned_sized(p, alignment, alignment * 2);
            CHECK(errno == EDOM, "errno %d", errno);
        }
}

/* Every order of allocation and release over a long random run, every byte checked. */
CASE(a_long_random_run_keeps_all_contents, QUICK) {
    enum { SLOTS = 2000, STEPS = 150000 };
    static struct {
        void *p;
        size_t size;
        unsigned seed;
    } slots[SLOTS];
    uint64_t state = 88172645463325252u;
    for (unsigned step = 0; step < STEPS; step++) {
        size_t i = next_random(&state) % SLOTS;
        if (slots[i].p) {
            size_t checked = slots[i].size < 2048 ? slots[i].size : 2048;
            CHECK_PATTERN(slots[i].p, checked, slots[i].seed);
        }
        size_t size = assorted_size(&state);
        switch (next_random(&state) % 4) {
        case 0:
        case 1:
            free(slots[i].p);
            slots[i].p = malloc(size);
            break;
        case 2:
            free(slots[i].p);
            slots[i].p = aligned_alloc((size_t)16 << next_random(&state) % 9, size);
            break;
        default: {
            size_t kept = size < slots[i].size ? size : slots[i].size;
            slots[i].p = realloc(slots[i].p, size);
            kept = kept < 2048 ? kept : 2048;
            CHECK_PATTERN(slots[i].p, kept, slots[i].seed);
        }
        }
        CHECK_BLOCK(slots[i].p, size);
        slots[i].size = size;
        slots[i].seed = step;
        fill(slots[i].p, size < 2048 ? size : 2048, step);
    }
    for (size_t i = 0; i < SLOTS; i++)
        free(slots[i].p);
}

/* Callers inside the C library itself: what it allocates, the program frees, and the other way round. */
CASE(the_c_library_allocates_here_too, QUICK) {
    char *text = NULL;
    CHECK(asprintf(&text, "%0*d", 5000, 1) == 5000, "asprintf");
    CHECK(malloc_usable_size(text) > 5000, "%zu", malloc_usable_size(text));
    char *copy = strdup(text);
    CHECK(copy && strcmp(copy, text) == 0, "strdup");
    free(text);
    free(copy);

    char *stream_text = NULL;
    size_t stream_size = 0;
    FILE *stream = open_memstream(&stream_text, &stream_size);
    CHECK(stream != NULL, "errno %d", errno);
    for (int i = 0; i < 50000; i++)
        fprintf(stream, "%d\n", i);
    fclose(stream);

    FILE *reader = fmemopen(stream_text, stream_size, "r");
    size_t room = 1;
    char *line = malloc(room); /* getline grows what the caller allocated. */
    int lines = 0;
    while (getline(&line, &room, reader) > 0)
        CHECK(atoi(line) == lines++, "line %d is %s", lines, line);
    CHECK(lines == 50000, "%d lines", lines);
    fclose(reader);
    free(line);
    free(stream_text);

    char *directory = getcwd(NULL, 0), *real = realpath("/proc/self/../self/status", NULL);
    CHECK(directory && real, "errno %d", errno);
    free(directory);
    free(real);
}
