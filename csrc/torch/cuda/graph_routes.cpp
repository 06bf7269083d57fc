#include "torch/cuda/graph_routes.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <memory>
#include <utility>

namespace stalloc::torch_adapters {
namespace {

thread_local bool to_kept = false;

class ToKept {
 public:
  explicit ToKept(bool on) : outer_(std::exchange(to_kept, on)) {}
  ~ToKept() { to_kept = outer_; }
  ToKept(const ToKept&) = delete;
  ToKept& operator=(const ToKept&) = delete;

 private:
  const bool outer_;
};

struct Routes {
  std::mutex mutex;
  device::GraphGuide guide;
  bool wanted = false;  // for the capture into `pool`
  c10::DeviceIndex device = 0;
  c10::MempoolId_t pool;
  c10::MempoolId_t kept;
  std::function<bool(cudaStream_t)> takes;  // torch's, of the capture; empty before and after it
  bool holds = false;                       // the graph holds the kept pool
  GraphRoutes* front = nullptr;
  c10::Allocator* registered = nullptr;  // for the device type, before `front`
};

Routes& routes() {
  static auto* const it = new Routes;
  return *it;
}

}  // namespace

bool GraphRoutes::goes_to_kept(size_t n, cudaStream_t stream, c10::DeviceIndex device) {
  Routes& r = routes();
  const std::lock_guard lock(r.mutex);
  if (n == 0 || !r.takes || device != r.device || !r.takes(stream)) return false;
  return r.guide.lives_on(static_cast<Bytes>(n));
}

bool GraphRoutes::goes_to_kept(size_t n) {
  const c10::DeviceIndex device = c10::cuda::current_device();
  return goes_to_kept(n, c10::cuda::getCurrentCUDAStream(device).stream(), device);
}

c10::DataPtr GraphRoutes::allocate(size_t n) {
  const ToKept route(goes_to_kept(n));
  return to().allocate(n);
}

void* GraphRoutes::raw_alloc(size_t n) {
  const ToKept route(goes_to_kept(n));
  return to().raw_alloc(n);
}

void* GraphRoutes::raw_alloc_with_stream(size_t n, cudaStream_t stream) {
  const ToKept route(goes_to_kept(n, stream, c10::cuda::current_device()));
  return to().raw_alloc_with_stream(n, stream);
}

void GraphRoutes::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                      std::function<bool(cudaStream_t)> filter) {
  to().beginAllocateToPool(device, pool, filter);
  Routes& r = routes();
  {
    const std::lock_guard lock(r.mutex);
    if (!r.wanted || r.takes || device != r.device || pool != r.pool) return;
  }
  // If several pools take a stream, torch asks the one that was opened last.
  to().beginAllocateToPool(device, r.kept, [](cudaStream_t) { return to_kept; });
  const std::lock_guard lock(r.mutex);
  r.takes = std::move(filter);
  r.holds = true;
}

void GraphRoutes::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  Routes& r = routes();
  bool ends = false;
  {
    const std::lock_guard lock(r.mutex);
    ends = r.takes && device == r.device && pool == r.pool;
    if (ends) r.takes = nullptr;
  }
  if (ends) to().endAllocateToPool(device, r.kept);
  to().endAllocateToPool(device, pool);
}

void begin_graph_routes(int device, c10::MempoolId_t pool, c10::MempoolId_t kept,
                        std::size_t number) {
  static auto* const known =
      new std::map<allocator_api::CUDAAllocator*, std::unique_ptr<GraphRoutes>>;
  end_graph_routes();
  Routes& r = routes();
  const std::lock_guard lock(r.mutex);
  allocator_api::CUDAAllocator* current = allocator_api::allocator.load();
  auto& front = (*known)[current];
  if (!front) front = std::make_unique<GraphRoutes>(*current);
  r.wanted = true;
  r.device = static_cast<c10::DeviceIndex>(device);
  r.pool = pool;
  r.kept = kept;
  r.holds = false;
  r.front = front.get();
  r.registered = c10::GetAllocator(c10::DeviceType::CUDA);
  r.guide.begin(number);
  allocator_api::allocator.store(r.front);
  c10::SetAllocator(c10::DeviceType::CUDA, r.front, kHighest);
}

bool end_graph_routes() {
  Routes& r = routes();
  if (!r.front) return false;
  bool open = false;
  {
    const std::lock_guard lock(r.mutex);
    open = static_cast<bool>(std::exchange(r.takes, nullptr));
    r.wanted = false;
  }
  if (open) r.front->to().endAllocateToPool(r.device, r.kept);
  // If another has come in front meanwhile, this one stays and passes every call on.
  allocator_api::CUDAAllocator* expected = r.front;
  if (allocator_api::allocator.compare_exchange_strong(expected, &r.front->to())) {
    c10::SetAllocator(c10::DeviceType::CUDA, r.registered, kHighest);
  }
  r.front = nullptr;
  return std::exchange(r.holds, false);
}

void learn_graph_lives(const std::vector<bool>& lives) {
  Routes& r = routes();
  const std::lock_guard lock(r.mutex);
  r.guide.learn(lives);
}

void release_graph_pool(int device, c10::MempoolId_t pool) {
  allocator_api::get()->releasePool(static_cast<c10::DeviceIndex>(device), pool);
}

}  // namespace stalloc::torch_adapters
