#include "device/cuda_virtual.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/align.h"
#include "base/format.h"

namespace stalloc::device {
namespace {

std::size_t in_bytes(Bytes size) { return static_cast<std::size_t>(size); }

}  // namespace

CudaRuntime::AllocationProperties memory_of(int device) {
  CudaRuntime::AllocationProperties result;
  result.location.device = device;
  return result;
}

std::vector<CudaRuntime::Access> accesses_of(const CudaRuntime& runtime, int device) {
  int count = 0;
  if (!runtime.can_access_peer || runtime.get_device_count(&count)) {
    runtime.get_last_error();
    count = 0;
  }
  std::vector<CudaRuntime::Access> result(1);
  result.front().location.device = device;
  for (int peer = 0; peer < count; ++peer) {
    int can = 0;
    if (peer == device || runtime.can_access_peer(&can, peer, device) || can == 0) continue;
    result.emplace_back().location.device = peer;
  }
  return result;
}

CudaVirtualRange::CudaVirtualRange(const CudaRuntime& runtime, int device, Bytes room, Bytes chunk)
    : runtime_(runtime), device_(device), room_(room), chunk_(chunk) {
  if (const auto error = runtime_.address_reserve(&begin_, in_bytes(room), 0, 0, 0)) {
    runtime_.fail("reserving " + format_bytes(room) + " of addresses", device_, error);
  }
}

CudaVirtualRange::~CudaVirtualRange() {
  clear();
  runtime_.address_free(begin_, in_bytes(room_));
}

Bytes CudaVirtualRange::whole_units(const CudaRuntime& runtime, int device, Bytes size) {
  std::size_t granularity = 0;
  const auto wanted = memory_of(device);
  if (const auto error = runtime.memory_granularity(&granularity, &wanted, /*minimum=*/0)) {
    runtime.fail("asking for the granularity of virtual memory", device, error);
  }
  return align_up(size, static_cast<Bytes>(granularity));
}

// Memory that other processes can map, where the device has such.
CudaRuntime::Error CudaVirtualRange::create(Chunk* chunk) {
  auto wanted = memory_of(device_);
  const auto take = [&] {
    return runtime_.memory_create(&chunk->handle, in_bytes(chunk->size), &wanted, /*flags=*/0);
  };
  is_shareable_ = is_shareable_ && runtime_.memory_export;
  wanted.handle_types = is_shareable_ ? CudaRuntime::kFile : 0;
  const auto error = take();
  const bool refused = error == CudaRuntime::kNotSupported || error == CudaRuntime::kNotPermitted;
  if (!refused || !is_shareable_) return error;
  runtime_.get_last_error();
  is_shareable_ = false;
  wanted.handle_types = 0;
  return take();
}

void CudaVirtualRange::release(const Chunk& chunk) noexcept {
  if (chunk.file >= 0) {
    close(chunk.file);
    --files_;
  }
  runtime_.memory_release(chunk.handle);
}

Bytes CudaVirtualRange::large_chunk(Range r) const {
  const Bytes parts = quiet_turns_ < kQuietTurns ? kManyParts : kFewParts;
  const Bytes part = align_up(std::max(end_, r.end) / parts + 1, chunk_);
  return std::clamp(part, chunk_, std::max(chunk_, kLargest));
}

// A kept chunk, or a new one of `size`. False if the device lacks the memory.
bool CudaVirtualRange::take_chunk(Bytes size, Bytes at_most, Chunk* chunk) {
  const auto kept = std::ranges::find_if(kept_, [&](const Chunk& c) { return c.size <= at_most; });
  if (kept != kept_.end()) {
    quiet_turns_ = 0;
    small_turns_ = std::max(small_turns_, 1);
    *chunk = *kept;
    kept_.erase(kept);
    return true;
  }
  chunk->size = std::min(size, at_most);
  const auto error = create(chunk);
  if (error == CudaRuntime::kSuccess) return true;
  if (error != CudaRuntime::kOutOfMemory) {
    runtime_.fail("taking " + format_bytes(chunk->size), device_, error);
  }
  runtime_.get_last_error();
  return false;
}

// No work has used these chunks.
void CudaVirtualRange::undo(const std::map<Bytes, Chunk>& added) noexcept {
  for (const auto& [at, chunk] : added) {
    runtime_.memory_unmap(begin_ + in_bytes(at), in_bytes(chunk.size));
    kept_.push_back(chunk);  // as many as before the call at least, or room was made
  }
}

bool CudaVirtualRange::map_in(Range r, Bytes chunk_size) {
  std::map<Bytes, Chunk> added;
  kept_.reserve(kept_.size() + static_cast<std::size_t>(r.size() / chunk_) + 1);
  // The driver may lack memory for its tables, too.
  const auto lacks_memory = [&](CudaRuntime::Error error) {
    if (error != CudaRuntime::kOutOfMemory) {
      runtime_.fail("mapping " + format_bytes(r.size()), device_, error);
    }
    runtime_.get_last_error();
    undo(added);
    return false;
  };
  try {
    for (Offset at = r.begin; at < r.end; at += added.rbegin()->second.size) {
      Chunk chunk;
      if (!take_chunk(at == 0 ? chunk_ : chunk_size, r.end - at, &chunk)) {
        undo(added);
        return false;
      }
      if (const auto error = runtime_.memory_map(begin_ + in_bytes(at), in_bytes(chunk.size), 0,
                                                 chunk.handle, 0)) {
        kept_.push_back(chunk);
        return lacks_memory(error);
      }
      added.emplace(at, chunk);
    }
    const auto allowed = accesses_of(runtime_, device_);
    if (const auto error = runtime_.memory_set_access(
            begin_ + in_bytes(r.begin), in_bytes(r.size()), allowed.data(), allowed.size())) {
      return lacks_memory(error);
    }
  } catch (...) {
    undo(added);
    throw;
  }
  chunks_.merge(added);
  end_ = std::max(end_, r.end);
  return true;
}

Offset CudaVirtualRange::large_chunk_at(Offset offset) const {
  const auto next = chunks_.lower_bound(offset);
  if (next == chunks_.begin()) return offset;
  const auto& [at, chunk] = *std::prev(next);
  return chunk.size > chunk_ && offset < at + chunk.size ? at : offset;
}

// True if a large chunk at the border of `r` stays, of which a small one would go.
bool CudaVirtualRange::hides_small_chunk(Range r, Offset border) const {
  const Offset at = large_chunk_at(border);
  if (at == border) return false;
  const Offset end = std::min(r.end, at + chunks_.at(at).size);
  return (end - at) / chunk_ * chunk_ - align_up(std::max(r.begin, at) - at, chunk_) >= chunk_;
}

// Something happens to the memory for the first time since it came back.
void CudaVirtualRange::begin_turn() {
  if (!std::exchange(came_back_, false)) return;
  in_the_way_ = false;
  shared_ = is_shared_;
}

void CudaVirtualRange::be_in_the_way() {
  if (std::exchange(in_the_way_, true)) return;
  small_turns_ = std::max(small_turns_, next_small_turns_);
  next_small_turns_ = std::min(2 * next_small_turns_, kMostSmallTurns);
}

bool CudaVirtualRange::map_again(Range r) {
  if (!std::exchange(came_back_, true)) {
    if (is_mapped() && holds_back_) small_turns_ = kAllTurns;
    holds_back_ = false;
    small_ = small_turns_ > 0;
    small_turns_ -= small_ ? 1 : 0;
    quiet_turns_ = std::min(quiet_turns_ + 1, kQuietTurns);
  }
  return map_in(r, small_ ? chunk_ : large_chunk(r));
}

Range CudaVirtualRange::unmap(Range r) {
  begin_turn();
  if (hides_small_chunk(r, r.begin) || hides_small_chunk(r, r.end)) {
    holds_back_ = true;
    quiet_turns_ = 0;
    be_in_the_way();
  }
  auto chunk = chunks_.lower_bound(std::max<Bytes>(r.begin, 1));
  if (chunk == chunks_.end() || chunk->first + chunk->second.size > r.end) return {};
  if (runtime_.device_synchronize()) {  // no memory moves then
    runtime_.get_last_error();
    return {};
  }
  Range done{chunk->first, chunk->first};
  while (chunk != chunks_.end() && chunk->first + chunk->second.size <= r.end) {
    const auto& [at, c] = *chunk;
    kept_.reserve(kept_.size() + 1);
    if (runtime_.memory_unmap(begin_ + in_bytes(at), in_bytes(c.size))) {
      runtime_.get_last_error();
      break;
    }
    if (c.size > chunk_) {
      release(c);
    } else {
      kept_.push_back(c);
    }
    done.end = at + c.size;
    chunk = chunks_.erase(chunk);
  }
  const auto& [last, last_chunk] = *chunks_.rbegin();  // the first one is always there
  end_ = last + last_chunk.size;
  return done;
}

std::optional<CudaVirtualRange::Shared> CudaVirtualRange::share(Range r) {
  if (!is_mapped_at(r.begin) || !is_shareable_) return std::nullopt;
  begin_turn();
  if (shared_) be_in_the_way();
  small_turns_ = std::max(small_turns_, 1);
  is_shared_ = true;
  auto chunk = std::prev(chunks_.upper_bound(r.begin));
  Shared result{begin_ + in_bytes(chunk->first), chunk->second.size, {}};
  for (Bytes end = chunk->first; end < r.end; end += result.chunk, ++chunk) {
    if (chunk == chunks_.end() || chunk->first != end) return std::nullopt;
    Chunk& c = chunk->second;
    if (c.size != result.chunk) return std::nullopt;
    if (c.file < 0) {
      if (files_ == kMostFiles) return std::nullopt;
      if (runtime_.memory_export(&c.file, c.handle, CudaRuntime::kFile, /*flags=*/0)) {
        runtime_.get_last_error();
        c.file = -1;
        return std::nullopt;
      }
      ++files_;
    }
    result.files.push_back(c.file);
  }
  return result;
}

void CudaVirtualRange::drop_kept() noexcept {
  for (const Chunk& chunk : kept_) release(chunk);
  kept_.clear();
}

// Errors go unreported: at the end of the process, or after a crash, the memory goes by itself.
void CudaVirtualRange::clear() noexcept {
  begin_turn();
  bool failed = !chunks_.empty() && runtime_.device_synchronize() != CudaRuntime::kSuccess;
  for (const auto& [at, chunk] : chunks_) {
    failed = runtime_.memory_unmap(begin_ + in_bytes(at), in_bytes(chunk.size)) || failed;
    release(chunk);
  }
  if (failed) runtime_.get_last_error();
  chunks_.clear();
  end_ = 0;
  drop_kept();
}

}  // namespace stalloc::device
