/* Frees a block of several pages, one page in. */
#include "misuse.h"

int main(void) {
    char *p = allocated(1 << 20);
    free(misused(p + 65536));
    return survived();
}
