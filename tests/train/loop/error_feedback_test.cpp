// What rounding gradients to bfloat16 loses is added to the next step's: the same bits in every layout under
// REPRODUCIBLE, those of residuals among them, also where a run goes on in another layout; and nothing is
// lost in the long run.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "checkpoint/checkpoint.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "train/loop/divided_models.h"
#include "train/loop/resumed_layouts.h"
#include "train/thread_ranks.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

const std::vector<std::string> kFeedback = {"parallel.wire=BFLOAT16", "parallel.error_feedback=true"};

std::vector<std::string> operator+(std::vector<std::string> list, const std::vector<std::string>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

TraceOptions hashed(TraceOptions options = {}) {
  options.hashes = true;
  return options;
}

bool has_residuals(const Trace& trace) {
  return std::ranges::any_of(
      trace.hashes, [](const auto& hash) { return checkpoint::residual_name_from(hash.first).has_value(); });
}

class ErrorFeedback : public testing::TestWithParam<ModelCase> {
 protected:
  static config::RunConfig config(const std::vector<std::string>& more = {}) {
    return GetParam().config(more + kFeedback);
  }
  static Trace one() { return train_on_threads(config(), 1, hashed()); }
};

TEST_P(ErrorFeedback, TrainsToTheSameBits) {
  const Trace one = this->one();
  EXPECT_TRUE(has_residuals(one));
  const Trace without = train_on_threads(GetParam().config({"parallel.wire=BFLOAT16"}), 1, hashed());
  EXPECT_FALSE(has_residuals(without));
  EXPECT_EQ(one.losses[0], without.losses[0]);
  EXPECT_NE(one.losses, without.losses);
  for (const std::string& layout : kSynchronousLayouts)
    EXPECT_EQ(trace_of(config(), layout, hashed()), one) << layout;
}

TEST_P(ErrorFeedback, TrainsToTheSameBitsWithinHosts) {
  const Trace one = this->one();
  TraceOptions shared = hashed(), hosts = hashed();
  shared.shared_memory = true;
  hosts.hosts = {0, 0, 1, 1};
  for (const char* layout : {"dp=2", "dp=3", "dp=2,pp=2"})
    EXPECT_EQ(trace_of(config(), layout, shared), one) << layout;
  EXPECT_EQ(trace_of(config(), "dp=4,aggregate=host", hosts), one);
  EXPECT_EQ(trace_of(config(), "dp=4,sync=ps,servers=2,placement=colocated,aggregate=host", hosts), one);
}

TEST_P(ErrorFeedback, TrainsToTheSameBitsWhereLanesRunAtOnce) {
  const Trace one = this->one();
  TraceOptions lanes = hashed();
  for (const uint64_t seed : {1, 2}) {
    lanes.asynchronous = device::AsyncCpuOptions{.jitter_seed = seed, .max_jitter_us = 200};
    for (const char* layout : {"dp=3", "dp=2,pp=2", "dp=2,sync=ps,servers=1"})
      EXPECT_EQ(trace_of(config(), layout, lanes), one) << layout;
  }
}

/// a + b = b + a, so that FAST has one order of two workers' gradients; a worker is a leaf.
TEST_P(ErrorFeedback, HasTheSameBitsOfTwoWorkersInFastMode) {
  const std::vector<std::string> two{"trainer.virtual_replicas=2"};
  const Trace one = train_on_threads(config(two), 1, hashed());
  config::RunConfig fast = config(two);
  fast.parallel.reduction = layout::Reduction::fast;
  for (const char* layout : {"dp=2", "dp=2,shard=optimizer", "dp=2,sync=ps,servers=1",
                             "dp=2,sync=ps,servers=2,placement=colocated"}) {
    const Trace trace = trace_of(fast, layout, hashed());
    EXPECT_EQ(trace.parameters, one.parameters) << layout;
    EXPECT_EQ(trace.hashes, one.hashes) << layout;
  }
}

TEST_P(ErrorFeedback, GoesOnInAnyLayout) {
  expect_same_bits_across(config(), std::string("feedback-") + GetParam().name,
                          {{"dp=2", "dp=4"},
                           {"dp=3", "dp=1,pp=2"},
                           {"dp=2,pp=2", "dp=3,shard=optimizer"},
                           {"dp=2,shard=optimizer", "dp=2,sync=ps,servers=2"},
                           {"dp=3,sync=ps,servers=1,placement=colocated", "dp=2,pp=2,schedule=zero_bubble"},
                           {"dp=2,pp=2,sync=ps,servers=2", "dp=1"}});
}

INSTANTIATE_TEST_SUITE_P(
    All, ErrorFeedback,
    testing::Values(ModelCase{"mlp", kMlp, {}},
                    ModelCase{"mlp_as_it_lands", kMlp, {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE"}},
                    ModelCase{"lenet_small_buckets",
                              kLenet,
                              {"model.lenet.batch_norm=false", "parallel.bucket_bytes=1"}}),
    [](const auto& info) { return info.param.name; });

/// Each use of a tied weight has residuals of its own, but where FAST adds uses before they are rounded.
TEST(TiedErrorFeedback, TrainsToTheSameBits) {
  const config::RunConfig config = config_of(kGpt, kFeedback);
  const Trace one = train_on_threads(config, 1, hashed());
  for (const char* layout : {"dp=2", "dp=3", "dp=2,pp=2", "dp=2,shard=optimizer", "dp=3,sync=ps,servers=2"})
    EXPECT_EQ(trace_of(config, layout, hashed()), one) << layout;
  const auto uses_of = [](const Trace& trace) {
    std::set<int> uses;
    for (const auto& [name, hash] : trace.hashes)
      if (const auto residual = checkpoint::residual_name_from(name)) uses.insert(residual->use);
    return uses;
  };
  EXPECT_EQ(uses_of(one), (std::set{0, 1}));
  config::RunConfig fast = config;
  fast.parallel.reduction = layout::Reduction::fast;
  const Trace exact = trace_of(fast, "dp=1");
  for (const char* layout : {"dp=3", "dp=2,pp=2", "dp=3,shard=optimizer", "dp=3,sync=ps,servers=2"}) {
    const Trace trace = trace_of(fast, layout, hashed());
    EXPECT_EQ(uses_of(trace), std::string(layout) == "dp=2,pp=2" ? (std::set{0, 1}) : (std::set{0}))
        << layout;
    for (size_t i = 0; i < exact.losses.size(); ++i)
      EXPECT_NEAR(trace.losses[i], exact.losses[i], 0.02 * exact.losses[i]) << layout << ", step " << i;
  }
  expect_same_bits_across(config, "feedback-tied",
                          {{"dp=2", "dp=2,pp=2"}, {"dp=1,pp=2", "dp=3,shard=optimizer"}});
}

/// Hardly anything moves, so that gradients are nearly the same in every step, and so is what rounding them
/// loses. Weights begin at 0: what they come to is the sum of all gradients.
TEST(ErrorFeedbackOfManySteps, LosesNothing) {
  const std::string text = R"(
format_version: 1
model {
  input { name: "image" shape: [4, 4, 1] } input { name: "label" type: INT32 }
  layer { name: "flat" flatten {} } layer { name: "fc" linear { units: 5 zero_weight: true } }
  layer { name: "loss" input: "fc" input: "label" softmax_cross_entropy {} }
}
data { synthetic { samples: 12 eval_samples: 3 classes: 5 shape: 4 shape: 4 shape: 1 } }
trainer { steps: 400 global_batch: 12 virtual_replicas: 1 seed: 3 clip_norm: 0 eval_every_steps: 0 eval_at_end: false }
optimizer { learning_rate: 1e-6 sgd {} weight_decay: 0 }
parallel { reduction: REPRODUCIBLE }
)";
  const auto trained = [&](const std::vector<std::string>& more, const char* layout = "dp=1") {
    return trace_of(config::parse_run_config(text, "test", more), layout).parameters;
  };
  const auto exact = trained({});
  const auto error_of = [&](const std::vector<std::vector<float>>& parameters) {
    double squares = 0, all = 0;
    for (size_t p = 0; p < exact.size(); ++p) {
      if (std::ranges::any_of(exact[p], [](float value) { return std::abs(value) > 1e-3f; })) continue;
      for (size_t i = 0; i < exact[p].size(); ++i) {
        squares += std::pow(double{parameters[p][i]} - exact[p][i], 2);
        all += std::pow(double{exact[p][i]}, 2);
      }
    }
    EXPECT_GT(all, 0);
    return std::sqrt(squares / all);
  };
  const double without = error_of(trained({"parallel.wire=BFLOAT16"})), with = error_of(trained(kFeedback));
  EXPECT_GT(without, 1e-4);
  EXPECT_LT(with, without / 20);
  const std::vector<std::string> fast{"parallel.reduction=FAST"};
  EXPECT_LT(error_of(trained(kFeedback + fast, "dp=1,sync=ps,servers=1")), without / 20);
}

// --- Checkpoints.

class ResumedFeedback : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::path(testing::TempDir()) /
               testing::UnitTest::GetInstance()->current_test_info()->name())
                  .string();
    std::filesystem::remove_all(folder_);
  }

  static config::RunConfig config(const std::vector<std::string>& more = {}) { return config_of(kMlp, more); }

  /// Resumes from the folder's checkpoint, and goes no step further.
  struct Resumed {
    std::vector<std::string> messages;  ///< of rank 0
    std::map<std::string, std::vector<float>> residuals;
    std::string error;
  };
  Resumed resume(config::RunConfig config, const std::string& layout, bool may_change = false) const {
    config = with(std::move(config), layout);
    config.checkpoint.resume = checkpoint::ResumePolicy::automatic;
    config.checkpoint.allow_config_change = may_change;
    Resumed resumed;
    std::mutex mutex;
    run_ranks(processes_of(layout), [&](int rank, comm::Communicator& world) {
      Worker worker(config, {.rank = rank, .world_size = world.size(), .asynchronous = {}});
      worker.connect(world);
      TrainerEvents events;
      if (rank == 0)
        events.on_message = [&](const std::string& message) { resumed.messages.push_back(message); };
      Trainer trainer(worker, world, events, {.output_directory = folder_, .stop_requested = {}});
      try {
        trainer.prepare();
      } catch (const Error& error) {
        const std::scoped_lock lock(mutex);
        resumed.error = error.what();
        return;
      }
      for (const auto& tensor : residual_tensors(worker)) {
        const auto* values = static_cast<const float*>(shown(worker, tensor).data);
        const std::scoped_lock lock(mutex);
        EXPECT_TRUE(resumed.residuals.try_emplace(tensor.name, values, values + tensor.count()).second);
      }
    });
    return resumed;
  }

  std::map<std::string, std::vector<float>> saved() const {
    const checkpoint::Checkpoint checkpoint(
        checkpoint::find_checkpoints(folder_ + "/checkpoints").at(0).path);
    std::map<std::string, std::vector<float>> residuals;
    for (const auto& record : checkpoint.tensors(checkpoint::FileKind::optimizer)) {
      if (!checkpoint::residual_name_from(record.name)) continue;
      auto& values = residuals[record.name];
      values.resize(static_cast<size_t>(record.shape.count()));
      checkpoint.load(checkpoint::FileKind::optimizer,
                      std::vector<checkpoint::TensorDestination>{
                          {record.name, record.dtype, record.shape, values.data()}});
    }
    return residuals;
  }

  /// Of leaf l those of leaves l, l + n, ..., added in this order.
  static std::map<std::string, std::vector<float>> folded(
      const std::map<std::string, std::vector<float>>& saved, int leaves) {
    std::map<std::string, std::vector<float>> sums;
    for (int leaf = 0; leaf < 16; ++leaf)
      for (const auto& [name, values] : saved) {
        checkpoint::ResidualName residual = *checkpoint::residual_name_from(name);
        if (residual.leaf != leaf) continue;
        residual.leaf %= leaves;
        auto& sum = sums[to_text(residual)];
        sum.resize(values.size(), 0);
        for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
      }
    return sums;
  }

  static bool are_zero(const std::map<std::string, std::vector<float>>& residuals) {
    return std::ranges::all_of(residuals, [](const auto& residual) {
      return std::ranges::all_of(residual.second, [](float value) { return value == 0; });
    });
  }

  std::string folder_;
};

