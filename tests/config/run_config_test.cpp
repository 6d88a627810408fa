#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/text.h"
#include "config_testing.h"
#include "model/graph.h"
#include "model/presets.h"

namespace lockstep::config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Overrides = std::vector<std::string>;

void expect_same_run(const RunConfig& a, const RunConfig& b) {
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.data, b.data);
  EXPECT_EQ(a.trainer, b.trainer);
  EXPECT_EQ(a.optimizer, b.optimizer);
  EXPECT_EQ(a.schedule, b.schedule);
  EXPECT_EQ(a.precision, b.precision);
  EXPECT_EQ(a.parallel, b.parallel);
  EXPECT_EQ(a.checkpoint, b.checkpoint);
  EXPECT_EQ(a.metrics, b.metrics);
  EXPECT_EQ(a.effective_text, b.effective_text);
  EXPECT_EQ(a.config_hash, b.config_hash);
  EXPECT_EQ(a.math_hash, b.math_hash);
  EXPECT_EQ(a.math_fields, b.math_fields);
}

TEST(Conversion, FillsInTheDefaultsOfThePlainOptions) {
  const auto run = parse(kSmallConfig);
  const data::DataOptions data{
      .kind = data::DataKind::synthetic, .samples = 100, .eval_samples = 10, .classes = 3, .shape = "4,4,1"};
  EXPECT_EQ(run.data, data);
  const TrainerOptions trainer{.global_batch = 16, .virtual_replicas = 8, .steps = 5};
  EXPECT_EQ(run.trainer, trainer);
  const optim::OptimizerOptions optimizer{.learning_rate = 0.1};
  EXPECT_EQ(run.optimizer, optimizer);
  EXPECT_EQ(run.schedule, optim::ScheduleOptions{});
  EXPECT_EQ(run.parallel, parallel::ParallelOptions{});
  EXPECT_EQ(run.checkpoint, checkpoint::CheckpointOptions{});
  EXPECT_EQ(run.metrics, observe::MetricsOptions{});
  EXPECT_EQ(run.model, model::make_mlp({.image = {4, 4, 1}, .hidden = {8}, .classes = 3}));
}

TEST(Conversion, CarriesBatchNorm) {
  const auto run = parse(R"(
    model { lenet { image: [32, 32, 3] classes: 7 batch_norm: true } }
    data { synthetic { samples: 8 classes: 7 shape: [32, 32, 3] } }
    trainer { global_batch: 4 steps: 1 }
    optimizer { learning_rate: 0.5 sgd {} }
  )");
  EXPECT_EQ(run.model, model::make_lenet({.image = {32, 32, 3}, .classes = 7, .batch_norm = true}));
}

