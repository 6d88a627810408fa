#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.h"
#include "data/test_files.h"
#include "mentions.h"
#include "model/graph.h"

namespace lockstep::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kProfile = R"(format_version: 1
device: "cpu"
storage: "float32"
model: "0123456789abcdef"
intra_op_threads: 2
micro_batch: 8
update_ms: 0.25
layer { name: "flatten" }
layer { name: "fc1" forward_us: 10.5 backward_input_us: 2 backward_weight_us: 3.125 }
)";

std::string refusal_of_profile(const std::string& text) {
  try {
    profile_from_text(text, "p");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ProfileText, IsReadAndWritten) {
  const model::Profile profile = profile_from_text(kProfile, "p");
  EXPECT_EQ(profile.source, "p");
  EXPECT_EQ(profile.device, "cpu");
  EXPECT_EQ(profile.storage, DType::float32);
  EXPECT_EQ(profile.model, "0123456789abcdef");
  EXPECT_EQ(profile.intra_op_threads, 2);
  EXPECT_EQ(profile.micro_batch, 8);
  EXPECT_DOUBLE_EQ(profile.update_seconds, 0.25e-9);
  ASSERT_EQ(profile.nodes.size(), 2u);
  EXPECT_EQ(profile.nodes[0].seconds, model::NodeTime{});
  EXPECT_EQ(profile.nodes[1].name, "fc1");
  EXPECT_DOUBLE_EQ(profile.nodes[1].seconds.forward, 10.5e-6);
  EXPECT_DOUBLE_EQ(profile.nodes[1].seconds.backward_input, 2e-6);
  EXPECT_DOUBLE_EQ(profile.nodes[1].seconds.backward_weight, 3.125e-6);
  const std::string text = profile_to_text(profile);
  EXPECT_EQ(profile_from_text(text, "p"), profile);
  EXPECT_EQ(profile_to_text(profile_from_text(text, "p")), text);
}

TEST(ProfileText, ThatSaysNothingIsRefused) {
  EXPECT_EQ(refusal_of_profile(kProfile), "accepted");
  EXPECT_THAT(refusal_of_profile(""), HasSubstr("device"));
  EXPECT_THAT(refusal_of_profile("device: \"cpu\" storage: \"float8\" model: \"0\" micro_batch: 1"),
              Mentions("p:1:15 ... float32 ... bfloat16 ... float16 ... 'float8'"));
  EXPECT_THAT(refusal_of_profile(kProfile + "layer { name: \"x\" forward_us: -1 }"), StartsWith("p:10:"));
  EXPECT_THAT(refusal_of_profile(kProfile + "layer { name: \"x\" forward: 1 }"),
              HasSubstr("no field 'forward'"));
  EXPECT_THAT(refusal_of_profile("model { mlp {} }"), StartsWith("p:1:7: model: "));
}

TEST(ProfileText, IsReadWithTheConfigThatNamesIt) {
  const test::TemporaryDirectory folder;
  test::write_file(folder / "mlp.profile", kProfile);
  const RunConfig run = parse(kSmallConfig, {"parallel.profile=\"" + (folder / "mlp.profile") + "\""});
  ASSERT_TRUE(run.parallel.profile);
  EXPECT_EQ(run.parallel.profile->nodes.size(), 2u);
  EXPECT_EQ(parse(kSmallConfig).math_hash, run.math_hash);
  EXPECT_FALSE(parse(kSmallConfig).parallel.profile);
  EXPECT_THAT(
      refusal(kSmallConfig, {"parallel.profile=\"" + (folder / "none") + "\""}),
      AllOf(StartsWith("--set parallel.profile="), HasSubstr(folder / "none"), HasSubstr("No such file")));
  EXPECT_FALSE(parse(kSmallConfig, {"parallel.profile=\"none\"", "parallel.profile=\"\""}).parallel.profile);
}

}  // namespace
}  // namespace lockstep::config
