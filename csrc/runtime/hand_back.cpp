#include "runtime/hand_back.h"

#include <algorithm>

namespace stalloc::runtime {

// The stream of the request lives. Another one may have been destroyed.
bool HandBack::may_free(Offset offset, StreamId stream) const {
  const Pool& pool = *pools_.active();
  const StreamId own = pool.space.at(offset).stream;
  return (own == stream || !table_.may_vanish(own)) && delayed_.can_order(pool.address(offset));
}

bool HandBack::order(void* p, StreamId own) {
  Statistics& counts = accounting_.counts();
  const std::int64_t before = delayed_.waits();
  const bool ordered = delayed_.order(p, own);
  counts.stream_waits += delayed_.waits() - before;
  if (ordered) ++counts.handed_back;
  return ordered;
}

bool HandBack::free(Offset offset, StreamId stream) {
  Pool& pool = *pools_.active();
  void* p = pool.address(offset);
  if (pool.space.at(offset).stream != stream) {
    const Bytes size = pool.release_in_use(offset);
    if (size != StaticPool::kNotLive) {
      delayed_.drop(p);
      ++accounting_.counts().handed_back;
      accounting_.release_block(pool.space.round_up(size));
      return true;
    }
  }
  if (!order(p, pool.space.at(offset).stream)) return false;
  const StaticPool::Block block = pool.release(p, /*capturing=*/false);
  accounting_.release_block(pool.space.round_up(block.size));
  return true;
}

bool HandBack::free(const std::vector<Offset>& blocks, StreamId stream) {
  const auto may_free = [&](Offset offset) { return this->may_free(offset, stream); };
  if (blocks.empty() || !possible() || !std::ranges::all_of(blocks, may_free)) return false;
  return std::ranges::all_of(blocks, [&](Offset offset) { return free(offset, stream); });
}

bool HandBack::free_one(Bytes size, StreamId stream) {
  if (!possible()) return false;
  const Pool& pool = *pools_.active();
  Offset oldest = kUnplaced;
  std::uint64_t since = 0;
  delayed_.visit_waiting([&](void* p, std::uint64_t number) {
    if (!pool.contains(p) || (oldest != kUnplaced && number > since)) return;
    const Offset offset = pool.offset_of(p);
    const StaticPool::Block block = pool.space.at(offset);
    if (block.stream != stream || block.size < size || !may_free(offset, stream)) return;
    oldest = offset;
    since = number;
  });
  return oldest != kUnplaced && free(oldest, stream);
}

bool HandBack::free_one_beside_pool(Bytes size, StreamId stream) {
  void* oldest = nullptr;
  std::uint64_t since = 0;
  delayed_.visit_waiting([&](void* p, std::uint64_t number) {
    if (oldest && number > since) return;
    if (!fallback_.would_serve(p, size, stream) || !delayed_.can_order(p)) return;
    oldest = p;
    since = number;
  });
  if (!oldest || !order(oldest, stream)) return false;
  fallback_.deallocate(oldest);
  return true;
}

}  // namespace stalloc::runtime
