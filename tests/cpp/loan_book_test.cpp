// The eager requests that may lie in the memory of captured graphs.
#include "device/loan_book.h"

#include <gtest/gtest.h>

namespace stalloc::device {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr std::uintptr_t kBegin = std::uintptr_t{64} << 20;
constexpr LoanBook::Addresses kMemory{kBegin, kBegin + (std::uintptr_t{20} << 20)};

std::uintptr_t at(Bytes offset) { return kBegin + static_cast<std::uintptr_t>(offset); }

TEST(LoanBook, TakesUnknownSizesButSmallOnes) {
  LoanBook book;
  EXPECT_TRUE(book.suits(2 * kMiB));
  EXPECT_FALSE(book.suits(2 * kMiB - 1));
}

TEST(LoanBook, FindsRoomBetweenBlocksThatMayBeLargerThanAsked) {
  LoanBook book;
  EXPECT_TRUE(book.fits(kMemory, 20 * kMiB));
  EXPECT_FALSE(book.fits(kMemory, 20 * kMiB + 1));
  book.lend(at(4 * kMiB), 4 * kMiB);
  EXPECT_TRUE(book.fits(kMemory, 4 * kMiB)) << "before it";
  EXPECT_TRUE(book.fits(kMemory, 11 * kMiB)) << "after it, and the rest that torch may have left";
  EXPECT_FALSE(book.fits(kMemory, 11 * kMiB + 1));
  book.lend(at(16 * kMiB), 4 * kMiB);
  EXPECT_TRUE(book.fits(kMemory, 7 * kMiB));
  EXPECT_FALSE(book.fits(kMemory, 7 * kMiB + 1));
  book.take_back(at(4 * kMiB));
  EXPECT_TRUE(book.fits(kMemory, 16 * kMiB));
  EXPECT_TRUE(book.fits({kBegin - 4096, kBegin}, 4096)) << "other addresses";
}

TEST(LoanBook, ASizeThatLivedAtAReplayIsNotTakenAgain) {
  LoanBook book;
  book.lend(at(0), 2 * kMiB);
  book.lend(at(4 * kMiB), 3 * kMiB);
  book.take_back(at(4 * kMiB));
  EXPECT_TRUE(book.any_live());
  book.end_round();
  EXPECT_TRUE(book.is_idle());
  EXPECT_FALSE(book.suits(2 * kMiB));
  EXPECT_TRUE(book.suits(3 * kMiB));
}

TEST(LoanBook, ACaptureTeachesNothing) {
  LoanBook book;
  book.lend(at(0), 2 * kMiB);
  book.interrupt_round();
  EXPECT_FALSE(book.any_live());
  EXPECT_TRUE(book.suits(2 * kMiB));
}

TEST(LoanBook, RecordedBlocksHoldTheirPlace) {
  LoanBook book;
  book.lend(at(0), 8 * kMiB);
  book.record(at(0));
  book.take_back(at(0));
  EXPECT_FALSE(book.any_live());
  EXPECT_TRUE(book.live().empty());
  EXPECT_FALSE(book.is_idle());
  EXPECT_FALSE(book.fits(kMemory, 12 * kMiB));
  EXPECT_FALSE(book.suits(8 * kMiB));
  book.end_round();
  EXPECT_FALSE(book.is_idle()) << "until the memory is used no longer";
  book.clear();
  EXPECT_TRUE(book.is_idle());
}

TEST(LoanBook, AfterManySurprisesOnlyProvenSizesAreTaken) {
  LoanBook book;
  book.lend(at(0), 100 * kMiB);
  book.take_back(at(0));
  for (Bytes size = 2; size < 2 + static_cast<Bytes>(LoanBook::kMostSurprises); ++size) {
    EXPECT_TRUE(book.suits(size * kMiB));
    book.lend(at(0), size * kMiB);
    book.end_round();
  }
  EXPECT_FALSE(book.suits(99 * kMiB));
  EXPECT_TRUE(book.suits(100 * kMiB));
}

}  // namespace
}  // namespace stalloc::device
