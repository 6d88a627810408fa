// Every config that lockstep ships, and the example that is a program, have one rank's bits in every
// schedule, for two steps: made small, on data that are drawn.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "data/own_samples.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "net/training.h"
#include "train/worker/compile_options.h"

// The example as it stands, for its model and its samples.
#define main spirals_main
#include "../../examples/own_model/spirals.cpp"
#undef main

namespace lockstep::net {
namespace {

constexpr const char* kProgram = "examples/own_model/spirals.cpp";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> shipped_configs() {
  const std::filesystem::path source = LOCKSTEP_SOURCE;
  std::vector<std::string> paths;
  for (const char* folder : {"configs", "examples"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source / folder))
      // Ops and data of a program's own: train/models/custom_op_test.cpp trains such models in all layouts.
      if (entry.path().extension() == ".textproto" &&
          text_of(entry.path()).find("custom {") == std::string::npos)
        paths.push_back(std::filesystem::relative(entry.path(), source).string());
  paths.emplace_back(kProgram);
  std::ranges::sort(paths);
  return paths;
}

/// Two steps of few samples, whose sums no layout changes.
const std::vector<std::string> kFewSteps{
    "trainer.steps=2",       "trainer.global_batch=12",        "trainer.virtual_replicas=4",
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
    overrides.insert(overrides.end(), {"data={synthetic { samples: 30 eval_samples: 5 classes: 10 }}",
                                       "model.vit.image=[8, 8, 3]", "model.vit.layers=3", "model.vit.heads=2",
                                       "model.vit.width=12", "model.vit.hidden=10",
                                       "model.vit.dropout=" + rate, "model.vit.attention_dropout=" + rate});
  } else if (text.find("resnet {") != std::string::npos) {
    // Batch norms want several pixels in the last stage.
    overrides.insert(overrides.end(), {"data={synthetic { samples: 30 eval_samples: 5 classes: 10 }}",
                                       "model.resnet.image=[33, 33, 3]", "model.resnet.depth=18",
                                       "model.resnet.width=2", "model.resnet.classes=10",
                                       "model.resnet.width_per_group=64", "checkpoint.keep_best=false"});
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

/// Every schedule on 2 to 4 stages with each kind of recomputation; who updates goes around, unless all is
/// asked for.
std::vector<std::string> layouts() {
  const bool all = std::getenv("LOCKSTEP_SHIPPED_ALL") != nullptr;
  const std::vector<std::string> updates{"", ",shard=optimizer", ",sync=ps,servers=2",
                                         ",sync=ps,placement=colocated,servers="};
  std::vector<std::string> texts{"dp=2", "dp=3,shard=optimizer", "dp=2,sync=ps", "dp=2,recompute=full",
                                 "dp=2,recompute=selective",
                                 // Mixtures: replicas of pipelines.
                                 "dp=2,pp=2,schedule=1f1b", "dp=2,pp=2,schedule=zero_bubble,shard=optimizer",
                                 "dp=2,pp=2,schedule=gpipe,recompute=full,sync=ps,servers=2"};
  size_t turn = 0;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble"})
    for (const char* recompute : {"none", "selective", "full"})
      for (const int pp : {2, 3, 4}) {
        ++turn;
        for (size_t u = 0; u < updates.size(); ++u)
          if (all || u == (turn + turn / 4) % updates.size())
            texts.push_back(fmt::format("dp=1,pp={},schedule={},recompute={}{}{}", pp, schedule, recompute,
                                        updates[u], updates[u].ends_with('=') ? std::to_string(pp) : ""));
      }
  return texts;
}

class Shipped : public testing::TestWithParam<std::string> {
 protected:
  config::RunConfig read(const std::string& layout, bool drops) const {
    if (GetParam() == kProgram) return read_program(layout);
    const std::string path = std::string(LOCKSTEP_SOURCE) + "/" + GetParam();
    return config::load_run_config(path, made_small(text_of(path), drops), layout);
  }

  /// The example's model has no dropout.
  static config::RunConfig read_program(const std::string& layout) {
    const Config config = ::config();
    std::vector<std::string> overrides = config.assignments();
    overrides.insert(overrides.end(), kFewSteps.begin(), kFewSteps.end());
    return config::parse_run_config(config.text(), kProgram, overrides, layout,
                                    {.model = ::model(),
                                     .samples = {SamplesAccess::dataset_of(samples(draw(30, 1))),
                                                 SamplesAccess::dataset_of(samples(draw(5, 2)))}});
  }

  /// Whether the model takes a rate of dropout.
  static bool may_drop() {
    const std::string path = std::string(LOCKSTEP_SOURCE) + "/" + GetParam();
    return GetParam() != kProgram && text_of(path).find("resnet {") == std::string::npos &&
           !is_of_files(text_of(path));
  }

  /// Whether there are as many pieces as the layout wants.
  static bool fits(const config::RunConfig& config, int ranks) {
    try {
      train::compile_run(config, {.world_size = ranks}).check();
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  }
};

TEST_P(Shipped, HasTheSameBitsInEveryLayout) {
  for (const bool drops : {false, true}) {
    if (drops && !may_drop()) continue;
    const Trained one = train_here(read("dp=1", drops), {});
    int tried = 0;
    for (const std::string& layout : layouts()) {
      const config::RunConfig config = read(layout, drops);
      const int ranks = config.parallel.layout.world_size();
      if (!fits(config, ranks)) continue;
      ++tried;
      EXPECT_EQ(difference(one, train_here(config, {.ranks = ranks})), "")
          << layout << (drops ? ", with dropout" : "");
    }
    fmt::print("{} layouts{}\n", tried, drops ? ", with dropout" : "");
    EXPECT_GE(tried, 25) << "few layouts fit";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Shipped, testing::ValuesIn(shipped_configs()), [](const auto& info) {
  std::string name = info.param.substr(0, info.param.rfind('.'));
  std::ranges::replace_if(
      name, [](char letter) { return !std::isalnum(static_cast<unsigned char>(letter)); }, '_');
  return name;
});

}  // namespace
}  // namespace lockstep::net
