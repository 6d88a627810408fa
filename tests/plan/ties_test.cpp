#include "plan/ties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "lockstep/error.h"
#include "plan/link_traffic.h"
#include "plan/plan_testing.h"

namespace lockstep::plan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(TyingRates, AreAllOrNone) {
  EXPECT_THAT(tying_rates([](double) { return 1.0; }, 1.02), ElementsAre(RateRange{1e6, 1e12}));
  EXPECT_THAT(tying_rates([](double) { return 1.1; }, 1.02), IsEmpty());
}

TEST(TyingRates, BeginOrEndAtACrossing) {
  const auto from = tying_rates([](double rate) { return 2.1e9 / rate; }, 1);
  ASSERT_EQ(from.size(), 1u);
  EXPECT_NEAR(from[0].from, 2.1e9, 1e-3 * 2.1e9);
  EXPECT_GE(from[0].from, 2.1e9) << "the end itself ties";
  EXPECT_EQ(from[0].to, kFastestRate);
  const auto up_to = tying_rates([](double rate) { return rate / 3e7; }, 1);
  ASSERT_EQ(up_to.size(), 1u);
  EXPECT_EQ(up_to[0].from, kSlowestRate);
  EXPECT_NEAR(up_to[0].to, 3e7, 1e-3 * 3e7);
  EXPECT_LE(up_to[0].to, 3e7);
}

/// Where bytes decide, and again where latency does, but not between them.
TEST(TyingRates, OfWhatFallsAndRisesAreSeveralRanges) {
  const auto hill =
      tying_rates([](double rate) { return 2 - std::abs(std::log10(rate) - 9); }, 1);  // ties but for 8 to 10
  ASSERT_EQ(hill.size(), 2u);
  EXPECT_EQ(hill[0].from, kSlowestRate);
  EXPECT_NEAR(std::log10(hill[0].to), 8, 1e-3);
  EXPECT_NEAR(std::log10(hill[1].from), 10, 1e-3);
  EXPECT_EQ(hill[1].to, kFastestRate);
  const auto valley = tying_rates([](double rate) { return std::abs(std::log10(rate) - 9); }, 1);
  ASSERT_EQ(valley.size(), 1u);
  EXPECT_NEAR(std::log10(valley[0].from), 8, 1e-3);
  EXPECT_NEAR(std::log10(valley[0].to), 10, 1e-3);
}

TEST(TyingServers, AreCountedUntilThereAreNoMore) {
  const auto ratio = [](int servers) -> std::optional<double> {
    if (servers > 6) return std::nullopt;
    return servers == 2 || servers > 3 ? 1.0 : 2.0;
  };
  const TyingServers some = tying_servers(ratio, 1.02, 1, 8);
  EXPECT_THAT(some.counts, ElementsAre(CountRange{2, 2}, CountRange{4, 6}));
  EXPECT_EQ(some.tried, 6);
  const TyingServers few = tying_servers(ratio, 1.02, 1, 1);
  EXPECT_THAT(few.counts, IsEmpty());
  EXPECT_EQ(few.tried, 1);
}

/// Bytes of a step in the busiest link's busier direction, each rank on a host of its own.
double link_bytes_of(const std::string& layout) {
  compile::CompileOptions options = gpt_options(layout, 2);
  options.skips_nonfinite = options.clips_gradients = options.compares_replicas = false;
  compile::CompileFacts facts = facts_of(options);
  facts.hosts.resize(static_cast<size_t>(facts.world_size));
  std::iota(facts.hosts.begin(), facts.hosts.end(), 0);
  return busiest_link_bytes(compile::CompiledRun(options, facts), facts.hosts);
}

/// n workers around a ring take 2(n-1)M/n, and k servers max(M, nM/k) (BytePS, OSDI 2020): they tie from
/// n^2/(2(n-1)) servers on.
TEST(TyingServers, AreThoseOfTheFormulasWhereBytesDecide) {
  for (const int workers : {2, 4}) {
    const std::string dp = "dp=" + std::to_string(workers);
    const double ring = link_bytes_of(dp);
    const TyingServers found = tying_servers(
        [&](int servers) -> std::optional<double> {
          return link_bytes_of(dp + ",sync=ps,servers=" + std::to_string(servers)) / ring;
        },
        1.1, 1, 2 * workers);
    const int least = static_cast<int>(std::ceil(workers * workers / (2.0 * (workers - 1))));
    ASSERT_FALSE(found.counts.empty()) << workers;
    EXPECT_EQ(found.counts.front().from, least) << workers;
  }
}

}  // namespace
}  // namespace lockstep::plan
