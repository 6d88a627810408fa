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
};

class Faults : public testing::TestWithParam<FaultCase> {};

/// The case of a seed that shows it first, in words; fails where none of 300 does.
void expect_noticed(const FaultCase& wrong, bool proves_calls) {
  set_fault(wrong.fault, proves_calls);
  std::string first;
  const SearchTotals totals = search({.seed = 1, .cases = 300}, [&](const FoundCase& found) {
    first = fmt::format("case {}: {}: {}", found.number, name_of(found.finding.kind), found.finding.what);
    return false;
  });
  set_fault(Fault::none);
  EXPECT_EQ(totals.wrong, 1) << "in none of " << totals.cases << " cases";
  fmt::print("{}: {}\n", wrong.name, first.substr(0, first.find('\n')));
}

TEST_P(Faults, AreNoticedByNumbersWithinThreeHundredCases) { expect_noticed(GetParam(), false); }

TEST_P(Faults, AreNoticedWithProofsOfKernelCalls) { expect_noticed(GetParam(), true); }

INSTANTIATE_TEST_SUITE_P(All, Faults,
                         testing::Values(FaultCase{"LostGradient", Fault::lost_gradient},
                                         FaultCase{"LeftOutCall", Fault::left_out_call},
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
  set_fault(Fault::none);
  EXPECT_FALSE(check_apart(*smallest));
}

TEST(Faults, AreNoneUnlessTheyAreSet) {
  const SearchTotals totals = search({.seed = 1, .cases = 20}, [](const FoundCase& found) {
    ADD_FAILURE() << report_of(found);
    return false;
  });
  EXPECT_EQ(totals.wrong, 0);
}

}  // namespace
}  // namespace lockstep::net
