/* Before main, around dlopen and dlclose, and after main. PLUGIN is the path of the library made from plugin.c. */
#include "case.h"
#include <dlfcn.h>
#include <link.h>

static void *from_preinit, *from_first, *from_last;

static void preinit(void) {
    from_preinit = malloc(3000);
    if (from_preinit)
        memset(from_preinit, 1, 3000);
}
__attribute__((section(".preinit_array"), used)) static void (*const preinit_entry)(void) = preinit;

__attribute__((constructor(101))) static void first(void) {
    from_first = calloc(10, 1000);
    void *p = malloc(100);
    free(p);
}

__attribute__((constructor)) static void last(void) {
    from_last = realloc(malloc(10), 5 * MIB);
}

CASE(constructors_allocate_before_main, QUICK) {
    CHECK_BLOCK(from_preinit, 3000);
    CHECK_BLOCK(from_first, 10000);
    CHECK_BLOCK(from_last, 5 * MIB);
    CHECK(((unsigned char *)from_preinit)[2999] == 1, "contents");
    CHECK(((unsigned char *)from_first)[9999] == 0, "calloc");
    free(from_preinit);
    free(from_first);
    free(from_last);
}

static void *freed_late;
__attribute__((destructor)) static void destructor(void) {
    free(freed_late);
    void *p = malloc(1000);
    CHECK_BLOCK(p, 1000);
    free(p);
}
static void exit_handler(void) {
    void *p = freed_late;
    freed_late = malloc(2000);
    free(p);
}

CASE(destructors_and_exit_handlers_free_after_main, QUICK) {
    freed_late = malloc(100000);
    CHECK(atexit(exit_handler) == 0, "atexit");
}

struct plugin {
    void *handle;
    char *(*local)(void);
    void *(*allocate)(size_t);
    void (*release)(void *);
};

static struct plugin load(void) {
    struct plugin plugin;
    plugin.handle = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
    CHECK(plugin.handle != NULL, "%s", dlerror());
    plugin.local = (char *(*)(void))dlsym(plugin.handle, "plugin_local");
    plugin.allocate = (void *(*)(size_t))dlsym(plugin.handle, "plugin_allocate");
    plugin.release = (void (*)(void *))dlsym(plugin.handle, "plugin_free");
    return plugin;
}

CASE(libraries_allocate_while_loaded_and_unloaded, QUICK) {
    for (int round = 0; round < 300; round++) {
        struct plugin plugin = load();
        void *p = plugin.allocate(1234), *q = malloc(4321);
        CHECK_BLOCK(p, 1234);
        plugin.release(q);
        CHECK(dlclose(plugin.handle) == 0, "%s", dlerror());
        free(p); /* Memory outlives the library that asked for it. */
    }
    CHECK(resident_bytes() < 64 * MIB, "%zu MiB", resident_bytes() / MIB);
}

static struct plugin loaded;
static void *thread_with_local(void *argument) {
    for (int i = 1; i <= 100; i++)
        CHECK(loaded.local()[0] == i, "thread-local data is shared");
    return argument;
}

CASE(thread_data_of_a_loaded_library_works, QUICK) {
    for (int round = 0; round < 30; round++) {
        loaded = load();
        pthread_t threads[8];
        for (int i = 0; i < 8; i++)
            START(threads[i], thread_with_local, NULL);
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
        dlclose(loaded.handle);
    }
}

static void *loading_thread(void *argument) {
    for (int i = 0; i < 100; i++) {
        struct plugin plugin = load();
        plugin.local();
        plugin.release(plugin.allocate((size_t)i * 100));
        dlclose(plugin.handle);
    }
    return argument;
}

static void *forking_thread(void *argument) {
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            free(malloc(10000));
            _exit(0);
        }
        expect_exit(child, 0);
    }
    return argument;
}

CASE(several_threads_load_allocate_and_fork, QUICK) {
    pthread_t threads[5];
    for (int i = 0; i < 4; i++)
        START(threads[i], loading_thread, NULL);
    START(threads[4], forking_thread, NULL);
    for (int i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
}

CASE(many_name_spaces_are_loaded, QUICK) {
    void *handles[6];
    for (int i = 0; i < 6; i++) {
        handles[i] = dlmopen(LM_ID_NEWLM, PLUGIN, RTLD_NOW);
        CHECK(handles[i] != NULL, "%s", dlerror());
        void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(handles[i], "plugin_allocate");
        void (*release)(void *) = (void (*)(void *))dlsym(handles[i], "plugin_free");
        release(allocate(100));
        free(malloc(100));
    }
    for (int i = 0; i < 6; i++)
        dlclose(handles[i]);
}
