/* What every program of this folder has: it makes one mistake. Before that it prints "misuse POINTER" on stdout, so that
 * the test knows which pointer the report must name; a program that survives its mistake goes on using the heap, prints
 * "survived" and exits 0. Nothing is printed through stdio, which allocates. */
#ifndef MISUSE_H
#define MISUSE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static inline void print(const char *text) {
    if (write(1, text, strlen(text)) < 0)
        _exit(3);
}

/* Names the pointer about to be misused, and hides from the compiler where it comes from. */
static inline void *misused(void *p) {
    char line[64];
    snprintf(line, sizeof line, "misuse %p\n", p);
    print(line);
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

static inline void *allocated(size_t size) {
    unsigned char *p = malloc(size);
    if (p == NULL)
        _exit(3);
    memset(p, 0x5a, size < 65536 ? size : 65536);
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

/* The mistake was not found: the heap is used on, so that damage would show. */
static inline int survived(void) {
    void *blocks[64];
    for (size_t i = 0; i < 64; i++)
        blocks[i] = allocated(i * 40 + 1);
    for (size_t i = 0; i < 64; i++)
        free(blocks[i]);
    print("survived\n");
    return 0;
}

#endif
