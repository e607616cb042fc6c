/* Frees a block of one 64 KiB page twice. */
#include "misuse.h"

int main(void) {
    void *p = allocated(65536);
    free(p);
    free(misused(p));
    return survived();
}
