#include "train/faults/divergence.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <filesystem>
#include <limits>

#include "base/philox.h"
#include "checkpoint/checkpoint.h"
#include "mentions.h"
#include "train/thread_ranks.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

// fc1.weight has 48 x 16 elements, fc2.weight 5 x 48; with Adam's two moments of each of 4 parameters, 12
// tensors.
constexpr const char* kDivergenceConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 48 classes: 5 } }
data { synthetic { samples: 60 eval_samples: 6 classes: 5 shape: 4 shape: 4 shape: 1 } }
trainer { steps: 8 global_batch: 12 virtual_replicas: 4 seed: 5 eval_at_end: false check_every_steps: 3 }
optimizer { learning_rate: 0.01 adam {} }
parallel { reduction: REPRODUCIBLE }
checkpoint { every_steps: 4 }
)";

std::string host() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

/// The memory of a tensor by its name in checkpoints.
float* tensor_data(const Worker& worker, const std::string& name) {
  for (const auto& tensors : {parameter_tensors(worker), optimizer_tensors(worker)})
    for (const auto& tensor : tensors)
      if (tensor.name == name) return const_cast<float*>(static_cast<const float*>(tensor.data));
  throw InternalError("no tensor " + name);
}

void flip(float& value, int bit) {
  value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ (1u << bit));
}

struct Damage {
  int rank;
  std::string tensor;
  int64_t element;
  int bit;
};

/// Has `ranks` replicas compare themselves with `damages` done to them; what each says, after checking that
/// all say the same. `repaired`: the damage is undone between hash and search.
std::string located(int ranks, const std::vector<Damage>& damages, const char* model = kDivergenceConfig,
                    bool repaired = false) {
  const config::RunConfig config = config::parse_run_config(model, "test", {});
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    Worker worker(config, {.rank = rank, .world_size = ranks, .asynchronous = {}});
    worker.connect(world);
    Trainer trainer(worker, world, {}, {});
    trainer.prepare();
    ReplicaComparison replicas(worker);
    EXPECT_TRUE(replicas.all_equal(world));
    const auto damage_own = [&] {
      for (const auto& damage : damages)
        if (damage.rank == rank) flip(tensor_data(worker, damage.tensor)[damage.element], damage.bit);
    };
    damage_own();
    EXPECT_FALSE(replicas.all_equal(world));
    if (repaired) damage_own();
    texts[static_cast<size_t>(rank)] = replicas.locate(world);
  });
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
  return texts[0];
}

TEST(ReplicaComparison, NamesRankTensorElementBothValuesAndBit) {
  // Adam's moments begin at 0; bit 30 of a float alone is 2.
  EXPECT_EQ(located(3, {{1, "fc2.weight.exp_avg", 123, 30}}),
            "rank 1 (host " + host() +
                ") holds other bits than the other 2 in 1 of 12 tensors\n"
                "  first: fc2.weight.exp_avg, element 123: 2 (0x40000000) on rank 1, 0 (0x00000000) on the "
                "others; bit 30 differs\n"
                "The memory or a processor of this rank's host is suspect: test it, or leave it out.");
}

constexpr const char* kStages = R"(
format_version: 1
model { gpt { vocabulary: 11 context: 4 layers: 1 heads: 1 width: 8 tied_head: true } }
data { synthetic { samples: 24 eval_samples: 6 classes: 11 context: 4 } }
trainer { steps: 4 global_batch: 8 virtual_replicas: 4 eval_at_end: false check_every_steps: 1 }
optimizer { learning_rate: 0.01 adam {} }
parallel { reduction: REPRODUCIBLE pp: 2 }
)";

TEST(ReplicaComparison, FindsWhatStagesShareAndDoNotHoldAlike) {
  // Without replicas, and of the stage that did not draw it first.
  const std::string text = located(2, {{1, "wte.weight", 3, 22}}, kStages);
  EXPECT_THAT(text, HasSubstr("first: wte.weight, element 3: "));
  EXPECT_THAT(text, HasSubstr("bit 22 differs"));
}

