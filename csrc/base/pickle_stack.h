// Counts the parts of the tuples that a pickle would make, without making them.
//
// A tuple may be a key, and hashing it hashes all its parts by nested C calls. A million nested
// tuples, a byte each, would crash the process; thirty that each hold the last one twice would keep
// it busy forever. Lists and dictionaries cannot be keys, so they count as one part. Tuples never
// change, so the memo's counts stay true. If a damaged pickle takes more from the stack than there
// is, the unpickler will complain. Cost: O(1) an instruction, two bytes an object on the stack or
// in the memo.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace stalloc {

class PickleStack {
 public:
  static constexpr std::uint32_t kMostParts = 1000;  // a snapshot's have two

  // Pushes an object that is no tuple.
  void push() { stack_.push_back(1); }

  // Follows an instruction without an argument. Returns false if it makes too large a tuple.
  bool apply(char code) {
    switch (code) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();
        } else {
          drop(1);
        }
        return true;
      case '1':
      case 'e':
      case 'u':
        drop(above_mark());
        return true;
      case '2':
        stack_.push_back(stack_.empty() ? std::uint16_t{1} : stack_.back());
        return true;
      case 'a':
        drop(1);
        return true;
      case 's':
        drop(2);
        return true;
      case 'l':
      case 'd':
        drop(above_mark());
        push();
        return true;
      case 't':
        return wrap(above_mark());
      case '\x85':
      case '\x86':
      case '\x87':
        return wrap(static_cast<std::size_t>(code - '\x85') + 1);
      case '\x94':
        put(memoized_);
        return true;
      default:
        push();
        return true;
    }
  }

  void put(std::uint64_t place) {
    if (place >= memo_.size()) memo_.resize(place + 1, kUnset);
    if (memo_[place] == kUnset) ++memoized_;
    memo_[place] = stack_.empty() ? std::uint16_t{1} : stack_.back();
  }

  void get(std::uint64_t place) {
    const bool known = place < memo_.size() && memo_[place] != kUnset;
    stack_.push_back(known ? memo_[place] : std::uint16_t{1});
  }

 private:
  static constexpr std::uint16_t kUnset = 0xffff;

  std::size_t above_mark() {
    if (marks_.empty()) return 0;
    const std::size_t mark = std::min(marks_.back(), stack_.size());
    marks_.pop_back();
    return stack_.size() - mark;
  }

  void drop(std::size_t count) { stack_.resize(stack_.size() - std::min(count, stack_.size())); }

  // Makes a tuple of the topmost `count` objects. Returns false if it is too large.
  bool wrap(std::size_t count) {
    count = std::min(count, stack_.size());
    std::uint32_t parts = 1;
    for (std::size_t i = 1; i <= count && parts <= kMostParts; ++i) {
      parts += stack_[stack_.size() - i];
    }
    drop(count);
    stack_.push_back(static_cast<std::uint16_t>(std::min(parts, kMostParts)));
    return parts <= kMostParts;
  }

  std::vector<std::uint16_t> stack_;  // the number of parts of each object
  std::vector<std::size_t> marks_;    // heights of the stack
  std::vector<std::uint16_t> memo_;
  std::uint64_t memoized_ = 0;
};

}  // namespace stalloc