TEST_F(ResumedFeedback, OnOtherNumbersOfWorkersKeepsTheSumInFastMode) {
  const config::RunConfig fast = config(kFeedback + std::vector<std::string>{"parallel.reduction=FAST"});
  train_until(fast, "dp=4", 2, folder_);
  const auto of_four = saved();
  ASSERT_FALSE(of_four.empty());
  ASSERT_FALSE(are_zero(of_four));
  const Resumed same = resume(fast, "dp=4");
  EXPECT_EQ(same.residuals, of_four);
  EXPECT_THAT(same.messages, Not(Contains(HasSubstr("residuals"))));
  for (const char* layout : {"dp=2", "dp=3", "dp=2,shard=optimizer", "dp=1,sync=ps,servers=1"}) {
    const Resumed fewer = resume(fast, layout);
    const int workers = layout::parse_layout(layout).workers();
    EXPECT_EQ(fewer.error, "") << layout;
    EXPECT_EQ(fewer.residuals, folded(of_four, workers)) << layout;
    EXPECT_THAT(fewer.messages,
                Contains(Mentions(fmt::format("residuals ... of 4 leaves ... has {}", workers))))
        << layout;
  }
  // Where nothing is rounded, nothing is kept.
  const Resumed one = resume(fast, "dp=1");
  EXPECT_TRUE(one.residuals.empty());
  EXPECT_THAT(one.messages, Contains(HasSubstr("dropped")));

  const auto more = resume(fast, "dp=6").residuals;
  auto expected = of_four;
  for (const auto& [name, values] : more) expected.try_emplace(name, values.size(), 0.0f);  // leaves 4 and 5
  EXPECT_EQ(more, expected);
  // And goes on.
  const auto rest = train_until(fast, "dp=2", 0, folder_);
  EXPECT_EQ(rest.first.size(), 3u);
}

