/* Frees a small block twice in a row with its size. */
#include "misuse.h"

#include <dlfcn.h>

int main(void) {
    void (*free_sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    void *p = allocated(100);
    if (free_sized == NULL) {
        misused(p);
        return survived();
    }
    free_sized(p, 100);
    free_sized(misused(p), 100);
    return survived();
}
