// Gradients that are summed as bfloat16: the same bits in every layout under REPRODUCIBLE, since every node
// of the tree rounds; half the bytes.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "train/loop/divided_models.h"
#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

const std::string kWire = "parallel.wire=BFLOAT16";

/// Rounding moves gradients by up to 1 in 256, and with Adam what is nearly zero by more.
void expect_nearly_equal(const Trace& rounded, const Trace& exact, const std::string& name) {
  ASSERT_EQ(rounded.losses.size(), exact.losses.size()) << name;
  for (size_t i = 0; i < exact.losses.size(); ++i)
    EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.02 * exact.losses[i] + 1e-3) << name << ", step " << i;
}

double wire_distance(const std::vector<float>& one, const std::vector<float>& other) {
  double squares = 0;
  for (size_t i = 0; i < one.size(); ++i) squares += std::pow(static_cast<double>(one[i]) - other[i], 2);
  return std::sqrt(squares);
}

class Wire : public testing::TestWithParam<ModelCase> {
 protected:
  static config::RunConfig narrow(const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = more;
    all.push_back(kWire);
    return GetParam().config(all);
  }
};

TEST_P(Wire, TrainsToTheSameBits) {
  const Trace one = train_on_threads(narrow(), 1);
  EXPECT_NE(one, train_on_threads(GetParam().config(), 1)) << "nothing was rounded";
  for (const std::string& layout : kSynchronousLayouts) EXPECT_EQ(trace_of(narrow(), layout), one) << layout;
}

TEST_P(Wire, TrainsToTheSameBitsWithinHosts) {
  const Trace one = train_on_threads(narrow(), 1);
  TraceOptions shared, hosts;
  shared.shared_memory = true;
  hosts.hosts = {0, 0, 1, 1};
  for (const char* layout : {"dp=2", "dp=3", "dp=4", "dp=2,pp=2"})
    EXPECT_EQ(trace_of(narrow(), layout, shared), one) << layout;
  EXPECT_EQ(trace_of(narrow(), "dp=4,aggregate=host", hosts), one);
  EXPECT_EQ(trace_of(narrow(), "dp=4,sync=ps,servers=2,placement=colocated,aggregate=host", hosts), one);
  hosts.hosts.push_back(2);
  EXPECT_EQ(trace_of(narrow(), "dp=4,sync=ps,servers=1,aggregate=host", hosts), one);
}

TEST_P(Wire, TrainsToTheSameBitsWhereLanesRunAtOnce) {
  const Trace one = train_on_threads(narrow(), 1);
  TraceOptions lanes;
  for (const uint64_t seed : {1, 2}) {
    lanes.asynchronous = device::AsyncCpuOptions{.jitter_seed = seed, .max_jitter_us = 200};
    for (const char* layout : {"dp=3", "dp=2,pp=2", "dp=2,sync=ps,servers=1"})
      EXPECT_EQ(trace_of(narrow(), layout, lanes), one) << layout;
  }
}

/// a + b = b + a, so that FAST has one order of two workers' gradients.
TEST_P(Wire, RoundsOfTwoWorkersTheSameInFastMode) {
  const std::vector<std::string> two{"trainer.virtual_replicas=2"};
  const Trace one = train_on_threads(narrow(two), 1);
  config::RunConfig fast = narrow(two);
  fast.parallel.reduction = layout::Reduction::fast;
  TraceOptions shared;
  shared.shared_memory = true;
  for (const char* layout : {"dp=2", "dp=2,shard=optimizer", "dp=2,sync=ps,servers=1",
                             "dp=2,sync=ps,servers=2,placement=colocated"})
    EXPECT_EQ(trace_of(fast, layout).parameters, one.parameters) << layout;
  EXPECT_EQ(trace_of(fast, "dp=2", shared).parameters, one.parameters);
}

TEST_P(Wire, TrainsCloseToFloat32) {
  expect_nearly_equal(train_on_threads(narrow(), 1), train_on_threads(GetParam().config(), 1), "one rank");
}

