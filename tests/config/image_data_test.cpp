#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/run_config.h"
#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunConfig read_image_config(const std::string& data, const std::string& channels = "3") {
  return parse_run_config(
      "model { lenet { image: [20, 24, " + channels + "] } } data { " + data +
          " } trainer { global_batch: 8 steps: 2 } optimizer { learning_rate: 0.1 sgd {} }",
      "c.textproto", {});
}
std::string image_refusal(const std::string& data) {
  return message_of<ConfigError>([&] { read_image_config(data); });
}

TEST(ImageData, TakesSizesAndChannelsOfTheModel) {
  const auto config = read_image_config(
      "images { train: \"a\" } transforms { random_resized_crop {} } "
      "transforms { resize { shorter: 30 } } transforms { center_crop { size: [5, 6] } }",
      "1");
  EXPECT_EQ(config.data.kind, data::DataKind::images);
  EXPECT_EQ(config.data.images.channels, 1);
  const auto& transforms = config.data.transforms;
  EXPECT_EQ(std::get<data::RandomResizedCropOptions>(transforms.at(0)).height, 20);
  EXPECT_EQ(std::get<data::RandomResizedCropOptions>(transforms.at(0)).width, 24);
  EXPECT_EQ(transforms.at(1), data::TransformOptions(data::ResizeOptions{.shorter = 30}));
  EXPECT_EQ(transforms.at(2), data::TransformOptions(data::CenterCropOptions{5, 6}));
}

TEST(ImageData, IsReadBackFromItsEffectiveText) {
  const auto config = read_image_config(
      "images { train_list: \"a\" eval_fraction: 0.25 classes: [\"x\", \"y\"] background: 7 } "
      "on_damage: SKIP transforms { affine { degrees: 3 } } transforms { erase {} } "
      "transforms { color_jitter { hue: 0.1 } } transforms { pad_crop {} } transforms { flip {} } "
      "transforms { grayscale {} } eval_transforms { resize { filter: BICUBIC } } "
      "eval_transforms { normalize { mean: [1, 2, 3] deviation: [4, 5, 6] } }");
  const auto again = parse_run_config(config.effective_text, "again", {});
  EXPECT_EQ(again.data, config.data);
  EXPECT_EQ(again.math_hash, config.math_hash);
}

TEST(ImageData, TakesChannelsOfRecordsFromTheModel) {
  const auto config =
      read_image_config("records { folder: \"packed\" } threads: AUTOMATIC transforms { resize {} }", "1");
  EXPECT_EQ(config.data.kind, data::DataKind::records);
  EXPECT_EQ(config.data.records.folder, "packed");
  EXPECT_EQ(config.data.records.channels, 1);
  EXPECT_TRUE(config.data.threads_adapt);
  EXPECT_EQ(parse_run_config(config.effective_text, "again", {}).data, config.data);
  const auto cached = read_image_config("images { train: \"a\" } cache_directory: \"c\" cache_bytes: 7");
  EXPECT_EQ(cached.data.cache_directory, "c");
  EXPECT_EQ(cached.data.cache_bytes, 7);
  EXPECT_EQ(parse_run_config(cached.effective_text, "again", {}).data, cached.data);
}

TEST(ImageData, MixedLabelsReachThePresetsLoss) {
  const auto config = read_image_config(
      "cifar {} transforms { flip {} } transforms { mixup { alpha: 0.2 probability: 0.5 } } "
      "transforms { cutmix { probability: 0.5 } }");
  EXPECT_EQ(config.data.transforms.at(1), data::TransformOptions(data::MixupOptions{0.2, 0.5}));
  EXPECT_EQ(config.data.transforms.at(2), data::TransformOptions(data::CutmixOptions{1, 0.5}));
  EXPECT_EQ(config.model.inputs.back(), (ModelInput{"label_mix", {Shape{2}, DType::int32}}));
  EXPECT_THAT(config.model.layers.back().inputs, ElementsAre("fc3", "label", "label_mix"));
  const auto again = parse_run_config(config.effective_text, "again", {});
  EXPECT_EQ(again.model, config.model);
  EXPECT_EQ(again.math_hash, config.math_hash);
  EXPECT_NE(config.math_hash, read_image_config("cifar {} transforms { flip {} }").math_hash);
  EXPECT_EQ(read_image_config("cifar {} transforms { flip {} }").model.inputs.size(), 2u);
}

