// What the compilers write for layouts with owners, as text that people read and changes show in.
// LOCKSTEP_WRITE_GOLDENS=1 writes the files anew (scripts/write_compiled_goldens.sh).

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "base/text.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

constexpr const char* kConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 classes: 3 } }
data { synthetic { samples: 40 eval_samples: 8 classes: 3 shape: 4 shape: 4 shape: 1 } }
trainer { steps: 4 global_batch: 4 virtual_replicas: 2 seed: 1 }
optimizer { learning_rate: 0.01 adamw {} }
parallel { reduction: REPRODUCIBLE bucket_bytes: 128 }
)";

struct Case {
  const char* name;
  const char* layout;
  std::vector<std::string> overrides = {};
  std::vector<int> hosts = {};
};

const std::vector<std::string> kAsItLands = {"trainer.nonfinite=IGNORE"};
const std::vector<std::string> kTied = {
    "model.gpt={vocabulary: 5 context: 2 layers: 1 heads: 1 width: 4 tied_head: true}",
    "data.synthetic={samples: 8 eval_samples: 4 classes: 5 context: 2}"};
const Case kCases[] = {
    {"sharded_optimizer", "dp=2,shard=optimizer"},
    {"pipeline", "dp=1,pp=2"},
    {"pipeline_recomputed", "dp=2,pp=2,schedule=gpipe,recompute=full", {"trainer.nonfinite=IGNORE"}},
    {"pipeline_selective", "dp=1,pp=2,recompute=selective", kTied},
    {"pipeline_zero_bubble", "dp=1,pp=2,schedule=zero_bubble"},
    {"pipeline_server", "dp=1,pp=2,sync=ps"},
    {"pipeline_tied_and_sharded", "dp=2,pp=2,shard=optimizer", kTied},
    {"server", "dp=2,sync=ps"},
    {"server_as_it_lands", "dp=2,sync=ps", kAsItLands},
    {"server_in_slices",
     "dp=2,sync=ps",
     {"trainer.nonfinite=IGNORE", "model.mlp={image: 16 image: 16 image: 1 hidden: 80 classes: 3}",
      "data.synthetic={samples: 8 eval_samples: 4 classes: 3 shape: 16 shape: 16 shape: 1}"}},
    {"two_servers", "dp=1,sync=ps,servers=2"},
    {"colocated_server", "dp=2,sync=ps,placement=colocated"},
    {"host_sums", "dp=2,sync=ps,aggregate=host", {}, {0, 0, 1}},
    {"stale_server", "dp=2,sync=ps,mode=stale", {"parallel.reduction=FAST"}},
    {"async_server_as_it_lands",
     "dp=2,sync=ps,placement=colocated,mode=async",
     {"parallel.reduction=FAST", "trainer.nonfinite=IGNORE"}},
};

/// Without what depends on the processor: scratch that libraries ask for, and with it places in memory.
std::string without_scratch(const std::string& text) {
  std::string kept;
  for (const auto& line : split(text, '\n')) {
    if (line.starts_with("buffer tmp.")) continue;
    std::string shown(line);
    if (line.starts_with("buffer "))
      if (const size_t place = shown.rfind(" offset="); place != std::string::npos) shown.resize(place);
    kept += std::regex_replace(shown, std::regex(" (writes )?temporary:tmp\\.[^ ]*"), "") + "\n";
  }
  return kept;
}

std::string compiled_text(const Case& golden) {
  config::RunConfig config = config::parse_run_config(kConfig, "test", golden.overrides);
  config.parallel.layout = layout::parse_layout(golden.layout);
  const int ranks = config.parallel.layout.world_size();
  const compile::CompiledRun run = compile_run(config, {.world_size = ranks, .hosts = golden.hosts});
  run.check();
  std::string text = std::string("# What each rank does in steps with ") + golden.layout + ".\n\n";
  for (int rank = 0; rank < ranks; ++rank) {
    const auto programs = run.compile(rank);
    for (const program::Program* program : {&programs.step, &programs.serve, &programs.gather})
      if (!program->instructions.empty()) text += without_scratch(program::to_text(*program));
  }
  return text;
}

class CompiledGolden : public testing::TestWithParam<Case> {};

TEST_P(CompiledGolden, IsWhatTheCompilerWrites) {
  const std::string path = std::string(LOCKSTEP_COMPILED_GOLDENS) + "/" + GetParam().name + ".program";
  const std::string text = compiled_text(GetParam());
  if (std::getenv("LOCKSTEP_WRITE_GOLDENS") != nullptr) {
    std::ofstream(path) << text;
    GTEST_SKIP() << "wrote " << path;
  }
  std::ostringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(text, golden.str()) << "if this is meant: scripts/write_compiled_goldens.sh";
}

INSTANTIATE_TEST_SUITE_P(All, CompiledGolden, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::train
