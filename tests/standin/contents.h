// The bytes of a piece of device memory, where the stand-in keeps them (STANDIN_CONTENTS).
//
// Pages that hold one short pattern throughout, as after a fill, take no memory: a device of 80 GB
// fits into a small machine while its programs fill large tensors with constants.
//
// New memory reads as 0xff bytes, which are NaN as floats: a use of memory that nothing was written
// to is seen in the results.
//
// Not thread-safe: World locks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace standin {

class Contents {
 public:
  explicit Contents(std::uint64_t size);

  // The bytes [offset, offset + size) lie within the memory.
  void read(std::uint64_t offset, void* to, std::uint64_t size) const;
  void write(std::uint64_t offset, const void* from, std::uint64_t size);
  // Repeats a pattern whose length divides that of Pattern. `offset` is a multiple of its length.
  void fill(std::uint64_t offset, const void* pattern, std::uint64_t length, std::uint64_t size);

 private:
  using Pattern = std::array<char, 16>;
  struct Page {
    std::unique_ptr<char[]> bytes;  // null: the pattern throughout
    Pattern pattern;
  };
  static constexpr std::uint64_t kPage = std::uint64_t{1} << 20;

  static char* materialize(Page& page);

  std::vector<Page> pages_;
};

}  // namespace standin
