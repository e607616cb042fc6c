/* fork, vfork, posix_spawn and exec, also while other threads are inside the allocator. */
#include "case.h"
#include <spawn.h>
#include <sys/time.h>

extern char **environ;

static atomic_bool stopping;
static atomic_ulong rounds;

static void *allocating_thread(void *seed) {
    enum { SLOTS = 128 };
    void *slots[SLOTS] = {NULL};
    uint64_t state = (uintptr_t)seed + 3;
    while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
        size_t i = next_random(&state) % SLOTS, size = assorted_size(&state);
        free(slots[i]);
        slots[i] = next_random(&state) % 8 ? malloc(size) : calloc(1, size);
        CHECK_BLOCK(slots[i], size);
        *(unsigned char *)slots[i] = 1;
        atomic_fetch_add_explicit(&rounds, 1, memory_order_relaxed);
    }
    for (int i = 0; i < SLOTS; i++)
        free(slots[i]);
    return NULL;
}

enum { OTHERS = 4 };
static pthread_t others[OTHERS];

static void start_others(void) {
    for (uintptr_t i = 0; i < OTHERS; i++)
        START(others[i], allocating_thread, (void *)i);
    while (atomic_load(&rounds) < 10000)
        sleep_milliseconds(1);
}

static void stop_others(void) {
    unsigned long before = atomic_load(&rounds);
    for (int i = 0; i < 5000 && atomic_load(&rounds) == before; i++)
        sleep_milliseconds(1);
    CHECK(atomic_load(&rounds) > before, "the other threads came to a halt");
    atomic_store(&stopping, true);
    for (int i = 0; i < OTHERS; i++)
        pthread_join(others[i], NULL);
}

/* What a child does at once: every size class, a large block, frees of what the parent allocated. */
static void use_heap(void **inherited, int count) {
    enum { N = 200 };
    unsigned char *blocks[N];
    for (size_t i = 0; i < N; i++) {
        size_t size = i * i * 3 + 1;
        blocks[i] = malloc(size);
        CHECK_BLOCK(blocks[i], size);
        blocks[i][0] = blocks[i][size - 1] = (unsigned char)i;
    }
    for (int i = 0; i < count; i++)
        free(inherited[i]);
    void *large = malloc(4 * MIB);
    CHECK_BLOCK(large, 4 * MIB);
    memset(large, 1, MIB);
    large = realloc(large, 9 * MIB);
    CHECK_BLOCK(large, 9 * MIB);
    free(large);
    for (size_t i = 0; i < N; i++) {
        CHECK(blocks[i][0] == (unsigned char)i, "block %zu", i);
        free(blocks[i]);
    }
}

static pid_t fork_or_fail(void) {
    pid_t child = fork();
    CHECK(child >= 0, "errno %d", errno);
    if (child == 0)
        alarm(20); /* A child that hangs on a lock nobody will release dies of SIGALRM. */
    return child;
}

CASE(a_child_uses_the_heap_of_its_parent, QUICK) {
    void *blocks[100];
    for (size_t i = 0; i < 100; i++) {
        blocks[i] = malloc(i * 100 + 1);
        fill(blocks[i], i * 100 + 1, (unsigned)i);
    }
    pid_t child = fork_or_fail();
    if (child == 0) {
        for (size_t i = 0; i < 100; i++)
            CHECK_PATTERN(blocks[i], i * 100 + 1, (unsigned)i);
        use_heap(blocks, 100);
        exit(0);
    }
    expect_exit(child, 0);
    for (size_t i = 0; i < 100; i++) {
        CHECK_PATTERN(blocks[i], i * 100 + 1, (unsigned)i);
        free(blocks[i]);
    }
}

CASE(two_hundred_forks_while_others_allocate, QUICK) {
    start_others();
    void *blocks[50];
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < 50; i++)
            blocks[i] = malloc(i * 37 + 1);
        pid_t child = fork_or_fail();
        if (child == 0) {
            use_heap(blocks, 50);
            _exit(0);
        }
        for (size_t i = 0; i < 50; i++)
            free(blocks[i]);
        expect_exit(child, 0);
    }
    stop_others();
}