TEST(Conversion, CarriesEveryField) {
  const auto run = parse(R"(
    format_version: 1
    model { lenet { image: [32, 32, 3] classes: 7 dropout: 0.25 } }
    data {
      idx {
        train_images: "ti" train_labels: "tl" eval_images: "ei" eval_labels: "el"
        train_range { begin: 1 end: 50 } eval_range { begin: 2 } mean: 0.5 deviation: 0.25
      }
      directory: "d" shuffle: false prefetch_threads: 2 prefetch_depth: 8
    }
    trainer {
      global_batch: 24 micro_batch: 2 virtual_replicas: 6 epochs: 2.5 seed: 9 clip_norm: 1.5
      eval_every_steps: 10 eval_at_end: false nonfinite: STOP
    }
    optimizer {
      learning_rate: 0.5 sgd { momentum: 0.9 nesterov: true } weight_decay: 0.01 decay_norm_and_bias: true
      schedule { warmup_steps: 3 cosine { minimum: 0.125 } }
    }
    precision { compute: FLOAT32 }
    parallel {
      dp: 3 sync: ALL_REDUCE reduction: REPRODUCIBLE algorithm: AUTOMATIC bucket_bytes: 1000
      intra_op_threads: 2 wire: BFLOAT16 error_feedback: true
    }
    checkpoint { every_steps: 5 at_end: false keep: 2 resume_path: "r" allow_config_change: true }
    metrics { log_every_steps: 4 progress: false }
  )");
  const data::DataOptions data{.kind = data::DataKind::idx,
                               .directory = "d",
                               .shuffle = false,
                               .train_images = "ti",
                               .train_labels = "tl",
                               .eval_images = "ei",
                               .eval_labels = "el",
                               .train_range = {1, 50},
                               .eval_range = {2, -1},
                               .mean = 0.5,
                               .deviation = 0.25,
                               .prefetch_threads = 2,
                               .prefetch_depth = 8};
  EXPECT_EQ(run.data, data);
  const TrainerOptions trainer{.global_batch = 24,
                               .micro_batch = 2,
                               .virtual_replicas = 6,
                               .steps = 0,
                               .epochs = 2.5,
                               .seed = 9,
                               .clip_norm = 1.5,
                               .eval_every_steps = 10,
                               .eval_at_end = false,
                               .nonfinite = NonFinitePolicy::stop};
  EXPECT_EQ(run.trainer, trainer);
  const optim::OptimizerOptions optimizer{.kind = optim::OptimizerKind::sgd,
                                          .learning_rate = 0.5,
                                          .momentum = 0.9,
                                          .nesterov = true,
                                          .weight_decay = 0.01,
                                          .decay_norm_and_bias = true};
  EXPECT_EQ(run.optimizer, optimizer);
  const optim::ScheduleOptions schedule{
      .kind = optim::ScheduleKind::cosine, .warmup_steps = 3, .minimum = 0.125};
  EXPECT_EQ(run.schedule, schedule);
  const parallel::ParallelOptions parallel{.layout = {.dp = 3},
                                           .reduction = layout::Reduction::reproducible,
                                           .wire = DType::bfloat16,
                                           .error_feedback = true,
                                           .bucket_bytes = 1000,
                                           .intra_op_threads = 2};
  EXPECT_EQ(run.parallel, parallel);
  const checkpoint::CheckpointOptions checkpoint{.every_steps = 5,
                                                 .at_end = false,
                                                 .keep = 2,
                                                 .resume = checkpoint::ResumePolicy::path,
                                                 .resume_path = "r",
                                                 .allow_config_change = true};
  EXPECT_EQ(run.checkpoint, checkpoint);
  const observe::MetricsOptions metrics{.log_every_steps = 4, .progress = false};
  EXPECT_EQ(run.metrics, metrics);
  EXPECT_EQ(run.model, model::make_lenet({.image = {32, 32, 3}, .classes = 7, .dropout = 0.25f}));
  expect_same_run(parse(run.effective_text), run);
}

TEST(Conversion, OfTextTakesTheContextFromTheModel) {
  const auto run = parse(kSmallGpt, {"optimizer.adamw={beta1: 0.5 beta2: 0.75 epsilon: 1e-6}"});
  const data::DataOptions data{
      .kind = data::DataKind::text, .text_file = "text.txt", .context = 16, .train_fraction = 0.9};
  EXPECT_EQ(run.data, data);
  const optim::OptimizerOptions optimizer{.kind = optim::OptimizerKind::adamw,
                                          .learning_rate = 0.001,
                                          .beta1 = 0.5,
                                          .beta2 = 0.75,
                                          .epsilon = 1e-6};
  EXPECT_EQ(run.optimizer, optimizer);
  const auto synthetic =
      parse(kSmallGpt, {"data.synthetic={samples: 4 eval_samples: 2 classes: 65 seed: 3}"});
  const data::DataOptions made_up{.kind = data::DataKind::synthetic,
                                  .context = 16,
                                  .samples = 4,
                                  .eval_samples = 2,
                                  .classes = 65,
                                  .seed = 3};
  EXPECT_EQ(synthetic.data, made_up);
}