TEST(ImageData, RefusesMixturesThatNobodyReadsOrMakes) {
  const auto parse = [](const std::string& input, const std::string& reads, const std::string& transforms) {
    parse_run_config(
        "model { input { name: \"image\" shape: [4, 4, 1] } input { name: \"label\" type: INT32 } " + input +
            " layer { name: \"flat\" input: \"image\" flatten {} } layer { name: \"fc\" linear { units: 3 } "
            "} "
            "layer { name: \"loss\" input: [\"fc\", \"label\"" +
            reads + "] softmax_cross_entropy {} } } data { synthetic { samples: 8 classes: 3 } " +
            transforms + " } trainer { global_batch: 8 steps: 2 } optimizer { learning_rate: 0.1 sgd {} }",
        "c.textproto", {});
  };
  const std::string input = "input { name: \"label_mix\" type: INT32 shape: 2 }", reads = ", \"label_mix\"",
                    mixup = "transforms { mixup {} }";
  EXPECT_NO_THROW(parse(input, reads, mixup));
  EXPECT_THAT(message_of<ConfigError>([&] { parse("", "", mixup); }),
              AllOf(HasSubstr("data.transforms"), HasSubstr("label_mix")));
  EXPECT_THAT(message_of<ConfigError>([&] { parse(input, reads, ""); }),
              AllOf(HasSubstr("model"), HasSubstr("mixup")));
}

TEST(ImageData, RefusesMixturesForAModelWithoutImages) {
  EXPECT_THAT(
      message_of<ConfigError>([] {
        parse_run_config(
            "model { input { name: \"features\" shape: 4 } input { name: \"label\" type: INT32 } input { "
            "name: \"label_mix\" type: INT32 shape: 2 } layer { name: \"fc\" input: \"features\" linear "
            "{ units: 3 } } layer { name: \"loss\" input: [\"fc\", \"label\", \"label_mix\"] "
            "softmax_cross_entropy {} } } data { records {} transforms { mixup {} } } trainer { "
            "global_batch: 8 steps: 2 } optimizer { learning_rate: 0.1 sgd {} }",
            "c.textproto", {});
      }),
      AllOf(HasSubstr("data.transforms"), HasSubstr("mixup")));
}

TEST(ImageData, TransformsImagesInFilesOnGpus) {
  EXPECT_FALSE(read_image_config("images { train: \"a\" }").data.transforms_on_gpu);
  const auto config = read_image_config("images { train: \"a\" } transforms_on: GPU");
  EXPECT_TRUE(config.data.transforms_on_gpu);
  EXPECT_EQ(parse_run_config(config.effective_text, "again", {}).data, config.data);
  // It changes no number.
  EXPECT_EQ(config.math_hash, read_image_config("images { train: \"a\" }").math_hash);
  EXPECT_TRUE(read_image_config("records {} transforms_on: GPU").data.transforms_on_gpu);
  EXPECT_THAT(image_refusal("cifar {} transforms_on: GPU"), HasSubstr("data.transforms_on"));
  EXPECT_THAT(
      message_of<ConfigError>([] {
        parse_run_config(
            "model { input { name: \"features\" shape: 4 } input { name: \"label\" type: INT32 } "
            "layer { name: \"fc\" input: \"features\" linear { units: 3 } } layer { name: \"loss\" input: "
            "[\"fc\", \"label\"] softmax_cross_entropy {} } } data { records {} transforms_on: GPU } "
            "trainer { global_batch: 8 steps: 2 } optimizer { learning_rate: 0.1 sgd {} }",
            "c.textproto", {});
      }),
      AllOf(HasSubstr("data.transforms_on"), HasSubstr("'image'")));
}

/// So that runs of builds before, whose samples differ, are not continued as if they were of the same
/// numbers.
TEST(ImageData, HowImagesAreResizedAndSummedBelongsToTheMathematics) {
  const auto fields = [](const std::string& data) {
    auto all = read_image_config(data).math_fields;
    std::erase_if(all, [](const auto& field) {
      return field.first != "data.resized_images" && field.first != "data.contrast";
    });
    return all;
  };
  using Fields = std::vector<std::pair<std::string, std::string>>;
  const Fields resized = {{"data.resized_images", "bytes"}}, contrast = {{"data.contrast", "sums of parts"}};
  EXPECT_EQ(fields("images { train: \"a\" } transforms { flip {} }"), Fields());
  EXPECT_EQ(fields("images { train: \"a\" } transforms { random_resized_crop {} }"), resized);
  EXPECT_EQ(fields("images { train: \"a\" } eval_transforms { resize {} }"), resized);
  EXPECT_EQ(fields("records {} transforms { resize {} }"), resized);
  EXPECT_EQ(fields("cifar {} transforms { color_jitter { contrast: 0.4 } }"), contrast);
  EXPECT_EQ(fields("cifar {} transforms { color_jitter { brightness: 0.4 } }"), Fields());
}

TEST(ImageData, ModelsAreTheSameWithMixturesAndWithout) {
  const auto model_fields = [](const RunConfig& config) {
    auto fields = config.math_fields;
    std::erase_if(fields, [](const auto& field) { return !field.first.starts_with("model."); });
    return fields;
  };
  EXPECT_EQ(model_fields(read_image_config("cifar {} transforms { mixup {} }")),
            model_fields(read_image_config("cifar {}")));
}

