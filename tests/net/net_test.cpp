// Random models in random layouts, other ones every day: all have one rank's bits, and one rank the oracle's
// numbers.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "net/search.h"

namespace lockstep::net {
namespace {

int64_t cases_wanted(int64_t otherwise) {
  const char* stated = std::getenv("LOCKSTEP_NET_CASES");
  return stated != nullptr ? std::strtoll(stated, nullptr, 0) : otherwise;
}

// Shares of many thousand cases.
constexpr double kCompared = 0.8, kSharp = 0.74, kSharpStates = 0.8;

/// The least that is to be expected of `draws` draws, of which that share succeeds on average: four standard
/// deviations below, since a few draws may well be unlucky.
double least(double share, int64_t draws) {
  const double count = static_cast<double>(draws);
  return share * count - 4 * std::sqrt(share * (1 - share) * count);
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
  const int64_t cases = totals.all.cases;
  if (totals.all.wrong > 0) return;
  EXPECT_EQ(totals.all.bits + totals.all.fast + totals.all.diverged, cases)
      << "of some cases nothing was compared";
  EXPECT_GT(static_cast<double>(totals.all.compared), least(kCompared, cases))
      << "hardly anything was compared with the oracle";
  // Tensors of one case are alike, so cases are the draws.
  const auto share = [cases](int64_t sharp, int64_t of) {
    return static_cast<double>(cases * sharp) / static_cast<double>(std::max<int64_t>(of, 1));
  };
  EXPECT_GT(share(totals.sharp_tensors, totals.tensors), least(kSharp, cases))
      << "tolerances hide what they should show";
  EXPECT_GT(share(totals.sharp_states, totals.states), least(kSharpStates, cases))
      << "tolerances hide what they should show of the optimizer";
}

TEST(Net, MakesTheSameCaseOfASeed) {
  EXPECT_EQ(describe(generate_case(7, {.on_gpu = kOnGpu})), describe(generate_case(7, {.on_gpu = kOnGpu})));
  EXPECT_NE(describe(generate_case(7)), describe(generate_case(8)));
}

}  // namespace
}  // namespace lockstep::net
