/* Frees an aligned block twice in a row. */
#include "misuse.h"

int main(void) {
    void *p;
    if (posix_memalign(&p, 256, 1000) != 0)
        return 3;
    free(p);
    free(misused(p));
    return survived();
}
