/* Allocates objects and runs of pages, and prints how many of each were refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refused(size_t size, int times)
{
    int failures = 0;
    for (int i = 0; i < times; i++) {
        char *p = malloc(size);
        if (!p) {
            failures++;
            continue;
        }
        memset(p, 1, size);
        free(p);
    }
    return failures;
}

int main(void)
{
    static char line[64];
    int objects = refused(100, 1000);
    int runs = refused(300000, 100);
    setvbuf(stdout, line, _IOLBF, sizeof line);
    printf("%d %d\n", objects, runs);
    return 0;
}
