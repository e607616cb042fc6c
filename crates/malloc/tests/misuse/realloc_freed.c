/* Resizes a small block that was freed. */
#include "misuse.h"

int main(void) {
    void *p = allocated(100);
    free(p);
    free(realloc(misused(p), 5000));
    return survived();
}
