// A C++ program on the library: containers, all forms of new and delete, an exception for memory that there is not, and an
// allocator for containers over an object cache.
#include "flagstone.h"

#include <cstdio>
#include <cstdlib>
#include <list>
#include <malloc.h>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#define CHECK(what)                                                                  \
    do {                                                                             \
        if (!(what)) {                                                               \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);          \
            std::exit(1);                                                            \
        }                                                                            \
    } while (0)

// Nodes of one type from a cache of their own.
template <class T> struct CacheAllocator {
    using value_type = T;
    CacheAllocator() = default;
    template <class U> CacheAllocator(const CacheAllocator<U> &) {}

    static flagstone_cache *cache() {
        static flagstone_cache *const made = flagstone_cache_create("node", sizeof(T), alignof(T), nullptr);
        return made;
    }
    T *allocate(std::size_t count) {
        void *object = count == 1 ? flagstone_cache_alloc(cache()) : nullptr;
        if (object == nullptr)
            throw std::bad_alloc();
        return static_cast<T *>(object);
    }
    void deallocate(T *object, std::size_t) { flagstone_cache_free(cache(), object); }
    template <class U> struct rebind { using other = CacheAllocator<U>; };
    bool operator==(const CacheAllocator &) const { return true; }
    bool operator!=(const CacheAllocator &) const { return false; }
};

struct alignas(128) Wide {
    char bytes[128];
};

static void work(int seed) {
    std::map<int, std::string> words;
    for (int i = 0; i < 2000; i++)
        words[i * seed % 977] += std::string(static_cast<std::size_t>(i % 70), 'x');
    std::vector<std::unique_ptr<Wide>> wide;
    for (int i = 0; i < 100; i++)
        wide.push_back(std::make_unique<Wide>());
    for (const auto &each : wide)
        CHECK(reinterpret_cast<std::size_t>(each.get()) % 128 == 0);
}

int main() {
    char *array = new char[100];
    CHECK(malloc_usable_size(array) == 112);
    delete[] array;

    std::vector<std::thread> threads;
    for (int seed = 1; seed <= 4; seed++)
        threads.emplace_back(work, seed);
    for (std::thread &thread : threads)
        thread.join();

    // volatile: the compiler knows that there is no such array.
    volatile std::size_t most = static_cast<std::size_t>(-1) / 4;
    bool thrown = false;
    try {
        delete[] new char[most];
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    CHECK(thrown);
    CHECK(new (std::nothrow) char[most] == nullptr);
    delete new (std::nothrow) int(1);

    {
        std::list<int, CacheAllocator<int>> numbers;
        for (int i = 0; i < 1000; i++)
            numbers.push_back(i);
        numbers.remove_if([](int i) { return i % 3 == 0; });
        CHECK(numbers.size() == 666);
    }
    return 0;
}
