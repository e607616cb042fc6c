/* Frees a pointer into a block, which is noticed when malloc_trim gives the block's slab back what waits elsewhere: it walks
 * the list of all caches then, whose lock the handler's fork needs. */
#include "misuse.h"
#include "handler.h"

int main(void) {
    handle_abort();
    char *p = allocated(64);
    free(allocated(64));
    free(misused(p + 16));
    malloc_trim(0);
    return survived();
}
