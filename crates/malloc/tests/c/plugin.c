/* A library to load and unload: it allocates in its constructor and keeps memory until its destructor. It is also a
 * test of thread-local data in a loaded library, which the loader allocates with malloc when a thread first uses it. */
#include <stdlib.h>
#include <string.h>

static void *kept[64];
static __thread char local[4096];

__attribute__((constructor)) static void load(void) {
    for (size_t i = 0; i < 64; i++) {
        kept[i] = malloc(i * 97 + 1);
        if (kept[i] == NULL)
            abort();
        memset(kept[i], (int)i, i * 97 + 1);
    }
}

__attribute__((destructor)) static void unload(void) {
    for (size_t i = 0; i < 64; i++) {
        if (((unsigned char *)kept[i])[i * 97] != (unsigned char)i)
            abort();
        free(kept[i]);
    }
}

char *plugin_local(void) {
    local[0]++;
    return local;
}

void *plugin_allocate(size_t size) { return malloc(size); }
void plugin_free(void *block) { free(block); }
