/* Frees an address that no pointer of a program can have. */
#include "misuse.h"

int main(void) {
    allocated(100);
    free(misused((void *)0xffff800000001000));
    return survived();
}
