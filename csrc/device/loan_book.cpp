#include "device/loan_book.h"

#include <algorithm>

namespace stalloc::device {
namespace {

constexpr Bytes kRounding = 512;          // of torch's blocks
constexpr Bytes kSlack = Bytes{1} << 20;  // torch splits off no smaller rest

std::uintptr_t after(std::uintptr_t begin, Bytes size) {
  return begin + static_cast<std::uintptr_t>(size);
}

}  // namespace

Bytes LoanBook::rounded(Bytes size) { return (size + kRounding - 1) / kRounding * kRounding; }

bool LoanBook::suits(Bytes size) const {
  if (size < kLeast || blocks_.size() >= kMostBlocks) return false;
  const auto known = sizes_.find(rounded(size));
  if (known != sizes_.end()) return known->second;
  return surprises_ < kMostSurprises && sizes_.size() < kMostSizes;
}

bool LoanBook::fits(Addresses memory, Bytes size) const {
  const Bytes needed = rounded(size);
  std::uintptr_t free = memory.begin;
  for (auto it = blocks_.lower_bound(memory.begin); it != blocks_.end(); ++it) {
    const auto& [begin, block] = *it;
    if (begin >= memory.end) break;
    if (begin >= after(free, needed)) return true;
    free = std::max(free, after(begin, rounded(block.size) + kSlack));
  }
  return memory.end >= after(free, needed);
}

void LoanBook::lend(std::uintptr_t begin, Bytes size) {
  blocks_[begin] = {size};
  round_.insert(rounded(size));
}

void LoanBook::record(std::uintptr_t begin) {
  Block& block = blocks_.at(begin);
  block.is_recorded = true;
  sizes_[rounded(block.size)] = false;
}

void LoanBook::take_back(std::uintptr_t begin) {
  const auto it = blocks_.find(begin);
  if (it->second.is_recorded) {
    it->second.is_freed = true;
  } else {
    blocks_.erase(it);
  }
}

bool LoanBook::any_live() const {
  return std::ranges::any_of(blocks_, [](const auto& entry) { return !entry.second.is_freed; });
}

std::vector<LoanBook::Addresses> LoanBook::live() const {
  std::vector<Addresses> result;
  for (const auto& [begin, block] : blocks_) {
    if (!block.is_freed) result.push_back({begin, after(begin, rounded(block.size))});
  }
  return result;
}

void LoanBook::forget_live() {
  std::erase_if(blocks_, [](const auto& entry) { return !entry.second.is_freed; });
  round_.clear();
}

void LoanBook::end_round() {
  bool surprised = false;
  for (const auto& [begin, block] : blocks_) {
    if (block.is_freed) continue;
    sizes_[rounded(block.size)] = false;
    surprised = true;
  }
  if (surprised) ++surprises_;
  for (const Bytes size : round_) sizes_.try_emplace(size, true);
  forget_live();
}

void LoanBook::interrupt_round() { forget_live(); }

}  // namespace stalloc::device
