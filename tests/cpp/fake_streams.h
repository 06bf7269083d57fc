// Streams that complete work only when told, and a memory of who used which addresses on them: an
// address that another stream may still be working on must not be handed out.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/types.h"
#include "device/streams.h"

namespace stalloc::testing {

class FakeStreams final : public DeviceStreams {
 public:
  static StreamHandle stream(int n) { return reinterpret_cast<StreamHandle>(std::intptr_t{n}); }

  EventHandle record(StreamHandle s) noexcept override {
    ++records;
    if (fail_records) return nullptr;
    if (capturing.contains(s)) ++misuses;
    auto event = std::make_unique<Event>(s, submitted_[s]);
    Event* const handle = event.get();
    events_.emplace(handle, std::move(event));
    return handle;
  }
  Progress query(EventHandle e) noexcept override {
    ++queries;
    if (!capturing.empty()) ++misuses;
    if (fail_queries) return Progress::kFailed;
    const auto* event = static_cast<Event*>(e);
    return completed_[event->stream] >= event->item ? Progress::kDone : Progress::kPending;
  }
  bool wait(StreamHandle, EventHandle) noexcept override { return true; }
  void recycle(EventHandle e) noexcept override {
    if (events_.erase(static_cast<Event*>(e)) == 0) ++misuses;
  }
  bool is_capturing(StreamHandle s) noexcept override { return capturing.contains(s); }
  bool synchronize() noexcept override {
    ++synchronizations;
    if (!capturing.empty()) ++misuses;
    if (fail_synchronize) return false;
    for (const auto& [s, item] : submitted_) completed_[s] = item;
    return true;
  }

  // Work on `s`, which comes after all that `s` was given before.
  std::int64_t submit(StreamHandle s) { return ++submitted_[s]; }
  void complete(StreamHandle s) { completed_[s] = submitted_[s]; }
  void complete_some(StreamHandle s) {
    if (completed_[s] < submitted_[s]) ++completed_[s];
  }

  // A block at [begin, end) belongs to requests of `s` now: nothing else may still be at work
  // there.
  void hand_out(std::uintptr_t begin, std::uintptr_t end, StreamHandle s) {
    for (const Use& use : uses_) {
      if (use.begin < end && begin < use.end && use.stream != s &&
          completed_[use.stream] < use.item) {
        ++hazards;
      }
    }
    std::erase_if(uses_, [&](const Use& use) { return completed_[use.stream] >= use.item; });
  }
  void use(std::uintptr_t begin, std::uintptr_t end, StreamHandle s) {
    uses_.push_back({begin, end, s, submit(s)});
  }

  std::size_t live_events() const { return events_.size(); }

  bool fail_records = false;
  bool fail_queries = false;
  bool fail_synchronize = false;
  std::set<StreamHandle> capturing;
  int records = 0;
  int queries = 0;
  int synchronizations = 0;
  int misuses = 0;
  int hazards = 0;

 private:
  struct Event {
    Event(StreamHandle s, std::int64_t i) : stream(s), item(i) {}
    StreamHandle stream;
    std::int64_t item;
  };
  struct Use {
    std::uintptr_t begin;
    std::uintptr_t end;
    StreamHandle stream;
    std::int64_t item;
  };
  std::map<StreamHandle, std::int64_t> submitted_;
  std::map<StreamHandle, std::int64_t> completed_;
  std::map<Event*, std::unique_ptr<Event>> events_;
  std::vector<Use> uses_;
};

}  // namespace stalloc::testing
