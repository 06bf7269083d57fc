// A planned allocator for a device with a main stream and a side stream, whose work completes when
// told.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "device/pretend.h"
#include "fake_streams.h"
#include "plan/plan.h"
#include "runtime/planned_allocator.h"

namespace stalloc::testing {

inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr StreamId kMain = 0;
inline constexpr StreamId kSide = 1;

class TwoStreams : public ::testing::Test {
 protected:
  void enable(const plan::Plan& plan) {
    allocator_.enable(plan);
    allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  }
  void next_iteration() {
    allocator_.loop().end_iteration();
    allocator_.loop().enter_phase(trace::PhaseKind::kForward, 0, 0);
  }
  // Allocates a block and lets its stream work on it.
  std::byte* take(StreamId stream = kMain, Bytes size = kMiB) {
    auto* p = static_cast<std::byte*>(allocator_.allocate(size, stream, true));
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    streams_.hand_out(begin, begin + static_cast<std::uintptr_t>(size), table_.handle_of(stream));
    use(p, stream, size);
    return p;
  }
  void use(std::byte* p, StreamId stream, Bytes size = kMiB) {
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    streams_.use(begin, begin + static_cast<std::uintptr_t>(size), table_.handle_of(stream));
  }
  runtime::Statistics statistics() const { return allocator_.figures().statistics(); }

  device::PretendMemory device_{100 * kMiB};
  FakeStreams streams_;
  runtime::StreamTable table_;
  const device::StreamHandle side_ = FakeStreams::stream(7);
  const StreamId side_id_ = table_.id_of(side_);
  runtime::PlannedAllocator allocator_{device_, streams_, table_, runtime::Fallback::kOwn};
};

}  // namespace stalloc::testing
