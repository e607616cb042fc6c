/* Flagstone: object caches for C and C++.
 *
 * A cache hands out objects of one size. Its allocation and free take no lock, and an object may be freed by any
 * thread. Link libflagstone_preload.a (which makes malloc Flagstone's as well) or -lflagstone_preload; see
 * docs/malloc.md. `cargo xtask header --update` writes this file.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */


#ifndef FLAGSTONE_H
#define FLAGSTONE_H

#include <stddef.h>

/**
 * An object cache.
 */
struct flagstone_cache;

/**
 * Runs once on every object when its memory is first used for a cache.
 */
typedef void (*flagstone_constructor)(void *object);

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/**
 * Makes a cache of objects of `size` bytes aligned to `align` bytes (a power of two, or 0 for 16). `name` is copied.
 * `constructor`, if not null, runs once on every object when its memory is first used for the cache; objects are then freed in their
 * constructed state. Null and `errno` (`EINVAL`, `ENOMEM`, `EEXIST`) on failure.
 *
 * The caller promises:
 * `name` is a C string; the constructor does not use the cache.
 */
struct flagstone_cache *flagstone_cache_create(const char *name,
                                               size_t size,
                                               size_t align,
                                               flagstone_constructor constructor);

/**
 * An object; null and `ENOMEM` if there is no memory.
 *
 * The caller promises:
 * The cache is alive.
 */
void *flagstone_cache_alloc(struct flagstone_cache *cache);

/**
 * An object of zero bytes; not for caches with a constructor.
 *
 * The caller promises:
 * The cache is alive.
 */
void *flagstone_cache_zalloc(struct flagstone_cache *cache);

/**
 * Frees an object of the cache. Null is fine.
 *
 * The caller promises:
 * The object came from this cache and is not used any more.
 */
void flagstone_cache_free(struct flagstone_cache *cache, void *object);

/**
 * Fills `objects` with `count` objects, all or none: `count`, or 0 and `ENOMEM`.
 *
 * The caller promises:
 * The cache is alive; `objects` has room for `count` pointers.
 */
size_t flagstone_cache_alloc_bulk(struct flagstone_cache *cache, size_t count, void **objects);

/**
 * Frees `count` objects of the cache, none of them null.
 *
 * The caller promises:
 * They came from this cache and are not used any more.
 */
void flagstone_cache_free_bulk(struct flagstone_cache *cache, size_t count, void *const *objects);

/**
 * Gives back the memory of free objects; the number of slabs given back.
 *
 * The caller promises:
 * The cache is alive.
 */
size_t flagstone_cache_shrink(struct flagstone_cache *cache);

/**
 * Destroys a cache: 0; or `-1` and `EBUSY` if objects are still in use, and it lives on.
 *
 * The caller promises:
 * Nobody uses the cache any more, if it succeeds.
 */
int flagstone_cache_destroy(struct flagstone_cache *cache);

/**
 * How many objects of the cache are in use.
 *
 * The caller promises:
 * The cache is alive.
 */
size_t flagstone_cache_in_use(struct flagstone_cache *cache);

#ifdef __cplusplus
} /* extern "C" */
#endif /* __cplusplus */

#endif  /* FLAGSTONE_H */
