// Device memory that keeps what copies and fills put there.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "cudart.h"
#include "standin.h"

namespace {

using Bytes = std::vector<unsigned char>;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr int kByAddress = 4;  // the direction of a copy

class StandinContents : public testing::Test {
 protected:
  void SetUp() override {
    setenv("STANDIN_CONTENTS", "1", 1);
    standin_reset();
  }
  void TearDown() override {
    unsetenv("STANDIN_CONTENTS");
    standin_reset();
  }

  static void* memory(std::size_t size) {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, size), kCudaSuccess);
    return p;
  }

  static Bytes read(const void* p, std::size_t size) {
    Bytes bytes(size);
    EXPECT_EQ(standin_read(p, bytes.data(), size), kCudaSuccess);
    return bytes;
  }

  template <typename... Arguments>
  static int driver(const char* name, Arguments... arguments) {
    void* f = nullptr;
    EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &f, 13000, 0, nullptr), kCudaSuccess);
    return reinterpret_cast<int (*)(Arguments...)>(f)(arguments...);
  }

  // The first members of CUmemAllocationProp and CUmemAccessDesc: memory of device 0.
  static std::uint64_t handle(std::size_t size) {
    struct {
      int type = 1, handle_types = 0, location = 1, device = 0;
      std::array<void*, 2> others{};
    } properties;
    std::uint64_t made = 0;
    EXPECT_EQ((driver<std::uint64_t*, std::size_t, void*, unsigned long long>(
                  "cuMemCreate", &made, size, &properties, 0)),
              kCudaSuccess);
    return made;
  }
  static void* addresses(std::size_t size) {
    std::uint64_t p = 0;
    EXPECT_EQ((driver<std::uint64_t*, std::size_t, std::size_t, std::uint64_t, unsigned long long>(
                  "cuMemAddressReserve", &p, size, 0, 0, 0)),
              kCudaSuccess);
    return reinterpret_cast<void*>(p);
  }
  static void map(void* p, std::size_t size, std::uint64_t memory) {
    EXPECT_EQ((driver<void*, std::size_t, std::size_t, std::uint64_t, unsigned long long>(
                  "cuMemMap", p, size, 0, memory, 0)),
              kCudaSuccess);
    std::array<int, 3> access{1, 0, 3};
    EXPECT_EQ((driver<void*, std::size_t, int*, std::size_t>("cuMemSetAccess", p, size,
                                                             access.data(), 1)),
              kCudaSuccess);
  }
  static void unmap(void* p, std::size_t size) {
    EXPECT_EQ((driver<void*, std::size_t>("cuMemUnmap", p, size)), kCudaSuccess);
  }
};

TEST_F(StandinContents, CopiesComeBackWhateverTheirPlaceAndLength) {
  auto* p = static_cast<char*>(memory(5 * kMiB));
  Bytes bytes(3 * kMiB + 77);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i >> 7);
  char* at = p + kMiB - 13;
  EXPECT_EQ(cudaMemcpy(at, bytes.data(), bytes.size(), kByAddress), kCudaSuccess);
  EXPECT_EQ(read(at, bytes.size()), bytes);
  EXPECT_EQ(cudaMemcpy(p, at, 1000, kByAddress), kCudaSuccess);
  EXPECT_EQ(read(p, 1000), Bytes(bytes.begin(), bytes.begin() + 1000));
  EXPECT_EQ(standin_misuses(), 0);
}

TEST_F(StandinContents, APatternFillsPagesAndPartsOfThem) {
  auto* p = static_cast<char*>(memory(4 * kMiB));
  const std::array<unsigned char, 4> pattern{1, 2, 3, 4};
  EXPECT_EQ(standin_fill(p + 8, pattern.data(), 4, 3 * kMiB), kCudaSuccess);
  const Bytes bytes = read(p + 7, 3 * kMiB + 2);
  EXPECT_EQ(bytes.front(), 0xff);
  EXPECT_EQ(bytes.back(), 0xff);
  for (std::size_t i = 0; i < 3 * kMiB; ++i) ASSERT_EQ(bytes[i + 1], pattern[i % 4]) << i;
  EXPECT_EQ(read(p + 2 * kMiB + 3, 3), (Bytes{4, 1, 2}));
}

TEST_F(StandinContents, NewMemoryHoldsNothingOfTheOld) {
  void* p = memory(kMiB);
  EXPECT_EQ(cudaMemset(p, 5, kMiB), kCudaSuccess);
  EXPECT_EQ(read(p, 1), Bytes{5});
  EXPECT_EQ(cudaFree(p), kCudaSuccess);
  EXPECT_EQ(memory(kMiB), p) << "freed addresses are reused";
  EXPECT_EQ(read(p, 1), Bytes{0xff});
}

TEST_F(StandinContents, FreedMemoryIsNeitherReadNorWritten) {
  void* p = memory(kMiB);
  EXPECT_EQ(cudaFree(p), kCudaSuccess);
  char byte = 0;
  EXPECT_EQ(cudaMemcpy(&byte, p, 1, kByAddress), kCudaIllegalAddress);
  EXPECT_EQ(cudaMemcpy(p, &byte, 1, kByAddress), kCudaIllegalAddress);
  EXPECT_EQ(standin_fill(p, &byte, 1, 1), kCudaIllegalAddress);
  EXPECT_EQ(standin_misuses(), 3);
}

TEST_F(StandinContents, MappedMemoryGoesWithItsHandle) {
  constexpr std::size_t kSize = 2 * kMiB;
  EXPECT_EQ(cudaSetDevice(0), kCudaSuccess);
  void* p = addresses(kSize);
  void* q = addresses(kSize);
  const std::uint64_t first = handle(kSize), second = handle(kSize);
  map(p, kSize, first);
  EXPECT_EQ(cudaMemset(p, 5, kSize), kCudaSuccess);
  unmap(p, kSize);
  char byte = 0;
  EXPECT_EQ(cudaMemcpy(&byte, p, 1, kByAddress), kCudaIllegalAddress) << "nothing is mapped";
  map(p, kSize, second);
  map(q, kSize, first);
  EXPECT_EQ(read(p, 1), Bytes{0xff});
  EXPECT_EQ(read(q, 1), Bytes{5});
  EXPECT_EQ(standin_misuses(), 1);
}

TEST_F(StandinContents, CopiesAndFillsKeepTheOrderOfTheirStream) {
  standin_set_manual(1);
  void* p = memory(16);
  void* s = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&s, kCudaNonBlocking), kCudaSuccess);
  Bytes host(16, 1);
  EXPECT_EQ(cudaMemcpyAsync(p, host.data(), 16, kByAddress, s), kCudaSuccess);
  host.assign(16, 9);  // pageable memory: the copy has taken what it held
  EXPECT_EQ(cudaMemsetAsync(p, 2, 8, s), kCudaSuccess);
  EXPECT_EQ(read(p, 1), Bytes{0xff}) << "nothing has run";
  EXPECT_EQ(standin_advance(s, 1), 1);
  EXPECT_EQ(read(p, 1), Bytes{1});
  EXPECT_EQ(cudaMemcpyAsync(host.data(), p, 16, kByAddress, s), kCudaSuccess);
  EXPECT_EQ(host[0], 2) << "the host waits for a copy to pageable memory";
  EXPECT_EQ(host[8], 1);
  EXPECT_EQ(standin_host_waits(), 1);
}

}  // namespace
