#include "solve/pipeline/borders.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace stalloc::solve {
namespace {

constexpr int kNobody = -1;  // has the first hole
constexpr int kNoEnd = -1;

struct Border {
  int from = kNobody;
  int to = kNobody;
  std::vector<int> peaks = {};  // of `to`
};

// A border has two ends: 2b is that of the slot that gives, 2b + 1 that of the slot that gains.
class Borders {
 public:
  explicit Borders(const std::vector<int>& slots) {
    std::map<std::pair<int, int>, int> known;
    int from = kNobody;
    for (std::size_t t = 0; t < slots.size(); ++t) {
      const auto [at, is_new] = known.try_emplace({from, slots[t]}, static_cast<int>(size()));
      if (is_new) borders_.push_back({from, slots[t]});
      borders_[at->second].peaks.push_back(static_cast<int>(t));
      border_of_.push_back(at->second);
      from = slots[t];
    }
    beside_.assign(2 * size(), kNoEnd);
    row_.resize(size());
    std::iota(row_.begin(), row_.end(), 0);
    join();
  }

  Crossings lay_out() {
    Crossings result;
    std::vector<int> at(size(), kNoEnd);  // the first cell right of the border
    choose_rests();
    const auto add_rest = [&](int end) {
      const auto chosen = rest_at_.find(owner(end));
      if (chosen == rest_at_.end() || chosen->second != end) return;
      result.rests.push_back({owner(end), static_cast<int>(result.owners.size())});
    };
    for (int end = 0; end < std::ssize(beside_); ++end) {
      if (beside_[end] != kNoEnd || at[end / 2] != kNoEnd) continue;
      add_rest(end);
      result.owners.insert(result.owners.end(), cells(end), owner(end));
      for (int left = end; left != kNoEnd; left = beside_[left ^ 1]) {
        const int right = left ^ 1;
        at[left / 2] = static_cast<int>(result.owners.size());
        const int count = beside_[right] == kNoEnd ? cells(right) : cells(right, beside_[right]);
        result.owners.insert(result.owners.end(), count, owner(right));
        gives_left_.resize(size());
        gives_left_[left / 2] = left % 2 == 0;
        if (beside_[right] == kNoEnd) add_rest(right);
      }
    }
    for (const int owner : result.owners) {
      if (owner == kNobody || rest_at_.contains(owner)) continue;
      rest_at_[owner] = kNoEnd;
      result.rests.push_back({owner, static_cast<int>(result.owners.size())});
    }
    for (const int b : border_of_) {
      if (gives_left_[b]) {
        result.steps.push_back({at[b] - 1, at[b]});
        --at[b];
      } else {
        result.steps.push_back({at[b], at[b] - 1});
        ++at[b];
      }
    }
    return result;
  }

 private:
  std::size_t size() const { return borders_.size(); }
  int owner(int end) const { return end % 2 == 0 ? borders_[end / 2].from : borders_[end / 2].to; }
  const std::vector<int>& peaks(int end) const { return borders_[end / 2].peaks; }

  // The cells that the slot needs there at first, so that there is one whenever the hole crosses.
  int cells(int end) const { return end % 2 == 0 ? static_cast<int>(peaks(end).size()) : 1; }
  int cells(int a, int b) const {
    int fewest = 1;
    int gained = 0;
    auto i = peaks(a).begin();
    auto j = peaks(b).begin();
    while (i != peaks(a).end() || j != peaks(b).end()) {
      const bool is_a = j == peaks(b).end() || (i != peaks(a).end() && *i < *j);
      ++(is_a ? i : j);
      fewest = std::max(fewest, 1 - gained);
      gained += (is_a ? a : b) % 2 == 0 ? -1 : 1;
    }
    return fewest;
  }

  // Puts a slot's rest at the end of a row, preferably one that the slot needs late.
  void choose_rests() {
    for (int end = 0; end < std::ssize(beside_); ++end) {
      if (beside_[end] != kNoEnd || owner(end) == kNobody) continue;
      const auto [at, is_new] = rest_at_.try_emplace(owner(end), end);
      if (peaks(end).front() > peaks(at->second).front()) at->second = end;
    }
  }

  int row(int b) {
    while (row_[b] != b) b = row_[b] = row_[row_[b]];
    return b;
  }

  // Chooses which of a slot's ends lie on either side of the same cells: first the pairs that save
  // most, then pairs of which one border is last crossed just before the other.
  void join() {
    std::map<int, std::vector<int>> ends_of;
    for (int end = 0; end < std::ssize(beside_); ++end) ends_of[owner(end)].push_back(end);
    for (const auto& [slot, ends] : ends_of) {
      std::vector<std::tuple<int, int, int, int>> pairs;
      for (std::size_t i = 0; i < ends.size(); ++i) {
        for (std::size_t j = i + 1; j < ends.size(); ++j) {
          const int a = ends[i];
          const int b = ends[j];
          const int saved = cells(a) + cells(b) - cells(a, b);
          const int apart = std::abs(peaks(a).front() - peaks(b).front());
          if (saved > 0) pairs.emplace_back(-saved, apart, a, b);
        }
      }
      std::ranges::sort(pairs);
      for (const auto& [saved, apart, a, b] : pairs) {
        if (beside_[a] != kNoEnd || beside_[b] != kNoEnd || row(a / 2) == row(b / 2)) continue;
        beside_[a] = b;
        beside_[b] = a;
        row_[row(a / 2)] = row(b / 2);
      }
    }
  }

  std::vector<Border> borders_;
  std::vector<int> border_of_;    // by peak: the border that the hole crosses
  std::vector<int> beside_;       // the end on the other side of the same cells
  std::vector<int> row_;          // rows of borders with two free ends each; a forest
  std::map<int, int> rest_at_;    // by slot: the end of a row where its rest lies
  std::vector<char> gives_left_;  // true if the hole crosses the border from the left
};

}  // namespace

Crossings find_crossings(const std::vector<int>& slots) {
  if (slots.empty() || std::ranges::adjacent_find(slots) != slots.end()) return {};
  return Borders(slots).lay_out();
}

}  // namespace stalloc::solve
