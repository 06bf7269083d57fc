// The size of a request as a function of the extents of its microbatch.
//
// The extents of a microbatch are the sizes of the dimensions of the model's inputs: rows, tokens,
// height, width, nodes, edges. A request keeps its place in the program when a batch changes; its
// size follows from the extents:
//
//   size = align_up((constant + sum of coefficient * product of extents) / divisor, step)
//
// An affine law has one term of one factor (a + b * tokens), a quadratic one a term of two factors.
// Sizes grow with the extents, so a layout for the largest extents serves all smaller ones.
//
// Plain data. Thread-safe for concurrent reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace stalloc::profile {

using Extent = std::int64_t;

// Index into a trace's or a plan's table of extent names.
using ExtentIndex = Index<struct ExtentName>;

// Index into a plan's table of laws.
using LawIndex = Index<struct SizeLaw>;

// The factors of a product of extents: ascending, kNone comes last and stands for 1.
using Factors = std::array<ExtentIndex, 3>;

// coefficient * extents[factors[0]] * extents[factors[1]] * extents[factors[2]].
struct LawTerm {
  std::int64_t coefficient = 0;
  Factors factors = {kNone, kNone, kNone};

  auto operator<=>(const LawTerm&) const = default;
};

// The degree to which the observations support a law.
enum class LawProof : std::uint8_t {
  kProven,       // three or more distinct observations, or a size that other extents did not change
  kUnproven,     // two distinct observations, or one
  kUnexplained,  // no law: `constant` is the largest size seen, and requests may be smaller
};

// The microbatch whose extents a request follows.
enum class LawSource : std::uint8_t {
  kOwn,        // its own microbatch's, or the one that began last
  kUpcoming,   // the next forward's: its data are made, or received, before it begins
  kReturning,  // the next backward's: a pipeline receives the gradient before it begins
};

struct SizeLaw {
  Bytes constant = 0;
  std::vector<LawTerm> terms;  // ascending; empty for a constant size
  std::int64_t divisor = 1;    // > 0
  Bytes step = 1;              // > 0; the size is rounded up to a multiple of it
  LawProof proof = LawProof::kUnproven;
  LawSource source = LawSource::kOwn;

  auto operator<=>(const SizeLaw&) const = default;
};

// The size in bytes, at least 0. kNone (-1) if an extent is unknown (negative), the division leaves
// a remainder, or the result does not fit in Bytes. O(terms), allocates nothing.
Bytes evaluate(const SizeLaw& law, std::span<const Extent> extents);

// `size` * `factor` / `divisor`, rounded up; at most one more than trace::kLargestRequest. `size`
// if the divisor is not positive.
Bytes in_proportion(Bytes size, std::int64_t factor, std::int64_t divisor);

// All products of one to three of so many extents, those of fewer factors first.
std::vector<Factors> products_of(std::size_t extents);

std::string_view to_string(LawProof proof);    // "proven", "unproven", "unexplained"
std::string_view to_string(LawSource source);  // "own", "upcoming", "returning"
// Throw TraceError for any other text.
void from_string(std::string_view text, LawProof& proof);
void from_string(std::string_view text, LawSource& source);

// "constant", "affine", "quadratic", "cubic", "stepped" or "unexplained".
std::string_view kind_of(const SizeLaw& law);

}  // namespace stalloc::profile
