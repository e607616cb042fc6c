/* Object caches from C and, compiled as such, from C++: every function of flagstone.h, in a program whose malloc is Flagstone's too.
 * Says nothing and returns 0 if all is well. */
#include "flagstone.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                  \
    do {                                                                             \
        if (!(what)) {                                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);               \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

struct connection {
    uint64_t state;
    char name[80];
};

#define COUNT 1000
static const uint64_t CLOSED = 0x636c6f736564;
static unsigned constructed;

static void construct(void *object) {
    struct connection *connection = (struct connection *)object;
    connection->state = CLOSED;
    constructed++;
}

static void one_by_one(void) {
    struct flagstone_cache *cache =
        flagstone_cache_create("connection", sizeof(struct connection), 64, construct);
    static struct connection *all[COUNT];
    unsigned i;
    CHECK(cache != NULL);
    CHECK(flagstone_cache_in_use(cache) == 0);
    for (i = 0; i < COUNT; i++) {
        all[i] = (struct connection *)flagstone_cache_alloc(cache);
        CHECK(all[i] != NULL && (uintptr_t)all[i] % 64 == 0);
        CHECK(all[i]->state == CLOSED);
        memset(all[i]->name, (int)i, sizeof all[i]->name);
    }
    CHECK(constructed >= COUNT);
    CHECK(flagstone_cache_in_use(cache) == COUNT);
    errno = 0;
    CHECK(flagstone_cache_destroy(cache) == -1 && errno == EBUSY);
    for (i = 0; i < COUNT; i++) {
        CHECK(all[i]->name[0] == (char)i && all[i]->name[79] == (char)i);
        flagstone_cache_free(cache, all[i]);
    }
    flagstone_cache_free(cache, NULL);
    CHECK(flagstone_cache_in_use(cache) == 0);
    CHECK(flagstone_cache_shrink(cache) > 0);
    CHECK(flagstone_cache_destroy(cache) == 0);
}

static void in_bulk(void) {
    struct flagstone_cache *cache = flagstone_cache_create("bulk", 24, 0, NULL);
    static void *objects[COUNT];
    char *zeroed;
    unsigned i;
    CHECK(cache != NULL);
    CHECK(flagstone_cache_alloc_bulk(cache, 0, objects) == 0);
    CHECK(flagstone_cache_alloc_bulk(cache, COUNT, objects) == COUNT);
    for (i = 0; i < COUNT; i++) {
        CHECK((uintptr_t)objects[i] % 16 == 0);
        memset(objects[i], 0xff, 24);
    }
    CHECK(flagstone_cache_in_use(cache) == COUNT);
    flagstone_cache_free_bulk(cache, COUNT, objects);
    zeroed = (char *)flagstone_cache_zalloc(cache);
    CHECK(zeroed != NULL);
    for (i = 0; i < 24; i++)
        CHECK(zeroed[i] == 0);
    flagstone_cache_free(cache, zeroed);
    CHECK(flagstone_cache_destroy(cache) == 0);
}

static void what_makes_no_sense(void) {
    errno = 0;
    CHECK(flagstone_cache_create("none", 0, 0, NULL) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(flagstone_cache_create("odd", 64, 24, NULL) == NULL && errno == EINVAL);
}

static void *churn(void *cache) {
    void *objects[64];
    unsigned round, i;
    for (round = 0; round < 2000; round++) {
        for (i = 0; i < 64; i++) {
            objects[i] = i % 2 ? flagstone_cache_alloc((struct flagstone_cache *)cache) : malloc(i * 40);
            CHECK(objects[i] != NULL);
        }
        for (i = 0; i < 64; i++) {
            if (i % 2)
                flagstone_cache_free((struct flagstone_cache *)cache, objects[i]);
            else
                free(objects[i]);
        }
    }
    return NULL;
}

static void threads_and_a_fork(void) {
    struct flagstone_cache *cache = flagstone_cache_create("threads", 200, 0, NULL);
    pthread_t threads[4];
    int status, i;
    pid_t child;
    CHECK(cache != NULL);
    for (i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, cache) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        churn(cache);
        _exit(3);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    for (i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(flagstone_cache_in_use(cache) == 0);
    CHECK(flagstone_cache_destroy(cache) == 0);
}

static void malloc_is_ours(void) {
    char *small = (char *)malloc(100), *large = (char *)calloc(1, 100u << 20);
    /* The C library's own would say 104. */
    CHECK(malloc_usable_size(small) == 112);
    CHECK(large != NULL && large[99u << 20] == 0);
    large = (char *)realloc(large, 200u << 20);
    CHECK(large != NULL);
    free(large);
    free(small);
}

int main(void) {
    malloc_is_ours();
    one_by_one();
    in_bulk();
    what_makes_no_sense();
    threads_and_a_fork();
    return 0;
}
