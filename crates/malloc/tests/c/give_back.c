/* Memory goes back to the system by amount and by age, without storms of system calls; the heap has no ceiling. */
#include "case.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <ucontext.h>

/* Frees a gibibyte of blocks of one size, then does a little now and then, as an idle server does. */
static void goes_back(size_t size) {
    size_t count = GIB / size;
    void **blocks = mmap(NULL, count * sizeof(void *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(blocks != MAP_FAILED, "errno %d", errno);
    for (size_t i = 0; i < count; i++) {
        blocks[i] = malloc(size);
        CHECK(blocks[i] != NULL, "block %zu", i);
        memset(blocks[i], 1, size);
    }
    CHECK(resident_bytes() >= GIB, "%zu MiB", resident_bytes() / MIB);
    for (size_t i = 0; i < count; i++)
        free(blocks[i]);
    munmap(blocks, count * sizeof(void *));
    double end = seconds() + 10;
    uint64_t state = 1;
    size_t resident;
    while ((resident = resident_bytes()) > 64 * MIB) {
        CHECK(seconds() < end, "%zu MiB are resident 10 s after 1 GiB was freed", resident / MIB);
        void *few[8];
        for (int i = 0; i < 8; i++) {
            size_t n = assorted_size(&state);
            few[i] = malloc(n);
            CHECK_BLOCK(few[i], n);
        }
        for (int i = 0; i < 8; i++)
            free(few[i]);
        sleep_milliseconds(10);
    }
}

CASE(a_gibibyte_of_64_bytes_goes_back, SLOW | OURS) { goes_back(64); }
CASE(a_gibibyte_of_1000_bytes_goes_back, SLOW) { goes_back(1000); }
CASE(a_gibibyte_of_4_kib_goes_back, SLOW) { goes_back(4 * KIB); }
CASE(a_gibibyte_of_100_kib_goes_back, SLOW) { goes_back(100 * KIB); }
CASE(a_gibibyte_of_1_mib_goes_back, SLOW) { goes_back(MIB); }
CASE(a_gibibyte_of_128_mib_goes_back, SLOW) { goes_back(128 * MIB); }

/* Calls of madvise are counted by a filter that turns each into a signal; the handler makes the call itself, from the
 * one place in the program that the filter lets through. */
static atomic_ulong advised;

extern char let_through[];
__attribute__((noinline)) static long make_call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall\n.globl let_through\nlet_through:" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static void count_call(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    atomic_fetch_add_explicit(&advised, 1, memory_order_relaxed);
    registers[REG_RAX] = make_call(SYS_madvise, registers[REG_RDI], registers[REG_RSI], registers[REG_RDX]);
}

static void start_counting(void) {
    struct sigaction action = {.sa_sigaction = count_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0, "errno %d", errno);
    uintptr_t place = (uintptr_t)let_through;
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)place, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(place >> 32), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "errno %d", errno);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0)
        SKIP("no seccomp filters here: errno %d", errno);
    char *probe = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *probe = 1;
    CHECK(madvise(probe, 4096, MADV_DONTNEED) == 0 && *probe == 0, "the counted call does not work");
    CHECK(atomic_load(&advised) == 1, "%lu calls counted of 1", atomic_load(&advised));
    munmap(probe, 4096);
    atomic_store(&advised, 0);
}

enum { STEPS = 1000000 };
static pthread_barrier_t warm;

