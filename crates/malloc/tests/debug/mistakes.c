/* One mistake by the name of the argument, with an object of the heap. Prints the address that the report must name, and goes on afterwards. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *hidden(void *p) {
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

static void say(const void *p) {
    printf("at %p\n", p);
    fflush(stdout);
}

/* Takes objects of the size until the freed one comes again. */
static void take_again(char *p, size_t size) {
    for (int i = 0; i < 100000; i++)
        if (hidden(malloc(size)) == p)
            return;
    _exit(4);
}

int main(int argc, char **argv) {
    (void)argc;
    const char *what = argv[1];
    static char out[256];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    char *p = hidden(malloc(43));
    memset(p, 1, 43);
    if (!strcmp(what, "over_1")) {
        say(p + 43);
        p[43] = 7;
        free(p);
    } else if (!strcmp(what, "over_8")) {
        say(p + 50);
        p[50] = 7;
        free(p);
    } else if (!strcmp(what, "under_1")) {
        say(p - 1);
        p[-1] = 7;
        free(p);
    } else if (!strcmp(what, "under_8")) {
        say(p - 8);
        p[-8] = 7;
        free(p);
    } else if (!strcmp(what, "aligned_over")) {
        char *q = hidden(aligned_alloc(64, 100));
        if ((uintptr_t)q % 64)
            return 5;
        say(q + 100);
        q[100] = 7;
        free(q);
    } else if (!strcmp(what, "write_freed")) {
        free(p);
        say(p + 20);
        p[20] = 7;
        take_again(p, 43);
    } else if (!strcmp(what, "double_free")) {
        char *others[50];
        for (int i = 0; i < 50; i++)
            others[i] = hidden(malloc(43));
        free(p);
        for (int i = 0; i < 50; i++)
            free(others[i]);
        say(p);
        free(p);
    } else if (!strcmp(what, "realloc_old")) {
        char *q = hidden(realloc(p, 48));
        if (q == p)
            return 6;
        say(p + 2);
        p[2] = 7;
        take_again(p, 43);
        free(q);
    } else if (!strcmp(what, "in_child")) {
        say(p + 43);
        p[43] = 7;
        pid_t child = fork();
        if (child == 0) {
            free(p);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status)
            return 7;
        p[43] = (char)0xcc;
        free(p);
    } else if (!strcmp(what, "patterns")) {
        /* What was never written and what was freed can be told. */
        char *q = hidden(malloc(100));
        if ((unsigned char)q[50] != 0x5a)
            return 8;
        free(q);
        if ((unsigned char)hidden(q)[50] != 0x6b)
            return 9;
        say("");
    } else if (!strcmp(what, "none")) {
        if (malloc_usable_size(p) != 43)
            return 10;
        for (size_t size = 0; size <= 70000; size = size * 9 / 8 + 7) {
            unsigned char *q = (unsigned char *)hidden(malloc(size));
            memset(q, 0x5a, size);
            q = (unsigned char *)hidden(realloc(q, size + 20));
            for (size_t i = 0; i < size; i++)
                if (q[i] != 0x5a)
                    return 11;
            memset(q, 1, size + 20);
            q = (unsigned char *)hidden(realloc(q, size / 2 + 1));
            free(q);
            q = (unsigned char *)hidden(calloc(1, size));
            for (size_t i = 0; i < size; i++)
                if (q[i])
                    return 12;
            free(q);
            for (size_t align = 16; align <= 65536; align *= 4) {
                q = (unsigned char *)hidden(aligned_alloc(align, size));
                if ((uintptr_t)q % align)
                    return 13;
                memset(q, 1, size);
                free(q);
            }
        }
        say("");
    } else {
        return 2;
    }
    for (int i = 0; i < 1000; i++)
        free(hidden(malloc(i)));
    printf("went on\n");
    return 0;
}
