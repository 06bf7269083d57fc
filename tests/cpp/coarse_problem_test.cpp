#include "solve/search/coarse_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/align.h"
#include "random_problems.h"
#include "solve/core/bound.h"
#include "verify/validator.h"

namespace stalloc {
namespace {

using solve::Block;
using solve::CoarseProblem;
using solve::Unit;

solve::Problem random_problem_with_fixed(RandomProblems& random, int k) {
  solve::Problem problem = random.next(300, k % 2 == 0);
  // One in three has a fixed offset. The offsets need not be free of clashes.
  for (std::size_t i = 0; k % 3 == 0 && i < problem.buffers.size(); i += 3) {
    problem.buffers[i].fixed = 0;
  }
  return problem;
}

std::vector<Bytes> load_of_pieces(const CoarseProblem& coarse) {
  std::vector<Bytes> load(coarse.pieces(), 0);
  for (const Block& block : coarse.blocks()) {
    for (solve::Piece p = block.span.begin; p < block.span.end; ++p) load[p] += block.size;
    for (solve::Piece p = 0; p < block.span.wrap; ++p) load[p] += block.size;
  }
  return load;
}

TEST(CoarseProblem, KeepsTheLoadBound) {
  RandomProblems random(61);
  for (int k = 0; k < 200; ++k) {
    // Every fourth problem has small buffers with long lifetimes, which merge.
    const solve::Problem problem = k % 4 == 0
                                       ? random.next({.buffers = 600, .ticks = 400, .largest = 3})
                                       : random_problem_with_fixed(random, k);
    const solve::Timeline timeline(problem);
    const Bytes target = solve::load_bound(problem);
    Bytes highest = 0;
    for (const Bytes load : load_of_pieces(CoarseProblem(problem, timeline, target))) {
      highest = std::max(highest, load);
    }
    EXPECT_LE(highest, target) << "problem " << k;
    Bytes bound = 0;
    for (const Bytes load : timeline.load(problem)) bound = std::max(bound, load);
    EXPECT_GE(highest, bound) << "problem " << k;
  }
}

TEST(CoarseProblem, PutsEveryFreeBlockIntoOneUnitOfItsSize) {
  RandomProblems random(62);
  for (int k = 0; k < 200; ++k) {
    const solve::Problem problem = random_problem_with_fixed(random, k);
    const solve::Timeline timeline(problem);
    const CoarseProblem coarse(problem, timeline, solve::load_bound(problem));
    std::vector<int> uses(coarse.blocks().size(), 0);
    for (const Unit& unit : coarse.units()) {
      for (const std::size_t b : unit.blocks) {
        const Block& block = coarse.blocks()[b];
        ++uses[b];
        EXPECT_EQ(block.size, coarse.blocks()[unit.blocks.front()].size);
        EXPECT_EQ(block.is_rectangle(), unit.is_rectangle);
        EXPECT_GE(block.span.begin, unit.first);
        EXPECT_LE(block.span.end, unit.end);
        if (block.span.wrap > 0) {
          EXPECT_EQ(unit.end, coarse.pieces() + block.span.wrap);
        }
      }
    }
    for (std::size_t b = 0; b < uses.size(); ++b) {
      EXPECT_EQ(uses[b], coarse.blocks()[b].fixed == kUnplaced ? 1 : 0) << "problem " << k;
    }
  }
}

TEST(CoarseProblem, StacksTheBuffersOfABlock) {
  RandomProblems random(63);
  for (int k = 0; k < 100; ++k) {
    const solve::Problem problem = random.next(300, k % 2 == 0);
    const solve::Timeline timeline(problem);
    const CoarseProblem coarse(problem, timeline, solve::load_bound(problem));
    // Every block on top of the one before.
    std::vector<Offset> offsets;
    Offset top = 0;
    for (const Block& block : coarse.blocks()) {
      offsets.push_back(top);
      top += block.size;
    }
    const solve::Problem rest = coarse.with_blocks_at(offsets);
    solve::Problem fixed = problem;
    fixed.buffers.clear();
    solve::Layout layout;
    for (const solve::Buffer& b : rest.buffers) {
      if (b.fixed == kUnplaced) continue;
      fixed.buffers.push_back(b);
      layout.offsets.push_back(b.fixed);
      layout.height = std::max(layout.height, b.fixed + align_up(b.size, problem.alignment));
    }
    EXPECT_LE(layout.height, top);
    EXPECT_NO_THROW(verify::validate(fixed, layout)) << "problem " << k;
  }
}

}  // namespace
}  // namespace stalloc
