// Pipelines train to the same bits as one process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/error.h"
#include "plan/stage_table.h"
#include "proof/checker.h"
#include "train/loop/divided_models.h"
#include "train/loop/resumed_layouts.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;

constexpr const char* kDeepMlp = R"(
model { mlp { image: 16 image: 16 image: 1 hidden: 90 hidden: 80 hidden: 70 classes: 5 dropout: 0.3 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 5 shape: 16 shape: 16 shape: 1 } }
)";
constexpr const char* kDeepGpt = R"(
model { gpt { vocabulary: 70 context: 8 layers: 3 heads: 2 width: 16 dropout: 0.1 tied_head: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 70 context: 8 } }
)";

// Without dropout the gradient of a residual sum is that of the product before it, too.
constexpr const char* kPlainGpt = R"(
model { gpt { vocabulary: 70 context: 8 layers: 3 heads: 2 width: 16 tied_head: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 70 context: 8 } }
)";

// The smallest model in which a product's output is added to something that was made before it.
constexpr const char* kSum = R"(
model {
  input { name: "image" shape: 8 shape: 8 shape: 1 }
  input { name: "label" type: INT32 }
  layer { name: "flat" input: "image" flatten {} }
  layer { name: "a" linear { units: 8 } }
  layer { name: "t" tanh {} }
  layer { name: "d" tanh {} }
  layer { name: "b" linear { units: 8 } }
  layer { name: "sum" input: "b" input: "t" add {} }
  layer { name: "c" linear { units: 4 } }
  layer { name: "loss" input: "c" input: "label" softmax_cross_entropy {} }
}
data { synthetic { samples: 40 eval_samples: 23 classes: 4 shape: 8 shape: 8 shape: 1 } }
)";

constexpr const char* kWordyGpt = R"(
model { gpt { vocabulary: 700 context: 8 layers: 3 heads: 2 width: 96 dropout: 0.1 tied_head: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 700 context: 8 } }
)";

const std::vector<std::string> kLayouts = {
    "dp=1,pp=2",
    "dp=1,pp=3",
    "dp=1,pp=4",
    "dp=2,pp=2",
    "dp=3,pp=2",
    "dp=1,pp=2,schedule=gpipe",
    "dp=1,pp=4,schedule=gpipe",
    "dp=2,pp=3,schedule=gpipe",
    "dp=1,pp=2,schedule=interleaved",
    "dp=2,pp=2,schedule=interleaved",
    "dp=1,pp=3,schedule=interleaved",
    "dp=1,pp=2,schedule=zero_bubble",
    "dp=2,pp=3,schedule=zero_bubble",
    "dp=1,pp=4,schedule=zero_bubble,recompute=full",
    "dp=2,recompute=full",
    "dp=2,recompute=selective",
    "dp=1,pp=3,recompute=selective",
    "dp=2,pp=2,schedule=zero_bubble,recompute=selective",
    "dp=1,pp=2,schedule=interleaved,recompute=selective,shard=optimizer",
    "dp=1,pp=2,recompute=full",
    "dp=2,pp=2,schedule=gpipe,recompute=full",
    "dp=1,pp=2,schedule=interleaved,recompute=full",
    "dp=1,pp=2,shard=optimizer",
    "dp=2,pp=2,shard=optimizer",
    "dp=3,pp=2,shard=optimizer",
    "dp=2,pp=2,schedule=interleaved,shard=optimizer",
    "dp=2,pp=2,sync=ps",
    "dp=3,pp=2,sync=ps,servers=2",
    "dp=1,pp=3,schedule=zero_bubble,sync=ps,servers=2",
    "dp=2,pp=2,sync=ps,servers=2,aggregate=host",
    "dp=2,pp=2,sync=ps,servers=2,placement=colocated",
    "dp=2,pp=2,schedule=gpipe,sync=ps,servers=4,placement=colocated,aggregate=host",
};

class Pipelines : public testing::TestWithParam<ModelCase> {};

TEST_P(Pipelines, TrainToTheSameBits) {
  const Trace one = train_on_threads(GetParam().config(), 1);
  EXPECT_NE(one.losses.front(), one.losses.back());
  for (const std::string& layout : kLayouts) EXPECT_EQ(trace_of(GetParam().config(), layout), one) << layout;
}

