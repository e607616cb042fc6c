// A small server in one process: threads take requests from queues, build answers from many small objects, and hand
// them to other threads, which free them.
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

struct request {
    unsigned number;
    std::vector<std::string> words;
};

struct answer {
    unsigned number;
    std::map<std::string, unsigned> counts;
    std::unique_ptr<request> asked;
};

template <typename T> class queue {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::unique_ptr<T>> items;
    bool closed = false;

  public:
    void push(std::unique_ptr<T> item) {
        std::lock_guard<std::mutex> guard(lock);
        items.push_back(std::move(item));
        changed.notify_one();
    }
    void close() {
        std::lock_guard<std::mutex> guard(lock);
        closed = true;
        changed.notify_all();
    }
    std::unique_ptr<T> pop() {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [&] { return !items.empty() || closed; });
        if (items.empty())
            return nullptr;
        auto item = std::move(items.front());
        items.pop_front();
        return item;
    }
};

int main() {
    constexpr unsigned requests = 20000;
    queue<request> asked;
    queue<answer> answered;
    std::vector<std::uint64_t> sums(requests);

    std::vector<std::thread> workers, readers;
    for (int i = 0; i < 4; i++)
        workers.emplace_back([&] {
            while (auto request = asked.pop()) {
                auto made = std::make_unique<answer>();
                made->number = request->number;
                for (auto &word : request->words)
                    made->counts[word + std::string(word.size() * 3, '.')]++;
                made->asked = std::move(request);
                answered.push(std::move(made));
            }
        });
    for (int i = 0; i < 3; i++)
        readers.emplace_back([&] {
            while (auto got = answered.pop()) {
                std::uint64_t sum = got->asked->words.size();
                for (auto &[word, count] : got->counts)
                    sum = sum * 31 + word.size() * count;
                sums[got->number] = sum;
            }
        });
    for (unsigned number = 0; number < requests; number++) {
        auto next = std::make_unique<request>();
        next->number = number;
        for (unsigned i = 0; i < 5 + number % 20; i++)
            next->words.push_back("word " + std::to_string(number * i % 13));
        asked.push(std::move(next));
    }
    asked.close();
    for (auto &thread : workers)
        thread.join();
    answered.close();
    for (auto &thread : readers)
        thread.join();
    std::cout << std::accumulate(sums.begin(), sums.end(), std::uint64_t(0)) << ' ' << *std::max_element(sums.begin(), sums.end())
              << '\n';
}
