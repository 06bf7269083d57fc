// Blocks of real memory, each filled with a mark of its own: an overlap changes one.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <iterator>
#include <map>
#include <random>

#include "base/types.h"
#include "runtime/planned_allocator.h"

namespace stalloc::testing {

class MarkedBlocks {
 public:
  // Both outlive this object.
  MarkedBlocks(runtime::PlannedAllocator& allocator, std::mt19937& random)
      : allocator_(allocator), random_(random) {}

  std::size_t size() const { return live_.size(); }
  bool empty() const { return live_.empty(); }

  // A random number from 0 to n - 1.
  Bytes below(Bytes n) { return static_cast<Bytes>(random_() % static_cast<unsigned>(n)); }

  void allocate(Bytes size, bool training = true) {
    auto* p = static_cast<unsigned char*>(allocator_.allocate(size, 0, training));
    const int mark = static_cast<int>(below(255)) + 1;
    std::memset(p, mark, static_cast<std::size_t>(size));
    ASSERT_TRUE(live_.emplace(p, Block{size, mark}).second);
    allocator_.inspect().check();
  }
  // Of a module that is tagged as dynamic.
  void allocate_dynamic(Bytes size) {
    allocator_.loop().enter_dynamic();
    allocate(size);
    allocator_.loop().leave_dynamic();
  }

  // Frees a random block. Fails the test if its content has changed.
  void free_any() {
    const auto it = std::next(live_.begin(), below(static_cast<Bytes>(live_.size())));
    const auto [p, block] = *it;
    for (Bytes i = 0; i < block.size; i += 97) ASSERT_EQ(p[i], block.mark);
    ASSERT_EQ(p[block.size - 1], block.mark);
    live_.erase(it);
    ASSERT_TRUE(allocator_.deallocate(p));
    allocator_.inspect().check();
  }

 private:
  struct Block {
    Bytes size = 0;
    int mark = 0;
  };

  runtime::PlannedAllocator& allocator_;
  std::mt19937& random_;
  std::map<unsigned char*, Block> live_;
};

}  // namespace stalloc::testing
