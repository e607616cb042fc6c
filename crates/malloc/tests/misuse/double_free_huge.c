/* Frees a block of its own mapping twice. */
#include "misuse.h"

int main(void) {
    void *p = allocated(256 << 20);
    free(p);
    free(misused(p));
    return survived();
}