TEST(ImageData, ModelsOfOwnDataDifferByTheMixturesThatTheyRead) {
  const auto hash = [](bool reads) {
    const std::string mix = reads ? ", \"label_mix\"" : "";
    return parse_run_config(
               "model { input { name: \"features\" shape: 3 } input { name: \"label\" type: INT32 } " +
                   std::string(reads ? "input { name: \"label_mix\" type: INT32 shape: 2 } " : "") +
                   "layer { name: \"fc\" input: \"features\" linear { units: 3 } } "
                   "layer { name: \"loss\" input: [\"fc\", \"label\"" +
                   mix +
                   "] softmax_cross_entropy {} } } data { own { samples: 8 } } "
                   "trainer { global_batch: 8 steps: 2 } optimizer { learning_rate: 0.1 sgd {} }",
               "c.textproto", {})
        .math_hash;
  };
  EXPECT_NE(hash(true), hash(false));
}

TEST(ImageData, RefusesTransformsOfSamplesWithoutImages) {
  const auto refusal_of = [](const std::string& model, const std::string& data) {
    return message_of<ConfigError>([&] {
      parse_run_config(model + " data { " + data +
                           " } trainer { global_batch: 8 steps: 2 } optimizer { learning_rate: 0.1 sgd {} }",
                       "c.textproto", {});
    });
  };
  const std::string gpt = "model { gpt { vocabulary: 9 context: 4 layers: 1 heads: 1 width: 8 } }",
                    mlp =
                        "model { input { name: \"features\" shape: 3 } input { name: \"label\" type: INT32 } "
                        "layer { name: \"fc\" input: \"features\" linear { units: 3 } } "
                        "layer { name: \"loss\" input: [\"fc\", \"label\"] softmax_cross_entropy {} } }";
  EXPECT_THAT(refusal_of(gpt, "tokens { files: \"a\" vocabulary: 9 } transforms { flip {} }"),
              AllOf(HasSubstr("data.transforms"), HasSubstr("data.tokens")));
  EXPECT_THAT(refusal_of(gpt, "text { file: \"a\" } eval_transforms { resize { shorter: 4 } }"),
              AllOf(HasSubstr("data.eval_transforms"), HasSubstr("data.text")));
  EXPECT_THAT(refusal_of(gpt, "synthetic { samples: 8 classes: 9 } transforms { flip {} }"),
              AllOf(HasSubstr("data.transforms"), HasSubstr("data.synthetic")));
  EXPECT_THAT(refusal_of(mlp, "table { files: \"a\" target: \"label\" } transforms { flip {} }"),
              AllOf(HasSubstr("data.transforms"), HasSubstr("data.table")));
}

TEST(ImageData, KnowsTheNamesOfCifarsFiles) {
  auto cifar = read_image_config("cifar {}").data.cifar;
  EXPECT_EQ(cifar.train_files.size(), 5u);
  EXPECT_THAT(cifar.eval_files, ElementsAre("test_batch.bin"));
  cifar = read_image_config("cifar { labels: CIFAR100 eval_fraction: 0.1 }").data.cifar;
  EXPECT_THAT(cifar.train_files, ElementsAre("train.bin"));
  EXPECT_TRUE(cifar.eval_files.empty());
}

TEST(ImageData, TakesSplitsByListAndSeed) {
  const auto cifar = read_image_config("cifar { eval_list: \"l\" } on_damage: SKIP");
  EXPECT_EQ(cifar.data.cifar.eval_list, "l");
  EXPECT_TRUE(cifar.data.cifar.eval_files.empty());
  EXPECT_EQ(cifar.data.on_damage, data::DamagePolicy::skip);
  EXPECT_EQ(parse_run_config(cifar.effective_text, "again", {}).data, cifar.data);
  const std::string files = "idx { train_images: \"a\" train_labels: \"b\" ";
  const auto idx =
      read_image_config(files +
                        "eval_fraction: 0.25 split_seed: 3 classes: 10 } eval_transforms { center_crop {} } "
                        "most_inflated_bytes: 4096");
  EXPECT_EQ(idx.data.eval_fraction, 0.25);
  EXPECT_EQ(idx.data.split_seed, 3u);
  EXPECT_EQ(idx.data.idx_classes, 10);
  EXPECT_EQ(idx.data.most_inflated_bytes, 4096);
  EXPECT_EQ(parse_run_config(idx.effective_text, "again", {}).data, idx.data);
  // The mathematics of what came before these fields; who evaluates is part of the data's identity.
  const auto hash = [](const std::string& data) { return read_image_config(data).math_hash; };
  EXPECT_EQ(hash(files + "}"), hash(files + "eval_fraction: 0 split_seed: 1 } most_inflated_bytes: 9"));
  EXPECT_NE(hash(files + "}"), hash(files + "eval_fraction: 0.5 }"));
  EXPECT_EQ(hash(files + "eval_list: \"x\" }"), hash(files + "eval_list: \"y\" }"));
}

