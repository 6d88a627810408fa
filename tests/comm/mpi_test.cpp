#include <gmock/gmock.h>

#include <array>
#include <cstdlib>

#include "comm/conformance.h"
#include "comm/conformance_support.h"
#include "comm/mpi/message_limits.h"
#include "comm/mpi_main.h"

namespace lockstep::comm {
namespace {

class Mpi : public testing::TestWithParam<ConformanceCheck> {};

TEST_P(Mpi, Conforms) { GetParam().run(*test_environment().world()); }

/// What an int cannot count goes other ways, which a limit of 65,537 opens to the larger messages of the
/// suite.
class MpiLargeCounts : public testing::TestWithParam<ConformanceCheck> {};

TEST_P(MpiLargeCounts, Conforms) {
  GetParam().run(*make_world_with(test_environment(), {.largest_count = 65'537}));
}

/// As between hosts: in pieces, of which the larger messages of the suite have several, and of which most are
/// not full.
class MpiPieces : public testing::TestWithParam<ConformanceCheck> {};

TEST_P(MpiPieces, Conforms) { GetParam().run(*make_world_with(test_environment(), {.piece_bytes = 1000})); }

std::string name_of_check(const testing::TestParamInfo<ConformanceCheck>& info) {
  return std::string(info.param.name);
}
const auto all = testing::ValuesIn(conformance_checks().begin(), conformance_checks().end());
INSTANTIATE_TEST_SUITE_P(Checks, Mpi, all, name_of_check);
INSTANTIATE_TEST_SUITE_P(Checks, MpiLargeCounts, all, name_of_check);
INSTANTIATE_TEST_SUITE_P(Checks, MpiPieces, all, name_of_check);

TEST(Mpi, RegroupNeedsNothingOfOthers) { regroup_needs_nothing_of_others(*test_environment().world()); }

TEST(MpiEnvironment, KnowsItsLauncher) { EXPECT_TRUE(started_by_mpi_launcher()); }

TEST(MpiEnvironment, GivesAnotherWorldEachTime) {
  HostStream stream;
  const auto a = test_environment().world(), b = test_environment().world();
  // Started crosswise: in one world this would sum 1 with 10.
  int32_t one = 1, ten = 10;
  Communicator& first = a->rank() % 2 == 0 ? *a : *b;
  Communicator& second = a->rank() % 2 == 0 ? *b : *a;
  first.all_reduce(&first == a.get() ? &one : &ten, 1, DType::int32, ReduceOp::sum, stream);
  second.all_reduce(&second == a.get() ? &one : &ten, 1, DType::int32, ReduceOp::sum, stream);
  a->synchronize(stream, patience());
  b->synchronize(stream, patience());
  EXPECT_EQ(one, a->size());
  EXPECT_EQ(ten, 10 * a->size());
}

}  // namespace
}  // namespace lockstep::comm
