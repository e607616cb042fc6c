/* Threads: many at once, frees of another thread's blocks, thread exit, signals. */
#include "case.h"
#include <sched.h>
#include <ucontext.h>

static void churn(unsigned seed, unsigned steps) {
    enum { SLOTS = 256 };
    struct {
        unsigned char *p;
        size_t size;
    } slots[SLOTS] = {{NULL, 0}};
    uint64_t state = seed * 2654435761u + 1;
    for (unsigned step = 0; step < steps; step++) {
        size_t i = next_random(&state) % SLOTS;
        if (slots[i].p) {
            CHECK(slots[i].p[0] == (unsigned char)(seed + i), "%p first byte", (void *)slots[i].p);
            CHECK(slots[i].p[slots[i].size - 1] == (unsigned char)(seed + i), "%p last byte", (void *)slots[i].p);
            free(slots[i].p);
        }
        slots[i].size = assorted_size(&state);
        slots[i].p = malloc(slots[i].size);
        CHECK_BLOCK(slots[i].p, slots[i].size);
        slots[i].p[0] = slots[i].p[slots[i].size - 1] = (unsigned char)(seed + i);
    }
    for (size_t i = 0; i < SLOTS; i++)
        free(slots[i].p);
}

static void *churning_thread(void *seed) {
    churn((unsigned)(uintptr_t)seed, 60000);
    return NULL;
}

CASE(sixteen_threads_allocate_and_free, QUICK) {
    pthread_t threads[16];
    for (uintptr_t i = 0; i < 16; i++)
        START(threads[i], churning_thread, (void *)i);
    for (int i = 0; i < 16; i++)
        pthread_join(threads[i], NULL);
}

static void *migrating_thread(void *seed) {
    cpu_set_t allowed, one;
    sched_getaffinity(0, sizeof allowed, &allowed);
    uint64_t state = (uintptr_t)seed + 99;
    for (int round = 0; round < 300; round++) {
        int cpu;
        do
            cpu = (int)(next_random(&state) % CPU_SETSIZE);
        while (!CPU_ISSET(cpu, &allowed));
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        churn((unsigned)(uintptr_t)seed, 600);
    }
    return NULL;
}

CASE(threads_move_between_processors, QUICK) {
    pthread_t threads[6];
    for (uintptr_t i = 0; i < 6; i++)
        START(threads[i], migrating_thread, (void *)i);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
}

/* Everything that looks at the whole heap, while others change it. */
static void *inspecting_thread(void *argument) {
    atomic_bool *done = argument;
    FILE *null = fopen("/dev/null", "w");
    CHECK(null != NULL, "errno %d", errno);
    for (int i = 0; !atomic_load(done); i++) {
        struct mallinfo2 info = mallinfo2();
        CHECK(info.arena + info.hblkhd >= info.fordblks, "%zu free of %zu", info.fordblks, info.arena);
        CHECK(malloc_info(0, null) == 0, "malloc_info");
        if (i % 16 == 0)
            malloc_trim(0);
        mallopt(M_TOP_PAD, 64 * 1024);
        sleep_milliseconds(1);
    }
    fclose(null);
    return NULL;
}

CASE(the_heap_is_inspected_and_trimmed_while_others_allocate, QUICK) {
    static atomic_bool done;
    pthread_t inspector[2], threads[6];
    for (int i = 0; i < 2; i++)
        START(inspector[i], inspecting_thread, &done);
    for (uintptr_t i = 0; i < 6; i++)
        START(threads[i], churning_thread, (void *)i);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&done, true);
    for (int i = 0; i < 2; i++)
        pthread_join(inspector[i], NULL);
}

/* A ring from one producer to one consumer, who frees everything. */
enum { RING = 1024 };
struct ring {
    _Atomic(unsigned char *) slots[RING];
    unsigned count;
};

static void *producer(void *argument) {
    struct ring *ring = argument;
    uint64_t state = (uintptr_t)ring | 1;
    for (unsigned i = 0; i < ring->count; i++) {
        size_t size = 8 + assorted_size(&state) % 2000;
        unsigned char *p = malloc(size);
        CHECK_BLOCK(p, size);
        memcpy(p, &i, sizeof i);
        p[size - 1] = 0x33;
        while (atomic_load_explicit(&ring->slots[i % RING], memory_order_relaxed))
            sched_yield();
        atomic_store_explicit(&ring->slots[i % RING], p, memory_order_release);
    }
    return NULL;
}

static void *consumer(void *argument) {
    struct ring *ring = argument;
    for (unsigned i = 0; i < ring->count; i++) {
        unsigned char *p;
        while (!(p = atomic_load_explicit(&ring->slots[i % RING], memory_order_acquire)))
            sched_yield();
        unsigned number;
        memcpy(&number, p, sizeof number);
        CHECK(number == i, "got %u for %u", number, i);
        free(p);
        atomic_store_explicit(&ring->slots[i % RING], NULL, memory_order_release);
    }
    return NULL;
}

