// Shares tensors with other processes, by handles as torch's allocator makes them: it opens them
// there.
//
// A handle is a byte for the version of the format and one for the kind of memory, followed by
//
//   plain memory     CUDA's handle of the whole segment
//   virtual memory   a header, and a file descriptor of each chunk, for the other process to fetch
//
// The parts that depend on torch's version are copied from a handle that torch makes.
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "torch/cuda/allocator.h"
#include "torch/cuda/runtimes.h"

namespace stalloc::torch_adapters {
namespace {

constexpr char kPlain = 'c', kVirtual = 'e';
constexpr char kHowToShare[] =
    "Share it while the profile is recorded, too, or enable the plan with keep_addresses=False: "
    "the pool is plain memory then, and torch's segments stay as they are; or clone the tensor to "
    "the CPU and share that";

// The header follows the first two bytes of a handle of virtual memory. Newer versions of torch
// have a member more, by which a fabric's handles are told from files.
struct Header {
  pid_t process;
  char padding[8 - sizeof(pid_t)];
  std::uint64_t chunk;  // its size in bytes
  std::uint64_t chunks;
  std::int32_t kind;
  char more_padding[4];
};
constexpr std::size_t kPrefix = 2;
constexpr std::size_t kShortHeader = offsetof(Header, kind);
constexpr std::int32_t kFiles = 1;

// The first bytes of a handle of torch's, without what follows the header; empty unless it is one
// of virtual memory in the format above.
std::string begin_of(const std::string& handle) {
  Header header{};
  if (handle.size() < kPrefix + kShortHeader || handle[1] != kVirtual) return {};
  std::memcpy(&header, handle.data() + kPrefix, kShortHeader);
  const std::size_t begin = handle.size() - header.chunks * sizeof(int);
  if (header.process != getpid() || begin > handle.size()) return {};
  if (begin == kPrefix + kShortHeader) return handle.substr(0, begin);
  if (begin != kPrefix + sizeof(Header)) return {};
  std::memcpy(&header, handle.data() + kPrefix, sizeof(header));
  return header.kind == kFiles ? handle.substr(0, begin) : std::string();
}

// The handle of other chunks that begins like torch's.
std::string virtual_handle(const std::string& begin,
                           const device::CudaVirtualRange::Shared& shared) {
  Header header{};
  header.process = getpid();
  header.chunk = static_cast<std::uint64_t>(shared.chunk);
  header.chunks = shared.files.size();
  header.kind = kFiles;
  std::string result = begin.substr(0, kPrefix);
  result.append(reinterpret_cast<const char*>(&header), begin.size() - kPrefix);
  result.append(reinterpret_cast<const char*>(shared.files.data()),
                shared.files.size() * sizeof(int));
  return result;
}

std::ptrdiff_t distance(const void* p, const void* begin) {
  return static_cast<const char*>(p) - static_cast<const char*>(begin);
}

}  // namespace

allocator_api::ShareableHandle CudaAllocator::shareIpcHandle(void* p) {
  for (c10::DeviceIndex i = 0; i < runtime::DeviceRuntime::kGpus; ++i) {
    if (runtime::DeviceRuntime* runtime = runtime::DeviceRuntime::find_gpu(i)) {
      runtime->recorder().on_share(p);
    }
  }
  c10::DeviceIndex device = 0;
  const runtime::Inspection::Piece piece = piece_of(p, &device);
  if (!piece.begin) return share_torchs(p);
  const c10::cuda::CUDAGuard guard(device);
  const Probe probe = make_probe();
  std::string theirs;
  std::string problem = "its handles are of an unknown kind";
  try {
    theirs = to().shareIpcHandle(probe.get()).handle;
  } catch (const c10::Error& e) {
    problem = e.what_without_backtrace();
  }
  note_format(theirs);
  if (auto shared = share_virtual(p, device)) return std::move(*shared);
  TORCH_CHECK(theirs.size() >= kPrefix && (theirs[1] == kPlain || theirs[1] == kVirtual),
              "a tensor in stalloc's pool cannot be shared with another process here: torch's own "
              "tensors cannot be either (",
              problem, "). ", kHowToShare);
  cudaIpcMemHandle_t whole;
  const bool is_shareable = cudaIpcGetMemHandle(&whole, piece.begin) == cudaSuccess;
  if (!is_shareable) static_cast<void>(cudaGetLastError());  // else the next kernel reports it
  TORCH_CHECK(is_shareable,
              "a tensor in stalloc's pool cannot be shared with another process here: the pool is "
              "virtual memory, whose chunks there cannot be shared. ",
              kHowToShare, ", or clone it in a torch.cuda.MemPool, which torch serves");
  std::string handle = {theirs[0], kPlain};
  handle.append(reinterpret_cast<const char*>(&whole), sizeof(whole));
  return {distance(p, piece.begin), std::move(handle)};
}

void CudaAllocator::note_virtual_block(void* p) {
  try {
    note_format(to().shareIpcHandle(p).handle);
  } catch (const c10::Error&) {  // shareIpcHandle() tells why, if anybody shares
  }
}

void CudaAllocator::when_sharing_is_unknown(std::function<void()> show) {
  const std::lock_guard lock(mutex_);
  if (!show_sharing_) show_sharing_ = std::move(show);
}

std::string CudaAllocator::virtual_begin() const {
  std::function<void()> show;
  {
    const std::lock_guard lock(mutex_);
    if (!virtual_begin_.empty()) return virtual_begin_;
    show = show_sharing_;
  }
  if (show) show();
  const std::lock_guard lock(mutex_);
  return virtual_begin_;
}

void CudaAllocator::note_format(const std::string& handle) {
  const std::string begin = begin_of(handle);
  if (begin.empty()) return;
  const std::lock_guard lock(mutex_);
  virtual_begin_ = begin;
}

std::optional<allocator_api::ShareableHandle> CudaAllocator::share_virtual(
    void* p, c10::DeviceIndex device) {
  runtime::DeviceRuntime& runtime = *runtime::DeviceRuntime::find_gpu(device);
  const auto block = runtime.allocator().inspect().block_of(p);
  if (!block) return std::nullopt;
  auto& memory = dynamic_cast<device::CudaMemory&>(runtime.memory());
  const auto shared = memory.share(p, block->rounded);
  if (!shared) return std::nullopt;
  const std::string begin = virtual_begin();
  if (begin.empty()) return std::nullopt;
  return allocator_api::ShareableHandle{distance(p, reinterpret_cast<const void*>(shared->begin)),
                                        virtual_handle(begin, *shared)};
}

// Torch's refusal to share a block of an expandable segment names a call of the driver, and the
// program may not know of such segments.
allocator_api::ShareableHandle CudaAllocator::share_torchs(void* p) {
  TORCH_CHECK(!loans_.lent(p),
              "a tensor in the memory of captured graphs cannot be shared with another process; "
              "clone it in a torch.cuda.MemPool, which torch serves, or leave out eager=True of "
              "stalloc.share_graphs()");
  if (!expands_.load()) return to().shareIpcHandle(p);
  try {
    return to().shareIpcHandle(p);
  } catch (const c10::Error& e) {
    TORCH_CHECK(false, e.what_without_backtrace(),
                "\nstalloc has turned torch's expandable segments on beside the plan's pool, and a "
                "tensor in them cannot be shared with another process here. ",
                kHowToShare);
  }
}

}  // namespace stalloc::torch_adapters
