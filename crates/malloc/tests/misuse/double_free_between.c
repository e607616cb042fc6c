/* Frees a small block twice, with others of its size freed between. */
#include "misuse.h"

int main(void) {
    void *blocks[8];
    for (int i = 0; i < 8; i++)
        blocks[i] = allocated(100);
    for (int i = 0; i < 8; i++)
        free(blocks[i]);
    free(misused(blocks[2]));
    return survived();
}
