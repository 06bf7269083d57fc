// Keeps all processors busy for its lifetime: what a result depends on then is not the work alone.
#pragma once

#include <algorithm>
#include <stop_token>
#include <thread>
#include <vector>

namespace stalloc {

class BusyProcessors {
 public:
  BusyProcessors() {
    const unsigned threads = 2 * std::max(1u, std::thread::hardware_concurrency());
    for (unsigned t = 0; t < threads; ++t) {
      threads_.emplace_back([](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
        }
      });
    }
  }

 private:
  std::vector<std::jthread> threads_;
};

}  // namespace stalloc
