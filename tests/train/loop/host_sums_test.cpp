// Workers that sum within their hosts first, and then across them, train to the same bits as one process.

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "train/loop/divided_models.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

struct Case {
  std::string layout;
  std::vector<int> hosts;
  /// Sums within hosts are nodes of the canonical tree over 4 virtual replicas.
  bool follows_tree = true;
};

const std::vector<Case> kCases = {
    {"dp=4,aggregate=host", {0, 0, 1, 1}},
    {"dp=3,aggregate=host", {0, 1, 1}},
    // One worker each, and one host: nothing to sum within hosts, or across.
    {"dp=2,aggregate=host", {0, 1}},
    {"dp=4,aggregate=host", {0, 0, 0, 0}},
    // Stages share hosts, or have their own.
    {"dp=4,pp=2,aggregate=host", {0, 0, 1, 1, 0, 0, 1, 1}},
    {"dp=2,pp=2,aggregate=host", {0, 0, 1, 1}},
    {"dp=4,aggregate=host", {0, 1, 0, 1}, false},
    {"dp=3,aggregate=host", {0, 0, 1}, false},
    {"dp=4,aggregate=host", {0, 0, 0, 1}, false},
};

TraceOptions on_hosts(const std::vector<int>& hosts) {
  TraceOptions options;
  options.hosts = hosts;
  return options;
}

class HostSums : public testing::TestWithParam<ModelCase> {};

TEST_P(HostSums, TrainToTheSameBits) {
  const config::RunConfig config = GetParam().config();
  const Trace one = train_on_threads(config, 1);
  for (const auto& [layout, hosts, follows_tree] : kCases)
    if (follows_tree) EXPECT_EQ(trace_of(config, layout, on_hosts(hosts)), one) << layout;
}

TEST_P(HostSums, AreProvenOrRefused) {
  for (const auto& [layout, hosts, follows_tree] : kCases)
    for (const char* reduction : {"parallel.reduction=FAST", "parallel.reduction=REPRODUCIBLE"}) {
      const auto check = [&] {
        compile_run(with(GetParam().config({reduction}), layout),
                    {.world_size = processes_of(layout), .hosts = hosts})
            .check();
      };
      if (follows_tree || std::string(reduction).ends_with("FAST"))
        EXPECT_NO_THROW(check()) << layout << reduction;
      else
        EXPECT_THROW(check(), ConfigError) << layout;
    }
}

INSTANTIATE_TEST_SUITE_P(All, HostSums,
                         testing::Values(ModelCase{"mlp", kMlp, {}}, ModelCase{"lenet", kLenet, {}},
                                         ModelCase{"gpt", kGpt, {}},
                                         ModelCase{"gpt_float16", kGpt, {"precision.compute=FLOAT16"}}),
                         [](const auto& info) { return info.param.name; });

TEST(HostSumsInFastMode, AreCloseToReproducible) {
  const Trace exact = train_on_threads(config_of(kMlp, {"data.shuffle=false"}), 1);
  for (const auto& [layout, hosts, follows_tree] : kCases)
    expect_close_losses(
        trace_of(config_of(kMlp, {"data.shuffle=false", "parallel.reduction=FAST"}), layout, on_hosts(hosts)),
        exact, layout);
}

}  // namespace
}  // namespace lockstep::train