TEST_P(Pipelines, OfLanesThatRunAtOnceGiveTheSameBits) {
  const Trace one = train_on_threads(GetParam().config(), 1);
  for (const char* layout :
       {"dp=1,pp=3", "dp=2,pp=2", "dp=1,pp=2,schedule=interleaved", "dp=1,pp=3,schedule=zero_bubble"})
    for (const uint64_t seed : {1, 2})
      EXPECT_EQ(trace_of(GetParam().config(), layout,
                         {.asynchronous = device::AsyncCpuOptions{.jitter_seed = seed, .max_jitter_us = 200},
                          .shared_memory = seed == 2,
                          .output_directory = {}}),
                one)
          << layout;
}

TEST_P(Pipelines, AreProven) {
  for (const std::string& layout : kLayouts)
    for (const char* reduction : {"parallel.reduction=FAST", "parallel.reduction=REPRODUCIBLE"})
      for (const bool shared_memory : {false, true})
        compile_run(with(GetParam().config({reduction}), layout),
                    {.world_size = processes_of(layout), .shared_memory = shared_memory})
            .check();
}

const std::string kSgd = "optimizer.sgd={momentum: 0.9}";
INSTANTIATE_TEST_SUITE_P(
    All, Pipelines,
    testing::Values(
        ModelCase{"mlp", kDeepMlp, {}}, ModelCase{"mlp_sgd", kDeepMlp, {kSgd}},
        ModelCase{"mlp_as_it_lands",
                  kDeepMlp,
                  {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE", "parallel.bucket_bytes=50000"}},
        ModelCase{"lenet", kLenet, {}}, ModelCase{"gpt", kDeepGpt, {}},
        // The tied parameter is cut into shards.
        ModelCase{"gpt_large_vocabulary", kWordyGpt, {}},
        ModelCase{"gpt_small_buckets", kDeepGpt, {"parallel.bucket_bytes=4000"}},
        ModelCase{"gpt_as_it_lands", kDeepGpt, {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE"}},
        ModelCase{"gpt_bfloat16", kDeepGpt, {"precision.compute=BFLOAT16"}},
        ModelCase{"gpt_without_dropout", kPlainGpt, {"parallel.bucket_bytes=4000"}}),
    [](const auto& info) { return info.param.name; });

void expect_refused(const config::RunConfig& config, const std::string& layout, const std::string& reason) {
  try {
    compile_run(with(config, layout), {.world_size = processes_of(layout)});
    FAIL() << layout << " was taken";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr(reason)) << layout;
  }
}

TEST(Pipeline, CutWhereItIsToldHasTheSameBits) {
  const config::RunConfig config = config_of(kDeepGpt);
  const Trace one = train_on_threads(config, 1);
  for (const auto& [layout, cuts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"dp=1,pp=2", {"h.2.ln_1"}},
           {"dp=2,pp=3", {"h.0.ln_2", "h.0.mlp.c_fc"}},
           {"dp=1,pp=2,schedule=interleaved", {"wpe", "h.1.ln_1", "h.2.ln_1"}}}) {
    config::RunConfig cut = config;
    cut.parallel.cuts = cuts;
    EXPECT_EQ(trace_of(cut, layout), one) << layout;
    const auto run = compile_run(with(cut, layout), {.world_size = processes_of(layout)});
    std::vector<std::string> last_layers;
    for (const auto& piece : plan::summarize_pipeline(run).pieces) last_layers.push_back(piece.last_layer);
    EXPECT_EQ(last_layers.size(), cuts.size() + 1);
  }
  config::RunConfig one_too_many = config;
  one_too_many.parallel.cuts = {"h.1.ln_1", "h.2.ln_1"};
  expect_refused(
      one_too_many, "dp=1,pp=2",
      "parallel.pipeline.cuts names 2 layers, which make 3 pieces of the model, and layout 'dp=1,pp=2' "
      "has 2; name 1");
  expect_refused(one_too_many, "dp=2", "has 1; ");
}

/// The gradient that a stage sends to the one before is also that of its product's output, which the second
/// half of backward reads.
TEST(Pipeline, InHalvesSendsTheGradientOfASum) {
  for (const char* compute : {"precision.compute=FLOAT32", "precision.compute=BFLOAT16"})
    for (const char* cut : {"t.fork", "b", "sum", "c"}) {
      config::RunConfig config = config_of(kSum, {compute});
      const Trace one = train_on_threads(config, 1);
      config.parallel.cuts = {cut};
      for (const char* layout :
           {"dp=1,pp=2,schedule=zero_bubble", "dp=2,pp=2,schedule=zero_bubble,recompute=full",
            "dp=2,pp=2,schedule=zero_bubble,sync=ps,servers=2"})
        EXPECT_EQ(trace_of(config, layout), one) << compute << ", cut at " << cut << ", " << layout;
    }
}

TEST(Pipeline, InFastModeIsCloseToReproducible) {
  const Trace exact = train_on_threads(config_of(kDeepGpt, {"data.shuffle=false"}), 1);
  for (const char* layout : {"dp=1,pp=2", "dp=2,pp=2", "dp=4,pp=2"})
    expect_close_losses(
        trace_of(config_of(kDeepGpt, {"data.shuffle=false", "parallel.reduction=FAST"}), layout), exact,
        layout);
}

TEST(Pipeline, SkipsTheSameStepsWhereGradientsOverflow) {
  const Trace one = train_on_threads(config_that_overflows(), 1);
  for (const char* layout : {"dp=1,pp=2", "dp=2,pp=3", "dp=1,pp=2,schedule=interleaved"})
    EXPECT_EQ(trace_of(config_that_overflows(), layout), one) << layout;
}

TEST(Pipeline, HoldsOfEachStageWhatItComputes) {
  const config::RunConfig config = config_of(kDeepGpt, {"optimizer.sgd={momentum: 0.9}"});
  const auto run = compile_run(with(config, "dp=2,pp=3"), {.world_size = 6});
  const auto& graph = run.graph();
  std::vector<int> holders(graph.parameters.size(), 0);
  for (int rank = 0; rank < 6; ++rank) {
    const auto program = run.compile(rank).step;
    for (size_t p = 0; p < program.parameters.size(); ++p)
      holders[p] += program.parameters[p].held.empty() ? 0 : 1;
  }
  for (size_t p = 0; p < holders.size(); ++p)
    EXPECT_EQ(holders[p], graph.parameters[p].uses.size() > 1 ? 4 : 2) << graph.parameters[p].name;
}

/// Each stage is sharded over its replicas, and parameters that stages share are of the first one alone.
TEST(Pipeline, KeepsOptimizerStateWhereItIsUpdated) {
  const config::RunConfig config = config_of(kWordyGpt);
  for (const auto& [layout, owners] : std::vector<std::pair<const char*, int>>{
           {"dp=2,pp=2", 2}, {"dp=2,pp=2,shard=optimizer", 1}, {"dp=2,pp=2,sync=ps,servers=2", 1}}) {
    const auto run = compile_run(with(config, layout), {.world_size = processes_of(layout)});
    for (size_t p = 0; p < run.graph().parameters.size(); ++p) {
      int64_t owned = 0;
      for (int rank = 0; rank < run.ownership().ranks(); ++rank) {
        const auto program = run.compile(rank).step;
        owned += program.parameters[p].owned.count();
      }
      EXPECT_EQ(owned, owners * run.graph().parameters[p].spec.shape.count())
          << layout << " " << run.graph().parameters[p].name;
    }
  }
}

/// 1F1B keeps as many micro-batches of a stage as there are stages from it on, GPipe all of them.
TEST(Pipeline, KeepsAsManyMicroBatchesAsItsScheduleSays) {
  const auto most_alive = [](const std::string& layout, int rank) {
    const auto run = compile_run(with(config_of(kDeepGpt), layout), {.world_size = processes_of(layout)});
    const auto program = run.compile(rank).step;
    int alive = 0, most = 0;
    const int first = [&] {
      for (const auto& instruction : program.instructions)
        if (instruction.kind == program::InstructionKind::forward) return instruction.segment;
      return -1;
    }();
    for (const auto& instruction : program.instructions) {
      if (instruction.segment != first) continue;
      if (instruction.kind == program::InstructionKind::forward) most = std::max(most, ++alive);
      if (instruction.kind == program::InstructionKind::backward) --alive;
    }
    return most;
  };
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(most_alive("dp=1,pp=4", rank), 4 - rank);
    EXPECT_EQ(most_alive("dp=1,pp=4,schedule=gpipe", rank), 12);
  }
}

TEST(Pipeline, NeedsNoMoreMemoryForMoreMicroBatches) {
  const auto activations = [](const std::string& layout, int batch, int rank) {
    const auto config = config_of(kDeepGpt, {"trainer.global_batch=" + std::to_string(batch)});
    const auto run = compile_run(with(config, layout), {.world_size = processes_of(layout)});
    const auto programs = run.compile(rank);
    return programs.step_plan.category_bytes[static_cast<size_t>(program::Category::activations)];
  };
  for (const char* layout : {"dp=1,pp=4", "dp=1,pp=4,recompute=full", "dp=1,pp=4,schedule=zero_bubble"})
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(activations(layout, 16, rank), activations(layout, 64, rank)) << layout << ", rank " << rank;
}

/// Nobody waits for whoever waits for it, however long each takes. LOCKSTEP_DELAYED_STEPS says of how many
/// steps; docs/results.md tells of many.
TEST(Pipeline, ComesThroughRandomDelays) {
  const char* stated = std::getenv("LOCKSTEP_DELAYED_STEPS");
  const std::string steps = stated != nullptr ? stated : "30";
  const config::RunConfig config =
      config_of(R"(
model { mlp { image: 4 image: 4 image: 1 hidden: 8 hidden: 8 hidden: 8 classes: 3 } }
data { synthetic { samples: 40 eval_samples: 8 classes: 3 shape: 4 shape: 4 shape: 1 } }
)",
                {"trainer.steps=" + steps, "trainer.check_every_steps=0", "trainer.eval_every_steps=0"});
  const Trace one = train_on_threads(config, 1);
  uint64_t seed = 0;
  for (const char* layout : {"dp=1,pp=2,schedule=gpipe", "dp=1,pp=3,schedule=1f1b",
                             "dp=1,pp=2,schedule=interleaved", "dp=1,pp=4,schedule=zero_bubble"})
    EXPECT_EQ(trace_of(config, layout,
                       {.asynchronous = device::AsyncCpuOptions{.jitter_seed = ++seed, .max_jitter_us = 100},
                        .output_directory = {}}),
              one)
        << layout;
}

