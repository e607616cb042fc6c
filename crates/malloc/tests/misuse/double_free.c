/* Frees a small block twice in a row. */
#include "misuse.h"

int main(void) {
    void *p = allocated(100);
    free(p);
    free(misused(p));
    return survived();
}
