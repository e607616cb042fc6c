/* Resizes a block of several pages from its middle. */
#include "misuse.h"

int main(void) {
    char *p = allocated(1 << 20);
    free(realloc(misused(p + 65536), 2 << 20));
    return survived();
}
