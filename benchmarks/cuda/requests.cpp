// Allocates and frees through torch's C++ interface as tensors do, from c10's allocator to the
// deleter.
#include <c10/cuda/CUDACachingAllocator.h>
#include <time.h>

#include <cstdint>
#include <vector>

namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

// Makes `count` requests that cycle through the sizes. Each is freed once `live` younger ones
// exist. Returns the seconds of CPU time.
extern "C" double run(std::int64_t count, const std::int64_t* sizes, std::int64_t size_count,
                      std::int64_t live) {
  std::vector<c10::DataPtr> blocks(static_cast<std::size_t>(live));
  const double start = cpu_seconds();
  for (std::int64_t i = 0; i < count; ++i) {
    auto* allocator = c10::cuda::CUDACachingAllocator::get();
    blocks[static_cast<std::size_t>(i % live)] =
        allocator->allocate(static_cast<std::size_t>(sizes[i % size_count]));
  }
  blocks.clear();
  return cpu_seconds() - start;
}
