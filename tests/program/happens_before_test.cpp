#include "program/happens_before.h"

#include <gtest/gtest.h>

#include <random>

#include "program/random_programs.h"

namespace lockstep::program {
namespace {

TEST(HappensBefore, AnswersAsPlainSearchDoesInRandomPrograms) {
  constexpr int kIterations = 3;
  std::mt19937 random(3);
  int ordered = 0, unordered = 0;
  for (int round = 0; round < 40; ++round) {
    const Program program = random_program(random, {.most_lanes = 5, .instructions = 25});
    HappensBefore order(program, kIterations);
    order.visit_all();
    const auto plain = plain_order(program, kIterations);
    for (int a = 0; a < order.node_count(); ++a)
      for (int b = 0; b < order.node_count(); ++b) {
        const bool before = plain[static_cast<size_t>(a)][static_cast<size_t>(b)];
        ASSERT_EQ(order.before(a, b), before) << "round " << round << ": " << a << " and " << b;
        ++(before ? ordered : unordered);
      }
  }
  EXPECT_GT(ordered, 10000);
  EXPECT_GT(unordered, 10000);
}

}  // namespace
}  // namespace lockstep::program