TEST(ReplicaComparison, ComparesEachStageWithItsOwnReplicas) {
  // Ranks 2 and 3 have the second stage.
  const std::string text = located(4, {{3, "ln_f.weight", 1, 22}}, kStages);
  EXPECT_THAT(text, HasSubstr("ranks 2 (host " + host() + ") and 3 (host " + host() + ") differ in 1 of"));
  EXPECT_THAT(text, HasSubstr("first: ln_f.weight, element 1: "));
}

TEST(ReplicaComparison, OfTwoRanksEitherMayBeTheDamagedOne) {
  EXPECT_EQ(located(2, {{0, "fc1.bias.exp_avg_sq", 7, 29}}),
            "ranks 0 (host " + host() + ") and 1 (host " + host() +
                ") differ in 1 of 12 tensors; either may be the damaged one, "
                "since no state has a majority\n"
                "  first: fc1.bias.exp_avg_sq, element 7: 0 (0x00000000) on rank 1, 1.0842022e-19 "
                "(0x20000000) on rank 0; bit 29 differs\n"
                "The memory or a processor of these ranks' hosts is suspect: test them, or leave them out.");
}

TEST(ReplicaComparison, CountsRanksAndTensorsAndNamesTheFirst) {
  EXPECT_THAT(located(4, {{3, "fc1.weight.exp_avg", 5, 30}}),
              HasSubstr("rank 3 (host " + host() + ") holds other bits than the other 3 in 1 of 12"));
  const std::string two = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 48 classes: 5 } }
data { synthetic { samples: 60 eval_samples: 6 classes: 5 shape: 4 shape: 4 shape: 1 } }
trainer { steps: 8 global_batch: 10 virtual_replicas: 5 }
optimizer { learning_rate: 0.01 adam {} }
)";
  EXPECT_THAT(
      located(
          5,
          {{4, "fc2.bias.exp_avg", 1, 30}, {2, "fc2.weight.exp_avg", 9, 30}, {2, "fc2.bias.exp_avg", 1, 29}},
          two.c_str()),
      AllOf(HasSubstr("ranks 2 (host " + host() + ") and 4 (host " + host() +
                      ") hold other bits than the other 3 in 2 of 12 tensors"),
            HasSubstr("first: fc2.weight.exp_avg, element 9: 2 (0x40000000) on rank 2")));
}

TEST(ReplicaComparison, WithoutAMajorityAllAreNamed) {
  EXPECT_THAT(located(4, {{1, "fc2.bias.exp_avg", 2, 30}, {2, "fc2.bias.exp_avg", 2, 30}}),
              AllOf(HasSubstr("ranks 0 (host"), HasSubstr(" and 3 (host"), HasSubstr("each may"),
                    Mentions("element 2 ... 2 (0x40000000) ... rank 1 ... 0 (0x00000000) ... rank 0")));
}

TEST(ReplicaComparison, FindsAnElementInATensorOfAnySize) {
  // 90,000 elements are more than 256 parts of 256.
  constexpr const char* kLarge = R"(
format_version: 1
model { mlp { image: 20 image: 15 image: 1 hidden: 300 classes: 5 } }
data { synthetic { samples: 60 eval_samples: 6 classes: 5 shape: 20 shape: 15 shape: 1 } }
trainer { steps: 1 global_batch: 3 virtual_replicas: 3 }
optimizer { learning_rate: 0.01 adam {} }
)";
  for (const int64_t element : {0, 65535, 65536, 77777, 89999})
    EXPECT_THAT(located(3, {{2, "fc1.weight.exp_avg", element, 30}}, kLarge),
                HasSubstr("fc1.weight.exp_avg, element " + std::to_string(element) + ": 2 "));
}

TEST(ReplicaComparison, NamesTheTensorEvenWhereTheDifferenceIsGone) {
  EXPECT_THAT(located(3, {{2, "fc1.weight", 40, 3}}, kDivergenceConfig, true),
              AllOf(HasSubstr("rank 2"), Mentions("fc1.weight ... rank 2")));
}

