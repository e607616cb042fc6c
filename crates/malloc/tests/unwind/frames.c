// Frames of many shapes. Each function calls `meet` below some of them, or has a signal meet them.
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

typedef void (*Meet)(void);
static Meet meet;
volatile int sink;

#define APART __attribute__((noinline, noclone))

// Deep, with frames whose sizes change.
APART static int deep(int depth, int spare)
{
    char room[1 + depth % 7 * 24];
    memset(room, depth, sizeof room);
    if (depth == 0)
        meet();
    else
        sink += deep(depth - 1, spare + room[0]);
    return sink + room[sizeof room - 1];
}

// A stack aligned beyond what calls keep: its frame is found through another register.
APART static int aligned(int depth)
{
    _Alignas(256) char room[512];
    char *more = alloca(16 * (depth + 1));
    memset(room, depth, sizeof room);
    more[0] = room[7];
    if (depth == 0)
        meet();
    else
        sink += aligned(depth - 1);
    return room[3] + more[0];
}

// Frames too large for a packed rule.
APART static int large(int depth)
{
    volatile char room[5 << 18];
    room[depth] = 1;
    if (depth == 0)
        meet();
    else
        sink += large(depth - 1);
    return room[depth];
}

APART static int many(int a, int b, int c, int d, int e, int f, int g, int h, int i)
{
    int x = a * b, y = c * d, z = e * f, u = g * h, v = i + a;
    meet();
    return x + y + z + u + v + sink;
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    meet();
}

static void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    sigaction(number, &action, 0);
}

APART static int leaf(volatile int *at)
{
    // A breakpoint: the signal finds a function without a frame.
    __asm__ volatile("int3");
    return *at + 1;
}

static char other_stack[256 << 10];

APART static void on_other_stack(void)
{
    stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    sigaltstack(&stack, 0);
    handle(SIGUSR2, on_signal, SA_ONSTACK);
    raise(SIGUSR2);
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, 0);
}

static void *in_thread(void *depth)
{
    sink += deep((int)(intptr_t)depth, 3);
    sink += aligned(4);
    on_other_stack();
    return 0;
}

APART static void thread(void)
{
    pthread_t other;
    pthread_create(&other, 0, in_thread, (void *)20);
    pthread_join(other, 0);
}

static ucontext_t outside, inside;

static void coroutine(void)
{
    sink += deep(12, 1);
    raise(SIGUSR1);
}

APART static void on_foreign_stack(void)
{
    size_t size = 256 << 10;
    char *stack = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = size;
    inside.uc_link = &outside;
    makecontext(&inside, coroutine, 0);
    swapcontext(&outside, &inside);
    munmap(stack, size);
}

static int compare(const void *a, const void *b)
{
    if (sink++ % 5 == 0)
        meet();
    return *(const int *)a - *(const int *)b;
}

// Through frames of the C library.
APART static void sorted(void)
{
    int numbers[16];
    for (int i = 0; i < 16; i++)
        numbers[i] = i * 7 % 16;
    qsort(numbers, 16, sizeof *numbers, compare);
}

void every_shape(Meet callback)
{
    meet = callback;
    handle(SIGUSR1, on_signal, 0);
    handle(SIGTRAP, on_signal, 0);
    for (int depth = 0; depth < 60; depth += 7)
        sink += deep(depth, depth);
    sink += aligned(0) + aligned(9) + large(0);
    sink += many(1, 2, 3, 4, 5, 6, 7, 8, 9);
    sink += leaf(&sink);
    raise(SIGUSR1);
    on_other_stack();
    thread();
    on_foreign_stack();
    sorted();
}

// Every instruction of some code is met, those that make and leave frames and those of the linkage table too.
#define STEP 0x100

static void begin_steps(void)
{
    __asm__ volatile("sub $128, %%rsp; pushf; orl %0, (%%rsp); popf; add $128, %%rsp" ::"i"(STEP) : "cc", "memory");
}

static void end_steps(void)
{
    __asm__ volatile("sub $128, %%rsp; pushf; andl %0, (%%rsp); popf; add $128, %%rsp" ::"i"(~STEP) : "cc", "memory");
}

APART static int small(int a, char *text)
{
    return (int)strlen(text) + abs(a) + sink;
}

APART static int stepped(int depth)
{
    char room[8 + 8 * depth];
    memset(room, 'a', sizeof room);
    room[depth] = 0;
    int sum = small(depth, room);
    if (depth > 0)
        sum += stepped(depth - 1);
    return sum + (int)getppid();
}

APART static int stepped_aligned(int depth)
{
    _Alignas(128) char room[128];
    char *more = alloca(16 * (depth + 1));
    more[depth] = 0;
    memset(room, 0, sizeof room);
    return small(depth, more) + room[depth];
}

void every_instruction(Meet callback)
{
    meet = callback;
    handle(SIGTRAP, on_signal, 0);
    begin_steps();
    sink += stepped(3);
    sink += stepped_aligned(2);
    end_steps();
}

// A frame whose saved words were overwritten, as by a write beyond an array; they are put back before it is left.
static char *top;

APART static int overwritten(uint64_t word, int words)
{
    uint64_t kept[64];
    char *here = __builtin_frame_address(0);
    int n = words;
    if (here + 8 * n > top)
        n = (top - here) / 8;
    memcpy(kept, here, 8 * n);
    for (int i = 0; i < n; i++)
        ((volatile uint64_t *)here)[i] = word;
    meet();
    memcpy(here, kept, 8 * n);
    return sink;
}

APART static int outer(uint64_t word, int words, int depth)
{
    char room[64];
    memset(room, depth, sizeof room);
    int result = depth ? outer(word, words, depth - 1) : overwritten(word, words);
    return result + room[depth];
}

void every_corruption(Meet callback)
{
    meet = callback;
    top = (char *)__builtin_frame_address(0);
    char *closed = mmap(0, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t words[] = {0, 1, 8, 0x4141414141414141, ~0ull, ~7ull, 1ull << 47, (uintptr_t)closed, (uintptr_t)closed + 8,
                        (uintptr_t)other_stack, (uintptr_t)every_shape, (uintptr_t)&sink, (uintptr_t)top, (uintptr_t)strlen,
                        (uintptr_t)__builtin_frame_address(0)};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        for (int n = 1; n < 40; n++)
            sink += outer(words[i], n, 3);
    munmap(closed, 8192);
}
