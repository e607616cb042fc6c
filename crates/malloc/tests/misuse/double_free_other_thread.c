/* Frees a small block in one thread and then in another. */
#include "misuse.h"

#include <pthread.h>

static void *release(void *p) {
    free(p);
    return NULL;
}

int main(void) {
    void *p = allocated(100);
    pthread_t thread;
    pthread_create(&thread, NULL, release, p);
    pthread_join(thread, NULL);
    free(misused(p));
    return survived();
}
