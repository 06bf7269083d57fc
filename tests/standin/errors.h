// The CUDA error codes that are needed. The driver's codes are the same numbers if both have one.
#pragma once

namespace standin {

enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInitializationError = 3,
  kUnloading = 4,
  kInvalidDevice = 101,
  kNoContext = 201,
  kInvalidHandle = 400,
  kSymbolNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAlreadyEnabled = 704,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCapturedEvent = 907,
  kNotSupported = 801,
};

const char* error_name(int error);
const char* error_text(int error);

}  // namespace standin
