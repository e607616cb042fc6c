/* Frees the smallest block twice in a row. */
#include "misuse.h"

int main(void) {
    void *p = allocated(1);
    free(p);
    free(misused(p));
    return survived();
}
