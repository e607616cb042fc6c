/* Frees an aligned block where a program that aligns by itself would. */
#include "misuse.h"

int main(void) {
    void *p;
    if (posix_memalign(&p, 4096, 8192) != 0)
        return 3;
    free(misused((char *)p + 64));
    return survived();
}
