/* Resizes a block of many pages that was freed. */
#include "misuse.h"

int main(void) {
    void *p = allocated(4 << 20);
    free(p);
    free(realloc(misused(p), 9 << 20));
    return survived();
}
