/* One mistake by the name of the argument, on an object with guard pages around it. Prints the address that the report must name; what is done
 * after the mistake shows that the program goes on. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile char sink;
static sigjmp_buf back;
static volatile int handled;

static void on_fault(int signal) {
    (void)signal;
    handled++;
    siglongjmp(back, 1);
}

static char *hidden(void *p) {
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

/* An object at the end of its page (the next byte is no one's), or at the start of one. */
static char *placed(size_t size, int at_end) {
    for (int i = 0; i < 2000; i++) {
        char *p = hidden(malloc(size));
        uintptr_t start = (uintptr_t)p & 4095;
        if (at_end ? start + size == 4096 : start == 0)
            return p;
        free(p);
    }
    _exit(4);
}

static void say(const char *p) {
    printf("at %p\n", (const void *)p);
    fflush(stdout);
}

int main(int argc, char **argv) {
    (void)argc;
    const char *what = argv[1];
    static char out[256];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    if (!strcmp(what, "read_right")) {
        char *p = placed(64, 1);
        say(p + 64);
        sink = p[64];
        free(p);
    } else if (!strcmp(what, "write_right_later")) {
        char *p = placed(64, 1);
        say(p + 64 + 100);
        p[64 + 100] = 1;
        free(p);
    } else if (!strcmp(what, "read_left")) {
        char *p = placed(80, 0);
        say(p - 1);
        sink = p[-1];
        free(p);
    } else if (!strcmp(what, "write_left_8")) {
        char *p = placed(80, 0);
        say(p - 8);
        *(long *)(p - 8) = 5;
        free(p);
    } else if (!strcmp(what, "corrupt_inside_page")) {
        char *p = placed(33, 0);
        say(p + 33);
        p[33] = 1;
        free(p);
    } else if (!strcmp(what, "write_freed")) {
        char *p = hidden(malloc(100));
        free(p);
        say(p + 50);
        p[50] = 1;
    } else if (!strcmp(what, "read_freed_much_later")) {
        char *p = hidden(malloc(100));
        free(p);
        for (int i = 0; i < 100; i++)
            free(hidden(malloc(100)));
        say(p);
        sink = p[0];
    } else if (!strcmp(what, "double_free")) {
        char *p = hidden(malloc(24));
        free(p);
        free(hidden(malloc(24)));
        say(p);
        free(p);
    } else if (!strcmp(what, "free_interior")) {
        char *p = hidden(malloc(100));
        say(p + 16);
        free(p + 16);
        free(p);
    } else if (!strcmp(what, "free_guard_page")) {
        char *p = placed(64, 1);
        say(p + 64);
        free(p + 64);
        free(p);
    } else if (!strcmp(what, "realloc_freed_use")) {
        char *p = hidden(malloc(100));
        char *q = hidden(realloc(p, 120));
        say(p + 1);
        sink = p[1];
        free(q);
    } else if (!strcmp(what, "in_child")) {
        char *p = hidden(malloc(100));
        free(p);
        say(p);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            sink = p[0];
            free(hidden(malloc(10)));
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            return 5;
    } else if (!strcmp(what, "none")) {
        /* Everything allowed: sizes, alignments, contents, resizing. */
        for (size_t size = 0; size <= 6000; size += 7) {
            unsigned char *p = (unsigned char *)hidden(malloc(size));
            memset(p, 0x5a, size);
            p = (unsigned char *)hidden(realloc(p, size + 20));
            for (size_t i = 0; i < size; i++)
                if (p[i] != 0x5a)
                    return 6;
            free(p);
            p = (unsigned char *)hidden(calloc(1, size));
            for (size_t i = 0; i < size; i++)
                if (p[i])
                    return 7;
            free(p);
            for (size_t align = 16; align <= 8192; align *= 2) {
                p = hidden(aligned_alloc(align, size));
                if ((uintptr_t)p % align)
                    return 8;
                memset(p, 1, size);
                free(p);
            }
        }
        say("");
    } else if (!strcmp(what, "own_faults")) {
        /* The program's own faults come to its own handler, whichever way it was installed. */
        signal(SIGSEGV, on_fault);
        if (!sigsetjmp(back, 1))
            *(volatile int *)8 = 1;
        struct sigaction old;
        struct sigaction action = {.sa_handler = on_fault};
        sigaction(SIGSEGV, &action, &old);
        if (old.sa_handler != on_fault || !(old.sa_flags & SA_RESTART))
            return 9;
        if (!sigsetjmp(back, 1))
            *(volatile int *)16 = 1;
        if (!sigsetjmp(back, 1))
            raise(SIGSEGV);
        if (handled != 3)
            return 10;
        signal(SIGSEGV, SIG_IGN);
        raise(SIGSEGV);
        say("");
    } else if (!strcmp(what, "dies")) {
        say("");
        *(volatile int *)8 = 1;
    } else {
        return 2;
    }
    for (int i = 0; i < 1000; i++)
        free(hidden(malloc(i)));
    printf("went on\n");
    return 0;
}
