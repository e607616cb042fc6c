/* Frees a small block twice, with so much freed between that its memory went back. */
#include "misuse.h"

int main(void) {
    enum { N = 200000 };
    static void *blocks[N];
    for (int i = 0; i < N; i++)
        blocks[i] = allocated(100);
    for (int i = 0; i < N; i++)
        free(blocks[i]);
    malloc_trim(0);
    free(misused(blocks[N / 2]));
    return survived();
}
