#include "solve/core/placement.h"

#include <algorithm>

namespace stalloc::solve {

Placement::Placement(Moment moments)
    : moments_(moments), nodes_(moments > 0 ? 2 * static_cast<std::size_t>(moments) - 1 : 0) {}

void Placement::collect(std::size_t node, Moment node_begin, Moment node_end, Moment begin,
                        Moment end, std::vector<Cursor>& cursors) const {
  for (;;) {
    const Node& here = nodes_[node];
    if (here.touch.empty()) return;
    if (begin <= node_begin && node_end <= end) {
      cursors.push_back({here.touch.begin(), here.touch.end()});
      return;
    }
    if (!here.cover.empty()) cursors.push_back({here.cover.begin(), here.cover.end()});
    const Moment middle = node_begin + (node_end - node_begin) / 2;
    const std::size_t left = node + 1;
    const std::size_t right = node + 2 * static_cast<std::size_t>(middle - node_begin);
    if (begin < middle && end > middle) {
      collect(left, node_begin, middle, begin, end, cursors);
      node = right;
      node_begin = middle;
    } else if (begin < middle) {
      node = left;
      node_end = middle;
    } else {
      node = right;
      node_begin = middle;
    }
  }
}

void Placement::collect(const Span& span, std::vector<Cursor>& cursors) const {
  collect(0, 0, moments_, span.begin, span.end, cursors);
  if (span.wrap > 0) collect(0, 0, moments_, 0, span.wrap, cursors);
}

// Visits the cursors in rotation and leaps over intervals in the way, until no cursor has one.
// Leaves each cursor at the first interval that ends above the result, and drops cursors at their
// end.
Offset Placement::lowest(std::vector<Cursor>& cursors, Bytes size, Offset from) {
  Offset offset = from;
  std::size_t clean = 0;  // consecutive cursors that have nothing in the way
  std::size_t i = 0;
  while (clean < cursors.size()) {
    if (i >= cursors.size()) i = 0;
    Cursor& cursor = cursors[i];
    const Interval* next = cursor.next;
    // A linear search first: most leaps are short.
    std::ptrdiff_t step = 1;
    while (next != cursor.end && next->end <= offset) {
      if (cursor.end - next > step && next[step].end <= offset) {
        next += step;
        step *= 2;
      } else {
        ++next;
        step = 1;
      }
    }
    bool moved = false;
    while (next != cursor.end && next->begin - offset < size) {
      offset = next->end;
      ++next;
      moved = true;
    }
    cursor.next = next;
    if (next == cursor.end) {
      cursor = cursors.back();
      cursors.pop_back();
      // Only the clean cursors before `i` will not be visited again.
      clean = moved ? 0 : std::min(clean, i);
      continue;
    }
    clean = moved ? 1 : clean + 1;
    ++i;
  }
  return offset;
}

Offset Placement::first_fit(const Span& span, Bytes size, Offset from) const {
  cursors_.clear();
  collect(span, cursors_);
  return lowest(cursors_, size, from);
}

Offset Placement::first_fit(std::span<const Span> spans, Bytes size) const {
  cursors_.clear();
  for (const Span& span : spans) {
    if (!span.empty()) collect(span, cursors_);
  }
  return lowest(cursors_, size, 0);
}

std::vector<Placement::Cursor>& Placement::collect(std::span<const Search> searches) {
  std::vector<Cursor>& cursors = searches.front().placement->cursors_;
  cursors.clear();
  for (const auto& [placement, span] : searches) placement->collect(span, cursors);
  return cursors;
}

Offset Placement::first_fit(std::span<const Search> searches, Bytes size) {
  return lowest(collect(searches), size, 0);
}

Offset Placement::best_fit(std::span<const Search> searches, Bytes size, Offset top) {
  return smallest(collect(searches), size, top);
}

Offset Placement::best_fit(const Span& span, Bytes size, Offset top) const {
  cursors_.clear();
  collect(span, cursors_);
  return smallest(cursors_, size, top);
}

Offset Placement::smallest(std::vector<Cursor>& cursors, Bytes size, Offset top) {
  Offset best = kUnplaced;
  Bytes best_hole = 0;
  for (Offset offset = 0;;) {
    offset = lowest(cursors, size, offset);
    Offset hole_end = top;
    for (const Cursor& cursor : cursors) hole_end = std::min(hole_end, cursor.next->begin);
    const bool fits = hole_end - offset >= size;
    if (fits && (best == kUnplaced || hole_end - offset < best_hole)) {
      best = offset;
      best_hole = hole_end - offset;
    }
    if (cursors.empty() || !fits) return best == kUnplaced ? offset : best;
    offset = hole_end;
  }
}

void Placement::place(std::size_t node, Moment node_begin, Moment node_end, Moment begin,
                      Moment end, const Interval& interval) {
  for (;;) {
    Node& here = nodes_[node];
    here.touch.insert(interval, arena_);
    if (begin <= node_begin && node_end <= end) {
      // A leaf has no descendants, so its `cover` is never read.
      if (node_end - node_begin > 1) here.cover.insert(interval, arena_);
      return;
    }
    const Moment middle = node_begin + (node_end - node_begin) / 2;
    const std::size_t left = node + 1;
    const std::size_t right = node + 2 * static_cast<std::size_t>(middle - node_begin);
    if (begin < middle && end > middle) {
      place(left, node_begin, middle, begin, end, interval);
      node = right;
      node_begin = middle;
    } else if (begin < middle) {
      node = left;
      node_end = middle;
    } else {
      node = right;
      node_begin = middle;
    }
  }
}

void Placement::place(const Span& span, Offset offset, Bytes size) {
  const Interval interval{offset, offset + size};
  place(0, 0, moments_, span.begin, span.end, interval);
  if (span.wrap > 0) place(0, 0, moments_, 0, span.wrap, interval);
}

}  // namespace stalloc::solve
