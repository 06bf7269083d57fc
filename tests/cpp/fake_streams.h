// Streams that complete work only when told, and a record of who used which addresses. An allocator
// must not give out an address that another stream may still work on, unless the new stream has
// been told to wait for that one.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/types.h"
#include "device/streams.h"

namespace stalloc::testing {

class FakeStreams final : public device::DeviceStreams {
 public:
  // The lowest handles have a meaning of their own (see StreamTable).
  static device::StreamHandle stream(int n) {
    return reinterpret_cast<device::StreamHandle>(std::intptr_t{n} * 16);
  }

  device::EventHandle record(device::StreamHandle s) noexcept override {
    ++records;
    ++records_on_[s];
    if (fail_records) return nullptr;
    if (capturing.contains(s)) ++misuses;
    auto event = std::make_unique<Event>(s, submitted_[s], after_[s]);
    Event* const handle = event.get();
    events_.emplace(handle, std::move(event));
    return handle;
  }
  Progress query(device::EventHandle e) noexcept override {
    ++queries;
    if (!capturing.empty()) ++misuses;
    if (fail_queries) return Progress::kFailed;
    const auto* event = static_cast<Event*>(e);
    return completed_[event->stream] >= event->item ? Progress::kDone : Progress::kPending;
  }
  bool wait(device::StreamHandle s, device::EventHandle e) noexcept override {
    ++waits;
    if (fail_waits) return false;
    if (!capturing.empty()) ++misuses;
    const auto* event = static_cast<Event*>(e);
    Clock& after = after_[s];
    const auto order = [&after](device::StreamHandle other, std::int64_t item) {
      after[other] = std::max(after[other], item);
    };
    order(event->stream, event->item);
    for (const auto& [other, item] : event->after) order(other, item);
    return true;
  }
  void recycle(device::EventHandle e) noexcept override {
    if (events_.erase(static_cast<Event*>(e)) == 0) ++misuses;
  }
  bool is_capturing(device::StreamHandle s) noexcept override { return capturing.contains(s); }
  bool synchronize(bool /*everywhere*/) noexcept override {
    ++synchronizations;
    if (!capturing.empty()) ++misuses;
    if (while_synchronizing) while_synchronizing();
    if (fail_synchronize) return false;
    for (const auto& [s, item] : submitted_) completed_[s] = item;
    return true;
  }

  // Adds work to `s`, after all its earlier work.
  std::int64_t submit(device::StreamHandle s) { return ++submitted_[s]; }
  void complete(device::StreamHandle s) { completed_[s] = submitted_[s]; }
  void complete_some(device::StreamHandle s) {
    if (completed_[s] < submitted_[s]) ++completed_[s];
  }

  // Gives a block at [begin, end) to `s`: no other stream may still work there.
  void hand_out(std::uintptr_t begin, std::uintptr_t end, device::StreamHandle s) {
    for (const Use& use : uses_) {
      if (use.begin < end && begin < use.end && use.stream != s &&
          completed_[use.stream] < use.item && after_[s][use.stream] < use.item) {
        ++hazards;
      }
    }
    std::erase_if(uses_, [&](const Use& use) { return completed_[use.stream] >= use.item; });
  }
  void use(std::uintptr_t begin, std::uintptr_t end, device::StreamHandle s) {
    uses_.push_back({begin, end, s, submit(s)});
  }

  int records_on(device::StreamHandle s) { return records_on_[s]; }
  std::size_t live_events() const { return events_.size(); }

  bool fail_records = false;
  bool fail_waits = false;
  bool fail_queries = false;
  bool fail_synchronize = false;
  std::function<void()> while_synchronizing;
  std::set<device::StreamHandle> capturing;
  int records = 0;
  int waits = 0;
  int queries = 0;
  int synchronizations = 0;
  int misuses = 0;
  int hazards = 0;

 private:
  using Clock = std::map<device::StreamHandle, std::int64_t>;  // of each stream, up to which item
  struct Event {
    Event(device::StreamHandle s, std::int64_t i, Clock a)
        : stream(s), item(i), after(std::move(a)) {}
    device::StreamHandle stream;
    std::int64_t item;
    Clock after;
  };
  struct Use {
    std::uintptr_t begin;
    std::uintptr_t end;
    device::StreamHandle stream;
    std::int64_t item;
  };
  std::map<device::StreamHandle, int> records_on_;
  Clock submitted_;
  Clock completed_;
  std::map<device::StreamHandle, Clock> after_;  // what a stream has waited for
  std::map<Event*, std::unique_ptr<Event>> events_;
  std::vector<Use> uses_;
};

}  // namespace stalloc::testing