static void *forking_thread(void *argument) {
    for (int round = 0; round < 25; round++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            use_heap(NULL, 0);
            _exit(0);
        }
        expect_exit(child, 0);
    }
    return argument;
}

CASE(several_threads_fork_at_once, QUICK) {
    start_others();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        START(threads[i], forking_thread, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    stop_others();
}

CASE(a_child_starts_threads_and_forks_again, QUICK) {
    start_others();
    for (int round = 0; round < 20; round++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            atomic_store(&rounds, 0);
            start_others();
            pid_t grandchild = fork_or_fail();
            if (grandchild == 0) {
                use_heap(NULL, 0);
                exit(0);
            }
            expect_exit(grandchild, 0);
            stop_others();
            use_heap(NULL, 0);
            exit(0);
        }
        expect_exit(child, 0);
    }
    stop_others();
}

/* A program with one thread may fork in a signal handler that interrupted the allocator. */
static atomic_int forks_in_handler;

static void fork_in_handler(int signal) {
    int kept = errno;
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        /* The handler of a child that was interrupted inside the allocator may not use it; the code that goes on may. */
        if (atomic_load(&forks_in_handler) % 2)
            _exit(0);
        atomic_store(&stopping, true);
        return;
    }
    CHECK(child > 0, "signal %d: errno %d", signal, errno);
    expect_exit(child, 0);
    atomic_fetch_add(&forks_in_handler, 1);
    errno = kept;
}

CASE(a_signal_handler_forks, QUICK) {
    enum { SLOTS = 2000, FORKS = 300 };
    static void *slots[SLOTS];
    uint64_t state = 5;
    struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0, "errno %d", errno);
    struct sigaction usual = {.sa_handler = SIG_DFL};
    int armed = -1, done;
    while (!atomic_load(&stopping) && (done = atomic_load(&forks_in_handler)) < FORKS) {
        if (armed != done) { /* Armed when the last one was handled, or the handlers would take all the time. */
            struct itimerval soon = {{0, 0}, {0, 20 + (long)(next_random(&state) % 200)}};
            armed = done;
            CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0, "errno %d", errno);
        }
        size_t i = next_random(&state) % SLOTS, size = assorted_size(&state);
        free(slots[i]);
        slots[i] = malloc(size);
        CHECK_BLOCK(slots[i], size);
    }
    if (atomic_load(&stopping)) {
        CHECK(sigaction(SIGALRM, &usual, NULL) == 0, "errno %d", errno);
        use_heap(slots, SLOTS);
        _exit(0);
    }
    use_heap(slots, SLOTS);
}

/* Fork handlers of the program run around the allocator's own and may allocate. */
static void *made_before_fork;
static void before_fork(void) { made_before_fork = malloc(100); }
static void after_fork(void) {
    free(made_before_fork);
    free(malloc(1000));
}

CASE(fork_handlers_allocate, QUICK) {
    CHECK(pthread_atfork(before_fork, after_fork, after_fork) == 0, "pthread_atfork");
    start_others();
    for (int round = 0; round < 100; round++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            use_heap(NULL, 0);
            _exit(0);
        }
        expect_exit(child, 0);
    }
    stop_others();
}

/* Memory is private after a fork: neither sees what the other writes or frees. */
CASE(parent_and_child_are_independent, QUICK) {
    unsigned char *shared = malloc(MIB);
    fill(shared, MIB, 1);
    int pipes[2];
    CHECK(pipe(pipes) == 0, "errno %d", errno);
    pid_t child = fork_or_fail();
    if (child == 0) {
        char go;
        CHECK(read(pipes[0], &go, 1) == 1, "errno %d", errno);
        CHECK_PATTERN(shared, MIB, 1);
        exit(0);
    }
    fill(shared, MIB, 2);
    free(shared);
    for (int i = 0; i < 1000; i++) {
        unsigned char *p = malloc(MIB);
        memset(p, 0xcc, 4096);
        free(p);
    }
    CHECK(write(pipes[1], "x", 1) == 1, "errno %d", errno);
    expect_exit(child, 0);
}

