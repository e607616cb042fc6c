/* Asks for the usable size of memory of the stack. */
#include "misuse.h"

int main(void) {
    _Alignas(16) char local[64] = "";
    void *p = misused(local);
    size_t volatile size = malloc_usable_size(p);
    return size == 12345 ? 3 : survived();
}
