/* Frees a block of many pages twice, with others freed between. */
#include "misuse.h"

int main(void) {
    void *blocks[4];
    for (int i = 0; i < 4; i++)
        blocks[i] = allocated(1 << 20);
    for (int i = 0; i < 4; i++)
        free(blocks[i]);
    free(misused(blocks[1]));
    return survived();
}