TEST(EffectiveText, StatesDefaultsAndReadsBackAsTheSameRun) {
  for (const auto& text : {kSmallConfig, kSmallGpt}) {
    const auto run = parse(text);
    expect_same_run(parse(run.effective_text), run);
    for (const char* line : {"format_version: 1", "prefetch_depth: 4", "micro_batch: 0", "virtual_replicas: ",
                             "seed: 1", "clip_norm: 0", "nonfinite: LOCATE", "constant {", "compute: FLOAT32",
                             "sync: ALL_REDUCE", "reduction: FAST", "intra_op_threads: 1", "keep: 3",
                             "resume_automatic: false", "log_every_steps: 1"})
      EXPECT_THAT(run.effective_text, HasSubstr(line));
  }
}

TEST(EffectiveText, HoldsOverridesAndPresetDefaults) {
  const auto run = parse(kSmallConfig, {"trainer.epochs=3", "model={lenet {}}", "data.synthetic.classes=10"});
  EXPECT_THAT(run.effective_text, HasSubstr("image: [28, 28, 1]"));
  EXPECT_THAT(run.effective_text, HasSubstr("epochs: 3"));
  EXPECT_THAT(run.effective_text, Not(HasSubstr(" steps:")));
  expect_same_run(parse(run.effective_text), run);
}

TEST(ConfigHash, CoversEverything) {
  const auto base = parse(kSmallConfig).config_hash;
  EXPECT_EQ(parse(kSmallConfig + "# a comment").config_hash, base);
  EXPECT_EQ(parse(kSmallConfig, {"checkpoint.keep=3"}).config_hash, base) << "a default, stated";
  for (const char* change :
       {"trainer.seed=2", "data.directory=x", "metrics.progress=false", "checkpoint.keep=4", "parallel.dp=2",
        "parallel.shard=OPTIMIZER", "optimizer.schedule.cosine={}", "model.mlp.hidden=[9]"})
    EXPECT_NE(parse(kSmallConfig, {change}).config_hash, base) << change;
}

const Overrides kReproducible = {"parallel.reduction=REPRODUCIBLE"};

uint64_t math_hash(const std::string& text, Overrides overrides, const std::string& change = "") {
  if (!change.empty()) overrides.push_back(change);
  return parse(text, overrides).math_hash;
}

TEST(MathHash, IgnoresLayoutFoldersMetricsAndCheckpoints) {
  for (const auto& mode : {Overrides{}, kReproducible})
    for (const char* change :
         {"parallel.dp=2", "parallel.pp=2", "parallel.shard=OPTIMIZER", "parallel.sync=PS",
          "parallel.bucket_bytes=100", "data.directory=/elsewhere", "data.prefetch_threads=3",
          "data.prefetch_depth=9", "metrics.log_every_steps=7", "metrics.progress=false",
          "checkpoint.every_steps=2", "checkpoint.keep=1", "checkpoint.resume_path=x",
          "trainer.eval_every_steps=2", "trainer.eval_at_end=false", "trainer.nonfinite=STOP",
          "trainer.clip_norm=0", "format_version=1"})
      EXPECT_EQ(math_hash(kSmallConfig, mode, change), math_hash(kSmallConfig, mode)) << change;
}

