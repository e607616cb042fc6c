/* Resizes memory of the stack. */
#include "misuse.h"

int main(void) {
    _Alignas(16) char local[64] = "";
    free(realloc(misused(local), 5000));
    return survived();
}