TEST(ReplicaComparison, AnyBitAnywhereIsFoundByRankTensorAndElement) {
  const config::RunConfig config = config::parse_run_config(kDivergenceConfig, "test", {});
  run_ranks(3, [&](int rank, comm::Communicator& world) {
    Worker worker(config, {.rank = rank, .world_size = 3, .asynchronous = {}});
    worker.connect(world);
    Trainer trainer(worker, world, {}, {});
    trainer.prepare();
    ReplicaComparison replicas(worker);
    auto tensors = parameter_tensors(worker);
    for (auto& tensor : optimizer_tensors(worker)) tensors.push_back(tensor);
    for (uint32_t trial = 0; trial < 60; ++trial) {
      const auto block = Philox::generate({{trial, 0, 0, 0}}, 99);
      const auto& random = block.word;
      const int victim = static_cast<int>(random[0] % 3), bit = static_cast<int>(random[1] % 32);
      const auto& tensor = tensors[random[2] % tensors.size()];
      const int64_t element = static_cast<int64_t>(random[3]) % tensor.shape.count();
      auto& value = const_cast<float*>(static_cast<const float*>(tensor.data))[element];
      if (rank == victim) flip(value, bit);
      ASSERT_FALSE(replicas.all_equal(world)) << tensor.name << " " << element << " " << bit;
      const std::string text = replicas.locate(world);
      EXPECT_THAT(text,
                  AllOf(HasSubstr("rank " + std::to_string(victim) + " (host"),
                        HasSubstr("first: " + tensor.name + ", element " + std::to_string(element) + ": "),
                        HasSubstr("; bit " + std::to_string(bit) + " differs")));
      if (rank == victim) flip(value, bit);
      ASSERT_TRUE(replicas.all_equal(world));
    }
  });
}

class Divergence : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "lockstep_divergence_" +
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  struct Failure {
    std::string message = "nothing was thrown";
    ExitCode code = ExitCode::done;
    int64_t step = -1;
  };
  using Disturb = std::function<void(int64_t step, int rank, Worker& worker)>;

  /// Trains; `disturb` comes after every step. What all ranks threw, after checking that it is the same.
  Failure train(int ranks, const Disturb& disturb, const std::vector<std::string>& overrides = {},
                const char* model = kDivergenceConfig) {
    const config::RunConfig config = config::parse_run_config(model, "test", overrides);
    std::vector<Failure> failures(static_cast<size_t>(ranks));
    run_ranks(ranks, [&](int rank, comm::Communicator& world) {
      Worker worker(config, {.rank = rank, .world_size = ranks, .asynchronous = {}});
      worker.connect(world);
      TrainerEvents events;
      events.on_step = [&](const StepRecord& record) {
        worker.finish_step();  // whose updates would write over it
        disturb(record.step, rank, worker);
      };
      Trainer trainer(worker, world, events, {.output_directory = directory_, .stop_requested = {}});
      trainer.prepare();
      auto& failure = failures[static_cast<size_t>(rank)];
      try {
        trainer.run();
      } catch (const comm::CollectiveError& error) {
        failure.message = error.what();
        failure.code = error.code();
      }
      failure.step = trainer.next_step();
    });
    for (const auto& failure : failures) EXPECT_EQ(failure.message, failures[0].message);
    return failures[0];
  }

  static Disturb damage(int64_t after_step, int damaged_rank, const std::string& tensor, int64_t element,
                        int bit = 22) {
    return [=](int64_t step, int rank, Worker& worker) {
      if (step == after_step && rank == damaged_rank) flip(tensor_data(worker, tensor)[element], bit);
    };
  }

  std::string directory_;
};

TEST_F(Divergence, IsFoundAtTheNextCheck) {
  const Failure failure = train(3, damage(5, 1, "fc1.weight", 100));
  EXPECT_EQ(failure.code, ExitCode::internal);
  EXPECT_EQ(failure.step, 6);  // the check is part of step 7
  EXPECT_THAT(failure.message,
              AllOf(Mentions("step 6 ... step 4 ... rank 1"), HasSubstr("first: fc1.weight, element 100:"),
                    HasSubstr("last checkpoint"), HasSubstr("--resume auto")));
}