/// As a report of a rank that hangs names them.
TEST(Pipeline, MessagesSayBetweenWhomAndOfWhat) {
  const auto run = compile_run(with(config_of(kDeepMlp), "dp=2,pp=2"), {.world_size = 4});
  const program::Program step = run.compile(1).step;  // replica 1 of stage 0
  int sends = 0, receives = 0;
  for (int i = 0; i < static_cast<int>(step.instructions.size()); ++i) {
    const auto& instruction = step.instruction(i);
    if (instruction.kind != program::InstructionKind::exchange || instruction.micro_batch < 0) continue;
    const bool is_send = instruction.operands.front().role == program::Role::send;
    (is_send ? sends : receives) += 1;
    EXPECT_THAT(program::describe(step, i),
                HasSubstr(std::string("(exchange ") + (is_send ? "to" : "from") + " rank 3, lane " +
                          (is_send ? "forward.0" : "backward.0") + ", micro-batch " +
                          std::to_string(instruction.micro_batch) + ")"));
  }
  EXPECT_EQ(sends, run.division().micro_batches_of(1));
  EXPECT_EQ(receives, sends);
}

/// Of each layer's attention the output and its sums of exponentials, and the output of its GELU.
TEST(SelectiveRecomputation, DropsWhatAttentionAndGeluMake) {
  const auto keeping = compile_run(with(config_of(kDeepGpt), "dp=1"), {.world_size = 1});
  const auto dropping = compile_run(with(config_of(kDeepGpt), "dp=1,recompute=selective"), {.world_size = 1});
  int64_t dropped = 0;
  for (int s = 0; s < dropping.training_code().segment_count(); ++s) {
    const auto &none = keeping.training_code().segment(s), &selective = dropping.training_code().segment(s);
    EXPECT_EQ(selective.stash_bytes + selective.repeated_stash_bytes, none.stash_bytes);
    dropped += selective.repeated_stash_bytes;
  }
  const int64_t samples = dropping.division().micro_batch, layers = 3, context = 8, width = 16, heads = 2;
  EXPECT_EQ(dropped, 4 * layers * samples * context * (width + 4 * width + heads));
}