CASE(one_thread_frees_what_another_allocates, QUICK) {
    enum { PAIRS = 3 };
    static struct ring rings[PAIRS];
    pthread_t threads[PAIRS][2];
    for (int i = 0; i < PAIRS; i++) {
        rings[i].count = 300000;
        START(threads[i][0], producer, &rings[i]);
        START(threads[i][1], consumer, &rings[i]);
    }
    for (int i = 0; i < PAIRS; i++) {
        pthread_join(threads[i][0], NULL);
        pthread_join(threads[i][1], NULL);
    }
    CHECK(resident_bytes() < 256 * MIB, "%zu MiB resident", resident_bytes() / MIB);
}

/* All threads swap blocks through common slots, so that anybody frees anybody's. */
enum { COMMON = 4096 };
static _Atomic(size_t *) common[COMMON];

static void *swapping_thread(void *seed) {
    uint64_t state = (uintptr_t)seed * 77 + 5;
    for (int i = 0; i < 200000; i++) {
        size_t size = 16 + assorted_size(&state) % 4096;
        size_t *p = malloc(size);
        CHECK_BLOCK(p, size);
        p[0] = size;
        ((unsigned char *)p)[size - 1] = (unsigned char)size;
        size_t *old = atomic_exchange(&common[next_random(&state) % COMMON], p);
        if (old) {
            CHECK(((unsigned char *)old)[old[0] - 1] == (unsigned char)old[0], "%p damaged", (void *)old);
            free(old);
        }
    }
    return NULL;
}

CASE(threads_free_each_others_blocks, QUICK) {
    pthread_t threads[8];
    for (uintptr_t i = 0; i < 8; i++)
        START(threads[i], swapping_thread, (void *)i);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < COMMON; i++)
        free(common[i]);
}

static void *short_thread(void *argument) {
    void *blocks[20];
    for (size_t i = 0; i < 20; i++) {
        blocks[i] = malloc(i * i * 50 + 1);
        CHECK_BLOCK(blocks[i], i * i * 50 + 1);
    }
    for (size_t i = 0; i < 19; i++)
        free(blocks[i]);
    (void)argument;
    return blocks[19];
}

CASE(ten_thousand_threads_one_after_another, QUICK) {
    size_t early = 0;
    for (int i = 0; i < 10000; i++) {
        pthread_t thread;
        void *left;
        START(thread, short_thread, NULL);
        pthread_join(thread, &left);
        free(left);
        if (i == 500)
            early = resident_bytes();
    }
    size_t late = resident_bytes();
    CHECK(late < early + 16 * MIB, "%zu KiB resident, then %zu KiB", early / KIB, late / KIB);
}

static pthread_barrier_t gate;
static void *waiting_thread(void *seed) {
    pthread_barrier_wait(&gate);
    churn((unsigned)(uintptr_t)seed, 400);
    void *left = malloc(300);
    pthread_barrier_wait(&gate);
    return left;
}

CASE(two_hundred_threads_at_once, QUICK) {
    for (int round = 0; round < 5; round++) {
        pthread_t threads[200];
        pthread_barrier_init(&gate, NULL, 200);
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 256 * KIB);
        for (uintptr_t i = 0; i < 200; i++) {
            int error = pthread_create(&threads[i], &attributes, waiting_thread, (void *)i);
            CHECK(error == 0, "thread %zu: %d", (size_t)i, error);
        }
        for (int i = 0; i < 200; i++) {
            void *left;
            pthread_join(threads[i], &left);
            free(left);
        }
        pthread_attr_destroy(&attributes);
        pthread_barrier_destroy(&gate);
    }
}

/* Destructors of thread-specific data run late in a thread's life and allocate and free there. */
static pthread_key_t key;
static atomic_int destroyed;
static void destroy(void *value) {
    free(value);
    void *p = malloc(1000);
    CHECK_BLOCK(p, 1000);
    free(p);
    if (atomic_fetch_add(&destroyed, 1) % 3 == 0)
        pthread_setspecific(key, malloc(10)); /* once more round the destructors */
}

static void *thread_with_data(void *argument) {
    pthread_setspecific(key, malloc(500));
    return argument;
}

CASE(destructors_of_thread_data_allocate_and_free, QUICK) {
    CHECK(pthread_key_create(&key, destroy) == 0, "pthread_key_create");
    for (int round = 0; round < 100; round++) {
        pthread_t threads[8];
        for (int i = 0; i < 8; i++)
            START(threads[i], thread_with_data, NULL);
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
    }
    CHECK(atomic_load(&destroyed) >= 800, "%d", atomic_load(&destroyed));
}

