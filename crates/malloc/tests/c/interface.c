/* Who answers the calls: every function of the interface must come from one and the same object, or blocks would
 * be freed by another allocator than made them. */
#include "case.h"
#include <dlfcn.h>

static const char *const functions[] = {
    "malloc",       "calloc",          "realloc",       "reallocarray", "free",
    "memalign",     "aligned_alloc",   "posix_memalign", "valloc",      "pvalloc",
    "malloc_usable_size", "malloc_trim", "mallopt",     "mallinfo",     "mallinfo2",
    "malloc_info",  "malloc_stats"};

static const char *origin(const char *function) {
    void *address = dlsym(RTLD_DEFAULT, function);
    CHECK(address != NULL, "%s is missing", function);
    Dl_info found;
    CHECK(dladdr(address, &found) != 0, "%s", function);
    return found.dli_fname;
}

CASE(every_function_has_one_origin, QUICK) {
    const char *expected = getenv("EXPECTED_LIBRARY");
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const char *from = origin(functions[i]);
        CHECK(strcmp(from, origin("malloc")) == 0, "%s is from %s", functions[i], from);
        CHECK(expected == NULL || strcmp(from, expected) == 0, "%s is from %s, not %s", functions[i], from, expected);
    }
}

/* The functions that C23 added and no older C library has. */
CASE(the_preloaded_library_has_sized_free, QUICK) {
    const char *expected = getenv("EXPECTED_LIBRARY");
    if (expected == NULL)
        SKIP("nothing is preloaded");
    CHECK(strcmp(origin("free_sized"), expected) == 0, "free_sized is from %s", origin("free_sized"));
    CHECK(strcmp(origin("free_aligned_sized"), expected) == 0, "from %s", origin("free_aligned_sized"));
}

CASE(the_heap_is_usable_through_the_addresses_dlsym_gives, QUICK) {
    void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "malloc");
    void (*release)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "free");
    void *p = allocate(100);
    CHECK_BLOCK(p, 100);
    free(p);
    p = malloc(100);
    release(p);
}
