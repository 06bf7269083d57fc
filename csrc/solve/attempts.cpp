#include "solve/attempts.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

namespace stalloc::solve {
namespace {

using Clock = std::chrono::steady_clock;

// One attempt learns of the others' results here.
struct Lane {
  std::atomic<Bytes> limit = std::numeric_limits<Bytes>::max();
  std::atomic<bool> stop = false;
};

// Stops all attempts if run_on() is left early.
class StopOnExit {
 public:
  explicit StopOnExit(std::vector<Lane>& lanes) : lanes_(lanes) {}
  StopOnExit(const StopOnExit&) = delete;
  StopOnExit& operator=(const StopOnExit&) = delete;
  ~StopOnExit() {
    for (Lane& lane : lanes_) lane.stop = true;
  }

 private:
  std::vector<Lane>& lanes_;
};

class Runner {
 public:
  Runner(const std::vector<Attempt>& attempts, const Budget& budget, Winner& winner)
      : attempts_(attempts), budget_(budget), winner_(winner), lanes_(attempts.size()) {
    if (winner_.name.empty()) return;
    for (Lane& lane : lanes_) lane.limit = winner_.layout.height;
  }

  // Runs attempts until none is left. Each is cancelled by its lane, or by the caller if it runs
  // alone.
  void work(bool alone) {
    for (;;) {
      const std::size_t i = next_.fetch_add(1);
      if (i >= attempts_.size()) return;
      if (lanes_[i].stop.load() || (winner_exists() && budget_.expired())) continue;
      Budget budget = budget_;
      if (!alone) budget.cancel = &lanes_[i].stop;
      try {
        std::optional<Layout> layout = attempts_[i].run(budget, lanes_[i].limit);
        if (layout) finish(i, std::move(*layout));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
  }

  void run_on(int threads) {
    int working = threads;
    std::condition_variable idle;
    std::vector<std::jthread> workers;  // joined even if not all of them can be started
    const StopOnExit stop(lanes_);
    for (int t = 0; t < threads; ++t) {
      workers.emplace_back([&] {
        work(/*alone=*/false);
        const std::lock_guard lock(mutex_);
        if (--working == 0) idle.notify_all();
      });
    }
    {
      // The caller's cancel reaches the attempts through their lanes.
      constexpr auto kWatch = std::chrono::milliseconds(5);
      constexpr int kReportEvery = 10;  // checks of the budget
      std::unique_lock lock(mutex_);
      for (int check = 1; !idle.wait_for(lock, kWatch, [&] { return working == 0; }); ++check) {
        if (budget_.cancelled()) {
          for (Lane& lane : lanes_) lane.stop = true;
        }
        if (budget_.progress && check % kReportEvery == 0) {
          lock.unlock();  // the callback may be slow
          budget_.progress(fraction_done());
          lock.lock();
        }
      }
    }
  }

  // The fraction of the attempts or of the time, whichever is larger.
  double fraction_done() const {
    const double attempts = static_cast<double>(next_.load()) / (attempts_.size() + 1.0);
    if (budget_.deadline == Clock::time_point::max()) return std::min(attempts, 1.0);
    const std::chrono::duration<double> limit = budget_.deadline - began_;
    const std::chrono::duration<double> spent = Clock::now() - began_;
    const double time = limit.count() > 0 ? spent / limit : 1.0;
    return std::min(std::max(attempts, time), 1.0);
  }

  void rethrow() const {
    if (error_ && winner_.name.empty()) std::rethrow_exception(error_);
  }

 private:
  bool winner_exists() {
    const std::lock_guard lock(mutex_);
    return !winner_.name.empty();
  }

  void finish(std::size_t i, Layout layout) {
    const std::lock_guard lock(mutex_);
    const Bytes height = layout.height;
    for (std::size_t j = 0; j < lanes_.size(); ++j) {
      // Among equals, the first one wins.
      const Bytes limit = j > i ? height : std::max(height, budget_.target) + 1;
      lanes_[j].limit = std::min(lanes_[j].limit.load(), limit);
      if (j > i && height <= budget_.target) lanes_[j].stop = true;
    }
    const auto rank = [&](Bytes h, std::size_t index) {
      return std::pair{std::max(h, budget_.target), index};
    };
    if (winner_.name.empty() || rank(height, i) < rank(winner_.layout.height, winner_index_)) {
      winner_ = {std::move(layout), attempts_[i].name};
      winner_index_ = i;
    }
  }

  const Clock::time_point began_ = Clock::now();
  const std::vector<Attempt>& attempts_;
  const Budget& budget_;
  Winner& winner_;
  std::size_t winner_index_ = 0;  // 0 for an earlier winner: it is the first among equals
  std::vector<Lane> lanes_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;  // guards the winner and the error
  std::exception_ptr error_;
};

}  // namespace

void run_attempts(const std::vector<Attempt>& attempts, int threads, const Budget& budget,
                  Winner& winner) {
  if (!winner.name.empty() && winner.layout.height <= budget.target) return;
  Runner state(attempts, budget, winner);
  const int useful = std::min<int>(threads, static_cast<int>(attempts.size()));
  if (useful <= 1 && !budget.progress) {
    state.work(/*alone=*/true);
  } else {
    state.run_on(useful);
  }
  state.rethrow();
}

}  // namespace stalloc::solve
