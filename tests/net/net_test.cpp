// Random models in random layouts, other ones every day: all have one rank's bits, and one rank the oracle's
// numbers.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "net/search.h"

namespace lockstep::net {
namespace {

int64_t cases_wanted(int64_t otherwise) {
  const char* stated = std::getenv("LOCKSTEP_NET_CASES");
  return stated != nullptr ? std::strtoll(stated, nullptr, 0) : otherwise;
}

#ifdef LOCKSTEP_NET_ON_GPU
constexpr bool kOnGpu = true;
constexpr int64_t kCases = 60;  // kernels of the emulated GPU take their time
#else
constexpr bool kOnGpu = false;
constexpr int64_t kCases = 300;
#endif

TEST(Net, RandomModelsHaveTheSameBitsInRandomLayouts) {
  Search all{.seed = seed_of_today(), .cases = cases_wanted(kCases)};
  all.generator.on_gpu = kOnGpu;
  fmt::print("seed {}; LOCKSTEP_NET_SEED={} tries the same cases again\n", all.seed, all.seed);
  const SearchTotals totals = search(all, [](const FoundCase& found) {
    ADD_FAILURE() << report_of(found);
    return false;
  });
  fmt::print("{}\n", totals.text());
  if (totals.wrong > 0) return;
  EXPECT_GT(totals.compared, totals.cases * 2 / 3) << "hardly anything was compared with the oracle";
  EXPECT_GT(totals.sharp_tensors, totals.tensors / 3) << "tolerances hide what they should show";
}

TEST(Net, MakesTheSameCaseOfASeed) {
  EXPECT_EQ(describe(generate_case(7, {.on_gpu = kOnGpu})), describe(generate_case(7, {.on_gpu = kOnGpu})));
  EXPECT_NE(describe(generate_case(7)), describe(generate_case(8)));
}

}  // namespace
}  // namespace lockstep::net