TEST(MathHash, ChangesWithEverythingThatDecidesNumbers) {
  for (const auto& mode : {Overrides{}, kReproducible})
    for (const char* change :
         {"trainer.seed=2", "trainer.global_batch=32", "trainer.steps=6", "trainer.epochs=5",
          "trainer.clip_norm=1", "optimizer.learning_rate=0.2", "optimizer.sgd.momentum=0.5",
          "optimizer.adam={}", "optimizer.weight_decay=0.1", "optimizer.schedule.warmup_steps=1",
          "optimizer.schedule.cosine={}", "model.mlp.hidden=[9]", "model.mlp.dropout=0.1",
          "data.synthetic.samples=99", "data.synthetic.eval_samples=9", "data.synthetic.classes=4",
          "data.synthetic.seed=5", "data.shuffle=false"})
      EXPECT_NE(math_hash(kSmallConfig, mode, change), math_hash(kSmallConfig, mode)) << change;
  EXPECT_NE(math_hash(kSmallConfig, {}), math_hash(kSmallConfig, kReproducible));
  EXPECT_EQ(math_hash(kSmallConfig, {}, "parallel={sync: PS mode: STALE}"), math_hash(kSmallConfig, {}));
  EXPECT_EQ(math_hash(kSmallConfig, {}, "parallel={sync: PS mode: ASYNC}"), math_hash(kSmallConfig, {}))
      << "a checkpoint goes on in any mode";
  const std::string stated = "parallel={sync: PS mode: ASYNC async_learning_rate: AS_STATED}";
  const std::string by_root = "parallel={sync: PS mode: ASYNC async_learning_rate: DIVIDED_BY_ROOT}";
  for (const std::string& rate : {stated, by_root})
    EXPECT_NE(math_hash(kSmallConfig, {}, rate), math_hash(kSmallConfig, {}));
  EXPECT_NE(math_hash(kSmallConfig, {}, stated), math_hash(kSmallConfig, {}, by_root));
}

TEST(MathHash, CountsAWireThatRounds) {
  for (const auto& mode : {Overrides{}, kReproducible}) {
    EXPECT_EQ(math_hash(kSmallConfig, mode, "parallel.wire=FLOAT32"), math_hash(kSmallConfig, mode));
    EXPECT_NE(math_hash(kSmallConfig, mode, "parallel.wire=BFLOAT16"), math_hash(kSmallConfig, mode));
  }
}

TEST(MathHash, CountsErrorFeedback) {
  for (Overrides mode : {Overrides{}, kReproducible}) {
    mode.emplace_back("parallel.wire=BFLOAT16");
    EXPECT_EQ(math_hash(kSmallConfig, mode, "parallel.error_feedback=false"), math_hash(kSmallConfig, mode));
    EXPECT_NE(math_hash(kSmallConfig, mode, "parallel.error_feedback=true"), math_hash(kSmallConfig, mode));
  }
}

TEST(MathHash, CountsVirtualReplicasOnlyIfTheyDecideBits) {
  EXPECT_EQ(math_hash(kSmallConfig, {}, "trainer.virtual_replicas=4"), math_hash(kSmallConfig, {}));
  EXPECT_NE(math_hash(kSmallConfig, kReproducible, "trainer.virtual_replicas=4"),
            math_hash(kSmallConfig, kReproducible));
  for (const auto& mode : {Overrides{}, kReproducible})
    EXPECT_EQ(math_hash(kSmallConfig, mode, "parallel.intra_op_threads=2"), math_hash(kSmallConfig, mode));
  EXPECT_EQ(math_hash(kSmallConfig, {}, "parallel.algorithm=RING"), math_hash(kSmallConfig, {}));
  EXPECT_EQ(math_hash(kSmallConfig, kReproducible, "trainer.virtual_replicas=8"),
            math_hash(kSmallConfig, kReproducible))
      << "what is resolved from the batch of 16, stated";
}

TEST(MathHash, KnowsNoMicroBatches) {
  EXPECT_NE(math_hash(kSmallConfig, {}, "trainer.micro_batch=1"), math_hash(kSmallConfig, {}));
  EXPECT_EQ(math_hash(kSmallConfig, kReproducible, "trainer.micro_batch=1"),
            math_hash(kSmallConfig, kReproducible));
}

TEST(MathHash, KnowsTheMicroBatchesOfStatistics) {
  // Two virtual replicas of 8 samples.
  const std::string text = R"(model {
      input { name: "image" shape: [4, 4, 1] } input { name: "label" type: INT32 }
      layer { name: "norm" batch_norm {} } layer { name: "flat" flatten {} } layer { name: "fc" linear { units: 3 } }
      layer { name: "loss" input: "fc" input: "label" softmax_cross_entropy {} } })" +
                           kSmallConfig.substr(kSmallConfig.find("data"));
  const Overrides two = {"parallel.reduction=REPRODUCIBLE", "trainer.virtual_replicas=2"};
  EXPECT_EQ(math_hash(text, two, "trainer.micro_batch=8"), math_hash(text, two));
  EXPECT_EQ(math_hash(text, two, "trainer.micro_batch=16"), math_hash(text, two));
  EXPECT_EQ(math_hash(text, two, "trainer.micro_batch=7"), math_hash(text, two, "trainer.micro_batch=4"));
  EXPECT_NE(math_hash(text, two, "trainer.micro_batch=4"), math_hash(text, two));
}

