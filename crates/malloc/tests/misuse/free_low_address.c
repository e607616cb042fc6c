/* Frees a small integer. */
#include "misuse.h"

int main(void) {
    allocated(100);
    free(misused((void *)0x10));
    return survived();
}