/* Run as the program that the cases below execute: uses its own heap and says so by its exit status. */
static void be_the_executed_program(void) {
    use_heap(NULL, 0);
    exit(42);
}

static char *const *again(const char *argument) {
    static char *arguments[4];
    arguments[0] = (char *)program_path;
    arguments[1] = (char *)case_name;
    arguments[2] = (char *)argument;
    return arguments;
}

CASE(vfork_and_exec_while_others_allocate, QUICK) {
    if (case_argument)
        be_the_executed_program();
    start_others();
    char *const *arguments = again("executed");
    for (int round = 0; round < 100; round++) {
        pid_t child = vfork();
        CHECK(child >= 0, "errno %d", errno);
        if (child == 0) {
            execv("/proc/self/exe", arguments);
            _exit(1);
        }
        free(malloc(1000));
        expect_exit(child, 42);
    }
    for (int round = 0; round < 100; round++) {
        pid_t child = vfork();
        if (child == 0)
            _exit(7);
        expect_exit(child, 7);
    }
    stop_others();
}

/* Shells and language runtimes allocate between vfork and exec, although they should not. */
CASE(a_vfork_child_allocates_before_exec, QUICK) {
    if (case_argument)
        be_the_executed_program();
    start_others();
    char *const *arguments = again("executed");
    void *volatile left = NULL;
    for (volatile int round = 0; round < 60; round = round + 1) {
        pid_t child = vfork();
        CHECK(child >= 0, "errno %d", errno);
        if (child == 0) {
            for (size_t i = 0; i < 300; i++) {
                void *volatile p = malloc(i * 7 + 1);
                if (p == NULL)
                    _exit(2);
                free(p);
            }
            left = malloc(200);
            execv("/proc/self/exe", arguments);
            _exit(1);
        }
        CHECK_BLOCK((void *)left, 200); /* The child's memory is the parent's. */
        free(left);
        expect_exit(child, 42);
    }
    stop_others();
}

CASE(posix_spawn_while_others_allocate, QUICK) {
    if (case_argument)
        be_the_executed_program();
    start_others();
    char *const *arguments = again("executed");
    for (int round = 0; round < 100; round++) {
        pid_t child;
        int error = posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ);
        CHECK(error == 0, "%d", error);
        expect_exit(child, 42);
    }
    stop_others();
}

CASE(system_and_popen_while_others_allocate, QUICK) {
    start_others();
    for (int round = 0; round < 30; round++) {
        int status = system("exit 3");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3, "status %#x", status);
        FILE *stream = popen("echo hello", "r");
        CHECK(stream != NULL, "errno %d", errno);
        char line[16] = "";
        CHECK(fgets(line, sizeof line, stream) && strcmp(line, "hello\n") == 0, "got %s", line);
        CHECK(pclose(stream) == 0, "pclose");
    }
    stop_others();
}

CASE(a_program_executes_itself, QUICK) {
    if (case_argument) {
        int left = atoi(case_argument);
        use_heap(NULL, 0);
        if (left == 0)
            exit(0);
        char next[16];
        snprintf(next, sizeof next, "%d", left - 1);
        execute_again(next);
        FAIL("exec: errno %d", errno);
    }
    start_others();
    execute_again("20");
    FAIL("exec: errno %d", errno);
}

/* exit runs handlers and destructors while other threads are still inside the allocator. */
static void at_exit(void) {
    use_heap(NULL, 0);
    free(made_before_fork);
}

CASE(exit_while_others_allocate, QUICK) {
    for (int round = 0; round < 40; round++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            atexit(at_exit);
            made_before_fork = malloc(1000);
            atomic_store(&rounds, 0);
            start_others();
            exit(5);
        }
        expect_exit(child, 5);
    }
}
