#include "profile/alignment.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace stalloc::profile {
namespace {

constexpr std::int32_t kMaxEdits = 256;
constexpr std::int32_t kUnreachable = -1;

// One search from (0, 0) of the edit graph, whose x runs along `a` and y along `b`. Diagonal k
// holds the points with x - y == k; after d edits those of d's parity between -d and d can be
// reached, and `furthest(d, k)` is the largest x there.
class Search {
 public:
  Search(std::span<const Token> a, std::span<const Token> b)
      : a_(a),
        b_(b),
        n_(static_cast<std::int32_t>(a.size())),
        m_(static_cast<std::int32_t>(b.size())) {}

  // The end of the path that was found: (n, m), or the furthest point within kMaxEdits.
  struct End {
    std::int32_t edits = 0;
    std::int32_t x = 0;
    std::int32_t y = 0;
  };

  End run() {
    for (std::int32_t d = 0;; ++d) {
      End best{d, 0, 0};
      for (std::int32_t k = -d; k <= d; k += 2) {
        const std::int32_t x = d == 0 ? slide(0, 0) : step(d, k);
        furthest_.push_back(x);
        if (x == kUnreachable) continue;
        if (2 * x - k > best.x + best.y) best = {d, x, x - k};
      }
      if ((best.x == n_ && best.y == m_) || d == kMaxEdits) return best;
    }
  }

  // Calls match(x, y) for each pair on the path to `end`, last first.
  template <typename Match>
  void trace_back(End end, Match match) const {
    std::int32_t x = end.x;
    std::int32_t k = end.x - end.y;
    for (std::int32_t d = end.edits;; --d) {
      const bool down = d > 0 && goes_down(d, k);
      const std::int32_t start =
          d == 0 ? 0 : (down ? furthest(d - 1, k + 1) : furthest(d - 1, k - 1) + 1);
      while (x > start) {
        --x;
        match(x, x - k);
      }
      if (d == 0) return;
      k += down ? 1 : -1;
      x = furthest(d - 1, k);
    }
  }

 private:
  std::int32_t furthest(std::int32_t d, std::int32_t k) const {
    if (k < -d || k > d) return kUnreachable;
    return furthest_[static_cast<std::size_t>(d) * (d + 1) / 2 + (k + d) / 2];
  }

  // x after an edit down (y + 1, from diagonal k + 1) or to the right (from k - 1).
  std::int32_t down_to(std::int32_t d, std::int32_t k) const {
    const std::int32_t x = furthest(d - 1, k + 1);
    return x == kUnreachable || x - k > m_ ? kUnreachable : x;
  }
  std::int32_t right_to(std::int32_t d, std::int32_t k) const {
    const std::int32_t x = furthest(d - 1, k - 1);
    return x == kUnreachable || x + 1 > n_ ? kUnreachable : x + 1;
  }
  bool goes_down(std::int32_t d, std::int32_t k) const { return down_to(d, k) >= right_to(d, k); }

  std::int32_t step(std::int32_t d, std::int32_t k) const {
    const std::int32_t x = std::max(down_to(d, k), right_to(d, k));
    return x == kUnreachable ? kUnreachable : slide(x, x - k);
  }

  std::int32_t slide(std::int32_t x, std::int32_t y) const {
    while (x < n_ && y < m_ && a_[x] == b_[y]) ++x, ++y;
    return x;
  }

  std::span<const Token> a_;
  std::span<const Token> b_;
  std::int32_t n_;
  std::int32_t m_;
  std::vector<std::int32_t> furthest_;  // row d has d + 1 entries
};

struct Alignment {
  std::vector<std::int32_t> matches;  // as align_sequences() returns them
  std::size_t count = 0;
  bool longest = true;  // a single search reached the ends
};

Alignment align(std::span<const Token> a, std::span<const Token> b) {
  Alignment result{.matches = std::vector<std::int32_t>(a.size(), kNone)};
  std::size_t x = 0;
  std::size_t y = 0;
  while (x < a.size() && y < b.size()) {
    Search search(a.subspan(x), b.subspan(y));
    const Search::End end = search.run();
    search.trace_back(end, [&](std::int32_t i, std::int32_t j) {
      result.matches[x + i] = static_cast<std::int32_t>(y) + j;
      ++result.count;
    });
    x += end.x;
    y += end.y;
    if (x < a.size() || y < b.size()) result.longest = false;
  }
  return result;
}

// The elements of a sequence that the other one has, too, from the last to the first.
struct Common {
  std::vector<Token> tokens;
  std::vector<std::int32_t> places;  // in the sequence
};

Common common(std::span<const Token> sequence, std::span<const Token> other) {
  const auto key = [](const Token& t) { return std::tuple{t.size, t.stream, t.law.number()}; };
  std::set<decltype(key(Token{}))> known;
  for (const Token& t : other) known.insert(key(t));
  Common result;
  for (std::size_t i = sequence.size(); i-- > 0;) {
    if (!known.contains(key(sequence[i]))) continue;
    result.tokens.push_back(sequence[i]);
    result.places.push_back(static_cast<std::int32_t>(i));
  }
  return result;
}

// The same from the ends, without elements that only one of the sequences has: the edits that they
// cost can be more than a search makes.
Alignment align_backwards(std::span<const Token> a, std::span<const Token> b) {
  const Common ours = common(a, b);
  const Common theirs = common(b, a);
  Alignment found = align(ours.tokens, theirs.tokens);
  std::vector<std::int32_t> matches(a.size(), kNone);
  for (std::size_t i = 0; i < ours.places.size(); ++i) {
    const std::int32_t match = found.matches[i];
    if (match != kNone) matches[ours.places[i]] = theirs.places[match];
  }
  found.matches = std::move(matches);
  return found;
}

}  // namespace

std::vector<std::int32_t> align_sequences(std::span<const Token> a, std::span<const Token> b) {
  Alignment forwards = align(a, b);
  if (forwards.longest) return std::move(forwards.matches);
  Alignment backwards = align_backwards(a, b);
  return std::move(backwards.count > forwards.count ? backwards.matches : forwards.matches);
}

}  // namespace stalloc::profile
