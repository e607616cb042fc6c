/* A program of named cases, each one documented behaviour.
 *
 * `PROGRAM --list` prints one line "name flags" per case; `PROGRAM name` runs one: it prints nothing and exits 0 on
 * success, prints what is wrong on stderr and exits 1 on failure, and exits 77 with the reason where the machine cannot
 * show the behaviour. A case that has to run in a fresh process executes the program again with the same name and
 * one more argument, which it finds in `case_argument`.
 *
 * Nothing here allocates, so that a case decides alone what its heap sees.
 */
#ifndef CASE_H
#define CASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#ifndef __cplusplus
#include <stdatomic.h>
#include <stdbool.h>
#endif
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* SLOW: takes seconds or gigabytes, so it runs in the default mode only. OURS: promised by Flagstone and not kept by glibc,
 * so it runs only with the library preloaded. */
enum { QUICK = 0, SLOW = 1, OURS = 2 };

struct named_case {
    const char *name;
    void (*run)(void);
    int flags;
};

static const char *program_path;
static const char *case_name;
static const char *case_argument;

#define CASE(case_, flags_)                                                                                            \
    static void case_(void);                                                                                           \
    static const struct named_case entry_##case_ = {#case_, case_, flags_};                                            \
    __attribute__((used, section("cases"))) static const struct named_case *const listed_##case_ = &entry_##case_;     \
    static void case_(void)

extern const struct named_case *const __start_cases[], *const __stop_cases[];

__attribute__((noreturn, format(printf, 2, 3))) static inline void leave(int status, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    ssize_t written = write(2, line, (size_t)length);
    _exit(written < 0 ? 1 : status);
}

#define FAIL(format, ...) leave(1, "%s:%d: " format, __FILE__, __LINE__, ##__VA_ARGS__)
#define SKIP(format, ...) leave(77, format, ##__VA_ARGS__)
#define CHECK(condition, format, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            FAIL("%s: " format, #condition, ##__VA_ARGS__);                                                            \
    } while (0)

/* What every block must satisfy: there, and aligned for every fundamental type. */
#define CHECK_BLOCK(p, size)                                                                                           \
    do {                                                                                                               \
        CHECK((p) != NULL, "size %zu, errno %d", (size_t)(size), errno);                                               \
        CHECK((uintptr_t)(p) % 16 == 0, "%p of size %zu", (void *)(p), (size_t)(size));                                \
        CHECK(malloc_usable_size(p) >= (size_t)(size), "%zu < %zu", malloc_usable_size(p), (size_t)(size));            \
    } while (0)

/* A call that must fail for want of memory. */
#define CHECK_NO_MEMORY(call)                                                                                          \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        void *volatile refused_ = (call);                                                                              \
        CHECK(refused_ == NULL, "%p", refused_);                                                                       \
        CHECK(errno == ENOMEM, "errno %d after " #call, errno);                                                        \
    } while (0)

/* A size the compiler knows nothing about. */
static inline size_t opaque(size_t n) {
    volatile size_t hidden = n;
    return hidden;
}

/* Bytes that depend on the seed and the place, so that a block that overlaps another or moved wrongly shows. */
static inline unsigned char pattern_byte(size_t at, unsigned seed) {
    return (unsigned char)(at * 31 + (at >> 8) * 7 + seed * 131 + 1);
}

static inline void fill(void *block, size_t size, unsigned seed) {
    unsigned char *bytes = (unsigned char *)block;
    for (size_t i = 0; i < size; i++)
        bytes[i] = pattern_byte(i, seed);
}

static inline size_t first_difference(const void *block, size_t size, unsigned seed) {
    const unsigned char *bytes = (const unsigned char *)block;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != pattern_byte(i, seed))
            return i;
    return size;
}

#define CHECK_PATTERN(block, size, seed)                                                                               \
    do {                                                                                                               \
        size_t at_ = first_difference(block, size, seed);                                                              \
        CHECK(at_ == (size_t)(size), "byte %zu of %zu at %p changed", at_, (size_t)(size), (void *)(block));           \
    } while (0)

/* xorshift: the same numbers in every run. */
static inline uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

/* Mostly small sizes, some of pages, a few of up to 256 KiB: a rough picture of what programs ask for. */
static inline size_t assorted_size(uint64_t *state) {
    uint64_t r = next_random(state);
    unsigned kind = (unsigned)(r & 127);
    r >>= 8;
    if (kind < 96)
        return 1 + r % 512;
    if (kind < 120)
        return 1 + r % 8192;
    if (kind < 127)
        return 1 + r % (64 * KIB);
    return 1 + r % (256 * KIB);
}

/* A field of /proc/self/status that is given in kB, in bytes. */
static inline size_t status_bytes(const char *field) {
    char text[8192];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, "errno %d", errno);
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    CHECK(length > 0, "errno %d", errno);
    text[length] = 0;
    const char *line = strstr(text, field);
    CHECK(line != NULL, "no %s", field);
    return strtoull(line + strlen(field) + 1, NULL, 10) * KIB;
}

static inline size_t resident_bytes(void) { return status_bytes("VmRSS"); }

static inline double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void sleep_milliseconds(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Waits for a child and fails unless it ended by exiting with `status`. */
static inline void expect_exit(pid_t child, int status) {
    int ended;
    pid_t got;
    do
        got = waitpid(child, &ended, 0);
    while (got < 0 && errno == EINTR);
    CHECK(got == child, "errno %d", errno);
    CHECK(!WIFSIGNALED(ended), "child died of signal %d", WTERMSIG(ended));
    CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == status, "child exited with %d", WEXITSTATUS(ended));
}

/* Runs this case again in a fresh process image, with an argument. Returns only on failure. */
static inline void execute_again(const char *argument) {
    char *const arguments[] = {(char *)program_path, (char *)case_name, (char *)argument, NULL};
    execv("/proc/self/exe", arguments);
}

#define START(thread, function, argument)                                                                              \
    do {                                                                                                               \
        int error_ = pthread_create(&(thread), NULL, function, argument);                                              \
        CHECK(error_ == 0, "pthread_create: %d", error_);                                                              \
    } while (0)

int main(int count, char **arguments) {
    program_path = arguments[0];
    case_name = count > 1 ? arguments[1] : "--list";
    case_argument = count > 2 ? arguments[2] : NULL;
    for (const struct named_case *const *at = __start_cases; at < __stop_cases; at++) {
        if (strcmp(case_name, "--list") == 0) {
            printf("%s %d\n", (*at)->name, (*at)->flags);
        } else if (strcmp(case_name, (*at)->name) == 0) {
            (*at)->run();
            return 0;
        }
    }
    if (strcmp(case_name, "--list") == 0)
        return 0;
    FAIL("no case named %s", case_name);
}

#endif
