#include "train/checkpoints/known_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/checkpoint.h"
#include "mentions.h"
#include "model/presets.h"
#include "train/loop/resumed_layouts.h"

namespace lockstep::train {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kFaultyGpt = R"(
model { gpt { vocabulary: 20 context: 4 layers: 1 heads: 2 width: 16 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 20 context: 4 } }
)";

model::Graph gpt(float dropout) {
  return model::make_graph(model::make_gpt(
      {.vocabulary = 20, .context = 4, .layers = 1, .heads = 2, .width = 16, .dropout = dropout}));
}

TEST(KnownFaults, AreToldOfTheModelsThatTheyHit) {
  checkpoint::Manifest manifest;
  manifest.step = 7;
  manifest.layout = "dp=1,pp=3,schedule=zero_bubble";
  EXPECT_EQ(known_fault_of(manifest, gpt(0)), "") << "a build without the fault saved it";
  manifest.numerics_revision = 0;
  EXPECT_THAT(known_fault_of(manifest, gpt(0)), Mentions("step 7 ... 'dp=1,pp=3,schedule=zero_bubble'"));
  EXPECT_EQ(known_fault_of(manifest, gpt(0.1f)), "") << "dropout lies between products and sums";
  EXPECT_EQ(known_fault_of(manifest, model::make_graph(model::make_mlp({}))), "") << "adds nothing";
  manifest.layout = "dp=1,pp=3";
  EXPECT_EQ(known_fault_of(manifest, gpt(0)), "");
}

TEST(KnownFaults, AreToldOnceWhenARunGoesOn) {
  const std::string folder = testing::TempDir() + "known-faults";
  std::filesystem::remove_all(folder);
  const config::RunConfig config = config_of(kFaultyGpt);
  train_until(config, "dp=1,pp=2,schedule=zero_bubble", 2, folder);
  const std::string saved = checkpoint::find_checkpoints(folder + "/checkpoints").front().path;
  checkpoint::Manifest manifest = checkpoint::read_manifest(saved);
  EXPECT_EQ(manifest.numerics_revision, checkpoint::Manifest::kNumericsRevision);
  manifest.numerics_revision = 0;
  std::ofstream(saved + "/manifest.json") << to_text(manifest);
  const auto told = [&](const char* layout, int64_t steps) {
    testing::internal::CaptureStderr();
    train_until(config, layout, steps, folder);
    return testing::internal::GetCapturedStderr();
  };
  const std::string first = told("dp=2", 3);
  const std::string warning = "warning: the checkpoint of step 2 was trained with layout";
  const size_t at = first.find(warning);
  ASSERT_NE(at, std::string::npos) << first;
  EXPECT_EQ(first.find(warning, at + 1), std::string::npos) << "one rank tells it";
  EXPECT_THAT(told("dp=1", 4), Not(HasSubstr("was trained with layout")));
}

TEST(OlderVersions, SummedInAnotherOrder) {
  const std::string folder = testing::TempDir() + "older-version";
  std::filesystem::remove_all(folder);
  const config::RunConfig config = config_of(kFaultyGpt);
  ASSERT_EQ(config.parallel.reduction, layout::Reduction::reproducible);
  train_until(config, "dp=1", 2, folder);
  const std::string saved = checkpoint::find_checkpoints(folder + "/checkpoints").front().path;
  checkpoint::Manifest manifest = checkpoint::read_manifest(saved);
  manifest.arithmetic_fingerprint = "cpu onednn=2.6.3 isa=0x3ef libc=2.36 intra_op_threads=1";
  manifest.math_fields.emplace_back("parallel.intra_op_threads", "1");
  manifest.math_fields.emplace_back("trainer.micro_batch", "2");
  std::ofstream(saved + "/manifest.json") << to_text(manifest);
  try {
    train_until(config, "dp=1", 3, folder);
    FAIL() << "was continued in silence";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), Mentions("order of sums ... --allow-config-change"));
    EXPECT_THAT(error.what(), Not(HasSubstr("intra_op_threads")));
    EXPECT_THAT(error.what(), Not(HasSubstr("micro_batch")));
  }
}

}  // namespace
}  // namespace lockstep::train
