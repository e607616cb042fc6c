/* Frees a small block 8 bytes in, where alignment is wrong. */
#include "misuse.h"

int main(void) {
    char *p = allocated(200);
    free(misused(p + 8));
    return survived();
}