TEST(MathHash, KnowsDataByRangeAndFileNameNotByFolder) {
  const std::string idx =
      "data.idx={train_images: 'a/x.gz' train_labels: 'y' eval_images: 'x' eval_labels: 'y' train_range { "
      "end: 50 }}";
  const auto base = math_hash(kSmallConfig, {idx});
  EXPECT_EQ(math_hash(kSmallConfig, {idx}, "data.idx.train_images=/b/x"), base);
  for (const char* change :
       {"data.idx.train_images=z", "data.idx.train_range.end=49", "data.idx.train_range.begin=1",
        "data.idx.eval_range.begin=1", "data.idx.mean=0.5", "data.idx.deviation=2"})
    EXPECT_NE(math_hash(kSmallConfig, {idx}, change), base) << change;
  for (const char* change : {"data.text.train_fraction=0.8", "data.text.file=other.txt"})
    EXPECT_NE(math_hash(kSmallGpt, {}, change), math_hash(kSmallGpt, {})) << change;
}

TEST(MathHash, DoesNotDependOnHowTheModelIsWritten) {
  const auto preset = parse(kSmallConfig);
  const auto plain = parse("model { " + model_to_text(preset.model) + " }\n" +
                           kSmallConfig.substr(kSmallConfig.find("data")));
  EXPECT_EQ(plain.model, preset.model);
  EXPECT_EQ(plain.math_hash, preset.math_hash);
  EXPECT_NE(plain.config_hash, preset.config_hash);
}

TEST(MathFields, NameWhatDecidesTheNumbers) {
  const auto run = parse(kSmallConfig, {"optimizer.sgd.momentum=0.5"});
  const std::map<std::string, std::string> fields(run.math_fields.begin(), run.math_fields.end());
  EXPECT_EQ(fields.size(), run.math_fields.size()) << "names are unique";
  const std::map<std::string, std::string> expected = {
      {"model.input.image", "shape: [4, 4, 1] type: FLOAT32"},
      {"model.layer.fc1", "input: \"flatten\" linear { units: 8 bias: true init_std: 0 }"},
      {"data.kind", "synthetic"},
      {"data.synthetic.shape[0]", "4"},
      {"trainer.seed", "1"},
      {"trainer.length", "steps"},
      {"trainer.steps", "5"},
      {"optimizer.kind", "sgd"},
      {"optimizer.sgd.momentum", "0.5"},
      {"optimizer.schedule.kind", "constant"},
      {"precision.compute", "FLOAT32"},
      {"parallel.reduction", "FAST"}};
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(fields.contains(name)) << name;
    EXPECT_EQ(fields.at(name), value) << name;
  }
  EXPECT_FALSE(fields.contains("trainer.virtual_replicas"));
  const auto reproducible = parse(kSmallConfig, kReproducible).math_fields;
  const std::map<std::string, std::string> then(reproducible.begin(), reproducible.end());
  EXPECT_TRUE(then.contains("trainer.virtual_replicas"));
  EXPECT_FALSE(then.contains("trainer.micro_batch"));
}