TEST_F(Divergence, OfTheOptimizersStateIsFoundBeforeItReachesMore) {
  const Failure failure = train(4, damage(6, 2, "fc2.weight.exp_avg", 31));
  EXPECT_THAT(failure.message,
              AllOf(HasSubstr("after step 6;"), HasSubstr("rank 2 (host"), HasSubstr("in 1 of 12 tensors"),
                    HasSubstr("first: fc2.weight.exp_avg, element 31:")));
}

TEST_F(Divergence, IsNeverSaved) {
  const Failure failure = train(3, damage(4, 0, "fc2.bias", 2));
  EXPECT_THAT(failure.message, AllOf(Mentions("step 4 ... step 3"), HasSubstr("rank 0 (host"),
                                     HasSubstr("fc2.bias, element 2:"), HasSubstr("; bit 22 differs")));
  EXPECT_TRUE(checkpoint::find_checkpoints(directory_ + "/checkpoints").empty());
}

TEST_F(Divergence, IsFoundAtTheEndOfARunThatSavesNothing) {
  EXPECT_THAT(train(2, damage(8, 1, "fc2.bias", 2),
                    {"trainer.check_every_steps=1000", "checkpoint.every_steps=0", "checkpoint.at_end=false"})
                  .message,
              AllOf(Mentions("step 8 ... step 0"), HasSubstr("either may")));
}

TEST_F(Divergence, ThatMakesALossInfiniteIsNotBlamedOnTheModel) {
  const auto poison = [](int64_t step, int rank, Worker& worker) {
    if (step == 4 && rank == 2) tensor_data(worker, "fc1.weight")[9] = std::numeric_limits<float>::infinity();
  };
  for (const char* policy : {"LOCATE", "STOP", "SKIP"})
    EXPECT_THAT(train(3, poison,
                      {std::string("trainer.nonfinite=") + policy, "trainer.check_every_steps=1000",
                       "checkpoint.every_steps=0"})
                    .message,
                AllOf(HasSubstr("step 4"), HasSubstr("rank 2 (host"), HasSubstr("fc1.weight, element 9: inf"),
                      Not(HasSubstr("learning_rate"))))
        << policy;
}

TEST_F(Divergence, ThatMakesASpikeIsFoundAtTheStepAfterIt) {
  const auto disturb = [](int64_t step, int rank, Worker& worker) {
    if (step == 60 && rank == 0)
      for (int i = 0; i < 48; ++i) tensor_data(worker, "fc2.weight")[i] += 500;
  };
  EXPECT_THAT(train(3, disturb,
                    {"trainer.steps=100", "optimizer.learning_rate=0.00001", "trainer.check_every_steps=1000",
                     "checkpoint.every_steps=0"})
                  .message,
              Mentions("step 61 ... step 0 ... rank 0"));
}

// What a step reads is then overwritten by what owners send.
TEST_F(Divergence, WithShardedOptimizersIsFoundInTheStepAfterItWasRead) {
  for (const std::string reduction : {"REPRODUCIBLE", "FAST"})
    for (int damaged = 0; damaged < 3; ++damaged)
      for (const char* tensor : {"fc1.weight", "fc2.bias"}) {
        const Failure failure = train(3, damage(4, damaged, tensor, 4),
                                      {"parallel.shard=OPTIMIZER", "parallel.reduction=" + reduction,
                                       "trainer.check_every_steps=1000", "checkpoint.every_steps=0"});
        EXPECT_EQ(failure.step, 5);
        EXPECT_THAT(failure.message,
                    AllOf(HasSubstr("step 5"), HasSubstr("rank " + std::to_string(damaged) + " (host"),
                          Mentions("2 ... 1 ... 4 parameters"),
                          HasSubstr(std::string("first: ") + tensor + ", between elements 0 and ")));
      }
}