TEST(SelectiveRecomputation, LeavesModelsWithoutThemAlone) {
  for (const char* model : {kDeepMlp, kLenet}) {
    const config::RunConfig config = config_of(model);
    const auto text_of = [&](const std::string& layout) {
      return program::to_text(
          compile_run(with(config, layout), {.world_size = processes_of(layout)}).compile(0).step);
    };
    EXPECT_EQ(text_of("dp=1,pp=2,recompute=selective"), text_of("dp=1,pp=2"));
  }
}

/// What a GELU makes for a dropout or a sum, backward does not read.
TEST(SelectiveRecomputation, DoesNotRepeatWhatIsNotKept) {
  const config::RunConfig config = config_of(R"(
model {
  input { name: "image" shape: 8 shape: 8 shape: 1 }
  input { name: "label" type: INT32 }
  layer { name: "flat" input: "image" flatten {} }
  layer { name: "a" linear { units: 8 } }
  layer { name: "g" gelu {} }
  layer { name: "b" linear { units: 8 } }
  layer { name: "h" gelu {} }
  layer { name: "drop" dropout { rate: 0.5 } }
  layer { name: "c" linear { units: 8 } }
  layer { name: "i" gelu {} }
  layer { name: "sum" input: "i" input: "drop" add {} }
  layer { name: "d" linear { units: 4 } }
  layer { name: "loss" input: "d" input: "label" softmax_cross_entropy {} }
}
data { synthetic { samples: 40 eval_samples: 23 classes: 4 shape: 8 shape: 8 shape: 1 } }
)");
  const Trace one = train_on_threads(config, 1);
  for (const char* layout : {"dp=1,pp=2,recompute=selective", "dp=1,pp=3,recompute=selective",
                             "dp=1,pp=2,schedule=zero_bubble,recompute=selective"})
    EXPECT_EQ(trace_of(config, layout), one) << layout;
}

