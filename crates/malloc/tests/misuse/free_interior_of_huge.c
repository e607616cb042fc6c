/* Frees a block of its own mapping, one mebibyte in. */
#include "misuse.h"

int main(void) {
    char *p = allocated(256 << 20);
    free(misused(p + (1 << 20)));
    return survived();
}