static void *detached_thread(void *argument) {
    free(argument);
    free(malloc(100));
    atomic_fetch_add(&destroyed, 1);
    pthread_exit(malloc(1) ? NULL : argument);
}

CASE(detached_threads_exit_while_others_allocate, QUICK) {
    for (int i = 0; i < 2000; i++) {
        pthread_t thread;
        START(thread, detached_thread, malloc(64));
        pthread_detach(thread);
        churn((unsigned)i, 50);
    }
    for (int i = 0; i < 5000 && atomic_load(&destroyed) < 2000; i++)
        sleep_milliseconds(1);
    CHECK(atomic_load(&destroyed) == 2000, "%d", atomic_load(&destroyed));
}

static void *cancelled_thread(void *argument) {
    for (;;) {
        void *p = malloc(100);
        free(p);
        pthread_testcancel();
    }
    return argument;
}

CASE(threads_are_cancelled, QUICK) {
    for (int i = 0; i < 300; i++) {
        pthread_t thread;
        START(thread, cancelled_thread, NULL);
        churn((unsigned)i, 20);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
}

CASE(a_thread_runs_on_an_allocated_stack, QUICK) {
    for (int round = 0; round < 50; round++) {
        void *stack = aligned_alloc(4096, 256 * KIB);
        CHECK_BLOCK(stack, 256 * KIB);
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        CHECK(pthread_attr_setstack(&attributes, stack, 256 * KIB) == 0, "pthread_attr_setstack");
        pthread_t thread;
        void *left;
        CHECK(pthread_create(&thread, &attributes, short_thread, NULL) == 0, "pthread_create");
        pthread_join(thread, &left);
        free(left);
        free(stack);
        pthread_attr_destroy(&attributes);
    }
}

static ucontext_t outside, inside;
static void coroutine(void) {
    for (unsigned i = 0;; i++) {
        churn(i, 300);
        swapcontext(&inside, &outside);
    }
}

CASE(a_coroutine_allocates_on_an_allocated_stack, QUICK) {
    void *stack = malloc(256 * KIB);
    CHECK(getcontext(&inside) == 0, "errno %d", errno);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = 256 * KIB;
    makecontext(&inside, coroutine, 0);
    for (int i = 0; i < 100; i++) {
        swapcontext(&outside, &inside);
        churn((unsigned)i, 100);
    }
    free(stack);
}

static volatile sig_atomic_t allocating_is_safe, handled;
static void allocating_handler(int signal) {
    (void)signal;
    if (!allocating_is_safe)
        return;
    int kept = errno;
    for (size_t size = 1; size < 100000; size *= 3) {
        unsigned char *p = malloc(size);
        CHECK_BLOCK(p, size);
        p[size - 1] = 1;
        free(p);
    }
    errno = kept;
    handled = handled + 1;
}

static void start_timer(void (*handler)(int), long microseconds) {
    stack_t stack = {.ss_sp = malloc(64 * KIB), .ss_size = 64 * KIB};
    CHECK(sigaltstack(&stack, NULL) == 0, "errno %d", errno);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0, "errno %d", errno);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "errno %d", errno);
    struct itimerspec often = {{0, microseconds * 1000}, {0, microseconds * 1000}};
    CHECK(timer_settime(timer, 0, &often, NULL) == 0, "errno %d", errno);
}

/* The handler allocates only while the main program is outside the allocator. */
CASE(a_signal_handler_on_its_own_stack_allocates, QUICK) {
    start_timer(allocating_handler, 500);
    double end = seconds() + 20;
    for (unsigned i = 0; handled < 300; i++) {
        CHECK(seconds() < end, "%d signals in 20 s", (int)handled);
        churn(i, 50);
        allocating_is_safe = 1;
        for (volatile int spin = 0; spin < 100000; spin = spin + 1)
            ;
        allocating_is_safe = 0;
    }
}

static void counting_handler(int signal) {
    (void)signal;
    handled = handled + 1;
}

/* Signals that land inside malloc and free and do nothing must change nothing. */
CASE(signals_interrupt_the_allocator, QUICK) {
    start_timer(counting_handler, 100);
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++)
        START(threads[i], churning_thread, (void *)i);
    churn(17, 100000);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (double end = seconds() + 10; handled < 100;) {
        CHECK(seconds() < end, "%d signals", (int)handled);
        churn(1, 1000);
    }
}

CASE(many_sizes_in_many_threads_stay_compact, QUICK) {
    pthread_t threads[32];
    for (int round = 0; round < 3; round++) {
        for (uintptr_t i = 0; i < 32; i++)
            START(threads[i], short_thread, (void *)i);
        for (int i = 0; i < 32; i++) {
            void *left;
            pthread_join(threads[i], &left);
            free(left);
        }
    }
    CHECK(resident_bytes() < 64 * MIB, "%zu MiB resident", resident_bytes() / MIB);
}
