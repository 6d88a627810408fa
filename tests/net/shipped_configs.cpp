#include "net/shipped_configs.h"

#include <fmt/format.h>
#include <lockstep/custom_op.h>
#include <lockstep/train.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "data/own_samples.h"
#include "data/test_files.h"

// The examples as they stand, for their model, op and samples. What they include is included above.
namespace spirals {
#define main spirals_main
#include "../../examples/own_model/spirals.cpp"
#undef main
}  // namespace spirals
namespace waves {
#define main waves_main
#include "../../examples/own_op/waves.cpp"
#undef main
}  // namespace waves

namespace lockstep::net {
namespace {

constexpr const char *kOwnModel = "examples/own_model/spirals.cpp",
                     *kOwnOp = "examples/own_op/waves.textproto";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string path_of(const std::string& shipped) { return std::string(LOCKSTEP_SOURCE) + "/" + shipped; }

/// Two steps of few samples, whose sums no layout changes. Of 6 leaves 2 or 3 replicas have equal shares.
const std::vector<std::string> kFewSteps{
    "trainer.steps=2",       "trainer.global_batch=12",        "trainer.virtual_replicas=6",
    "trainer.micro_batch=1", "trainer.eval_every_steps=0",     "checkpoint.every_steps=0",
    "device.memory_limit=0", "parallel.reduction=REPRODUCIBLE"};

/// Whether the model is small, and reads fields that only rows of a table or texts of classes have.
bool is_of_files(const std::string& text) {
  const bool is_preset = text.find("lstm {") != std::string::npos;
  return !is_preset &&
         (text.find("table {") != std::string::npos || text.find("lines {") != std::string::npos);
}

/// A folder with a few rows and lines for configs of tables and texts, kept until the program ends.
std::string few_rows() {
  static const test::TemporaryDirectory folder;
  std::string rows = "sepal_length,sepal_width,petal_length,petal_width,color,species\n", lines, reviews;
  for (int i = 0; i < 48; ++i) {
    const char letter = static_cast<char>('a' + i % 3), other = static_cast<char>('a' + i % 4);
    rows += fmt::format("{},{},{},{},{},kind {}\n", i * 7 % 11, i * 5 % 9, i % 8, i * i % 13, letter, i % 3);
    lines += fmt::format("{}\tline {} of {}\n", other, i * i, i);
    reviews +=
        fmt::format("{}\t{}\n", i % 2 == 0 ? "good" : "bad", std::string(i % 9 + 1, letter));  // some short
  }
  test::write_file(folder / "flowers.csv", rows);
  test::write_file(folder / "lines.tsv", lines);
  test::write_file(folder / "reviews.tsv", reviews);
  return folder.path();
}

/// Few samples of small models, whose layers are those of the file.
std::vector<std::string> made_small(const std::string& text, bool drops) {
  std::vector<std::string> overrides = kFewSteps;
  const std::string rate = drops ? "0.2" : "0";
  if (text.find("gpt {") != std::string::npos) {
    // Tokens of a vocabulary, so that cutting it cuts the embedding and the head.
    overrides.insert(overrides.end(), {"model.gpt.vocabulary=37", "model.gpt.context=7", "model.gpt.layers=3",
                                       "model.gpt.heads=2", "model.gpt.width=12",
                                       "data.synthetic={samples: 30 eval_samples: 5 classes: 37}",
                                       "model.gpt.dropout=" + rate});
  } else if (text.find("llama {") != std::string::npos) {
    overrides.insert(overrides.end(),
                     {"model.llama.vocabulary=37", "model.llama.context=7", "model.llama.layers=3",
                      "model.llama.heads=2", "model.llama.key_value_heads=1", "model.llama.width=12",
                      "model.llama.hidden=10", "data.synthetic={samples: 30 eval_samples: 5 classes: 37}"});
  } else if (text.find("lstm {") != std::string::npos) {
    const bool reads_lines = text.find("lines {") != std::string::npos;
    overrides.insert(overrides.end(), {"model.lstm.context=7", "model.lstm.layers=3", "model.lstm.width=6",
                                       "model.lstm.units=5", "model.lstm.dropout=" + rate});
    if (reads_lines)
      overrides.push_back("data.directory=\"" + few_rows() + "\"");
    else
      overrides.insert(overrides.end(), {"model.lstm.vocabulary=37",
                                         "data.synthetic={samples: 30 eval_samples: 5 classes: 37}"});
  } else if (text.find("vit {") != std::string::npos) {
    overrides.insert(overrides.end(),
                     {"data.synthetic={samples: 30 eval_samples: 5 classes: 10}", "model.vit.image=[8, 8, 3]",
                      "model.vit.layers=3", "model.vit.heads=2", "model.vit.width=12", "model.vit.hidden=10",
                      "model.vit.dropout=" + rate, "model.vit.attention_dropout=" + rate});
    // The head begins at 0, so that in the first step no gradient comes through it. Later ones shall see
    // weights that a whole rate has moved.
    overrides.insert(overrides.end(), {"trainer.steps=4", "optimizer.schedule.warmup_steps=0"});
  } else if (text.find("resnet {") != std::string::npos) {
    // Batch norms want several pixels in the last stage.
    overrides.insert(overrides.end(), {"data={synthetic { samples: 30 eval_samples: 5 classes: 10 }}",
                                       "model.resnet.image=[33, 33, 3]", "model.resnet.width=2",
                                       "model.resnet.classes=10", "checkpoint.keep_best=false"});
  } else if (text.find("vgg {") != std::string::npos) {
    overrides.insert(overrides.end(),
                     {"data={synthetic { samples: 30 eval_samples: 5 classes: 10 }}", "model.vgg.depth=11",
                      "model.vgg.width=2", "model.vgg.hidden=6", "model.vgg.dropout=" + rate});
  } else if (is_of_files(text)) {
    overrides.push_back("data.directory=\"" + few_rows() + "\"");
  } else {
    const std::string model = text.find("mlp {") != std::string::npos ? "mlp" : "lenet";
    overrides.insert(overrides.end(), {"data.synthetic={samples: 30 eval_samples: 5 classes: 10}",
                                       "model." + model + ".dropout=" + rate});
  }
  return overrides;
}

/// Of a ResNet's stages: blocks with a shortcut that is a convolution come first, and one more stays in the
/// first stage and in the last.
int blocks_of(char stage) { return stage == '1' || stage == '4' ? 2 : 1; }

/// The block of a layer such as "layer3.4.conv1", and whether it stays.
bool is_left_out(const std::string& layer) {
  if (!layer.starts_with("layer")) return false;
  return std::stoi(layer.substr(7)) >= blocks_of(layer[5]);
}

/// The preset's blocks as they are, but fewer of them.
ModelSpec with_fewer_blocks(ModelSpec model) {
  std::erase_if(model.layers, [](const Layer& layer) { return is_left_out(layer.name); });
  for (Layer& layer : model.layers)
    for (std::string& input : layer.inputs)
      if (is_left_out(input)) input = fmt::format("layer{}.{}.relu", input[5], blocks_of(input[5]) - 1);
  return model;
}

config::RunConfig small_file(const std::string& shipped, const std::string& layout, bool drops) {
  const std::string text = text_of(path_of(shipped));
  std::vector<std::string> overrides = made_small(text, drops);
  if (text.find("resnet {") != std::string::npos) {
    const ModelSpec whole = config::load_run_config(path_of(shipped), overrides, layout).model;
    overrides.push_back("model={" + config::model_to_text(with_fewer_blocks(whole)) + "}");
  }
  return config::load_run_config(path_of(shipped), overrides, layout);
}

config::RunConfig small_own_model(const std::string& layout) {
  const Config config = spirals::config();
  std::vector<std::string> overrides = config.assignments();
  overrides.insert(overrides.end(), kFewSteps.begin(), kFewSteps.end());
  return config::parse_run_config(
      config.text(), kOwnModel, overrides, layout,
      {.model = spirals::model(),
       .samples = {SamplesAccess::dataset_of(spirals::samples(spirals::draw(30, 1))),
                   SamplesAccess::dataset_of(spirals::samples(spirals::draw(5, 2)))}});
}

config::RunConfig small_own_op(const std::string& layout) {
  [[maybe_unused]] static const bool registered = [] {
    register_op("snake", std::make_shared<waves::Snake>());
    return true;
  }();
  return config::parse_run_config(text_of(path_of(kOwnOp)), kOwnOp, kFewSteps, layout,
                                  {.model = {},
                                   .samples = {SamplesAccess::dataset_of(waves::draw(30, 1)),
                                               SamplesAccess::dataset_of(waves::draw(5, 2))}});
}

}  // namespace

std::vector<std::string> shipped_configs() {
  const std::filesystem::path source = LOCKSTEP_SOURCE;
  std::vector<std::string> paths{kOwnModel};
  for (const char* folder : {"configs", "examples"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source / folder))
      if (entry.path().extension() == ".textproto")
        paths.push_back(std::filesystem::relative(entry.path(), source).string());
  std::ranges::sort(paths);
  return paths;
}

bool takes_dropout(const std::string& shipped) {
  if (shipped == kOwnModel || shipped == kOwnOp) return false;
  const std::string text = text_of(path_of(shipped));
  return text.find("resnet {") == std::string::npos && text.find("llama {") == std::string::npos &&
         !is_of_files(text);
}

config::RunConfig small_config(const std::string& shipped, const std::string& layout, bool drops) {
  if (shipped == kOwnModel) return small_own_model(layout);
  if (shipped == kOwnOp) return small_own_op(layout);
  return small_file(shipped, layout, drops);
}

}  // namespace lockstep::net