TEST(ImageData, RefusesWhatContradictsItself) {
  EXPECT_THAT(image_refusal("images {}"), AllOf(HasSubstr("data.images"), HasSubstr("train_list")));
  EXPECT_THAT(image_refusal("images { train: \"a\" train_list: \"b\" }"), HasSubstr("data.images"));
  EXPECT_THAT(image_refusal("images { train: \"a\" eval: \"b\" eval_fraction: 0.5 }"),
              HasSubstr("eval_fraction"));
  EXPECT_THAT(image_refusal("images { train: \"a\" split_seed: 2 }"), HasSubstr("split_seed"));
  EXPECT_THAT(image_refusal("images { train: \"a\" channels: 2 }"), HasSubstr("channels"));
  EXPECT_THAT(image_refusal("cifar { eval_files: \"x\" eval_fraction: 0.5 }"), HasSubstr("eval_fraction"));
  EXPECT_THAT(image_refusal("cifar { eval_list: \"x\" eval_fraction: 0.5 }"), HasSubstr("data.cifar"));
  const std::string idx = "train_images: \"a\" train_labels: \"b\" ";
  EXPECT_THAT(image_refusal("idx { " + idx + "eval_list: \"c\" eval_fraction: 0.5 }"), HasSubstr("data.idx"));
  EXPECT_THAT(image_refusal("idx { " + idx + "split_seed: 2 }"), HasSubstr("data.idx.split_seed"));
  EXPECT_THAT(image_refusal("idx { " + idx + "} eval_transforms { center_crop {} }"),
              HasSubstr("data.eval_transforms"));
  EXPECT_THAT(image_refusal("text { file: \"a\" context: 4 } on_damage: SKIP"), HasSubstr("data.on_damage"));
  EXPECT_THAT(image_refusal("synthetic { samples: 8 classes: 9 } on_damage: SKIP"),
              HasSubstr("data.on_damage"));
  EXPECT_THAT(image_refusal("cifar {} transforms { resize { size: [3, 3] shorter: 4 } }"),
              HasSubstr("data.transforms[0].resize"));
  EXPECT_THAT(image_refusal("cifar {} transforms { center_crop { size: 3 } }"),
              HasSubstr("center_crop.size"));
  EXPECT_THAT(image_refusal("cifar {} transforms { normalize { mean: 1 } }"), HasSubstr("normalize"));
  EXPECT_THAT(image_refusal("cifar {} transforms {}"), HasSubstr("data.transforms[0]"));
  EXPECT_THAT(image_refusal("cifar {} transforms { flip { horizontal: 2 } }"), HasSubstr("flip.horizontal"));
}

TEST(ImageData, RefusesWhatWouldBeIgnored) {
  EXPECT_THAT(image_refusal("cifar {} threads: AUTOMATIC prefetch_threads: 2"), HasSubstr("data.threads"));
  EXPECT_THAT(image_refusal("cifar {} threads: AUTOMATIC prefetch_depth: 8"), HasSubstr("data.threads"));
  EXPECT_THAT(image_refusal("cifar {} cache_directory: \"c\""), HasSubstr("data.cache_directory"));
  EXPECT_THAT(image_refusal("images { train: \"a\" } cache_bytes: 7"), HasSubstr("data.cache_bytes"));
  EXPECT_THAT(image_refusal("records { channels: 2 }"), HasSubstr("data.records.channels"));
}

TEST(ImageData, CountsForWhatDecidesNumbers) {
  const auto hash = [](const std::string& data) { return read_image_config(data).math_hash; };
  EXPECT_EQ(hash("images { train: \"a\" }"), hash("images { train: \"b/a\" }"));
  EXPECT_NE(hash("images { train: \"a\" }"), hash("images { train: \"a\" } on_damage: SKIP"));
  EXPECT_EQ(hash("images { train: \"a\" }"),
            hash("images { train: \"a\" } threads: AUTOMATIC cache_directory: \"c\""));
  EXPECT_EQ(hash("records {}"), hash("records { folder: \"elsewhere\" }"));
  EXPECT_NE(hash("records {}"), hash("records { scaled_decoding: false }"));
  EXPECT_NE(hash("cifar {}"), hash("cifar {} transforms { flip {} }"));
  EXPECT_NE(hash("cifar {} transforms { flip {} } transforms { pad_crop {} }"),
            hash("cifar {} transforms { pad_crop {} } transforms { flip {} }"));
}

}  // namespace
}  // namespace lockstep::config
