// The net notices engines that are wrong.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "net/apart.h"
#include "net/faults.h"
#include "net/search.h"
#include "net/shrink.h"

namespace lockstep::net {
namespace {

struct FaultCase {
  const char* name;
  Fault fault;
  /// Instructions that differ in their micro-batch alone are proven once, so that a call of one of them is
  /// missed by its numbers only.
  Finding::Kind noticed_by_proof = Finding::Kind::proof;
};

class Faults : public testing::TestWithParam<FaultCase> {};

/// What the case of a seed that shows it first finds; nothing if none of 300 does.
std::optional<FoundCase> first_noticed(const FaultCase& wrong, bool proves_calls) {
  set_fault(wrong.fault, proves_calls);
  std::optional<FoundCase> first;
  search({.seed = 1, .cases = 300}, [&](const FoundCase& found) {
    first = found;
    return false;
  });
  set_fault(Fault::none);
  if (first)
    fmt::print("{}: case {}: {}: {}\n", wrong.name, first->number, name_of(first->finding.kind),
               first->finding.what.substr(0, first->finding.what.find('\n')));
  return first;
}

TEST_P(Faults, AreNoticedByNumbersWithinThreeHundredCases) {
  const auto first = first_noticed(GetParam(), false);
  ASSERT_TRUE(first);
  EXPECT_NE(name_of(first->finding.kind), name_of(Finding::Kind::proof)) << first->finding.what;
}

/// Before anything runs.
TEST_P(Faults, AreNoticedByProofsOfKernelCalls) {
  const auto first = first_noticed(GetParam(), true);
  ASSERT_TRUE(first);
  if (GetParam().noticed_by_proof == Finding::Kind::proof)
    EXPECT_EQ(name_of(first->finding.kind), name_of(Finding::Kind::proof)) << first->finding.what;
  else
    EXPECT_NE(name_of(first->finding.kind), name_of(Finding::Kind::proof)) << "so it can be proven now";
}

INSTANTIATE_TEST_SUITE_P(All, Faults,
                         testing::Values(FaultCase{"LostGradient", Fault::lost_gradient},
                                         FaultCase{"LeftOutCall", Fault::left_out_call, Finding::Kind::bits},
                                         FaultCase{"SwappedOperand", Fault::swapped_operand},
                                         FaultCase{"OverlappedLifetime", Fault::overlapped_lifetime},
                                         FaultCase{"ForgottenBranch", Fault::forgotten_branch}),
                         [](const auto& info) { return info.param.name; });

/// What a failure prints is little, and fails by itself.
TEST(Faults, AreShownByTheSmallestCase) {
  set_fault(Fault::lost_gradient, false);
  std::optional<Case> smallest;
  search({.seed = 1, .cases = 300}, [&](const FoundCase& found) {
    smallest = shrink(found.test_case, [&](const Case& smaller) {
      const auto finding = check_apart(smaller);  // a smaller case may be refused for another reason
      return finding && finding->kind == found.finding.kind;
    });
    return false;
  });
  ASSERT_TRUE(smallest);
  fmt::print("{}", describe(*smallest));
  EXPECT_EQ(layout::to_string(smallest->layout), "dp=1,pp=2,schedule=zero_bubble");
  EXPECT_LE(smallest->model.layers.size(), 9u);
  EXPECT_TRUE(check_apart(*smallest));
  EXPECT_EQ(smallest->training.optimizer, Training{}.optimizer);
  EXPECT_EQ(smallest->training.samples, 5);
  // What is printed is of the same case.
  EXPECT_TRUE(check_texts(config_text(*smallest), layout::to_string(smallest->layout), facts_of(*smallest)));
  set_fault(Fault::none);
  EXPECT_FALSE(check_apart(*smallest));
}

TEST(Faults, AreNoneUnlessTheyAreSet) {
  const SearchTotals totals = search({.seed = 1, .cases = 20}, [](const FoundCase& found) {
    ADD_FAILURE() << report_of(found);
    return false;
  });
  EXPECT_EQ(totals.all.wrong, 0);
}

}  // namespace
}  // namespace lockstep::net
