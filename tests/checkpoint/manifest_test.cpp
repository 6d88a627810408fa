#include "checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "checkpoint/checkpoint_testing.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::checkpoint {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Manifest full_manifest() {
  Manifest manifest = test::SmallState(1).manifest(7);
  manifest.total_epochs = 0.1;
  manifest.config_hash = 0xfedcba9876543210u;
  manifest.layout = "dp=2,pp=2";
  manifest.dataset_identity = 5;
  manifest.arithmetic_fingerprint = "cpu sums=1";
  manifest.state_hash = ~uint64_t{0};
  manifest.pending_evaluation = true;
  manifest.skipped_steps = 3;
  manifest.optimizer_updates = 1234;
  manifest.learning_since = {{"fc1.bias", 1234}, {"fc1.weight", 7}};
  manifest.loss_scale = 0x1p-30;
  manifest.loss_scale_steps = 1999;
  manifest.overflowed_steps = 2;
  manifest.best_step = 5;
  manifest.best_eval_loss = 0.1;
  manifest.evaluations_since_best = 2;
  manifest.keeps_best = true;
  manifest.last_evaluated_step = 6;
  manifest.evaluates_average = true;
  manifest.evaluation_data_identity = 0x8000000000000009u;
  manifest.files = {{"model-00001-of-00001.safetensors",
                     FileKind::model,
                     123,
                     {0xdeadbeef, 0x8000000000000001u},
                     {{"a", DType::float32, Shape{2, 3}}, {"b", DType::bfloat16, Shape{}}}},
                    {"optimizer-00001-of-00001.safetensors", FileKind::optimizer, 0, {0, 0}, {}}};
  return manifest;
}

/// The manifest with one field changed, and with the hash that belongs to it: what a forger or a later
/// version makes.
std::string rehashed(const std::function<void(nlohmann::json&)>& change) {
  auto json = nlohmann::json::parse(to_text(full_manifest()));
  change(json);
  json.erase("manifest_hash");
  json["manifest_hash"] = to_hex(hash64(json.dump()));
  return json.dump();
}
std::string refusal(const std::string& text) {
  return message_of<CheckpointError>([&] { manifest_from_text(text, "some/manifest.json"); });
}

TEST(Manifest, ReadsBackWhatItWrote) {
  EXPECT_EQ(manifest_from_text(to_text(full_manifest()), "name"), full_manifest());
  EXPECT_EQ(manifest_from_text(rehashed([](auto&) {}), "name"), full_manifest())
      << "the hash is of what is said";
}

TEST(Manifest, ReadsWhatWasWrittenBeforeStepsCouldBeSkipped) {
  const auto older = manifest_from_text(
      rehashed([](auto& json) {
        json.erase("pending_evaluation");
        json.erase("skipped_steps");
        json.erase("optimizer_updates");
        json.erase("loss_scale");
        json.erase("loss_scale_steps");
        json.erase("overflowed_steps");
        for (const char* field : {"best_step", "evaluations_since_best", "last_evaluated_step",
                                  "evaluates_average", "evaluation_data_identity", "learning_since"})
          json.erase(field);
      }),
      "name");
  Manifest expected = full_manifest();
  expected.pending_evaluation = false;
  expected.skipped_steps = 0;
  expected.optimizer_updates = -1;
  expected.learning_since.clear();
  expected.loss_scale = 0;
  expected.loss_scale_steps = 0;
  expected.overflowed_steps = 0;
  expected.best_step = -1;
  expected.best_eval_loss = 0;
  expected.evaluations_since_best = 0;
  expected.keeps_best = false;
  expected.last_evaluated_step = -1;
  expected.evaluates_average = false;
  expected.evaluation_data_identity = 0;
  EXPECT_EQ(older, expected);
}

TEST(Manifest, ReadsCharactersOfBuildsThatKnewNoOtherTokens) {
  const Manifest read =
      manifest_from_text(rehashed([](auto& json) { json["characters"] = "000a2061ff"; }), "name");
  Manifest expected = full_manifest();
  expected.encodings = {{"tokenizer.json", tokenizer::to_json(tokenizer::Tokenizer::of_characters(
                                               std::string("\0\n a\xff", 5)))}};
  EXPECT_EQ(read, expected);
}

TEST(Manifest, CountsEvaluationsAlsoWhereNoneWasTheBest) {
  Manifest manifest = full_manifest();
  manifest.best_step = -1;
  manifest.best_eval_loss = 0;
  manifest.keeps_best = false;
  EXPECT_EQ(manifest_from_text(to_text(manifest), "name"), manifest);
}

TEST(Manifest, TakesABestLossThatIsNoNumberForNone) {
  const Manifest read =
      manifest_from_text(rehashed([](auto& json) { json["best_eval_loss"] = nullptr; }), "name");
  EXPECT_EQ(read.best_step, -1);
  EXPECT_EQ(read.step, 7);
}

TEST(Manifest, ReadsWhatWasWrittenBeforeItNamedTheLayout) {
  Manifest expected = full_manifest();
  expected.layout = "";
  EXPECT_EQ(manifest_from_text(rehashed([](auto& json) { json.erase("layout"); }), "name"), expected);
}

