// A fixture that begins with a new pretended GPU, and ends with one that has seen nothing wrong.
#pragma once

#include <gtest/gtest.h>

#include "cudart.h"
#include "standin.h"

namespace stalloc::testing {

class PretendedGpu : public ::testing::Test {
 protected:
  void SetUp() override { standin_reset(); }
  void TearDown() override {
    EXPECT_EQ(standin_misuses(), 0) << standin_last_complaint();
    EXPECT_EQ(standin_hazards(), 0) << standin_last_complaint();
    EXPECT_EQ(cudaGetLastError(), kCudaSuccess) << "an error was left for torch to find";
    standin_reset();
  }

  static void* stream() {
    void* s = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&s, kCudaNonBlocking), kCudaSuccess);
    return s;
  }
};

}  // namespace stalloc::testing
