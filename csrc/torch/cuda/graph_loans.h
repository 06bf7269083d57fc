// Eager blocks in the memory of captured graphs, between their replays.
//
// The chunks that graphs share (device/graph_memory.h) hold nothing between two replays. Requests
// of 2 MiB or more that are expected to be freed before the next one (device/loan_book.h) come to
// lie there:
//
//   replay of A | eager blocks | replay of B | eager blocks | replay of A
//
// torch places them. It has a private pool for each stream, whose only segment has all these chunks
// behind its addresses, and which is open for one request of one thread at a time. So torch's
// statistics, snapshots and record_stream() know the blocks.
//
// A replay begins with the question if such a block is alive. If so, the block keeps its memory and
// the graphs get other, which costs a wait for the device; the pool takes no further block.
//
// Order of work. The memory has one user at a time: a graph, or the blocks of one stream. A stream
// waits on the device for the replay before its first block, and a replay waits for that stream,
// and for those that record_stream() named. A request that comes while a replay begins is served
// elsewhere, and the replay waits until no such request is underway.
//
// During captures nothing is lent, and no block lives in the memory when one begins: what a graph
// reads must stay where it is.
//
// Thread-safe. Holds no lock while it calls torch's allocator.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/loan_book.h"
#include "runtime/device_runtime.h"
#include "torch/cuda/delegate.h"
#include "torch/cuda/hidden_requests.h"

namespace stalloc::torch_adapters {

// Never destroyed.
class GraphLoans {
  struct State;

 public:
  // `torchs` outlives this.
  explicit GraphLoans(allocator_api::CUDAAllocator& torchs) : torchs_(torchs) {}

  // Lends from now on; if graphs may run already, from the next replay on.
  void start(c10::DeviceIndex device, bool may_run);
  // Lends no more. What is lent is still looked for at each replay.
  void stop(c10::DeviceIndex device);
  // The program may launch graphs by itself: lends no more, and waits for the device.
  void end(c10::DeviceIndex device);

  bool lends(c10::DeviceIndex device) const { return state(device).lends.load(); }
  bool lends_anywhere() const { return lending_.load(std::memory_order_relaxed) > 0; }

  // Returns a block that lies in the memory of graphs, or none. `request` asks torch's allocator.
  c10::DataPtr lend(c10::DeviceIndex device, Bytes size, c10::cuda::CUDAStream stream,
                    const std::function<c10::DataPtr()>& request);

  // To be alive while a block is given to torch's allocator that may lie in the memory of graphs.
  class Free {
   public:
    Free(GraphLoans& loans, void* p) : loans_(loans), state_(loans.begin_free(p)) {}
    ~Free() {
      if (state_) loans_.end_free(*state_);
    }
    Free(const Free&) = delete;
    Free& operator=(const Free&) = delete;

   private:
    GraphLoans& loans_;
    State* const state_;
  };
  void record_stream(void* p, c10::cuda::CUDAStream stream);
  // True if `p` lies at addresses that are, or were, lent.
  bool lent(const void* p) const;

  // A graph is about to be launched on `stream` of the device; `stays`: torch's own stream. Throws
  // OutOfMemory or Error, and then the graph must not be.
  void begin_replay(c10::DeviceIndex device, cudaStream_t stream, bool stays);
  void end_replay(c10::DeviceIndex device);
  // A capture is about to begin. Throws the same.
  void begin_capture(c10::DeviceIndex device);
  // Its memory is settled, or it has failed.
  void end_capture(c10::DeviceIndex device);

  // The requests by which torch's allocator is told of the memory.
  HiddenRequests& hidden() { return hidden_; }
  // Gives back what is kept of the memory of graphs that are gone. Returns true if there was any.
  bool give_back();

 private:
  using Pool = c10::MempoolId_t;
  struct Arena {  // the pool of a stream
    Pool id;
    device::GraphMemory::Addresses memory;
    std::uint64_t changes = 0;  // of the graphs' memory, when it was made
  };
  struct State {  // of a device
    c10::DeviceIndex device = 0;
    std::atomic<bool> lends{false};
    // Guarded by mutex_.
    bool is_requesting = false;  // a thread is about to get a block
    int frees = 0;               // blocks that torch's allocator is about to get back
    bool is_replaying = false;
    int captures = 0;
    bool waits_for_replay = false;  // its order is not known
    device::LoanBook book;
    std::map<cudaStream_t, Arena> arenas;
    std::optional<std::uint64_t> refused;  // the changes with which no arena could be made
    std::optional<cudaStream_t> user;      // of the memory since the last replay
    std::optional<cudaStream_t> replay;    // the stream of the last one
    std::unordered_map<void*, std::vector<c10::cuda::CUDAStream>> recorded;  // by block
    std::vector<cudaEvent_t> uses;  // that the next replay waits for
    bool has_unknown_use = false;   // for which it waits with the host
    device::GraphMemory* memory = nullptr;
    std::shared_ptr<Delegate> segments;
  };
  class Request;

  State& state(c10::DeviceIndex device) { return states_[static_cast<std::size_t>(device)]; }
  const State& state(c10::DeviceIndex device) const {
    return states_[static_cast<std::size_t>(device)];
  }
  State* begin_free(void* p);
  void end_free(State& state);
  // Makes the pool of a stream. Returns false if it cannot be.
  bool make_arena(State& state, c10::cuda::CUDAStream stream);
  // Calls torch's allocator with the pool open for the calling thread.
  template <typename Call>
  auto in_pool(c10::DeviceIndex device, Pool id, Call call);
  // Takes the pools out of use. Their memory stays while a block lives there.
  void drop(State& state, std::map<cudaStream_t, Arena> arenas);
  // Lets lent blocks that live keep their memory, so that none is lent. No request is underway.
  void keep_live(State& state, std::unique_lock<std::mutex>& lock, bool is_replay);
  // Lets `stream` wait for all that has used the memory.
  void wait_for_uses(State& state, cudaStream_t stream);
  // Takes the pools from a device, if no block is there.
  std::map<cudaStream_t, Arena> unused_arenas(State& state, bool stale_only);
  // Lends no more.
  void refuse(State& state);
  void wait_for_request(State& state, std::unique_lock<std::mutex>& lock);

  allocator_api::CUDAAllocator& torchs_;
  HiddenRequests hidden_;
  mutable std::mutex mutex_;
  std::condition_variable requested_;
  std::array<State, runtime::DeviceRuntime::kGpus> states_;
  std::atomic<int> lending_{0};          // devices
  std::atomic<std::size_t> loans_{0};    // blocks that are known as lent, of all devices
  std::atomic<std::uint64_t> pools_{0};  // made
};

}  // namespace stalloc::torch_adapters
