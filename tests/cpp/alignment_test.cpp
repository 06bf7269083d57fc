// Sequence alignment: the result is always a common subsequence, the longest one if few edits are
// needed, and cheap even if nothing is alike.
#include "profile/alignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace stalloc {
namespace {

using Tokens = std::vector<profile::Token>;

Tokens tokens(std::initializer_list<Bytes> sizes) {
  Tokens result;
  for (const Bytes size : sizes) result.push_back({size, 0});
  return result;
}

std::int32_t matched(const std::vector<std::int32_t>& alignment) {
  return static_cast<std::int32_t>(alignment.size() - std::ranges::count(alignment, kNone));
}

void expect_common_subsequence(const Tokens& a, const Tokens& b,
                               const std::vector<std::int32_t>& alignment) {
  ASSERT_EQ(alignment.size(), a.size());
  std::int32_t last = kNone;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (alignment[i] == kNone) continue;
    ASSERT_GT(alignment[i], last);
    ASSERT_LT(alignment[i], static_cast<std::int32_t>(b.size()));
    ASSERT_EQ(a[i], b[alignment[i]]);
    last = alignment[i];
  }
}

// The length of the longest common subsequence, by the textbook's quadratic table.
std::int32_t longest_common_subsequence(const Tokens& a, const Tokens& b) {
  std::vector<std::int32_t> row(b.size() + 1, 0);
  for (const profile::Token& token : a) {
    std::int32_t diagonal = 0;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::int32_t above = row[j + 1];
      row[j + 1] = token == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  return row.back();
}

Tokens random_tokens(std::mt19937& random, int length, int alphabet) {
  Tokens result;
  for (int i = 0; i < length; ++i) {
    result.push_back({static_cast<Bytes>(1 + random() % alphabet),
                      static_cast<StreamId>(random() % 10 == 0 ? 1 : 0)});
  }
  return result;
}

TEST(Alignment, EqualSequencesMatchByPosition) {
  const Tokens a = tokens({1, 2, 2, 3});
  EXPECT_EQ(profile::align_sequences(a, a), (std::vector<std::int32_t>{0, 1, 2, 3}));
}

TEST(Alignment, EmptySequencesMatchNothing) {
  EXPECT_TRUE(profile::align_sequences({}, tokens({1})).empty());
  EXPECT_EQ(profile::align_sequences(tokens({1, 2}), {}),
            (std::vector<std::int32_t>{kNone, kNone}));
}

TEST(Alignment, MissingExtraAndResizedRequestsStayUnmatched) {
  EXPECT_EQ(profile::align_sequences(tokens({1, 2, 3, 4}), tokens({1, 3, 9, 4})),
            (std::vector<std::int32_t>{0, kNone, 1, 3}));
  EXPECT_EQ(profile::align_sequences(tokens({1, 70, 3}), tokens({1, 71, 3})),
            (std::vector<std::int32_t>{0, kNone, 2}));
}

TEST(Alignment, AnotherStreamIsAnotherRequest) {
  const Tokens a = {{8, 0}, {8, 1}};
  const Tokens b = {{8, 1}};
  EXPECT_EQ(profile::align_sequences(a, b), (std::vector<std::int32_t>{kNone, 0}));
}

TEST(Alignment, IsTheLongestCommonSubsequenceOfRandomSequences) {
  std::mt19937 random(20240611);
  for (int round = 0; round < 300; ++round) {
    const Tokens a = random_tokens(random, static_cast<int>(random() % 60), 1 + round % 8);
    const Tokens b = random_tokens(random, static_cast<int>(random() % 60), 1 + round % 8);
    const auto alignment = profile::align_sequences(a, b);
    expect_common_subsequence(a, b, alignment);
    EXPECT_EQ(matched(alignment), longest_common_subsequence(a, b));
  }
}

TEST(Alignment, MatchesEqualRequestsPastTheCapOnEdits) {
  std::mt19937 random(7);
  const Tokens head = random_tokens(random, 2000, 3);
  const Tokens foreign = random_tokens(random, 3000, 3);
  Tokens tail;
  for (Bytes size = 1000; size < 6000; ++size) tail.push_back({size, 0});
  Tokens a = head;
  a.insert(a.end(), tail.begin(), tail.end());
  Tokens b = foreign;
  b.insert(b.end(), tail.begin(), tail.end());
  const auto alignment = profile::align_sequences(a, b);
  expect_common_subsequence(a, b, alignment);
  EXPECT_GE(matched(alignment), 5000);
}

// The weights of a large model, before the requests of its first iteration.
TEST(Alignment, ElementsThatOnlyOneSequenceHasCostNoMatch) {
  std::mt19937 random(7);
  const Tokens iteration = random_tokens(random, 2000, 30);
  Tokens first;
  for (Bytes size = 0; size < 1000; ++size) first.push_back({-1 - size, 0});
  first.insert(first.end(), iteration.begin(), iteration.end());
  const auto alignment = profile::align_sequences(first, iteration);
  expect_common_subsequence(first, iteration, alignment);
  EXPECT_EQ(matched(alignment), 2000);
  EXPECT_EQ(matched(profile::align_sequences(iteration, first)), 2000);
}

// The same where the weights have the sizes of temporaries.
TEST(Alignment, ManyExtraElementsInFrontCostNoMatch) {
  std::mt19937 random(8);
  const Tokens iteration = random_tokens(random, 2000, 30);
  Tokens first = random_tokens(random, 1000, 30);
  first.insert(first.end(), iteration.begin(), iteration.end());
  const auto alignment = profile::align_sequences(first, iteration);
  expect_common_subsequence(first, iteration, alignment);
  EXPECT_EQ(matched(alignment), 2000);
}

TEST(Alignment, SequencesWithNothingInCommonEndQuickly) {
  Tokens a;
  Tokens b;
  for (Bytes i = 0; i < 50000; ++i) {
    a.push_back({1 + i, 0});
    b.push_back({100001 + i, 0});
  }
  EXPECT_EQ(matched(profile::align_sequences(a, b)), 0);
}

}  // namespace
}  // namespace stalloc
