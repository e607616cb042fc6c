/* Frees a static object. */
#include "misuse.h"

static _Alignas(16) char object[64];

int main(void) {
    free(misused(object));
    return survived();
}
