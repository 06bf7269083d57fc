// A fixture: a planned allocator on a pretended device that can grow, checked after each request
// and each free.
#pragma once

#include <gtest/gtest.h>

#include "base/types.h"
#include "device/pretend.h"
#include "runtime/planned_allocator.h"

namespace stalloc::testing {

class CheckedAllocator : public ::testing::Test {
 protected:
  explicit CheckedAllocator(Bytes device, runtime::Fallback fallback = runtime::Fallback::kOwn)
      : device_(device, /*grows=*/true), allocator_(device_, fallback) {}
  ~CheckedAllocator() override { EXPECT_EQ(device_.wrong_releases(), 0); }

  void* allocate(Bytes size) {
    void* p = allocator_.allocate(size, 0, /*for_training=*/true);
    allocator_.inspect().check();
    return p;
  }
  void free(void* p) {
    EXPECT_TRUE(allocator_.deallocate(p));
    allocator_.inspect().check();
  }
  runtime::Statistics statistics() const { return allocator_.figures().statistics(); }

  device::PretendMemory device_;
  runtime::PlannedAllocator allocator_;
};

}  // namespace stalloc::testing
