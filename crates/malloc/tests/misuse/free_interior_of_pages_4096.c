/* Frees a block of several pages, 4096 bytes in. */
#include "misuse.h"

int main(void) {
    char *p = allocated(1 << 20);
    free(misused(p + 4096));
    return survived();
}
