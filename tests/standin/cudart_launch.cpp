// Kernels: they are registered and launched, and their only effect is an item of work in their
// stream.
#include <cstring>
#include <string>

#include "world.h"

using standin::Call;
using standin::HandleValue;
using standin::Stream;
using standin::World;

namespace {

struct Dim3 {
  unsigned x, y, z;
};

struct Configuration {  // of the <<<...>>> that a launch follows
  Dim3 grid, block;
  std::size_t shared;
  void* stream;
};

thread_local Configuration configuration;

int launch(void* stream, std::string_view name, Call& call) {
  return call([&](World& w) {
    Stream* s = w.stream(stream, name);
    if (!s) return int{standin::kInvalidHandle};
    if (s->device != standin::current_device) {
      return w.misuse(std::string(name) + " on a stream of another device than the current one",
                      standin::kInvalidHandle);
    }
    if (s->capture) return w.capture_use(*s, nullptr);
    w.streams.submit(*s);
    return int{standin::kSuccess};
  });
}

// Functions without effect here. They share one name for standin_calls and standin_fail.
int nothing(const char* name) {
  Call call(name);
  return call([](World&) { return int{standin::kSuccess}; });
}

}  // namespace

extern "C" {

int cudaLaunchKernel(const void*, Dim3, Dim3, void**, std::size_t, void* stream) {
  static Call call("cudaLaunchKernel");
  return launch(stream, call.name(), call);
}

int __cudaLaunchKernel(void*, Dim3, Dim3, void**, std::size_t, void* stream) {
  static Call call("cudaLaunchKernel");
  return launch(stream, call.name(), call);
}

int cudaLaunchCooperativeKernel(const void*, Dim3, Dim3, void**, std::size_t, void* stream) {
  static Call call("cudaLaunchCooperativeKernel");
  return launch(stream, call.name(), call);
}

struct cudaLaunchConfig {
  Dim3 grid, block;
  std::size_t shared;
  void* stream;
};

int cudaLaunchKernelExC(const cudaLaunchConfig* config, const void*, void**) {
  static Call call("cudaLaunchKernelExC");
  return launch(config->stream, call.name(), call);
}

int __cudaPushCallConfiguration(Dim3 grid, Dim3 block, std::size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return standin::kSuccess;
}

int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, std::size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  std::memcpy(stream, &configuration.stream, sizeof(void*));
  return standin::kSuccess;
}

// Registration, as libraries with kernels do it when they are loaded.
void** __cudaRegisterFatBinary(void*) {
  static void* binary = nullptr;
  return &binary;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*,
                            void*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
int __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return standin::kSuccess;
}

struct cudaFuncAttributes {
  std::size_t shared, constant, local;
  int max_threads, registers, ptx, binary, cache_mode, max_dynamic_shared, carveout;
};

int cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  static Call call("cudaFuncGetAttributes");
  return call([&](World&) {
    *a = cudaFuncAttributes{};
    a->max_threads = 1024;
    a->registers = 32;
    a->ptx = a->binary = 90;
    a->max_dynamic_shared = 49152;
    return int{standin::kSuccess};
  });
}

int cudaFuncSetAttribute(const void*, int, int) { return nothing("cudaFuncSetAttribute"); }
int cudaKernelSetAttributeForDevice(void*, int, int, int) {
  return nothing("cudaKernelSetAttributeForDevice");
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                           std::size_t, unsigned) {
  *blocks = 2;
  return nothing("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                  std::size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared, 0);
}

int cudaGetSymbolAddress(void** p, const void* symbol) {
  *p = const_cast<void*>(symbol);
  return nothing("cudaGetSymbolAddress");
}

int cudaLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*,
                        unsigned) {
  *library = reinterpret_cast<void*>(HandleValue{13} << 60);
  return nothing("cudaLibraryLoadData");
}

int cudaLibraryGetKernel(void** kernel, void* library, const char*) {
  *kernel = library;
  return nothing("cudaLibraryGetKernel");
}

int cudaLibraryUnload(void*) { return nothing("cudaLibraryUnload"); }
int cudaProfilerStart() { return nothing("cudaProfilerStart"); }
int cudaProfilerStop() { return nothing("cudaProfilerStop"); }

int cudaUserObjectCreate(void** object, void*, void (*)(void*), unsigned, unsigned) {
  *object = reinterpret_cast<void*>(HandleValue{15} << 60);
  return nothing("cudaUserObjectCreate");
}

int cudaUserObjectRelease(void*, unsigned) { return nothing("cudaUserObjectRelease"); }
int cudaGraphRetainUserObject(void*, void*, unsigned, unsigned) {
  return nothing("cudaGraphRetainUserObject");
}

// The stand-in has no managed memory, and looks into no library of kernels.
int cudaMallocManaged(void**, std::size_t, unsigned) { return standin::kNotSupported; }
int cudaLibraryLoadFromFile(void**, const char*, void*, void*, unsigned, void*, void*, unsigned) {
  return standin::kNotSupported;
}
int cudaLibraryGetGlobal(void**, std::size_t*, void*, const char*) {
  return standin::kNotSupported;
}
int cudaLibraryGetManaged(void**, std::size_t*, void*, const char*) {
  return standin::kNotSupported;
}
int cudaLibraryGetUnifiedFunction(void**, void*, const char*) { return standin::kNotSupported; }
int cudaLibraryGetKernelCount(unsigned*, void*) { return standin::kNotSupported; }

// The stand-in does not support graphs made node by node.
int cudaGraphAddNode(void**, void*, const void*, const void*, std::size_t, void*) {
  return standin::kNotSupported;
}
int cudaGraphConditionalHandleCreate(void*, void*, unsigned, unsigned) {
  return standin::kNotSupported;
}

}  // extern "C"
