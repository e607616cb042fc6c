/* Frees an address near the heap where nothing was ever allocated. */
#include "misuse.h"

int main(void) {
    char *p = allocated(100);
    free(misused(p + ((size_t)1 << 30)));
    return survived();
}
