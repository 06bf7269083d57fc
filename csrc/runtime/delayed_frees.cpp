#include "runtime/delayed_frees.h"

#include <algorithm>

namespace stalloc::runtime {

void DelayedFrees::use(void* p, StreamId stream) {
  std::vector<StreamId>& streams = blocks_[p].streams;
  if (std::ranges::find(streams, stream) == streams.end()) streams.push_back(stream);
}

bool DelayedFrees::is_waiting(const void* p) const {
  const auto it = blocks_.find(const_cast<void*>(p));
  return it != blocks_.end() && it->second.waiting;
}

void DelayedFrees::wait(void* p) {
  Block& block = blocks_.at(p);
  block.waiting = true;
  block.number = ++frees_;
  ++waiting_;
  if (captures_ > 0) {
    deferred_.push_back(p);
  } else {
    record(p);
  }
}

void DelayedFrees::record(void* p) {
  Block& block = blocks_.at(p);
  for (const StreamId stream : block.streams) {
    const device::EventHandle event =
        stream == kNone ? nullptr : streams_.record(table_.handle_of(stream));
    if (!event) {
      if (!block.lost) ++lost_;
      block.lost = true;
      continue;
    }
    ++block.events;
    const auto [queue, is_new] = queues_.try_emplace(stream);
    if (is_new) order_.push_back(stream);
    queue->second.push_back({event, p});
  }
}

bool DelayedFrees::can_order(const void* p) const {
  const auto it = blocks_.find(const_cast<void*>(p));
  return it != blocks_.end() && it->second.waiting && !it->second.lost && it->second.events > 0 &&
         captures_ == 0;
}

bool DelayedFrees::order(void* p, StreamId own) {
  const Block& block = blocks_.at(p);
  // Events of a stream pass in the order of the frees, so the latest one covers the others.
  for (const StreamId stream : block.streams) {
    const Queue& queue = queues_.at(stream);
    const auto marker = std::ranges::find(queue, p, &Marker::block);
    if (marker == queue.end()) continue;  // that stream is done
    // Another stream may have the handle of a destroyed one, and has not waited.
    const bool stays = !table_.may_vanish(own);
    if (stays && ordered_[{own, stream}] >= block.number) continue;
    if (!streams_.wait(table_.handle_of(own), marker->event)) return false;
    ++waits_;
    if (stays) ordered_[{own, stream}] = block.number;
  }
  drop(p);
  return true;
}

bool DelayedFrees::has_lasting_users(const void* p) const {
  const std::vector<StreamId>& streams = blocks_.at(const_cast<void*>(p)).streams;
  return std::ranges::none_of(streams,
                              [this](StreamId s) { return s == kNone || table_.may_vanish(s); });
}

void DelayedFrees::drop(void* p) {
  for (const StreamId stream : blocks_.at(p).streams) {
    Queue& queue = queues_.at(stream);
    const auto marker = std::ranges::find(queue, p, &Marker::block);
    if (marker == queue.end()) continue;
    streams_.recycle(marker->event);
    queue.erase(marker);
  }
  blocks_.erase(p);
  --waiting_;
}

bool DelayedFrees::settle(void* p, bool failed) {
  Block& block = blocks_.at(p);
  --block.events;
  if (failed && !block.lost) {
    block.lost = true;
    ++lost_;
  }
  return block.events == 0 && !block.lost;
}

void* DelayedFrees::take_done() {
  void* p = done_.back();
  done_.pop_back();
  blocks_.erase(p);
  --waiting_;
  return p;
}

void* DelayedFrees::next_done() {
  if (!done_.empty()) return take_done();
  if (captures_ > 0) return nullptr;
  for (std::size_t asked = 0; asked < order_.size(); ++asked) {
    next_queue_ = (next_queue_ + 1) % order_.size();
    Queue& queue = queues_.at(order_[next_queue_]);
    if (queue.empty()) continue;
    const auto [event, p] = queue.front();
    const device::DeviceStreams::Progress progress = streams_.query(event);
    if (progress == device::DeviceStreams::Progress::kPending) return nullptr;
    queue.pop_front();
    streams_.recycle(event);
    if (settle(p, progress == device::DeviceStreams::Progress::kFailed)) {
      done_.push_back(p);
      return take_done();
    }
    asked = 0;
  }
  return nullptr;
}

bool DelayedFrees::finish() {
  // A lost block may be in use on another device, whose streams have no number here.
  if (captures_ > 0 || !streams_.synchronize(/*everywhere=*/lost_ > 0)) return false;
  for (auto& [stream, queue] : queues_) {
    for (const Marker& marker : queue) streams_.recycle(marker.event);
    queue.clear();
  }
  done_.clear();
  for (const auto& [p, block] : blocks_) {
    if (block.waiting) done_.push_back(p);
  }
  lost_ = 0;
  return true;
}

std::vector<DelayedFrees::Lost> DelayedFrees::lost() const {
  std::vector<Lost> result;
  for (const auto& [p, block] : blocks_) {
    if (block.waiting && block.lost) result.push_back({p, block.number});
  }
  return result;
}

void DelayedFrees::found(const std::vector<Lost>& blocks) {
  for (const Lost& known : blocks) {
    const auto it = blocks_.find(known.block);
    if (it == blocks_.end() || !it->second.lost || it->second.number != known.number) continue;
    it->second.lost = false;
    --lost_;
    if (it->second.events == 0) done_.push_back(known.block);
  }
}

void DelayedFrees::end_capture() {
  if (captures_ == 0 || --captures_ > 0) return;
  for (void* p : deferred_) record(p);
  deferred_.clear();
}

void DelayedFrees::abandon() {
  queues_.clear();
  ordered_.clear();
  order_.clear();
  deferred_.clear();
  captures_ = 0;
  lost_ = 0;
  done_.clear();
  for (const auto& [p, block] : blocks_) {
    if (block.waiting) done_.push_back(p);
  }
  std::erase_if(blocks_, [](const auto& entry) { return !entry.second.waiting; });
}

}  // namespace stalloc::runtime
