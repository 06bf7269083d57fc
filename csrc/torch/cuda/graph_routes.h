// Lets torch place the blocks of a graph that shares memory in two private pools: those that will
// live on lie apart, beside the graph's.
//
// torch fills the holes of a private pool, so a block that lives on comes to lie where temporaries
// were, and its chunk of memory can be shared with nobody. With two pools
//
//   | outputs, gradients, activations for the backward pass | the kept pool
//   | temporaries                                           | the graph's pool
//
// the chunks of the first are full of what lives on, and all those of the second are shared. A
// GraphGuide tells the requests apart.
//
// During a capture a GraphRoutes stands in front of torch's allocator, or of native mode, to see
// the size of each request. torch serves them, so no block needs it when the capture has ended. One
// capture at a time has routes.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "device/graph_guide.h"
#include "torch/cuda/delegate.h"

namespace stalloc::torch_adapters {

// Thread-safe. Never destroyed.
class GraphRoutes final : public Delegate {
 public:
  explicit GraphRoutes(allocator_api::CUDAAllocator& to) : Delegate(to) {}

  c10::DataPtr allocate(size_t n) override;
  void* raw_alloc(size_t n) override;
  void* raw_alloc_with_stream(size_t n, cudaStream_t stream) override;
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;

 private:
  // True if the calling thread's next request is one for the kept pool.
  bool goes_to_kept(size_t n, cudaStream_t stream, c10::DeviceIndex device);
  bool goes_to_kept(size_t n);
};

// A capture into `pool` begins, after `number` others: `kept` serves what will live on.
void begin_graph_routes(int device, c10::MempoolId_t pool, c10::MempoolId_t kept,
                        std::size_t number);
// The capture has ended, or failed. Returns true if the graph holds the kept pool: until
// release_graph_pool().
bool end_graph_routes();
// Tells which requests of the last capture live on, in their order.
void learn_graph_lives(const std::vector<bool>& lives);
void release_graph_pool(int device, c10::MempoolId_t pool);

}  // namespace stalloc::torch_adapters
