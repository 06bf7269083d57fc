// A GPU's memory: pieces from cudaMalloc, and pools of virtual memory.
//
// A pool of virtual memory is a reserved range of addresses with memory mapped into it
// (cuda_virtual.h): suspend() unmaps the memory and keeps the addresses, resume() maps other
// memory there, grow() maps more behind it, and detach() and attach() move parts of it. A pool that
// grows has addresses for several times the device's memory.
// All devices that can reach this one have access, as with cudaMalloc. cudaIpcGetMemHandle cannot
// share such memory between processes, but its chunks can be shared (share()). Only pools are
// virtual, and only if they may be.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "device/cuda_runtime.h"
#include "device/cuda_virtual.h"
#include "device/memory.h"
#include "device/tally.h"

namespace stalloc::device {

class CudaMemory final : public DeviceMemory {
 public:
  // Throws Error if no runtime is loaded.
  explicit CudaMemory(int device);

  // "cuda:0", with HIP too, as torch calls it.
  std::string_view name() const override { return name_; }
  int device() const { return device_; }

  // All these throw Error if the device fails, except for lack of memory.
  void* allocate(Bytes size) override;
  bool use_virtual(VirtualPools pools) override;
  void* allocate_pool(Bytes size, bool grows) override;
  void* allocate_addresses(Bytes size, Bytes memory) override;
  void* allocate_movable(Bytes size, Bytes memory, Bytes chunk) override;
  bool can_grow(const void* pool) const override;
  Bytes room(const void* pool) const override;
  bool grow(void* pool, Bytes before, Bytes size) override;
  bool extend(void* pool, Bytes before, Bytes size) override;
  Range detach(void* pool, Range range) override;
  Offset large_chunk_at(const void* pool, Offset offset) const override;
  bool attach(void* pool, Range range) override;
  bool attach_again(void* pool, Range range) override;
  void drop_detached(void* pool) noexcept override;
  void release(void* piece, Bytes size) noexcept override;
  // Shares the chunks of a pool that hold `size` bytes from `p` on. None if they cannot be shared,
  // or `p` is in no pool of virtual memory. They must stay where they are while others use them.
  std::optional<CudaVirtualRange::Shared> share(const void* p, Bytes size);
  bool suspend(void* piece, Bytes size) override;
  bool resume(void* piece, Bytes size) override;
  Bytes available() const override;
  // The device is asked once: the answer stays the same, even if the device is lost later.
  Bytes total() const;

  // Limits the bytes held at a time, those held already included. 0: only the device limits them.
  void set_limit(Bytes limit);

  // A watcher learns which memory is held: right after it is taken, and right before it goes. A
  // pool that grows gets parts, which go before it, the last one first. Memory that moves goes, and
  // is added as another part.
  enum class Step : std::uint8_t { kTaken, kPartAdded, kPartGoes, kGoes };
  // Called on the thread that takes or returns the memory, which may hold the runtime's lock.
  using Watcher = void (*)(Step step, int device, void* begin, Bytes size) noexcept;
  // Null: none.
  void set_watcher(Watcher watcher) { watcher_.store(watcher, std::memory_order_release); }

  // Memory held of the device, in bytes and in pieces.
  struct Held {
    Tally bytes;
    Tally pieces;
  };
  struct HeldBySize {
    Held all;
    Held small;  // pieces of at most unit()
    Held large;
  };
  HeldBySize held() const;
  void reset_peaks();
  void reset_totals();

 private:
  using Parts = std::map<Offset, Bytes>;  // that the watcher knows: their sizes, by offset
  struct Pool {
    std::unique_ptr<CudaVirtualRange> range;
    Parts parts;
    Bytes held = 0;   // as asked for; without whole units
    Bytes spare = 0;  // of these, detached
  };

  // Sets `size` bytes aside unless they exceed the limit; settle() says if the device gave them.
  // So figures and peaks count only memory that was held.
  bool set_aside(Bytes size);
  void settle(Bytes size, bool taken) noexcept;
  bool has_space(Bytes size) const;  // the mutex is held
  void note(Bytes size, bool taken) noexcept;
  void give_back(Bytes size) noexcept;
  void tell(Step step, void* begin, Bytes size) const noexcept;
  void tell_that_parts_go(std::uintptr_t begin, const Parts& parts) const noexcept;
  Pool* find(const void* pool);  // the mutex is held
  using Map = bool (CudaVirtualRange::*)(Range);
  bool add(Pool& pool, Range mapped, Range added, Map map);
  bool attach(void* memory, Range range, Map map);
  void change(Pool& pool, Bytes held) noexcept;
  void* allocate_plain(Bytes size);
  // Virtual memory that is wanted: `size` bytes of addresses, the first of which have `memory`.
  struct Virtual {
    Bytes size = 0;
    Bytes memory = 0;
    bool grows = false;
    Bytes chunk = 0;  // in which it moves if it does not grow; 0: it does not move
  };
  void* allocate_virtual(const Virtual& wanted);
  void* map_virtual(const Virtual& wanted);
  bool may_move() const;
  struct Info {
    Bytes free = 0;
    Bytes total = 0;
  };
  Info info() const;
  Bytes whole_units(Bytes size) const {
    return CudaVirtualRange::whole_units(runtime_, device_, size);
  }
  [[noreturn]] void fail(const std::string& what, CudaRuntime::Error error) const {
    runtime_.fail(what, device_, error);
  }

  const CudaRuntime& runtime_;
  const int device_;
  const std::string name_;
  std::atomic<VirtualPools> virtual_pools_{VirtualPools::kGrowing};
  mutable std::atomic<Bytes> total_{0};  // 0: not known yet
  std::atomic<Watcher> watcher_{nullptr};
  mutable std::mutex mutex_;              // guards the members below
  std::map<std::uintptr_t, Pool> pools_;  // of virtual memory
  Bytes limit_ = 0;
  Bytes set_aside_ = 0;
  HeldBySize held_;
};

}  // namespace stalloc::device
