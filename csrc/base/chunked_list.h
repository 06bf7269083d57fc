// A sorted list in chunks of some cache lines: one binary search over the chunks' last items, one
// within a chunk, and a move of at most a chunk.
//
// A request makes a handful of changes. Each costs a node-based tree several cache misses, and one
// flat array of a thousand items a move of many kilobytes. With a few dozen items this is a flat
// array.
//
// Allocates nothing once it has grown to its working size. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <vector>

namespace stalloc {

// The caller keeps the order: nothing here compares items.
template <typename T>
class ChunkedList {
 public:
  // Points at an item or at the end. A change invalidates all other positions.
  struct Position {
    std::size_t entry = 0;
    std::size_t index = 0;
    bool operator==(const Position&) const = default;
  };

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  Position begin() const { return {}; }
  Position end() const { return {order_.size(), 0}; }
  const T& back() const { return order_.back().last; }

  const T& at(Position p) const { return chunks_[order_[p.entry].chunk][p.index]; }

  Position next(Position p) const {
    return p.index + 1 < order_[p.entry].count ? Position{p.entry, p.index + 1}
                                               : Position{p.entry + 1, 0};
  }

  // The first item for which `is_past` is true; it must be true for all later ones. O(log n).
  template <typename Predicate>
  Position first(Predicate is_past) const {
    const auto entry = std::partition_point(order_.begin(), order_.end(),
                                            [&](const Entry& e) { return !is_past(e.last); });
    if (entry == order_.end()) return end();
    const T* const items = chunks_[entry->chunk].data();
    const T* const item =
        std::partition_point(items, items + entry->count, [&](const T& i) { return !is_past(i); });
    return {static_cast<std::size_t>(entry - order_.begin()),
            static_cast<std::size_t>(item - items)};
  }

  void set(Position p, const T& item) {
    Entry& entry = order_[p.entry];
    chunks_[entry.chunk][p.index] = item;
    if (p.index + 1 == entry.count) entry.last = item;
  }

  // Inserts before `p`. Returns the new item's position.
  Position insert(Position p, const T& item) {
    ++size_;
    if (order_.empty()) order_.push_back({.last = item, .count = 0, .chunk = take_chunk()});
    if (p.entry == order_.size() || (p.index == 0 && p.entry > 0)) {
      --p.entry;  // at the end of the chunk before, which is as good
      p.index = order_[p.entry].count;
    }
    if (order_[p.entry].count == kItems) {
      split(p.entry);
      if (p.index > kItems / 2) p = {p.entry + 1, p.index - kItems / 2};
    }
    Entry& entry = order_[p.entry];
    T* const items = chunks_[entry.chunk].data();
    std::move_backward(items + p.index, items + entry.count, items + entry.count + 1);
    items[p.index] = item;
    ++entry.count;
    entry.last = items[entry.count - 1];
    return p;
  }

  // Returns the position of the next item.
  Position erase(Position p) {
    --size_;
    Entry& entry = order_[p.entry];
    T* const items = chunks_[entry.chunk].data();
    std::move(items + p.index + 1, items + entry.count, items + p.index);
    --entry.count;
    if (entry.count == 0) {
      drop(p.entry);
      return {p.entry, 0};
    }
    entry.last = items[entry.count - 1];
    const bool joins =
        p.entry + 1 < order_.size() && entry.count + order_[p.entry + 1].count <= kItems / 2;
    if (joins) join(p.entry);
    return p.index < order_[p.entry].count ? p : Position{p.entry + 1, 0};
  }

  void clear() {
    order_.clear();
    chunks_.clear();
    spare_.clear();
    size_ = 0;
  }

 private:
  static constexpr std::size_t kItems = 32;
  using Chunk = std::array<T, kItems>;

  struct Entry {  // a chunk, which is not empty
    T last;
    std::size_t count = 0;
    std::size_t chunk = 0;
  };

  std::size_t take_chunk() {
    if (spare_.empty()) {
      chunks_.emplace_back();
      return chunks_.size() - 1;
    }
    const std::size_t chunk = spare_.back();
    spare_.pop_back();
    return chunk;
  }

  void drop(std::size_t entry) {
    spare_.push_back(order_[entry].chunk);
    order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(entry));
  }

  void split(std::size_t lower) {
    const std::size_t chunk = take_chunk();
    Entry& entry = order_[lower];
    const Chunk& items = chunks_[entry.chunk];
    std::copy(items.begin() + kItems / 2, items.end(), chunks_[chunk].begin());
    const Entry upper{.last = entry.last, .count = kItems / 2, .chunk = chunk};
    entry.count = kItems / 2;
    entry.last = items[kItems / 2 - 1];
    order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(lower) + 1, upper);
  }

  // Moves the items of the next chunk into this one.
  void join(std::size_t entry) {
    Entry& lower = order_[entry];
    const Entry& upper = order_[entry + 1];
    const Chunk& items = chunks_[upper.chunk];
    std::copy(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(upper.count),
              chunks_[lower.chunk].begin() + static_cast<std::ptrdiff_t>(lower.count));
    lower.count += upper.count;
    lower.last = upper.last;
    drop(entry + 1);
  }

  std::vector<Entry> order_;
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> spare_;  // of chunks_
  std::size_t size_ = 0;
};

}  // namespace stalloc
