#include "device/graph_guide.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stalloc::device {

void GraphGuide::begin(std::size_t number) {
  number_ = number;
  sizes_.clear();
  followed_.reset();
  matching_.resize(captures_.size());
  std::iota(matching_.begin(), matching_.end(), std::size_t{0});
  for (std::size_t i = 0; i < captures_.size(); ++i) {
    if (captures_[i].number == number) followed_ = i;
  }
}

bool GraphGuide::lives_on(Bytes size) {
  const std::size_t at = sizes_.size();
  sizes_.push_back(size);
  std::erase_if(matching_, [&](std::size_t i) {
    const std::vector<Bytes>& sizes = captures_[i].sizes;
    return at >= sizes.size() || sizes[at] != size;
  });
  if (!matching_.empty()) followed_ = matching_.back();
  if (!followed_) return false;
  const std::vector<bool>& lives = captures_[*followed_].lives;
  return at < lives.size() && lives[at];
}

void GraphGuide::learn(const std::vector<bool>& lives) {
  if (lives.size() != sizes_.size() || lives.empty()) return;
  Capture capture{number_, std::move(sizes_), lives};
  sizes_.clear();
  std::erase_if(captures_, [&](const Capture& other) { return other.sizes == capture.sizes; });
  if (captures_.size() == kMost) captures_.erase(captures_.begin());
  captures_.push_back(std::move(capture));
  matching_.clear();
  followed_.reset();
}

}  // namespace stalloc::device
