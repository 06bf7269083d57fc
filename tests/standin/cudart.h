// The part of CUDA's runtime interface that the C++ tests call, so that they build without CUDA.
#pragma once

#include <cstddef>

extern "C" {
int cudaMalloc(void** p, std::size_t size);
int cudaFree(void* p);
int cudaMallocAsync(void** p, std::size_t size, void* stream);
int cudaFreeAsync(void* p, void* stream);
int cudaMemcpy(void* to, const void* from, std::size_t size, int kind);
int cudaMemcpyAsync(void* to, const void* from, std::size_t size, int kind, void* stream);
int cudaMemset(void* p, int value, std::size_t size);
int cudaMemsetAsync(void* p, int value, std::size_t size, void* stream);
int cudaMemGetInfo(std::size_t* free, std::size_t* total);
int cudaGetDeviceCount(int* count);
int cudaGetDevice(int* device);
int cudaSetDevice(int device);
int cudaDeviceSynchronize();
int cudaGetLastError();
int cudaStreamCreate(void** stream);
int cudaStreamCreateWithFlags(void** stream, unsigned flags);
int cudaStreamDestroy(void* stream);
int cudaStreamQuery(void* stream);
int cudaStreamSynchronize(void* stream);
int cudaStreamWaitEvent(void* stream, void* event, unsigned flags);
int cudaStreamBeginCapture(void* stream, int mode);
int cudaStreamEndCapture(void* stream, void** graph);
int cudaStreamIsCapturing(void* stream, int* status);
int cudaThreadExchangeStreamCaptureMode(int* mode);
int cudaGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags);
int cudaGraphLaunch(void* exec, void* stream);
int cudaEventCreateWithFlags(void** event, unsigned flags);
int cudaEventDestroy(void* event);
int cudaEventRecord(void* event, void* stream);
int cudaEventQuery(void* event);
int cudaEventSynchronize(void* event);
int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                     unsigned long long flags, int* status);
}

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaOutOfMemory = 2;
inline constexpr int kCudaInitializationError = 3;
inline constexpr int kCudaNoContext = 201;
inline constexpr int kCudaInvalidHandle = 400;
inline constexpr int kCudaNotReady = 600;
inline constexpr int kCudaIllegalAddress = 700;
inline constexpr int kCudaCaptureUnsupported = 900;
inline constexpr int kCudaCaptureInvalidated = 901;
inline constexpr int kCudaCapturedEvent = 907;
inline constexpr unsigned kCudaNonBlocking = 1;
inline constexpr unsigned kCudaNoTiming = 2;
