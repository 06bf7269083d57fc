// Devices, versions and errors.
#include <cstdio>
#include <cstring>

#include "world.h"

using standin::Call;
using standin::World;

namespace {

constexpr int kCudaVersion = STANDIN_CUDA_MAJOR * 1000;

// The fields of cudaDeviceProp that callers read. The struct differs between CUDA 12 and 13. Only
// these fields are filled in; the rest is zero.
struct Layout {
  std::size_t size;
  std::size_t processors;
  std::size_t threads_per_processor;
  std::size_t registers_per_processor;
  std::size_t blocks_per_processor;
  std::size_t shared_per_processor;
  std::size_t shared_per_block_optin;
};

constexpr std::size_t kNotFilled = 0;
constexpr Layout kLayout12{1032, 388, 624, kNotFilled, kNotFilled, kNotFilled, kNotFilled};
constexpr Layout kLayout13{1008, 384, 604, 632, 688, 624, 672};
constexpr Layout kLayout = STANDIN_CUDA_MAJOR == 12 ? kLayout12 : kLayout13;

// These are the same in both.
constexpr std::size_t kUuid = 256, kTotalMemory = 288, kSharedPerBlock = 296,
                      kRegistersPerBlock = 304, kWarp = 308, kThreadsPerBlock = 320,
                      kThreadsDim = 324, kGridSize = 336, kMajor = 360, kMinor = 364;

template <typename T>
void put(void* properties, std::size_t at, T value) {
  if (at != kNotFilled) std::memcpy(static_cast<char*>(properties) + at, &value, sizeof value);
}

int fill(World& w, void* p, int device) {
  if (device < 0 || device >= w.devices()) return standin::kInvalidDevice;
  std::memset(p, 0, kLayout.size);
  std::snprintf(static_cast<char*>(p), 256, "stand-in %d", device);
  put(p, kUuid, device + 1);
  put(p, kTotalMemory, w.memory.devices()[static_cast<std::size_t>(device)].capacity);
  put(p, kSharedPerBlock, std::size_t{49152});
  put(p, kRegistersPerBlock, 65536);
  put(p, kWarp, 32);
  put(p, kThreadsPerBlock, 1024);
  for (int i = 0; i < 3; ++i) {
    const auto offset = static_cast<std::size_t>(i) * sizeof(int);
    put(p, kThreadsDim + offset, i == 2 ? 64 : 1024);
    put(p, kGridSize + offset, i == 0 ? 2147483647 : 65535);
  }
  put(p, kMajor, 9);
  put(p, kMinor, 0);
  put(p, kLayout.processors, 132);
  put(p, kLayout.threads_per_processor, 2048);
  put(p, kLayout.registers_per_processor, 65536);
  put(p, kLayout.blocks_per_processor, 32);
  put(p, kLayout.shared_per_processor, std::size_t{233472});
  put(p, kLayout.shared_per_block_optin, std::size_t{232448});
  return standin::kSuccess;
}

}  // namespace

extern "C" {

int cudaGetDeviceCount(int* count) {
  static Call call("cudaGetDeviceCount");
  return call([&](World& w) {
    *count = w.devices();
    return w.devices() > 0 ? int{standin::kSuccess} : 100;  // cudaErrorNoDevice
  });
}

int cudaGetDevice(int* device) {
  if (const int error = standin::process_error()) return error;
  *device = standin::current_device;
  return standin::kSuccess;
}

int cudaSetDevice(int device) {
  static Call call("cudaSetDevice");
  return call([&](World& w) {
    if (device < 0 || device >= w.devices()) return int{standin::kInvalidDevice};
    standin::current_device = device;
    w.contexts |= standin::bit(device);
    return int{standin::kSuccess};
  });
}

int cudaGetDeviceProperties(void* properties, int device) {
  static Call call("cudaGetDeviceProperties");
  return call([&](World& w) { return fill(w, properties, device); });
}

int cudaGetDeviceProperties_v2(void* properties, int device) {
  return cudaGetDeviceProperties(properties, device);
}

int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  static Call call("cudaDeviceGetAttribute");
  return call([&](World& w) {
    if (device < 0 || device >= w.devices()) return int{standin::kInvalidDevice};
    switch (attribute) {
      case 1:  // threads of a block; the grid of a sort is divided by what follows from it
        *value = 1024;
        break;
      case 5:  // blocks of a grid, along x; CUB divides by it
        *value = 2147483647;
        break;
      case 16:  // multiprocessors
        *value = 132;
        break;
      case 75:  // compute capability, major
        *value = 9;
        break;
      case 10:  // warp
        *value = 32;
        break;
      case 97:  // shared memory a block may opt into
        *value = 232448;
        break;
      case 12:  // registers of a block
      case 82:  // and of a multiprocessor
        *value = 65536;
        break;
      case 13:  // clock rates in kHz
      case 36:
        *value = 1000000;
        break;
      case 37:  // width of the memory's bus
        *value = 5120;
        break;
      case 39:  // threads of a multiprocessor
        *value = 2048;
        break;
      case 102:  // virtual memory management
      case 115:  // memory pools
        *value = 1;
        break;
      default:
        *value = 0;
    }
    return int{standin::kSuccess};
  });
}

int cudaDeviceGetPCIBusId(char* id, int length, int device) {
  static Call call("cudaDeviceGetPCIBusId");
  return call([&](World&) {
    std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
    return int{standin::kSuccess};
  });
}

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  static Call call("cudaDeviceGetStreamPriorityRange");
  return call([&](World&) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return int{standin::kSuccess};
  });
}

int cudaDeviceCanAccessPeer(int* can, int, int) {
  static Call call("cudaDeviceCanAccessPeer");
  return call([&](World& w) {
    *can = w.peers ? 1 : 0;
    return int{standin::kSuccess};
  });
}

int cudaDeviceEnablePeerAccess(int, unsigned) {
  static Call call("cudaDeviceEnablePeerAccess");
  return call([](World&) { return int{standin::kSuccess}; });
}

int cudaDriverGetVersion(int* version) {
  static Call call("cudaDriverGetVersion");
  return call([&](World&) {
    *version = kCudaVersion;
    return int{standin::kSuccess};
  });
}

int cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

const char* cudaGetErrorName(int error) { return standin::error_name(error); }
const char* cudaGetErrorString(int error) { return standin::error_text(error); }

int cudaGetLastError() {
  const int error = standin::last_error;
  standin::last_error = standin::kSuccess;
  return error;
}

int cudaPeekAtLastError() { return standin::last_error; }

}  // extern "C"