// Of a stage's replicas, and of the copies that another stage has of parameters.
TEST_F(Divergence, InStagesThatGetParametersIsFoundInTheStepAfterItWasRead) {
  const std::vector<std::string> rarely{"trainer.check_every_steps=1000", "checkpoint.every_steps=0"};
  for (const auto& [tensor, damaged, owners] :
       std::vector<std::tuple<const char*, int, std::vector<std::string>>>{
           {"ln_f.weight", 3, {"parallel.shard=OPTIMIZER"}},
           {"wte.weight", 0, {"parallel.shard=OPTIMIZER"}},
           {"wte.weight", 3, {"parallel.shard=OPTIMIZER"}},
           {"wte.weight", 2, {}}}) {
    std::vector<std::string> overrides = owners;
    overrides.insert(overrides.end(), rarely.begin(), rarely.end());
    const Failure failure = train(4, damage(2, damaged, tensor, 4), overrides, kStages);
    EXPECT_EQ(failure.step, 3);
    const int stage = damaged / 2;
    EXPECT_THAT(
        failure.message,
        AllOf(HasSubstr("step 3"),
              HasSubstr(fmt::format("ranks {} (host {}) and {} (host", 2 * stage, host(), 2 * stage + 1)),
              HasSubstr(fmt::format("first: {}, between elements 0 and ", tensor))));
  }
}

TEST_F(Divergence, WithShardedOptimizersIsNeverSavedAndFoundAtTheEnd) {
  const Failure saving =
      train(3, damage(3, 1, "fc2.weight", 2), {"parallel.shard=OPTIMIZER", "trainer.check_every_steps=1000"});
  EXPECT_THAT(saving.message, AllOf(HasSubstr("step 4"), HasSubstr("rank 1 (host"), HasSubstr("fc2.weight")));
  EXPECT_TRUE(checkpoint::find_checkpoints(directory_ + "/checkpoints").empty());
  const Failure last = train(2, damage(7, 0, "fc1.bias", 2),
                             {"parallel.shard=OPTIMIZER", "trainer.check_every_steps=1000",
                              "checkpoint.every_steps=0", "checkpoint.at_end=false"});
  EXPECT_THAT(last.message, AllOf(HasSubstr("step 8"), HasSubstr("either may")));
}

TEST_F(Divergence, WithShardedOptimizersThatMakesALossInfiniteIsNotBlamedOnTheModel) {
  const auto poison = [](int64_t step, int rank, Worker& worker) {
    if (step == 4 && rank == 2) tensor_data(worker, "fc1.weight")[9] = std::numeric_limits<float>::infinity();
  };
  for (const char* policy : {"LOCATE", "STOP", "SKIP"})
    EXPECT_THAT(train(3, poison,
                      {std::string("trainer.nonfinite=") + policy, "trainer.check_every_steps=1000",
                       "parallel.shard=OPTIMIZER", "checkpoint.every_steps=0"})
                    .message,
                AllOf(HasSubstr("step 5"), HasSubstr("rank 2 (host"), HasSubstr("first: fc1.weight"),
                      Not(HasSubstr("learning_rate"))))
        << policy;
}

TEST_F(Divergence, IsNotSoughtWhereTheConfigSaysSo) {
  EXPECT_EQ(train(3, damage(3, 0, "fc2.bias", 2), {"trainer.check_every_steps=0", "parallel.shard=OPTIMIZER"})
                .message,
            "nothing was thrown");

  EXPECT_EQ(train(3, damage(4, 0, "fc2.bias", 2), {"trainer.check_every_steps=0"}).message,
            "nothing was thrown");
}

TEST_F(Divergence, ChecksChangeNoBit) {
  const auto with = [](int every) {
    return config::parse_run_config(kDivergenceConfig, "test",
                                    {"trainer.check_every_steps=" + std::to_string(every)});
  };
  const Trace never = train_on_threads(with(0), 3);
  EXPECT_EQ(never.losses.size(), 8u);
  for (const int every : {1, 3, 1000}) EXPECT_EQ(train_on_threads(with(every), 3), never) << every;
  EXPECT_EQ(train_on_threads(with(1), 1), never);
  EXPECT_EQ(train_on_threads(with(1), 2,
                             {.asynchronous = device::AsyncCpuOptions{.jitter_seed = 1, .max_jitter_us = 100},
                              .output_directory = {}}),
            never);
}

}  // namespace
}  // namespace lockstep::train
