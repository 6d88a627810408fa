#include "exchange/exported_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/state_hash.h"
#include "exchange/exchange_testing.h"
#include "exchange/weight_source.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::exchange {
namespace {

using test::message_of;
using test::numbers_from;
using test::read_file;
using test::small_gpt;
using test::small_llama;
using test::TemporaryDirectory;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

class ExportedModelTest : public ::testing::Test {
 protected:
  /// A checkpoint whose parameters are whole numbers, each from another one on.
  checkpoint::Checkpoint saved(const ModelSpec& model, float factor = 1, const std::string& averaged = "") {
    const auto graph = model::make_graph(model);
    std::vector<std::vector<float>> values;
    std::vector<checkpoint::NamedTensor> tensors, averages;
    const std::vector<float> zeros(4096);
    for (const auto& parameter : graph.parameters) {
      values.push_back(numbers_from(static_cast<float>(values.size()), parameter.spec.shape.count()));
      for (float& value : values.back()) value *= factor;
      tensors.push_back({parameter.name, DType::float32, parameter.spec.shape, values.back().data()});
      if (parameter.name == averaged)
        averages.push_back({averaged + ".ema", DType::float32, parameter.spec.shape, zeros.data()});
    }
    checkpoint::CheckpointWriter writer(folder_ / "checkpoints", 3);
    writer.begin();
    checkpoint::Manifest manifest;
    manifest.step = 3;
    manifest.encodings["tokenizer.json"] = tokenizer::to_json(tokenizer::Tokenizer::of_characters("abcdefg"));
    manifest.params_hash = checkpoint::parameters_hash(tensors);
    manifest.files = {writer.write_shard(checkpoint::FileKind::model, 1, 1, tensors)};
    if (!averages.empty())
      manifest.files.push_back(writer.write_shard(checkpoint::FileKind::optimizer, 1, 1, averages));
    return checkpoint::Checkpoint(writer.commit(manifest));
  }
  ExportedModel exported(const ModelSpec& model, ExportOptions options = {}) {
    options.directory = folder_ / "out";
    std::filesystem::remove_all(options.directory);
    return export_model(model, saved(model), options);
  }
  /// Every parameter, read back into the same model.
  void expect_the_same(const ModelSpec& model) {
    const WeightSource source(model, {.path = folder_ / "out"});
    const auto graph = model::make_graph(model);
    for (int p = 0; p < static_cast<int>(graph.parameters.size()); ++p) {
      std::vector<float> values(static_cast<size_t>(graph.parameter(p).spec.shape.count()));
      ASSERT_TRUE(source.read(p, tensor::Part::range(0, std::ssize(values)), values));
      EXPECT_EQ(values, numbers_from(static_cast<float>(p), static_cast<int64_t>(values.size())))
          << graph.parameter(p).name;
    }
  }
  TemporaryDirectory folder_;
};

TEST_F(ExportedModelTest, HasAveragesInThePlacesOfWeightsThatHaveOne) {
  const ModelSpec model = small_gpt(/*tied=*/false);
  const auto graph = model::make_graph(model);
  const std::string averaged = graph.parameter(1).name;
  const ExportOptions options{.directory = folder_ / "out", .weights = checkpoint::Weights::averages};
  EXPECT_THAT(message_of<ConfigError>([&] { export_model(model, saved(model), options); }),
              Mentions("optimizer.ema"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  std::filesystem::remove_all(folder_ / "checkpoints");
  export_model(model, saved(model, 1, averaged), options);
  const WeightSource source(model, {.path = folder_ / "out"});
  for (int p = 0; p < 3; ++p) {
    std::vector<float> values(static_cast<size_t>(graph.parameter(p).spec.shape.count()));
    ASSERT_TRUE(source.read(p, tensor::Part::range(0, std::ssize(values)), values));
    EXPECT_EQ(values, p == 1 ? std::vector<float>(values.size())
                             : numbers_from(static_cast<float>(p), static_cast<int64_t>(values.size())))
        << p;
  }
}

TEST_F(ExportedModelTest, IsReadBackAsTheSameModel) {
  for (const bool tied : {false, true}) {
    exported(small_gpt(tied));
    expect_the_same(small_gpt(tied));
    exported(small_llama(tied));
    expect_the_same(small_llama(tied));
    exported(small_gpt(tied, /*bias=*/false));
    expect_the_same(small_gpt(tied, /*bias=*/false));
    exported(small_gpt(tied), {.format = Format::pytorch});
    expect_the_same(small_gpt(tied));
  }
  const ModelSpec lenet = model::make_lenet({.image = Shape{16, 16, 3}, .batch_norm = true});
  exported(lenet, {.format = Format::pytorch});
  expect_the_same(lenet);
}

TEST_F(ExportedModelTest, HasTheFilesThatTransformersReads) {
  const auto result = exported(small_gpt());
  EXPECT_EQ(result.family, "gpt2");
  EXPECT_THAT(result.files,
              ElementsAre("config.json", "generation_config.json", "model.safetensors",
                          "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"));
  const checkpoint::SafetensorsFile file(folder_ / "out/model.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);
  ASSERT_NE(file.find("transformer.h.0.mlp.c_fc.weight"), nullptr);
  EXPECT_EQ(file.find("transformer.h.0.mlp.c_fc.weight")->shape, (Shape{4, 16}));
}

TEST_F(ExportedModelTest, DividesLargeModels) {
  const auto result = exported(small_llama(), {.shard_bytes = 1000});
  EXPECT_THAT(result.files, Contains("model.safetensors.index.json"));
  EXPECT_THAT(result.files, Not(Contains("model.safetensors")));
  const auto index = nlohmann::json::parse(read_file(folder_ / "out/model.safetensors.index.json"));
  EXPECT_EQ(index.at("metadata").at("total_size"), result.size_bytes);
  EXPECT_EQ(static_cast<int64_t>(index.at("weight_map").size()), result.tensors);
  expect_the_same(small_llama());
}

TEST_F(ExportedModelTest, RoundsToTheTypeThatIsAskedFor) {
  exported(small_llama(), {.dtype = DType::bfloat16});
  const checkpoint::SafetensorsFile file(folder_ / "out/model.safetensors");
  EXPECT_EQ(file.find("model.norm.weight")->dtype, DType::bfloat16);
  expect_the_same(small_llama());  // whole numbers up to 256 are exact
}

TEST_F(ExportedModelTest, RefusesNumbersThatTheTypeDoesNotHold) {
  const ModelSpec model = small_llama();
  const auto checkpoint = saved(model, 1000);
  const ExportOptions options{.dtype = DType::float16, .directory = folder_ / "narrow"};
  EXPECT_THAT(message_of<ConfigError>([&] { export_model(model, checkpoint, options); }),
              Mentions("k_proj.weight ... --dtype bfloat16"));
  const auto enormous = saved(model, 3.4e38f / 16);
  EXPECT_THAT(message_of<ConfigError>([&] {
                export_model(model, enormous, {.dtype = DType::bfloat16, .directory = folder_ / "narrow"});
              }),
              Mentions("bfloat16 ... --dtype float32"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "narrow"));
  EXPECT_THAT(list_directory(folder_.path()), ElementsAre("checkpoints"));
}

TEST_F(ExportedModelTest, ReplacesNoFiles) {
  test::write_file(folder_ / "kept", std::string("text"));
  const ModelSpec model = small_llama();
  EXPECT_THAT(
      message_of<ConfigError>([&] { export_model(model, saved(model), {.directory = folder_.path()}); }),
      Mentions("--out ... not an empty folder"));
}

}  // namespace
}  // namespace lockstep::exchange
