// The live blocks of a pool under stress: an independent map that tells an overlap.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <random>

#include "base/align.h"
#include "base/types.h"
#include "runtime/static_pool.h"

namespace stalloc::testing {

class LiveBlocks {
 public:
  LiveBlocks(runtime::StaticPool& pool, Bytes size, Bytes alignment)
      : pool_(pool), size_(size), alignment_(alignment) {}

  // Notes a block that the pool placed. Fails the test if it overlaps another one or leaves the
  // pool; kUnplaced is no block.
  void note(Offset offset, Bytes size) {
    if (offset == kUnplaced) return;
    const Bytes rounded = align_up(size, alignment_);
    const auto next = blocks_.lower_bound(offset);
    ASSERT_TRUE(next == blocks_.end() || next->first >= offset + rounded);
    ASSERT_TRUE(next == blocks_.begin() ||
                std::prev(next)->first + std::prev(next)->second <= offset);
    ASSERT_LE(offset + rounded, size_);
    blocks_[offset] = rounded;
  }

  // Releases a random block, if there is one.
  void release_any(std::mt19937& random) {
    if (blocks_.empty()) return;
    const auto block =
        std::next(blocks_.begin(), static_cast<std::ptrdiff_t>(random() % blocks_.size()));
    EXPECT_NE(pool_.release(block->first).size, runtime::StaticPool::kNotLive);
    blocks_.erase(block);
  }

  // Releases the block at `offset`, if it is still there.
  void release(Offset offset) {
    if (blocks_.erase(offset) == 0) return;
    EXPECT_NE(pool_.release(offset).size, runtime::StaticPool::kNotLive);
  }

  // Compares with the pool, which checks itself.
  void check() const {
    pool_.check();
    EXPECT_EQ(pool_.live_blocks(), blocks_.size());
  }

 private:
  runtime::StaticPool& pool_;
  Bytes size_;
  Bytes alignment_;
  std::map<Offset, Bytes> blocks_;  // offset -> rounded size
};

}  // namespace stalloc::testing
