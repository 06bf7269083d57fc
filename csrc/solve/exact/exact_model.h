// A planning problem in the form that the exact search needs: small integers, sections, conflicts.
//
// Sizes are divided by their greatest common divisor. Time is reduced to sections (the timeline's
// moments) on a circle. Linear time is a circle with one boundary that nothing crosses.
//
//   section    0     1     2     3
//   buffer a   [-----------)                  first 0, count 2
//   buffer b   ------)           [-----       first 3, count 2: it wraps round
//
// Cost: O(n^2) time and memory if all buffers are live at once, within the caps.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "solve/core/problem.h"

namespace stalloc::solve {

using Units = std::int64_t;  // sizes and offsets, in units of ExactModel::unit bytes

struct ExactModel {
  // Each pair of conflicting buffers counts twice. The search needs about a hundred bytes a pair:
  // 100 MB.
  static constexpr std::size_t kMaxConflicts = std::size_t{1} << 21;
  static constexpr std::size_t kMaxBuffers = std::size_t{1} << 13;  // the search recurses as deep

  // `problem` has passed check(); its streams are ignored. Buffers without size or lifetime are
  // left out. If the problem exceeds a cap, `fits()` is false and nothing else is set.
  explicit ExactModel(const Problem& problem);

  bool fits() const { return fits_; }
  int buffers() const { return static_cast<int>(size.size()); }
  int sections() const { return static_cast<int>(member_begin.size()) - 1; }

  // The buffers that live in a section, and those that a buffer conflicts with. Both by index.
  std::span<const int> members(int section) const {
    return {member.data() + member_begin[section], member.data() + member_begin[section + 1]};
  }
  std::span<const int> neighbours(int buffer) const {
    return {neighbour.data() + neighbour_begin[buffer],
            neighbour.data() + neighbour_begin[buffer + 1]};
  }
  // The k-th section of a buffer, 0 <= k < count[buffer].
  int section(int buffer, int k) const {
    const int s = first[buffer] + k;
    return s < sections() ? s : s - sections();
  }

  // The layout of the whole problem that puts buffer i of the model at base + offsets[i].
  Layout layout(const Problem& problem, std::span<const Units> offsets) const;

  // No layout is lower. The bound covers the load, single large buffers and fixed ones. Set even if
  // the model does not fit.
  Bytes lower_bound() const { return lower_bound_; }

  Bytes unit = 1;
  Units base = 0;   // the sum of buffers that live throughout: they lie at the bottom, not searched
  Units load = 0;   // the largest sum of sizes in a section, above the base
  Units total = 0;  // of all sizes, on top of the highest fixed offset
  std::vector<std::size_t> original;  // index into Problem::buffers
  std::vector<Units> size;
  std::vector<Units> fixed;  // -1: free
  std::vector<int> first;
  std::vector<int> count;
  std::vector<Tick> width;     // lifetime
  std::vector<Units> busiest;  // largest load of a section it lives in
  std::vector<int> twins;      // names the free buffers of the same sections
  std::vector<int> twin_rank;  // of twins that touch, the one of lower rank is below
  std::vector<int> next_twin;  // the next in rank of the same sections and the same size, or -1

 private:
  void find_twins();

  bool fits_ = false;
  Bytes lower_bound_ = 0;
  std::vector<std::pair<std::size_t, Offset>> at_bottom;  // original index, offset
  std::vector<int> member;
  std::vector<std::size_t> member_begin;
  std::vector<int> neighbour;
  std::vector<std::size_t> neighbour_begin;
};

}  // namespace stalloc::solve
