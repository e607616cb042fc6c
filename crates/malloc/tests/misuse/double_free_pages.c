/* Frees a block of many pages twice. */
#include "misuse.h"

int main(void) {
    void *p = allocated(4 << 20);
    free(p);
    free(misused(p));
    return survived();
}
