/* Frees the address of a function. */
#include "misuse.h"

int main(void) {
    free(misused((void *)((uintptr_t)main & ~(uintptr_t)15)));
    return survived();
}
