/* A handler for SIGABRT that does what handlers of crashes do, allowed or not: it allocates and frees blocks of all sizes, has the heap
 * trimmed, and forks a child that allocates. Then it prints "handled". A second thread makes the fork take every lock. */
#ifndef HANDLER_H
#define HANDLER_H

#include "misuse.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

static inline void use_heap(void) {
    static void *blocks[4000];
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < 4000; i++) {
            blocks[i] = malloc(round == 0 ? 64 : i * 7 % 5000 + 1);
            if (blocks[i] == NULL)
                _exit(4);
        }
        for (size_t i = 0; i < 4000; i++)
            free(blocks[i]);
    }
    malloc_trim(0);
}

static void on_abort(int signal) {
    (void)signal;
    use_heap();
    pid_t child = fork();
    if (child == 0) {
        use_heap();
        _exit(7);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
        _exit(5);
    print("handled\n");
}

static void *wait_for_ever(void *argument) {
    (void)argument;
    for (;;)
        pause();
    return NULL;
}

/* All on one CPU, so that a pointer that its array took is still there when the next one comes. */
static inline void handle_abort(void) {
    pthread_t thread;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    if (signal(SIGABRT, on_abort) == SIG_ERR || pthread_create(&thread, NULL, wait_for_ever, NULL) != 0)
        _exit(6);
}

#endif