static void steady(unsigned seed, size_t slots, size_t (*size_of)(uint64_t *)) {
    void **live = mmap(NULL, slots * sizeof(void *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(live != MAP_FAILED, "errno %d", errno);
    uint64_t state = seed + 1;
    for (size_t step = 0; step < STEPS + 5 * slots; step++) {
        if (step == 5 * slots) {
            pthread_barrier_wait(&warm);
            pthread_barrier_wait(&warm);
        }
        size_t i = next_random(&state) % slots, size = size_of(&state);
        free(live[i]);
        live[i] = malloc(size);
        CHECK(live[i] != NULL, "size %zu", size);
        *(char *)live[i] = 1;
    }
    pthread_barrier_wait(&warm);
    pause();
}

static size_t kibibytes(uint64_t *state) { return 1 + next_random(state) % (16 * KIB); }

static void *steady_thread(void *seed) {
    unsigned number = (unsigned)(uintptr_t)seed;
    steady(number, number % 2 ? 5000 : 2000, number % 2 ? assorted_size : kibibytes);
    return NULL;
}

CASE(steady_state_makes_less_than_one_madvise_per_10000_frees, SLOW) {
    start_counting();
    enum { THREADS = 4 };
    pthread_barrier_init(&warm, NULL, THREADS + 1);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        START(threads[i], steady_thread, (void *)i);
    pthread_barrier_wait(&warm);
    atomic_store(&advised, 0);
    pthread_barrier_wait(&warm);
    pthread_barrier_wait(&warm);
    unsigned long calls = atomic_load(&advised);
    CHECK(calls < (unsigned long)THREADS * STEPS / 10000, "%lu calls in %d frees", calls, THREADS * STEPS);
    /* A thread that ends advises on its stack with all signals blocked, which the filter would punish. */
    _exit(0);
}

/* Use that swells and shrinks by turns must not become a storm either. */
CASE(waves_do_not_become_storms_of_madvise, SLOW) {
    start_counting();
    enum { WAVES = 100, BLOCKS = 20000 };
    static void *blocks[BLOCKS];
    for (int wave = 0; wave < WAVES; wave++) {
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = malloc(600);
            CHECK(blocks[i] != NULL, "block %d", i);
            memset(blocks[i], 1, 600);
        }
        for (int i = 0; i < BLOCKS; i++)
            free(blocks[i]);
    }
    unsigned long calls = atomic_load(&advised);
    CHECK(calls < WAVES * BLOCKS / 10000, "%lu calls in %d frees", calls, WAVES * BLOCKS);
}

/* The kernel allows 65530 mappings by default: holes in the heap must not become mappings of their own. */
CASE(a_perforated_heap_stays_in_few_mappings, SLOW) {
    enum { N = 60000 };
    static void *blocks[N];
    for (int i = 0; i < N; i++) {
        blocks[i] = malloc(16 * KIB);
        CHECK_BLOCK(blocks[i], 16 * KIB);
        *(char *)blocks[i] = 1;
    }
    for (int i = 0; i < N; i += 2)
        free(blocks[i]);
    for (int i = 0; i < 300; i++) {
        free(malloc(1000));
        sleep_milliseconds(5);
    }
    int lines = 0, fd = open("/proc/self/maps", O_RDONLY);
    char text[4096];
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < n; i++)
            lines += text[i] == '\n';
    close(fd);
    CHECK(lines < 2000, "%d mappings", lines);
    for (int i = 1; i < N; i += 2)
        free(blocks[i]);
}

static void no_ceiling(size_t size, size_t total) {
    size_t count = total / size;
    unsigned char **blocks = mmap(NULL, count * sizeof(void *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(blocks != MAP_FAILED, "errno %d", errno);
    for (size_t i = 0; i < count; i++) {
        blocks[i] = malloc(size);
        CHECK(blocks[i] != NULL, "after %zu MiB, errno %d", i * size / MIB, errno);
        memcpy(blocks[i], &i, sizeof i);
        blocks[i][size - 1] = (unsigned char)i;
    }
    for (size_t i = 0; i < count; i++) {
        CHECK(memcmp(blocks[i], &i, sizeof i) == 0 && blocks[i][size - 1] == (unsigned char)i, "block %zu", i);
        free(blocks[i]);
    }
    munmap(blocks, count * sizeof(void *));
}

CASE(a_heap_of_5_gib_in_blocks_of_1_mib, SLOW) { no_ceiling(MIB, 5 * GIB); }

static void skip_if_accounted_strictly(void) {
    char mode = '0';
    int fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY);
    if (fd >= 0 && read(fd, &mode, 1) == 1 && mode == '2')
        SKIP("this machine accounts memory strictly");
    close(fd);
}

CASE(a_heap_of_160_gib_in_blocks_of_16_mib, SLOW) {
    skip_if_accounted_strictly();
    no_ceiling(16 * MIB, 160 * GIB);
}

CASE(a_heap_of_200_gib_in_blocks_of_1_gib, SLOW) {
    skip_if_accounted_strictly();
    no_ceiling(GIB, 200 * GIB);
}
