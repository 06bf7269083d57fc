// Withholds torch's report that memory has run out for a request of the calling thread, during its
// lifetime: the request may still be served from elsewhere.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <optional>
#include <utility>
#include <vector>

namespace stalloc::torch_adapters {

class Shortage {
 public:
  using Observer = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;
  struct Report {  // torch's arguments of an observer
    std::int64_t device = 0;
    std::size_t requested = 0;
    std::size_t total = 0;
    std::size_t free = 0;
  };

  Shortage() : outer_(std::exchange(current_, this)) {}
  ~Shortage() { current_ = outer_; }
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;

  // Returns false if no object of the calling thread withholds the report.
  static bool withhold(const Report& report) {
    if (current_) current_->report_ = report;
    return current_ != nullptr;
  }

  c10::approx_time_t begun() const { return begun_; }
  void tell(const std::vector<Observer>& observers) const {
    if (!report_) return;
    for (const Observer& observer : observers) {
      observer(report_->device, report_->requested, report_->total, report_->free);
    }
  }

 private:
  static inline thread_local Shortage* current_ = nullptr;
  Shortage* const outer_;
  const c10::approx_time_t begun_ = c10::getApproximateTime();
  std::optional<Report> report_;
};

}  // namespace stalloc::torch_adapters
