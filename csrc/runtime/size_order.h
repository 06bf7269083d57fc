// Ranges in order of their size, so that the best fit is found without looking at the others.
//
// A sorted list in chunks of some cache lines: one binary search over the chunks' last keys, one
// within a chunk, and a move of at most a chunk. A node-based tree takes several cache misses for
// each of the handful of changes that a request makes; one flat array, at a thousand holes, moves
// of many kilobytes. With a few dozen ranges this is a flat array.
//
// Allocates nothing once it has grown to its working size. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace stalloc {

class SizeOrder {
 public:
  struct Key {
    Bytes size = 0;
    Offset begin = 0;
    auto operator<=>(const Key&) const = default;
  };

  void clear() {
    order_.clear();
    chunks_.clear();
    spare_.clear();
  }

  // `key` is not here. O(log n).
  void insert(Key key) {
    if (order_.empty()) order_.push_back({.last = key, .chunk = take_chunk()});
    auto entry = holder_of(key);
    if (entry == order_.end()) --entry;
    if (entry->count == kKeys) {
      entry = split(entry);
      if (entry->last < key) ++entry;
    }
    const auto [first, last] = keys_of(*entry);
    Key* const at = std::lower_bound(first, last, key);
    std::move_backward(at, last, last + 1);
    *at = key;
    ++entry->count;
    entry->last = std::max(entry->last, key);
  }

  // `key` is here. O(log n).
  void erase(Key key) {
    const auto entry = holder_of(key);
    assert(entry != order_.end());
    const auto [first, last] = keys_of(*entry);
    Key* const at = std::lower_bound(first, last, key);
    assert(at != last && *at == key);
    std::move(at + 1, last, at);
    --entry->count;
    if (entry->count > 0) entry->last = first[entry->count - 1];
    const auto next = entry + 1;
    const bool joins = next != order_.end() && entry->count + next->count <= kKeys / 2;
    if (joins) join(entry);
    if (entry->count > 0) return;
    spare_.push_back(entry->chunk);
    order_.erase(entry);
  }

  // The smallest of at least `size` bytes, the lowest of equals; null when there is none. O(log n).
  const Key* at_least(Bytes size) const {
    const Key least{size, 0};
    const auto entry = std::lower_bound(order_.begin(), order_.end(), least,
                                        [](const Entry& e, const Key& k) { return e.last < k; });
    if (entry == order_.end()) return nullptr;
    const Key* const first = chunks_[entry->chunk].data();
    return std::lower_bound(first, first + entry->count, least);
  }

  // 0 when there is none.
  Bytes largest() const { return order_.empty() ? 0 : order_.back().last.size; }

 private:
  static constexpr std::size_t kKeys = 32;
  using Chunk = std::array<Key, kKeys>;

  struct Entry {
    Key last;
    std::size_t count = 0;
    std::size_t chunk = 0;
  };
  using Iterator = std::vector<Entry>::iterator;

  // The first chunk that does not end before `key`.
  Iterator holder_of(Key key) {
    return std::lower_bound(order_.begin(), order_.end(), key,
                            [](const Entry& e, const Key& k) { return e.last < k; });
  }

  std::pair<Key*, Key*> keys_of(const Entry& entry) {
    Key* const first = chunks_[entry.chunk].data();
    return {first, first + entry.count};
  }

  std::size_t take_chunk() {
    if (spare_.empty()) {
      chunks_.emplace_back();
      return chunks_.size() - 1;
    }
    const std::size_t chunk = spare_.back();
    spare_.pop_back();
    return chunk;
  }

  // In two; the lower half's entry.
  Iterator split(Iterator entry) {
    const Entry upper{.last = entry->last, .count = kKeys / 2, .chunk = take_chunk()};
    const auto [first, last] = keys_of(*entry);
    std::copy(first + kKeys / 2, last, chunks_[upper.chunk].begin());
    entry->count = kKeys / 2;
    entry->last = first[kKeys / 2 - 1];
    return order_.insert(entry + 1, upper) - 1;
  }

  // Takes the keys of the next entry into this one.
  void join(Iterator entry) {
    const auto next = entry + 1;
    const auto [first, last] = keys_of(*next);
    std::copy(first, last,
              chunks_[entry->chunk].begin() + static_cast<std::ptrdiff_t>(entry->count));
    entry->count += next->count;
    entry->last = next->last;
    spare_.push_back(next->chunk);
    order_.erase(next);
  }

  std::vector<Entry> order_;
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> spare_;  // of chunks_
};

}  // namespace stalloc
