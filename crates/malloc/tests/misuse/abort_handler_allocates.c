/* Frees a pointer into a block, which is noticed when the block's slab gets it back, and has a handler for SIGABRT that uses
 * the heap and forks: whatever noticed the mistake must not hold a lock then. */
#include "misuse.h"
#include "handler.h"

int main(void) {
    static void *blocks[60000];
    handle_abort();
    char *p = allocated(64);
    for (size_t i = 0; i < 60000; i++)
        blocks[i] = allocated(64);
    p = misused(p + 16);
    /* Again and again, so that it is among what the CPU's array gives back. */
    for (size_t i = 0; i < 60000; i++) {
        free(blocks[i]);
        if (i % 16 == 15)
            free(p);
    }
    return survived();
}