TEST(SelectiveRecomputation, ThatIsLeftOutIsNoticed) {
  const auto run = compile_run(with(config_of(kDeepGpt), "dp=1,pp=2,recompute=selective"), {.world_size = 2});
  std::vector<program::Program> programs{run.compile(0).step, run.compile(1).step};
  EXPECT_TRUE(proof::check_programs(programs).empty());
  for (auto& instruction : programs[0].instructions)
    if (instruction.kind == program::InstructionKind::recompute) {
      std::erase_if(instruction.operands, [](const program::Operand& operand) {
        return operand.role == program::Role::stash && operand.access == program::Access::write;
      });
      break;
    }
  const auto findings = proof::check_programs(programs);
  ASSERT_FALSE(findings.empty());
  EXPECT_THAT(findings.front().message, HasSubstr("backward"));
}

TEST(Pipeline, GoesOnFromOtherLayoutsAndBack) {
  expect_same_bits_across(config_of(kDeepGpt), "pipelines",
                          {{"dp=1,pp=3", "dp=2"},
                           {"dp=2,pp=2", "dp=2,sync=ps"},
                           {"dp=2,shard=optimizer", "dp=1,pp=2,schedule=interleaved"},
                           {"dp=1,pp=2,recompute=selective", "dp=2,recompute=full"},
                           {"dp=2,pp=2,shard=optimizer", "dp=2,pp=2,sync=ps,servers=2"},
                           {"dp=1,pp=3,sync=ps", "dp=3,pp=2,shard=optimizer"},
                           {"dp=1,pp=2,schedule=interleaved", "dp=1,pp=4,schedule=gpipe,recompute=full"}});
}

TEST(Pipeline, ThatCannotBeIsRefusedWithTheNearestThatCan) {
  expect_refused(config_of(kMlp), "dp=1,pp=40", "use at most");
  expect_refused(config_of(kMlp), "dp=4,pp=2,schedule=interleaved", "takes a multiple of pp micro-batches");
  expect_refused(config_of(kMlp), "dp=2,pp=2,sync=ps,mode=stale,bound=1", "'dp=2,pp=2,sync=ps'");
  expect_refused(config_of(kMlp), "dp=2,pp=2,sync=ps,mode=async", "'dp=2,pp=2,sync=ps'");
}

}  // namespace
}  // namespace lockstep::train
