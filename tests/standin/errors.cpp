#include "errors.h"

#include <algorithm>
#include <iterator>

namespace standin {
namespace {

struct Entry {
  int code;
  const char* name;
  const char* text;
};

// The real library's texts.
constexpr Entry kEntries[] = {
    {kSuccess, "cudaSuccess", "no error"},
    {kInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {kOutOfMemory, "cudaErrorMemoryAllocation", "out of memory"},
    {kInitializationError, "cudaErrorInitializationError", "initialization error"},
    {kUnloading, "cudaErrorCudartUnloading", "driver shutting down"},
    {kNoContext, "cudaErrorDeviceUninitialized", "invalid device context"},
    {kInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {kInvalidHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {kSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {kNotReady, "cudaErrorNotReady", "device not ready"},
    {kIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {kPeerAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {kNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {kCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {kCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {kCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {kCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {kCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};

const Entry* find(int error) {
  const auto it = std::find_if(std::begin(kEntries), std::end(kEntries),
                               [&](const Entry& e) { return e.code == error; });
  return it == std::end(kEntries) ? nullptr : it;
}

}  // namespace

const char* error_name(int error) {
  const Entry* e = find(error);
  return e ? e->name : "cudaErrorUnknown";
}

const char* error_text(int error) {
  const Entry* e = find(error);
  return e ? e->text : "unknown error";
}

}  // namespace standin