INSTANTIATE_TEST_SUITE_P(
    All, Wire,
    testing::Values(ModelCase{"mlp", kMlp, {}},
                    ModelCase{"mlp_as_it_lands", kMlp, {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE"}},
                    ModelCase{"lenet_small_buckets", kLenet, {"parallel.bucket_bytes=1"}},
                    ModelCase{"mlp_float16", kMlp, {"precision.compute=FLOAT16"}}),
    [](const auto& info) { return info.param.name; });

/// Tied weights: FAST adds their uses before they are rounded, REPRODUCIBLE after.
TEST(TiedWire, TrainsToTheSameBits) {
  const config::RunConfig config = config_of(kGpt, {kWire});
  const Trace one = train_on_threads(config, 1);
  for (const char* layout : {"dp=2", "dp=3", "dp=2,pp=2", "dp=2,shard=optimizer", "dp=3,sync=ps,servers=2"})
    EXPECT_EQ(trace_of(config, layout), one) << layout;
  config::RunConfig fast = config;
  fast.parallel.reduction = layout::Reduction::fast;
  for (const char* layout : {"dp=3", "dp=2,pp=2", "dp=3,shard=optimizer", "dp=3,sync=ps,servers=2"})
    expect_nearly_equal(trace_of(fast, layout), trace_of(fast, "dp=1"), layout);
}

/// One step of plain SGD shows the scale of every tensor's gradient, which Adam and clipping hide. Rounding
/// moves a tensor's gradient by 0.3 % of its length; a worker that counts twice, or not at all, by far more.
TEST(FastWire, MovesEveryTensorAsFloat32Does) {
  const auto plain = [](const char* model, const std::vector<std::string>& more) {
    std::vector<std::string> all{"optimizer.sgd={}", "optimizer.weight_decay=0", "trainer.clip_norm=0",
                                 "trainer.steps=1", "trainer.eval_every_steps=0"};
    all.insert(all.end(), more.begin(), more.end());
    return config_of(model, all);
  };
  for (const char* model : {kMlp, kGpt}) {
    const Trace exact = train_on_threads(plain(model, {"optimizer.learning_rate=1"}), 1),
                twice = train_on_threads(plain(model, {"optimizer.learning_rate=2"}), 1);  // a gradient apart
    const config::RunConfig fast =
        plain(model, {"optimizer.learning_rate=1", kWire, "parallel.reduction=FAST"});
    const auto expect_near = [&](const std::string& layout, const TraceOptions& options = {}) {
      const Trace rounded = trace_of(fast, layout, options);
      ASSERT_EQ(rounded.parameters.size(), exact.parameters.size()) << layout;
      for (size_t p = 0; p < exact.parameters.size(); ++p) {
        const double gradient = wire_distance(twice.parameters[p], exact.parameters[p]),
                     error = wire_distance(rounded.parameters[p], exact.parameters[p]);
        EXPECT_LT(error, gradient / 64) << layout << ", tensor " << p;
        EXPECT_GT(error, gradient / 8192) << layout << ", tensor " << p << ": nothing was rounded";
      }
    };
    for (const char* layout :
         {"dp=2", "dp=3", "dp=4", "dp=2,pp=2", "dp=3,shard=optimizer", "dp=1,sync=ps,servers=1",
          "dp=3,sync=ps,servers=2", "dp=4,sync=ps,servers=2,placement=colocated"})
      expect_near(layout);
    TraceOptions shared, hosts;
    shared.shared_memory = true;
    hosts.hosts = {0, 0, 1, 1};
    for (const char* layout : {"dp=3", "dp=4"}) expect_near(layout, shared);
    for (const char* layout :
         {"dp=4,aggregate=host", "dp=4,sync=ps,servers=2,placement=colocated,aggregate=host"})
      expect_near(layout, hosts);
  }
}

}  // namespace
}  // namespace lockstep::train
