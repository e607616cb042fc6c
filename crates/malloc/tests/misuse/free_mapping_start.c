/* Frees the start of a mapping of the program's own, aligned like a large block. */
#include "misuse.h"

int main(void) {
    char *own = mmap(NULL, 128 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    free(misused((void *)(((uintptr_t)own + (64 << 20) - 1) & -(uintptr_t)(64 << 20))));
    return survived();
}
