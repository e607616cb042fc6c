/* Frees a small block one byte in. */
#include "misuse.h"

int main(void) {
    char *p = allocated(200);
    free(misused(p + 1));
    return survived();
}
