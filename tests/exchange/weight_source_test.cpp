#include "exchange/weight_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/half.h"
#include "exchange/exchange_testing.h"
#include "exchange/family.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::exchange {
namespace {

using test::message_of;
using test::NumberedTensor;
using test::parameter_of;
using test::read_file;
using test::small_gpt;
using test::TemporaryDirectory;
using test::write_file;
using test::write_numbered;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A linear classifier of one pixel with two channels into two classes.
ModelSpec two_by_two() { return model::make_mlp({.image = Shape{1, 1, 2}, .hidden = {}, .classes = 2}); }

/// A convolution [1, 1, 1, 2] and a linear layer over 2 x 1 pixels.
ModelSpec convolution() {
  ModelBuilder builder;
  const auto image = builder.input("image", {{2, 1, 2}}), label = builder.input("label", {{}, DType::int32});
  auto last = builder.add("conv", Conv2d{.channels = 2, .kernel = 1}, {image});
  last = builder.add("flat", Flatten{}, {last});
  last = builder.add("fc", Linear{.units = 2, .bias = false}, {last});
  builder.add("loss", SoftmaxCrossEntropy{}, {last, label});
  return builder.build();
}

class WeightSourceTest : public ::testing::Test {
 protected:
  WeightSource open(const ModelSpec& model, const std::vector<NumberedTensor>& tensors,
                    WeightSourceOptions options = {}) {
    options.path = folder_ / "weights.safetensors";
    write_numbered(options.path, tensors);
    return WeightSource(model, options);
  }
  std::string refusal(const ModelSpec& model, const std::vector<NumberedTensor>& tensors,
                      WeightSourceOptions options = {}) {
    return message_of<CheckpointError>([&] { open(model, tensors, options); });
  }
  static std::vector<float> all_of(const WeightSource& source, const ModelSpec& model,
                                   const std::string& name) {
    const int parameter = parameter_of(model, name);
    std::vector<float> values(
        static_cast<size_t>(model::make_graph(model).parameter(parameter).spec.shape.count()), -1);
    source.read(parameter, tensor::Part::range(0, std::ssize(values)), values);
    return values;
  }
  /// A folder of Hugging Face for the small GPT-2, with its tensors in so many files.
  void write_huggingface(const ModelSpec& model, int files) {
    write_file(folder_ / "config.json", families::kGpt2.config_text(model, {}));
    std::vector<std::vector<NumberedTensor>> shards(static_cast<size_t>(files));
    nlohmann::json map;
    size_t next = 0;
    for (const auto& pieces : families::kGpt2.mapping(model).pieces)
      for (const auto& piece : pieces) {
        const size_t shard = next++ % shards.size();
        shards[shard].push_back({piece.name, piece.shape, static_cast<float>(next)});
        map[piece.name] = files == 1 ? "model.safetensors" : fmt::format("shard-{}.safetensors", shard);
      }
    for (size_t shard = 0; shard < shards.size(); ++shard)
      write_numbered(
          folder_ / (files == 1 ? "model.safetensors" : fmt::format("shard-{}.safetensors", shard)),
          shards[shard]);
    if (files > 1)
      write_file(folder_ / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  }
  TemporaryDirectory folder_;
};

TEST_F(WeightSourceTest, ReadsPyTorchsLayouts) {
  const ModelSpec model = convolution();
  const auto source =
      open(model, {{"conv.weight", {2, 2, 1, 1}, 1}, {"conv.bias", {2}, 10}, {"fc.weight", {2, 4}, 20}});
  EXPECT_THAT(all_of(source, model, "conv.weight"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(all_of(source, model, "conv.bias"), ElementsAre(10, 11));
  // There [channel, pixel], here [pixel, channel].
  EXPECT_THAT(all_of(source, model, "fc.weight"), ElementsAre(20, 22, 21, 23, 24, 26, 25, 27));
}

TEST_F(WeightSourceTest, ReadsAnyPart) {
  const ModelSpec model = convolution();
  const auto source =
      open(model, {{"conv.weight", {2, 2, 1, 1}, 1}, {"conv.bias", {2}, 10}, {"fc.weight", {2, 4}, 20}});
  const int parameter = parameter_of(model, "fc.weight");
  std::vector<float> values(3);
  EXPECT_TRUE(source.read(parameter, tensor::Part::range(3, 3), values));
  EXPECT_THAT(values, ElementsAre(23, 24, 26));
  values.resize(4);
  const Shape shape = model::make_graph(model).parameter(parameter).spec.shape;
  EXPECT_TRUE(source.read(parameter, tensor::Part::rectangle(shape, {0, 2}, {1, 2}), values));
  EXPECT_THAT(values, ElementsAre(22, 21, 26, 25));
}

TEST_F(WeightSourceTest, WidensNarrowTypesExactly) {
  const ModelSpec model = two_by_two();
  const bfloat16 weight[] = {bfloat16(1.5f), bfloat16(-2), bfloat16(3), bfloat16(0x1p-100f)};
  const float16 bias[] = {float16(0.25f), float16(65504)};
  const std::vector<checkpoint::NamedTensor> tensors{{"fc1.weight", DType::bfloat16, Shape{2, 2}, weight},
                                                     {"fc1.bias", DType::float16, Shape{2}, bias}};
  const std::string path = folder_ / "narrow";
  checkpoint::write_safetensors(posix_file_system(), path, tensors);
  const WeightSource source(model, {.path = path});
  EXPECT_THAT(all_of(source, model, "fc1.weight"), ElementsAre(1.5f, -2, 3, 0x1p-100f));
  EXPECT_THAT(all_of(source, model, "fc1.bias"), ElementsAre(0.25f, 65504));
}

TEST_F(WeightSourceTest, RefusesTypesThatItWouldRound) {
  const double weight[] = {1, 2, 3, 4}, bias[] = {5, 6};
  const std::vector<checkpoint::NamedTensor> tensors{{"fc1.weight", DType::float64, Shape{2, 2}, weight},
                                                     {"fc1.bias", DType::float64, Shape{2}, bias}};
  const std::string path = folder_ / "wide";
  checkpoint::write_safetensors(posix_file_system(), path, tensors);
  EXPECT_THAT(message_of<CheckpointError>([&] { WeightSource(two_by_two(), {.path = path}); }),
              Mentions("fc1.bias ... F64"));
}

TEST_F(WeightSourceTest, NamesWhatIsMissingAndLeftOverWithTheNearest) {
  EXPECT_THAT(
      refusal(two_by_two(), {{"fc1.weigth", {2, 2}}, {"fc1.bias", {2}}}),
      Mentions(
          "'fc1.weight' is missing ... 'fc1.weigth' ... the model has no 'fc1.weigth' ... 'fc1.weight'"));
}

TEST_F(WeightSourceTest, NamesBothShapes) {
  EXPECT_THAT(refusal(two_by_two(), {{"fc1.weight", {3, 2}}, {"fc1.bias", {2}}}),
              Mentions("'fc1.weight' ... [3, 2] ... [2, 2]"));
}

TEST_F(WeightSourceTest, DrawsANewLayer) {
  const ModelSpec model = two_by_two();
  // The old head's tensors have other shapes, and are not read.
  const auto source = open(model, {{"fc1.weight", {5, 2}}, {"fc1.bias", {5}}}, {.new_layers = {"fc1"}});
  std::vector<float> values(4, -1);
  EXPECT_FALSE(source.read(parameter_of(model, "fc1.weight"), tensor::Part::range(0, 4), values));
  EXPECT_THAT(values, ElementsAre(-1, -1, -1, -1));
}

TEST_F(WeightSourceTest, LeavesOutWhatItIsTold) {
  const std::vector<NumberedTensor> tensors{{"fc1.weight", {2, 2}}, {"fc1.bias", {2}}, {"score.weight", {9}}};
  EXPECT_THAT(refusal(two_by_two(), tensors), HasSubstr("'score.weight'"));
  EXPECT_EQ(open(two_by_two(), tensors, {.leave_out = {"score"}}).tensor_count(), 2);
}

TEST_F(WeightSourceTest, RefusesToLeaveOutWhatIsNotThere) {
  const std::vector<NumberedTensor> tensors{{"fc1.weight", {2, 2}}, {"fc1.bias", {2}}};
  EXPECT_THAT(message_of<ConfigError>([&] { open(two_by_two(), tensors, {.leave_out = {"fc1.wieght"}}); }),
              Mentions("'fc1.wieght' ... 'fc1.weight'"));
}

TEST_F(WeightSourceTest, RefusesANewLayerThatDrawsNothing) {
  const std::vector<NumberedTensor> tensors{{"fc1.weight", {2, 2}}, {"fc1.bias", {2}}};
  EXPECT_THAT(message_of<ConfigError>([&] { open(two_by_two(), tensors, {.new_layers = {"loss"}}); }),
              Mentions("'loss'"));
}

TEST_F(WeightSourceTest, FindsATiedWeightUnderEitherName) {
  const ModelSpec model = small_gpt();
  for (const std::string name : {"transformer.wte.weight", "lm_head.weight"}) {
    std::vector<NumberedTensor> tensors;
    for (const auto& pieces : families::kGpt2.mapping(model).pieces)
      for (const auto& piece : pieces)
        tensors.push_back({piece.name == "transformer.wte.weight" ? name : piece.name, piece.shape,
                           static_cast<float>(tensors.size())});
    const auto source = open(model, tensors);
    EXPECT_EQ(all_of(source, model, "wte.weight")[1], all_of(source, model, "wte.weight")[0] + 1) << name;
  }
}

TEST_F(WeightSourceTest, ANewLayerIgnoresItsSecondNames) {
  const ModelSpec model = small_gpt();
  std::vector<NumberedTensor> tensors;
  for (const auto& pieces : families::kGpt2.mapping(model).pieces)
    for (const auto& piece : pieces)
      tensors.push_back({piece.name, piece.name == "transformer.wte.weight" ? Shape{9, 4} : piece.shape});
  tensors.push_back({"lm_head.weight", {9, 4}});
  EXPECT_THAT(refusal(model, tensors), Mentions("[9, 4] ... [7, 4]"));
  const auto source = open(model, tensors, {.new_layers = {"wte", "lm_head"}});
  std::vector<float> values(28);
  EXPECT_FALSE(source.read(parameter_of(model, "wte.weight"), tensor::Part::range(0, 28), values));
}

TEST_F(WeightSourceTest, FindsPyTorchsParametersUnderTheirLayersNames) {
  const ModelSpec model =
      model::make_vit({.image = {8, 8, 3}, .patch = 4, .layers = 1, .heads = 2, .width = 8});
  const std::string attention = "encoder.layers.encoder_layer_0.self_attention.in_proj";
  std::vector<NumberedTensor> tensors;
  for (const auto& pieces : families::kLayers.mapping(model).pieces)
    for (const auto& piece : pieces) tensors.push_back({piece.name, piece.shape});
  for (auto& tensor : tensors) {
    if (tensor.name == "encoder.pos_embedding") tensor = {"encoder.pos_embedding.weight", {5, 8}, 10};
    if (tensor.name == attention + "_weight") tensor = {attention + ".weight", {24, 8}, 20};
  }
  const auto source = open(model, tensors);
  EXPECT_EQ(all_of(source, model, "encoder.pos_embedding.weight")[3], 13);
  EXPECT_EQ(all_of(source, model, attention + ".weight")[3], 23);
  for (auto& tensor : tensors)
    if (tensor.name == "encoder.pos_embedding.weight") tensor.shape = {6, 8};
  EXPECT_THAT(refusal(model, tensors), Mentions("'encoder.pos_embedding.weight' ... [6, 8] ... [5, 8]"));
}

TEST_F(WeightSourceTest, HashesWhatItReadsWhole) {
  const std::vector<NumberedTensor> tensors{{"fc1.weight", {2, 2}}, {"fc1.bias", {2}}},
      others{{"fc1.weight", {2, 2}, 5}, {"fc1.bias", {2}}};
  const uint64_t hash = open(two_by_two(), tensors).contents_hash({});
  EXPECT_EQ(hash, open(two_by_two(), tensors).contents_hash({}));
  EXPECT_NE(hash, open(two_by_two(), others).contents_hash({}));
}

TEST_F(WeightSourceTest, TellsOfAPrefix) {
  const auto source = open(two_by_two(), {{"module.fc1.weight", {2, 2}}, {"module.fc1.bias", {2}}});
  EXPECT_THAT(source.notes(), ElementsAre(HasSubstr("'module.'")));
}

TEST_F(WeightSourceTest, ReadsAFolderOfHuggingFace) {
  const ModelSpec model = small_gpt();
  for (const int files : {1, 3}) {
    SCOPED_TRACE(files);
    write_huggingface(model, files);
    const WeightSource source(model, {.path = folder_.path()});
    EXPECT_EQ(source.kind(), "Hugging Face's gpt2");
    // [in 4, out 4] there: the second element of the first row here is the first of the second row there.
    const auto values = all_of(source, model, "h.0.attn.c_proj.weight");
    EXPECT_EQ(values[1], values[0] + 4);
    EXPECT_EQ(values[4], values[0] + 1);
    std::filesystem::remove(folder_ / "model.safetensors");
  }
}

TEST_F(WeightSourceTest, TakesTheFirstPositionsForAShorterContext) {
  write_huggingface(small_gpt(), 1);
  const ModelSpec model =
      model::make_gpt({.vocabulary = 7, .context = 3, .layers = 2, .heads = 2, .width = 4});
  const WeightSource source(model, {.path = folder_.path()});
  EXPECT_THAT(source.notes(), ElementsAre(Mentions("wpe.weight ... 3 of 5")));
  EXPECT_EQ(all_of(source, model, "wpe.weight").size(), 12u);
}

TEST_F(WeightSourceTest, RefusesAConfigOfAnotherModel) {
  write_huggingface(small_gpt(), 1);
  const ModelSpec model =
      model::make_gpt({.vocabulary = 7, .context = 5, .layers = 2, .heads = 4, .width = 4});
  EXPECT_THAT(message_of<ConfigError>([&] { WeightSource(model, {.path = folder_.path()}); }),
              Mentions("config.json ... n_head ... 2 ... 4"));
  EXPECT_THAT(message_of<ConfigError>([&] { WeightSource(two_by_two(), {.path = folder_.path()}); }),
              Mentions("config.json ... gpt2"));
  write_file(folder_ / "config.json", std::string(R"({"model_type": "bert"})"));
  EXPECT_THAT(message_of<ConfigError>([&] { WeightSource(model, {.path = folder_.path()}); }),
              Mentions("config.json ... bert"));
}

TEST_F(WeightSourceTest, NamesAShardThatIsMissingOrTruncated) {
  write_huggingface(small_gpt(), 3);
  const auto whole = read_file(folder_ / "shard-1.safetensors");
  write_file(folder_ / "shard-1.safetensors", test::Bytes(whole.begin(), whole.end() - 4));
  EXPECT_THAT(message_of<CheckpointError>([&] { WeightSource(small_gpt(), {.path = folder_.path()}); }),
              Mentions("shard-1.safetensors ... truncated"));
  std::filesystem::remove(folder_ / "shard-1.safetensors");
  EXPECT_THAT(message_of<CheckpointError>([&] { WeightSource(small_gpt(), {.path = folder_.path()}); }),
              Mentions("shard-1.safetensors"));
}

TEST_F(WeightSourceTest, RefusesAnIndexThatNamesAnotherFile) {
  write_huggingface(small_gpt(), 2);
  auto index = nlohmann::json::parse(read_file(folder_ / "model.safetensors.index.json"));
  const std::string name = "transformer.wpe.weight";
  auto& file = index["weight_map"][name];
  file = file == "shard-0.safetensors" ? "shard-1.safetensors" : "shard-0.safetensors";
  write_file(folder_ / "model.safetensors.index.json", index.dump());
  EXPECT_THAT(message_of<CheckpointError>([&] { WeightSource(small_gpt(), {.path = folder_.path()}); }),
              HasSubstr(name));
  index["weight_map"][name] = "../elsewhere.safetensors";
  write_file(folder_ / "model.safetensors.index.json", index.dump());
  EXPECT_THAT(message_of<CheckpointError>([&] { WeightSource(small_gpt(), {.path = folder_.path()}); }),
              HasSubstr(name));
}

TEST_F(WeightSourceTest, RefusesASecondNameWithOtherNumbers) {
  const ModelSpec model = small_gpt();
  std::vector<NumberedTensor> tensors;
  for (const auto& pieces : families::kGpt2.mapping(model).pieces)
    for (const auto& piece : pieces) tensors.push_back({piece.name, piece.shape});
  tensors.push_back({"lm_head.weight", {7, 4}});
  EXPECT_EQ(open(model, tensors).kind(), "Hugging Face's gpt2");
  tensors.back().first = 1;
  EXPECT_THAT(refusal(model, tensors), Mentions("'lm_head.weight' ... 'transformer.wte.weight'"));
}

TEST_F(WeightSourceTest, TellsLayoutsOfAnEquallyNamedFileByShapes) {
  const ModelSpec model = small_gpt();
  std::vector<NumberedTensor> tensors;
  for (const auto& parameter : model::make_graph(model).parameters)
    tensors.push_back({parameter.name, parameter.spec.shape});
  const auto source = open(model, tensors);
  EXPECT_EQ(source.kind(), "in PyTorch's layout");
  EXPECT_THAT(all_of(source, model, "h.0.attn.c_proj.weight"),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

TEST_F(WeightSourceTest, RefusesPicklesByName) {
  write_file(folder_ / "model.pt", std::string("PK\x03\x04 and what follows"));
  EXPECT_THAT(
      message_of<CheckpointError>([&] { WeightSource(two_by_two(), {.path = folder_ / "model.pt"}); }),
      Mentions("model.pt ... pickle"));
  write_file(folder_ / "pytorch_model.bin", std::string("PK\x03\x04"));
  EXPECT_THAT(message_of<CheckpointError>([&] { WeightSource(two_by_two(), {.path = folder_.path()}); }),
              Mentions("pytorch_model.bin ... pickle"));
}

}  // namespace
}  // namespace lockstep::exchange