TEST(MathFields, OfPoolingAreThoseOfBuildsThatDidNotAskWhetherPaddingCounts) {
  const auto pool_of = [](const std::string& more) {
    const auto run = parse(R"(model {
        input { name: "image" shape: [4, 4, 1] } input { name: "label" type: INT32 }
        layer { name: "pool" pool2d { kind: AVERAGE kernel: 2 padding: 1 )" +
                           more + R"( } }
        layer { name: "flat" flatten {} } layer { name: "fc" linear { units: 3 } }
        layer { name: "loss" input: "fc" input: "label" softmax_cross_entropy {} } })" +
                           kSmallConfig.substr(kSmallConfig.find("data")));
    return std::map<std::string, std::string>(run.math_fields.begin(), run.math_fields.end())
        .at("model.layer.pool");
  };
  const std::string before = "input: \"image\" pool2d { kind: AVERAGE kernel: 2 stride: 0 padding: 1 ";
  EXPECT_EQ(pool_of(""), before + "}");
  EXPECT_EQ(pool_of("count_include_pad: false"), before + "}");
  EXPECT_EQ(pool_of("count_include_pad: true"), before + "count_include_pad: true }");
}

TEST(Paths, BeginWhereTheConfigSays) {
  const std::string text = kSmallConfig.substr(0, kSmallConfig.find("data")) +
                           "data { idx { train_images: \"i\" train_labels: \"l\" } directory: \"d\" }" +
                           kSmallConfig.substr(kSmallConfig.find("trainer"));
  const std::string here = std::filesystem::current_path();
  const RunConfig plain = parse(text);
  EXPECT_EQ(plain.data.directory, "d");
  EXPECT_EQ(plain.data.other_directory, std::nullopt);
  const RunConfig kept = parse(kept_text(plain));
  EXPECT_EQ(kept.data.directory, here + "/d");
  EXPECT_EQ(kept.data.other_directory, "d");
  EXPECT_EQ(kept.math_fields, plain.math_fields);
  EXPECT_EQ(kept_text(kept), kept.effective_text);
  EXPECT_EQ(kept_text(parse(kSmallConfig)), parse(kSmallConfig).effective_text) << "without files";

  const std::string elsewhere = text + "relative_to: \"/there\"";
  EXPECT_EQ(parse(elsewhere).data.directory, "/there/d");
  EXPECT_EQ(parse(elsewhere, {"data.directory=e"}).data.directory, here + "/e") << "as all paths of commands";
  EXPECT_EQ(parse(elsewhere, {"data.directory=/e"}).data.directory, "/e");
  EXPECT_EQ(parse(elsewhere, {"checkpoint.resume_path=r"}).checkpoint.resume_path, here + "/r");
}

TEST(MathFields, HoldTheTypeAndTheScalingOfTheLossWhereItIsScaled) {
  const auto fields_of = [](const std::vector<std::string>& overrides) {
    const auto run = parse(kSmallConfig, overrides);
    return std::map<std::string, std::string>(run.math_fields.begin(), run.math_fields.end());
  };
  const auto plain = fields_of({}), half = fields_of({"precision.compute=FLOAT16"});
  EXPECT_EQ(fields_of({"precision.compute=BFLOAT16"}).at("precision.compute"), "BFLOAT16");
  EXPECT_FALSE(plain.contains("precision.loss_scaling.minimum"));
  EXPECT_EQ(half.at("precision.loss_scaling.initial_scale"), "65536");
  EXPECT_FALSE(half.contains("precision.fused_gelu"));
  EXPECT_EQ(fields_of({"precision.compute=FLOAT16", "precision.fused_gelu=true"}).at("precision.fused_gelu"),
            "true");
  EXPECT_EQ(half.at("precision.loss_scaling.growth_interval"), "2000");
  EXPECT_EQ(half.at("precision.loss_scaling.minimum"), "1");
  EXPECT_EQ(half.at("precision.loss_scaling.maximum"), "16777216");
  EXPECT_EQ(half.size(), plain.size() + 4);
}