TEST_F(ResumedFeedback, OfCheckpointsWithoutBeginsAtZero) {
  const std::vector<std::string> wire{"parallel.wire=BFLOAT16"};
  train_until(config(wire), "dp=2", 2, folder_);
  ASSERT_TRUE(saved().empty());
  EXPECT_THAT(resume(config(kFeedback), "dp=2").error, HasSubstr("parallel.error_feedback"));
  const Resumed resumed = resume(config(kFeedback), "dp=2", true);
  EXPECT_EQ(resumed.error, "");
  EXPECT_FALSE(resumed.residuals.empty());
  EXPECT_TRUE(are_zero(resumed.residuals));
  EXPECT_THAT(resumed.messages, Contains(HasSubstr("no residuals of error feedback: they begin at 0")));
  config::RunConfig changed = config(kFeedback);
  changed.checkpoint.allow_config_change = true;
  EXPECT_EQ(train_until(changed, "dp=3", 0, folder_).first.size(), 3u);
  EXPECT_FALSE(are_zero(saved()));
}

TEST_F(ResumedFeedback, AreDroppedByARunWithout) {
  train_until(config(kFeedback), "dp=2", 2, folder_);
  ASSERT_FALSE(saved().empty());
  const config::RunConfig exact = config();
  EXPECT_THAT(resume(exact, "dp=2").error,
              AllOf(HasSubstr("parallel.error_feedback"), HasSubstr("parallel.wire")));
  const Resumed resumed = resume(exact, "dp=2", true);
  EXPECT_EQ(resumed.error, "");
  EXPECT_TRUE(resumed.residuals.empty());
  EXPECT_THAT(resumed.messages, Contains(HasSubstr("residuals of error feedback are dropped")));
}

