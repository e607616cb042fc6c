// new and delete in all their forms, the standard containers, threads and exceptions.
#include "case.h"
#include <algorithm>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

// The compiler may leave out a pair of new and delete unless the address escapes.
static void *escape(void *p) {
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

static const size_t sizes[] = {0, 1, 8, 16, 24, 100, 1000, 4096, 5000, 70000, 300000, 5 * MIB};

CASE(plain_new_and_delete, QUICK) {
    for (size_t size : sizes)
        for (int i = 0; i < 50; i++) {
            void *p = escape(::operator new(size));
            CHECK_BLOCK(p, size);
            memset(p, 1, size);
            void *q = escape(::operator new[](size));
            CHECK_BLOCK(q, size);
            CHECK(p != q, "%p", p);
            ::operator delete(p);
            ::operator delete[](q);
        }
    ::operator delete(nullptr);
    ::operator delete[](nullptr);
}

CASE(sized_delete, QUICK) {
    for (size_t size : sizes)
        for (int i = 0; i < 50; i++) {
            void *p = escape(::operator new(size)), *q = escape(::operator new[](size));
            ::operator delete(p, size);
            ::operator delete[](q, size);
        }
    ::operator delete(nullptr, size_t(10));
    ::operator delete[](nullptr, size_t(10));
}

CASE(nothrow_new_and_delete, QUICK) {
    for (size_t size : sizes) {
        void *p = escape(::operator new(size, std::nothrow)), *q = escape(::operator new[](size, std::nothrow));
        CHECK_BLOCK(p, size);
        CHECK_BLOCK(q, size);
        ::operator delete(p, std::nothrow);
        ::operator delete[](q, std::nothrow);
    }
    CHECK(escape(::operator new(opaque(SIZE_MAX), std::nothrow)) == nullptr, "new of everything");
    CHECK(escape(::operator new[](opaque(PTRDIFF_MAX), std::nothrow)) == nullptr, "new[] of everything");
    CHECK(escape(::operator new(opaque(SIZE_MAX / 2), std::align_val_t(64), std::nothrow)) == nullptr, "aligned new");
}

CASE(aligned_new_and_delete, QUICK) {
    for (size_t alignment = 1; alignment <= 4 * MIB; alignment *= 2)
        for (size_t size : sizes) {
            auto align = std::align_val_t(alignment);
            void *blocks[] = {::operator new(size, align), ::operator new[](size, align), ::operator new(size, align),
                              ::operator new[](size, align), ::operator new(size, align, std::nothrow),
                              ::operator new[](size, align, std::nothrow)};
            for (void *p : blocks) {
                CHECK(escape(p) != nullptr && uintptr_t(p) % alignment == 0, "%p for %zu", p, alignment);
                memset(p, 1, size);
            }
            ::operator delete(blocks[0], align);
            ::operator delete[](blocks[1], align);
            ::operator delete(blocks[2], size, align);
            ::operator delete[](blocks[3], size, align);
            ::operator delete(blocks[4], align, std::nothrow);
            ::operator delete[](blocks[5], align, std::nothrow);
        }
}

CASE(new_and_malloc_are_one_heap, QUICK) {
    for (size_t size = 1; size < 100000; size *= 3) {
        void *p = escape(::operator new(size));
        p = realloc(p, size * 2);
        CHECK_BLOCK(p, size * 2);
        free(p);
    }
}

struct alignas(256) wide {
    char bytes[300];
    wide() { memset(bytes, 3, sizeof bytes); }
};

CASE(over_aligned_types_in_containers, QUICK) {
    std::vector<wide> many;
    for (int i = 0; i < 300; i++) {
        many.emplace_back();
        for (auto &one : many)
            CHECK(uintptr_t(&one) % 256 == 0 && one.bytes[299] == 3, "%p", (void *)&one);
    }
    auto shared = std::make_shared<wide>();
    auto array = std::make_unique<wide[]>(10);
    CHECK(uintptr_t(shared.get()) % 256 == 0 && uintptr_t(array.get()) % 256 == 0, "not aligned");
}

CASE(too_large_new_throws_bad_alloc, QUICK) {
    int caught = 0;
    // Not SIZE_MAX itself: some C++ libraries round it up to a multiple of the alignment, which is 0.
    for (size_t size : {size_t(SIZE_MAX) - 100000, size_t(PTRDIFF_MAX), size_t(1) << 48}) {
        try {
            escape(::operator new(opaque(size)));
        } catch (const std::bad_alloc &) {
            caught++;
        }
        try {
            escape(::operator new(opaque(size), std::align_val_t(4096)));
        } catch (const std::bad_alloc &) {
            caught++;
        }
        try {
            std::vector<char> all(opaque(size));
            escape(all.data());
        } catch (const std::bad_alloc &) {
            caught++;
        } catch (const std::length_error &) {
            caught++;
        }
    }
    CHECK(caught == 9, "%d exceptions", caught);
    try {
        escape(new long[opaque(SIZE_MAX / 4)]);
        FAIL("an array of everything");
    } catch (const std::bad_array_new_length &) {
    } catch (const std::bad_alloc &) {
    }
}

static int asked;
static void new_handler() {
    if (++asked == 3)
        std::set_new_handler(nullptr);
}

CASE(the_new_handler_is_asked, QUICK) {
    std::set_new_handler(new_handler);
    try {
        escape(::operator new(opaque(PTRDIFF_MAX)));
        FAIL("new of everything");
    } catch (const std::bad_alloc &) {
    }
    CHECK(asked == 3, "%d", asked);
}

static void use_containers(unsigned seed) {
    uint64_t state = seed + 1;
    std::map<std::string, std::vector<int>> tree;
    std::unordered_map<int, std::shared_ptr<std::string>> table;
    std::deque<std::unique_ptr<int>> queue;
    std::list<std::string> list;
    for (int i = 0; i < 8000; i++) {
        int number = int(next_random(&state) % 3000);
        tree["key number " + std::to_string(number)].push_back(i);
        table[number] = std::make_shared<std::string>(size_t(number % 200), 'x');
        queue.push_back(std::make_unique<int>(i));
        if (queue.size() > 500)
            queue.pop_front();
        list.push_back(std::string(size_t(i % 100), 'y'));
        if (number % 3 == 0)
            list.pop_front();
        if (number % 5 == 0)
            tree.erase("key number " + std::to_string(number / 2));
    }
    for (auto &[key, values] : tree)
        CHECK(std::is_sorted(values.begin(), values.end()), "%s", key.c_str());
    for (auto &[key, value] : table)
        CHECK(value->size() == size_t(key % 200), "%d", key);
    std::ostringstream text;
    size_t total = 0;
    for (auto &item : list) {
        text << item;
        total += item.size();
    }
    CHECK(text.str().size() == total, "%zu of %zu", text.str().size(), total);
}

CASE(containers_in_one_thread, QUICK) { use_containers(1); }

CASE(containers_in_eight_threads, QUICK) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 8; i++)
        threads.emplace_back(use_containers, i);
    for (auto &thread : threads)
        thread.join();
}

