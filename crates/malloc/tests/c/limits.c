/* Programs that limit themselves: RLIMIT_AS, RLIMIT_DATA, mlockall, seccomp. */
#include "case.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>

enum { MOST = 4096 };
static void *blocks[MOST];

/* Allocates blocks of `size` until none is left or there are `most`, and says how many it got. */
static int take_all(size_t size, int most) {
    int n = 0;
    errno = 0;
    while (n < most && (blocks[n] = malloc(size)) != NULL) {
        memset(blocks[n], n + 1, 4096 < size ? 4096 : size);
        n++;
    }
    CHECK(n == most || errno == ENOMEM, "errno %d after %d blocks", errno, n);
    for (int i = 0; i < n; i++)
        CHECK(*(unsigned char *)blocks[i] == (unsigned char)(i + 1), "block %d of %d", i, n);
    return n;
}

static void release_all(int n) {
    for (int i = 0; i < n; i++)
        free(blocks[i]);
}

static void *small_work(void *argument) {
    void *p = malloc(1000);
    CHECK_BLOCK(p, 1000);
    free(p);
    return argument;
}

/* The heap must leave room for what a program does beside it. */
static void use_address_space(size_t size) {
    void *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED, "mmap of %zu MiB: errno %d", size / MIB, errno);
    munmap(own, size);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        START(threads[i], small_work, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

static void limit(int resource, size_t bytes) {
    struct rlimit to = {bytes, bytes};
    CHECK(setrlimit(resource, &to) == 0, "errno %d", errno);
}

static void work_under_a_limit(size_t bytes) {
    use_address_space(bytes / 4);
    for (int round = 0; round < 3; round++) {
        int n = take_all(MIB, MOST);
        CHECK(n < (int)(bytes / MIB), "%d MiB", n);
        CHECK(n >= (int)(bytes / MIB / 4), "only %d MiB", n);
        void *volatile refused = malloc(bytes);
        CHECK(refused == NULL && errno == ENOMEM, "%p, errno %d", refused, errno);
        release_all(n);
        n = take_all(1000, MOST);
        CHECK(n == MOST, "only %d small blocks", n);
        release_all(n);
    }
    void *p = malloc(bytes / 8);
    CHECK_BLOCK(p, bytes / 8);
    free(p);
}

static void start_under(int resource, size_t bytes) {
    if (case_argument == NULL) {
        limit(resource, bytes);
        execute_again("limited");
        FAIL("exec: errno %d", errno);
    }
    work_under_a_limit(bytes);
}

CASE(starts_with_256_mib_of_address_space, QUICK) { start_under(RLIMIT_AS, 256 * MIB); }
CASE(starts_with_96_mib_of_address_space, QUICK) { start_under(RLIMIT_AS, 96 * MIB); }
CASE(starts_with_1_gib_of_address_space, QUICK) { start_under(RLIMIT_AS, GIB); }

/* A limit on the data segment counts what may be written, not what is reserved. */
CASE(starts_with_256_mib_of_data, QUICK) { start_under(RLIMIT_DATA, 256 * MIB); }

/* Where the system refuses a mapping for its size, nothing else may grant it: the first program to use it all would be killed. */
CASE(more_than_all_memory_costs_none, QUICK) {
    size_t size = (size_t)1 << 40;
    char *p = malloc(40 * MIB);
    CHECK_BLOCK(p, 40 * MIB);
    p[0] = 1;
    for (; size <= (size_t)1 << 43; size *= 2) {
        errno = 0;
        char *more = malloc(size);
        CHECK(more || errno == ENOMEM, "errno %d", errno);
        if (more)
            more[size / 2] = 1;
        free(more);
        more = realloc(p, size);
        CHECK(more || errno == ENOMEM, "errno %d", errno);
        p = more ? more : p;
        CHECK(p[0] == 1, "contents are lost");
    }
    free(p);
    struct rusage use;
    CHECK(getrusage(RUSAGE_SELF, &use) == 0, "errno %d", errno);
    CHECK(use.ru_maxrss < 200 * 1024, "%ld KiB", use.ru_maxrss);
}

/* The live report is a mapped file: neither a limit of file sizes nor a full file system may end the program. */
static void report_into(const char *folder) {
    CHECK(setenv("FLAGSTONE_LIVE", folder, 1) == 0, "errno %d", errno);
    execute_again("reporting");
    FAIL("exec: errno %d", errno);
}

static void grow_and_fork(void) {
    for (size_t size = 16; size < 60 * KIB; size += size / 4)
        release_all(take_all(size, 20)); /* Each size makes the report longer. */
    release_all(take_all(MIB, 64));
    pid_t child = fork();
    CHECK(child >= 0, "errno %d", errno);
    if (child == 0) {
        release_all(take_all(MIB, 128));
        _exit(0);
    }
    expect_exit(child, 0);
}

CASE(a_limit_of_file_sizes_does_not_matter, OURS) {
    if (case_argument == NULL) {
        limit(RLIMIT_FSIZE, 4096);
        report_into("/dev/shm");
    }
    grow_and_fork();
}

static void write_text(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    ssize_t length = (ssize_t)strlen(text);
    if (file < 0 || write(file, text, (size_t)length) != length)
        SKIP("%s can not be written: errno %d", path, errno);
    close(file);
}

CASE(the_live_report_finds_no_room, OURS) {
    if (case_argument == NULL) {
        unsigned user = getuid(), group = getgid();
        char users[32], groups[32];
        snprintf(users, sizeof users, "0 %u 1", user);
        snprintf(groups, sizeof groups, "0 %u 1", group);
        /* A file system of our own with one page, where that is allowed. */
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
            SKIP("no namespace: errno %d", errno);
        write_text("/proc/self/setgroups", "deny");
        write_text("/proc/self/uid_map", users);
        write_text("/proc/self/gid_map", groups);
        if (mount("none", "/dev/shm", "tmpfs", 0, "size=4k") != 0)
            SKIP("no file system: errno %d", errno);
        report_into("/dev/shm");
    }
    grow_and_fork();
}

static void after_lowering(void) {
    use_address_space(64 * MIB);
    int n = take_all(MIB, MOST);
    CHECK(n >= 64, "only %d MiB", n);
    CHECK(n < 512, "%d MiB under a limit of 512", n);
    void *volatile refused = malloc(600 * MIB);
    CHECK(refused == NULL && errno == ENOMEM, "%p, errno %d", refused, errno);
    release_all(n);
    use_address_space(64 * MIB);
    n = take_all(100, MOST);
    CHECK(n == MOST, "only %d small blocks", n);
    release_all(n);
}

CASE(address_space_is_limited_later, QUICK) {
    int n = take_all(MIB, 32);
    limit(RLIMIT_AS, 512 * MIB);
    release_all(n);
    after_lowering();
}

CASE(address_space_is_limited_later_by_prlimit, QUICK) {
    int n = take_all(MIB, 32);
    struct rlimit to = {512 * MIB, 512 * MIB};
    CHECK(prlimit(0, RLIMIT_AS, &to, NULL) == 0, "errno %d", errno);
    release_all(n);
    after_lowering();
}

/* Under a limit below what is in use nothing new can be had, but what is there works on. */
CASE(address_space_is_limited_below_what_is_in_use, QUICK) {
    int n = take_all(MIB, 256);
    limit(RLIMIT_AS, 16 * MIB);
    void *volatile refused = malloc(128 * MIB);
    CHECK(refused == NULL && errno == ENOMEM, "%p, errno %d", refused, errno);
    for (int i = 0; i < n; i++)
        CHECK(*(unsigned char *)blocks[i] == (unsigned char)(i + 1), "block %d", i);
    release_all(n);
    for (int i = 0; i < 1000; i++) {
        void *p = malloc(1000);
        if (p == NULL)
            CHECK(errno == ENOMEM, "errno %d", errno);
        free(p);
    }
}

/* Address space limited and raised again in turns, as shells and test runners do. */
CASE(limits_go_down_and_up, QUICK) {
    struct rlimit kept;
    CHECK(getrlimit(RLIMIT_AS, &kept) == 0, "errno %d", errno);
    for (int round = 0; round < 10; round++) {
        struct rlimit low = {512 * MIB, kept.rlim_max};
        CHECK(setrlimit(RLIMIT_AS, &low) == 0, "errno %d", errno);
        int n = take_all(MIB, 64);
        CHECK(n == 64, "only %d MiB", n);
        CHECK(setrlimit(RLIMIT_AS, &kept) == 0, "errno %d", errno);
        release_all(n);
        n = take_all(MIB, 1024);
        CHECK(n == 1024, "only %d MiB", n);
        release_all(n);
    }
}

CASE(all_memory_is_locked, QUICK) {
    if (geteuid() != 0)
        SKIP("only root may lock all memory");
    void *early = malloc(8 * MIB);
    memset(early, 1, 8 * MIB);
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
        SKIP("mlockall: errno %d", errno);
    size_t locked = status_bytes("VmLck"), resident = resident_bytes();
    CHECK(locked >= 8 * MIB, "%zu KiB locked", locked / KIB);
    CHECK(resident < 192 * MIB, "%zu MiB resident: mlockall brought in what nobody asked for", resident / MIB);
    int n = take_all(MIB, 64);
    CHECK(n == 64, "only %d MiB", n);
    resident = resident_bytes();
    CHECK(resident >= 64 * MIB, "%zu MiB resident: new memory is not locked", resident / MIB);
    CHECK(resident < 384 * MIB, "%zu MiB resident for 72 MiB", resident / MIB);
    release_all(n);
    /* Locked pages cannot be discarded, so zeroes must be made anew. */
    for (size_t size = 16; size <= 4 * MIB; size *= 4) {
        unsigned char *p = malloc(size);
        CHECK_BLOCK(p, size);
        memset(p, 0xff, size);
        free(p);
        p = calloc(1, size);
        CHECK_BLOCK(p, size);
        for (size_t i = 0; i < size; i++)
            CHECK(p[i] == 0, "byte %zu of %zu", i, size);
        free(p);
    }
    for (int round = 0; round < 5; round++) {
        n = take_all(128 * KIB, 512);
        CHECK(n == 512, "only %d", n);
        release_all(n);
    }
    CHECK(munlockall() == 0, "errno %d", errno);
    use_address_space(64 * MIB);
    free(early);
}

/* From here on the listed system calls fail with EPERM, in every thread. */
static void refuse(const int *calls, int count) {
    struct sock_filter program[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    unsigned short at = 1;
    for (int i = 0; i < count; i++) {
        program[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
        program[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    program[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {at, program};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "errno %d", errno);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0)
        SKIP("no seccomp filters here: errno %d", errno);
}

static atomic_bool begin;
static void *working_thread(void *seed) {
    void *slots[200] = {NULL};
    uint64_t state = (uintptr_t)seed + 1;
    for (int i = 0; i < 100000; i++) {
        if (i == 20000)
            while (!atomic_load(&begin))
                sleep_milliseconds(1);
        size_t at = next_random(&state) % 200, size = assorted_size(&state);
        free(slots[at]);
        slots[at] = next_random(&state) % 4 ? malloc(size) : calloc(1, size);
        CHECK_BLOCK(slots[at], size);
        *(unsigned char *)slots[at] = 1;
    }
    for (int i = 0; i < 200; i++)
        free(slots[i]);
    return NULL;
}

static void work_after_refusing(const int *calls, int count) {
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        START(threads[i], working_thread, (void *)i);
    refuse(calls, count);
    atomic_store(&begin, true);
    working_thread((void *)99);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    int n = take_all(300 * KIB, 500);
    CHECK(n == 500, "only %d", n);
    release_all(n);
    unsigned char *p = malloc(64 * MIB);
    CHECK_BLOCK(p, 64 * MIB);
    p[0] = 5;
    p = realloc(p, 200 * MIB);
    CHECK_BLOCK(p, 200 * MIB);
    CHECK(p[0] == 5, "contents");
    free(p);
    malloc_trim(0);
}

CASE(a_filter_refuses_membarrier, QUICK) {
    static const int calls[] = {SYS_membarrier};
    work_after_refusing(calls, sizeof calls / sizeof *calls);
}

CASE(a_filter_refuses_all_but_the_oldest_calls, QUICK) {
    static const int calls[] = {SYS_membarrier, SYS_madvise,       SYS_mremap,    SYS_prctl,
                                SYS_mbind,      SYS_userfaultfd, SYS_getcpu,        SYS_getrandom, SYS_openat,
                                SYS_open,       SYS_memfd_create, SYS_sched_getaffinity, SYS_prlimit64, SYS_getrlimit,
                                SYS_clock_gettime, SYS_process_madvise, SYS_set_mempolicy, SYS_get_mempolicy};
    work_after_refusing(calls, sizeof calls / sizeof *calls);
}

/* With no way to get memory the heap fails as a value and works on with what it has. */
CASE(a_filter_refuses_every_call_that_gives_memory, QUICK) {
    static const int calls[] = {SYS_mmap, SYS_mprotect, SYS_brk, SYS_mremap, SYS_madvise, SYS_munmap, SYS_membarrier};
    int n = take_all(10000, 1000);
    refuse(calls, sizeof calls / sizeof *calls);
    release_all(n);
    n = take_all(10000, 900);
    CHECK(n == 900, "freed memory is not used again: %d", n);
    release_all(n);
    CHECK_NO_MEMORY(malloc(2 * GIB));
    CHECK_NO_MEMORY(calloc(4096, 4 * MIB));
    CHECK_NO_MEMORY(aligned_alloc(GIB, GIB));
    unsigned char *p = malloc(100);
    CHECK_BLOCK(p, 100);
    fill(p, 100, 1);
    CHECK_NO_MEMORY(realloc(p, 2 * GIB));
    CHECK_PATTERN(p, 100, 1);
    free(p);
}

/* Memory that runs out and comes back, many times over, in every size. */
CASE(running_out_is_survived_in_every_size, QUICK) {
    if (case_argument == NULL) {
        limit(RLIMIT_AS, 200 * MIB);
        execute_again("limited");
        FAIL("exec: errno %d", errno);
    }
    for (size_t size = 16; size <= 32 * MIB; size *= 8) {
        void *chain = NULL; /* Each block holds the address of the one before. */
        size_t count = 0;
        for (void *p; (p = malloc(size)) != NULL; count++) {
            memcpy(p, &chain, sizeof chain);
            chain = p;
        }
        CHECK(errno == ENOMEM, "errno %d", errno);
        CHECK(count * size > 16 * MIB, "%zu blocks of %zu", count, size);
        CHECK_NO_MEMORY(calloc(10, 32 * MIB));
        size_t seen = 0;
        while (chain) {
            void *before;
            memcpy(&before, chain, sizeof before);
            free(chain);
            chain = before;
            seen++;
        }
        CHECK(seen == count, "%zu of %zu", seen, count);
    }
}