TEST_F(ResumedFeedback, WithOtherVirtualReplicasKeepsTheSum) {
  train_until(config(kFeedback), "dp=2", 2, folder_);
  const auto of_four = saved();
  const Resumed resumed =
      resume(config(kFeedback + std::vector<std::string>{"trainer.virtual_replicas=2"}), "dp=2", true);
  EXPECT_EQ(resumed.error, "");
  EXPECT_EQ(resumed.residuals, folded(of_four, 2));
}

/// A parameter that was frozen has no residuals in the checkpoint.
TEST_F(ResumedFeedback, OfLayersThatWereFrozenBeginAtZero) {
  const std::vector<std::string> frozen{"model.frozen=[\"fc1\"]"};
  train_until(config(kFeedback + frozen), "dp=2", 2, folder_);
  const auto without = saved();
  const Resumed resumed = resume(config(kFeedback), "dp=2", true);
  EXPECT_EQ(resumed.error, "");
  const size_t anew = 2 * 4;  // of a weight and a bias, by leaf
  EXPECT_THAT(resumed.messages,
              Contains(AllOf(HasSubstr("residuals of error feedback: " + std::to_string(anew)),
                             HasSubstr("0 are dropped"))));
  for (const auto& [name, values] : resumed.residuals) {
    const auto was = without.find(name);
    EXPECT_EQ(was == without.end(), name.starts_with("fc1.")) << name;
    EXPECT_EQ(values, was == without.end() ? std::vector<float>(values.size(), 0) : was->second) << name;
  }
}

TEST(ResidualNames, AreReadAsTheyAreWritten) {
  using checkpoint::residual_name_from;
  const checkpoint::ResidualName name{.parameter = "a.weight", .use = 1, .leaf = 12};
  EXPECT_EQ(to_text(name), "a.weight.residual.1.12");
  EXPECT_EQ(residual_name_from("a.weight.residual.1.12"), name);
  EXPECT_EQ(residual_name_from("x.residual.0.1.residual.2.3")->parameter, "x.residual.0.1");
  for (const char* other : {"a.weight", "a.weight.momentum", "a.residual.1", "a.residual.1.", "a.residual..1",
                            "a.residual.1.2.ema", "a.residual.-1.2", "a.residual.01.2", "a.residual.1.x",
                            "a.residual.1.99999999999", "residual.1.2"})
    EXPECT_EQ(residual_name_from(other), std::nullopt) << other;
}

}  // namespace
}  // namespace lockstep::train