// Exceptions are allocated by malloc, cross threads, and are freed by the thread that lets go of them last.
CASE(exceptions_cross_threads, QUICK) {
    for (int round = 0; round < 200; round++) {
        std::exception_ptr thrown;
        std::thread([&] {
            try {
                throw std::runtime_error(std::string(1000, 'e'));
            } catch (...) {
                thrown = std::current_exception();
            }
        }).join();
        try {
            std::rethrow_exception(thrown);
        } catch (const std::runtime_error &error) {
            CHECK(strlen(error.what()) == 1000, "%zu", strlen(error.what()));
        }
    }
}

static thread_local std::vector<std::string> per_thread;
CASE(thread_local_containers_die_with_their_thread, QUICK) {
    for (int round = 0; round < 300; round++)
        std::thread([] {
            for (int i = 0; i < 100; i++)
                per_thread.emplace_back(size_t(i * 3), 't');
        }).join();
    CHECK(resident_bytes() < 64 * MIB, "%zu MiB", resident_bytes() / MIB);
}

// Objects with static storage allocate before main and free after it.
static std::map<int, std::string> before_main = [] {
    std::map<int, std::string> made;
    for (int i = 0; i < 1000; i++)
        made[i] = std::string(size_t(i), 'm');
    return made;
}();
CASE(static_objects_allocate_before_main, QUICK) {
    CHECK(before_main.size() == 1000 && before_main[999].size() == 999, "%zu", before_main.size());
}