TEST(Manifest, TellsBuildsBeforeTheFirstRevisionOfNumbers) {
  Manifest expected = full_manifest();
  expected.numerics_revision = 0;
  EXPECT_EQ(manifest_from_text(rehashed([](auto& json) { json.erase("numerics_revision"); }), "name"),
            expected);
}

TEST(Manifest, SaysNothingOfALossScaleWhereThereIsNone) {
  Manifest manifest = full_manifest();
  manifest.loss_scale = 0;
  manifest.loss_scale_steps = 0;
  EXPECT_THAT(to_text(manifest), ::testing::Not(HasSubstr("loss_scale")));
  EXPECT_EQ(manifest_from_text(to_text(manifest), "name"), manifest)
      << "steps that lowered one are still counted";
}

TEST(Manifest, RefusesOtherContentsUnderTheSameHash) {
  std::string text = to_text(full_manifest());
  text.replace(text.find("\"step\": 7"), 9, "\"step\": 8");
  EXPECT_THAT(refusal(text), Mentions("some/manifest.json: ... hash"));
}

TEST(Manifest, RefusesWhatItDoesNotUnderstand) {
  EXPECT_THAT(refusal("{}"), HasSubstr("manifest_hash"));
  EXPECT_THAT(refusal("[]"), HasSubstr("some/manifest.json"));
  EXPECT_THAT(refusal("null"), HasSubstr("some/manifest.json"));
  EXPECT_THAT(refusal(std::string(100'000, '[')), HasSubstr("levels deep"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["format_version"] = 2; })), HasSubstr("newer lockstep"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["format"] = "x"; })), HasSubstr("lockstep checkpoint"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["step"] = -1; })), HasSubstr("found -1"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["step"] = "7"; })), HasSubstr("integer"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["seed"] = "12"; })), HasSubstr("16 hexadecimal digits"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json.erase("run_id"); })), HasSubstr("run_id"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["pending_evaluation"] = 1; })), HasSubstr("boolean"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["skipped_steps"] = -1; })), HasSubstr("found -1"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["learning_since"]["fc1.weight"] = 1235; })),
              HasSubstr("1235"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["learning_since"] = "fc1.weight"; })),
              HasSubstr("some/manifest.json"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["files"][0]["kind"] = "x"; })), HasSubstr("kind"));
  EXPECT_THAT(refusal(rehashed([](auto& json) { json["files"][0]["tensors"][0]["dtype"] = "f"; })),
              HasSubstr("element type"));
}

TEST(Manifest, RefusesFileNamesThatLeaveTheFolder) {
  for (const auto* name : {"", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b"})
    EXPECT_THAT(refusal(rehashed([&](auto& json) { json["files"][0]["name"] = name; })),
                HasSubstr("'" + std::string(name) + "'"))
        << name;
}

TEST(Manifest, SurvivesTextThatIsNotUtf8) {
  Manifest manifest = full_manifest();
  manifest.run_id = "run \xff";
  EXPECT_EQ(manifest_from_text(to_text(manifest), "name").run_id,
            "run \xef\xbf\xbd");  // the replacement character
}

TEST(Manifest, RecordsTravelAsText) {
  const auto record = full_manifest().files[0];
  EXPECT_EQ(file_record_from_text(to_text(record)), record);
  EXPECT_THROW(file_record_from_text("{}"), CheckpointError);
}

TEST(CompareMath, NamesWhatDiffers) {
  const MathFields saved{{"trainer.seed", "1"}, {"optimizer.momentum", "0.9"}, {"model", "lenet"}};
  const MathFields current{{"model", "lenet"}, {"trainer.seed", "2"}, {"trainer.clip_norm", "1"}};
  EXPECT_THAT(compare_math(saved, current),
              ElementsAre("optimizer.momentum: 0.9 in the checkpoint, not set now",
                          "trainer.clip_norm: not set in the checkpoint, 1 now",
                          "trainer.seed: 1 in the checkpoint, 2 now"));
  EXPECT_THAT(compare_math(saved, saved), IsEmpty());
}

TEST(CompareMath, LeavesOutWhatParametersBeganAt) {
  const auto field = [](const char* layer) { return MathFields{{"model.layer.fc", layer}}; };
  const MathFields saved = field("linear { units: 8 bias: true init_std: 0.1 }");
  EXPECT_THAT(compare_math(saved, field("linear { units: 8 bias: true init_range: 0.5 bias_init_std: 1 }")),
              IsEmpty());
  EXPECT_THAT(compare_math(saved, field("linear { units: 8 bias: true zero_weight: true }")), IsEmpty());
  EXPECT_EQ(compare_math(saved, field("linear { units: 9 bias: true init_std: 0.1 }")).size(), 1);
  EXPECT_EQ(compare_math({{"trainer.seed", "init_std: 1"}}, {{"trainer.seed", "init_std: 2"}}).size(), 1);
}

}  // namespace
}  // namespace lockstep::checkpoint
