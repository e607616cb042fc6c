/* Frees memory of the stack. */
#include "misuse.h"

int main(void) {
    _Alignas(16) char local[64] = "";
    free(misused(local));
    return survived();
}