TEST(RunConfig, SaysHowNumbersAreStored) {
  const auto precision = [](const std::string& compute) {
    return parse(kSmallConfig, {"precision.compute=" + compute}).precision;
  };
  EXPECT_EQ(parse(kSmallConfig).precision, PrecisionOptions{});
  EXPECT_EQ(precision("FLOAT32").storage(), DType::float32);
  EXPECT_EQ(precision("TF32").storage(), DType::float32);
  EXPECT_EQ(precision("TF32").compute, ComputeType::tf32);
  EXPECT_EQ(precision("BFLOAT16").storage(), DType::bfloat16);
  EXPECT_TRUE(
      parse(kSmallConfig, {"precision.compute=BFLOAT16", "precision.fused_gelu=true"}).precision.fused_gelu);
  EXPECT_FALSE(precision("BFLOAT16").scales_loss());
  EXPECT_EQ(precision("FLOAT16").storage(), DType::float16);
  EXPECT_TRUE(precision("FLOAT16").scales_loss());
  const auto run =
      parse(kSmallConfig,
            {"precision.compute=FLOAT16",
             "precision.loss_scaling={initial_scale: 8, growth_interval: 3, minimum: 0.5, maximum: 32}"});
  EXPECT_EQ(
      run.precision.loss_scaling,
      (optim::LossScalingOptions{.initial_scale = 8, .growth_interval = 3, .minimum = 0.5, .maximum = 32}));
}

std::vector<std::string> shipped_configs() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(LOCKSTEP_CONFIGS))
    if (entry.path().extension() == ".textproto") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

class ShippedConfig : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, ShippedConfig, ::testing::ValuesIn(shipped_configs()),
                         [](const auto& info) { return std::filesystem::path(info.param).stem().string(); });

TEST_P(ShippedConfig, ReadsAndSurvivesItsEffectiveText) {
  const auto run = load_run_config(GetParam(), {});
  expect_same_run(parse(run.effective_text), run);
  // Whoever trains the first time compares hashes.
  const bool is_first = GetParam().find("digits_quickstart") != std::string::npos;
  EXPECT_EQ(run.parallel.reduction, is_first ? layout::Reduction::reproducible : layout::Reduction::fast);
}

TEST_P(ShippedConfig, WorksInReproducibleModeWithTwoAndFourWorkers) {
  for (const char* workers : {"parallel.dp=2", "parallel.dp=4"})
    EXPECT_NO_THROW(load_run_config(GetParam(), {"parallel.reduction=REPRODUCIBLE", workers}));
}

TEST_P(ShippedConfig, ModelSurvivesPlainText) {
  const auto run = load_run_config(GetParam(), {});
  const auto again = model_from_text(model_to_text(run.model), "plain");
  EXPECT_EQ(again, run.model);
  EXPECT_EQ(model::hash_of(model::make_graph(again)), model::hash_of(model::make_graph(run.model)));
}

TEST(ShippedConfigs, HaveTheirKnownSizes) {
  const std::map<std::string, int64_t> parameters = {
      {"digits_quickstart", 61706},
      {"mnist_lenet", 61706},
      {"full_mnist_lenet", 61706},
      {"mnist_mlp", 235146},
      // (65 + 64) 128 + 4 (12 128² + 13 128) + 2 128
      {"shakespeare_gpt", 809856},
      // 65 128 + 4 (256 128 + 128² + 3 384 128 + 2 128) + 128
      {"shakespeare_llama", 795904},
      {"llama_1b", 1235814400},
      // 65 128 + 4 256 (128 + 256 + 2) + 4 256 (2 256 + 2) + 257 65
      {"shakespeare_lstm", 946625},
      // 256 32 + 2 4 64 (32 + 64 + 2) + 2 129
      {"reviews_lstm", 58626},
      {"cifar_vit", 3195146},
      {"cifar_resnet18", 11173962},
      // 14714688 of convolutions, 2 4224 of their norms, 2 (512 512 + 512) + 512 10 + 10
      {"cifar_vgg16", 15253578},
      {"imagenet_resnet50", 25557032}};
  for (const auto& [name, count] : parameters) {
    const auto run = load_run_config(std::string(LOCKSTEP_CONFIGS) + "/" + name + ".textproto", {});
    EXPECT_EQ(model::make_graph(run.model).parameter_count(), count) << name;
  }
}

}  // namespace
}  // namespace lockstep::config
