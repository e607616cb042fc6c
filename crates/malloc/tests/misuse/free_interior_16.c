/* Frees a small block 16 bytes in, where alignment looks right. */
#include "misuse.h"

int main(void) {
    char *p = allocated(200);
    free(misused(p + 16));
    return survived();
}
