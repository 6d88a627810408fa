#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.h"
#include "mentions.h"

namespace lockstep::config {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Overrides = std::vector<std::string>;

struct Nonsense {
  Overrides overrides;
  const char* message;
};

/// Every value that makes no sense, with its full name and what is wrong with it.
const std::vector<Nonsense> kNonsense = {
    {{"format_version=2"}, "format_version: expected"},
    {{"trainer.global_batch=0"}, "trainer.global_batch: expected"},
    {{"trainer.global_batch=-4"}, "trainer.global_batch: expected"},
    {{"trainer.global_batch=4611686018427387904"}, "trainer.global_batch: expected"},
    {{"trainer.micro_batch=-1"}, "trainer.micro_batch: expected"},
    {{"trainer.virtual_replicas=0"}, "trainer.virtual_replicas: expected"},
    {{"trainer.virtual_replicas=-2"}, "trainer.virtual_replicas: expected"},
    {{"trainer.virtual_replicas=3000000000"}, "trainer.virtual_replicas: expected"},
    {{"trainer.steps=0"}, "trainer.steps: expected"},
    {{"trainer.steps=-1"}, "trainer.steps: expected"},
    {{"trainer.epochs=0"}, "trainer.epochs: expected"},
    {{"trainer.epochs=nan"}, "trainer.epochs: expected a finite number, found nan"},
    {{"trainer.epochs=inf"}, "trainer.epochs: expected a finite number, found inf"},
    {{"trainer.epochs=1e999"}, "trainer.epochs: expected a finite number"},
    {{"trainer.clip_norm=-1"}, "trainer.clip_norm: expected a number, at least 0, found -1"},
    {{"trainer.clip_norm=nan"}, "trainer.clip_norm: expected a finite number"},
    {{"trainer.eval_every_steps=-1"}, "trainer.eval_every_steps: expected"},
    {{"optimizer.learning_rate=0"}, "optimizer.learning_rate: expected a number, above 0, found 0"},
    {{"optimizer.learning_rate=-0.1"}, "optimizer.learning_rate: expected"},
    {{"optimizer.learning_rate=-inf"}, "optimizer.learning_rate: expected a finite number"},
    {{"optimizer.weight_decay=-1"}, "optimizer.weight_decay: expected"},
    {{"optimizer.sgd.momentum=1"}, "optimizer.sgd.momentum: expected"},
    {{"optimizer.sgd.momentum=-0.5"}, "optimizer.sgd.momentum: expected"},
    {{"optimizer.sgd.nesterov=true"}, "optimizer.sgd.nesterov: needs momentum"},
    {{"optimizer.adam.beta1=1"}, "optimizer.adam.beta1: expected"},
    {{"optimizer.adamw.beta2=1.5"}, "optimizer.adamw.beta2: expected"},
    {{"optimizer.adam.epsilon=0"}, "optimizer.adam.epsilon: expected"},
    {{"optimizer.decay_norm_and_bias=true"}, "optimizer.decay_norm_and_bias: ... optimizer.weight_decay"},
    {{"optimizer.schedule.warmup_steps=-1"}, "optimizer.schedule.warmup_steps: expected"},
    {{"optimizer.schedule.cosine.minimum=-1"}, "optimizer.schedule.cosine.minimum: expected"},
    {{"optimizer.schedule.cosine.minimum=0.2"},
     "optimizer.schedule.cosine.minimum: ... 0.2 ... optimizer.learning_rate = 0.1"},
    {{"precision.compute=FLOAT8"}, "precision.compute"},
    {{"precision.fused_gelu=true"}, "precision.fused_gelu: ... BFLOAT16 and FLOAT16"},
    {{"precision.compute=TF32", "precision.fused_gelu=true"}, "precision.fused_gelu: ... precision.compute"},
    {{"parallel={sync: PS algorithm: RING}"}, "parallel.algorithm: is RING ... sync: PS"},
    {{"parallel.server_threads=2"}, "parallel.server_threads: ... placement: DEDICATED"},
    {{"parallel.async_learning_rate=AS_STATED"}, "parallel.async_learning_rate: ... mode: ASYNC"},
    {{"parallel={sync: PS async_learning_rate: DIVIDED_BY_ROOT}"},
     "parallel.async_learning_rate: ... mode: ASYNC"},
    {{"parallel={sync: PS mode: STALE async_learning_rate: AS_STATED}"},
     "parallel.async_learning_rate: ... mode: ASYNC"},
    {{"parallel={sync: PS mode: ASYNC reduction: REPRODUCIBLE}"},
     "parallel.reduction: is REPRODUCIBLE ... mode: ASYNC ... FAST, or mode: SYNC; ... 'sync=ps'"},
    {{"parallel={dp: 2 sync: PS servers: 2 mode: STALE bound: 3 reduction: REPRODUCIBLE}"},
     "mode: SYNC or bound: 0; ... 'dp=2,sync=ps,servers=2,mode=stale,bound=0'"},
    {{"parallel={sync: PS mode: ASYNC}", "precision.compute=FLOAT16"},
     "precision.compute: is FLOAT16 ... mode: ASYNC ... BFLOAT16; ... 'sync=ps'"},
    {{"parallel={sync: PS mode: STALE}", "precision.compute=FLOAT16"},
     "precision.compute: ... 'sync=ps,mode=stale,bound=0'"},
    {{"parallel={sync: PS mode: STALE aggregate: HOST}"},
     "parallel.aggregate: ... mode: STALE ... 'sync=ps,mode=stale'"},
    {{"parallel={sync: PS assign: WHOLE}"}, "parallel.assign: ... 'sync=ps'"},
    {{"parallel={dp: 2 sync: PS async_statistics: EXPONENTIAL_BY_PUSH}"},
     "parallel.async_statistics: ... mode: ASYNC"},
    {{"parallel={dp: 2 sync: PS mode: ASYNC async_statistics: EXPONENTIAL_BY_PUSH}"},
     "parallel.async_statistics: ... running statistics"},
    {{"parallel={sync: PS placement: COLOCATED server_threads: 2}"},
     "parallel.server_threads: ... placement: DEDICATED"},
    {{"precision.compute=BFLOAT16", "precision.loss_scaling.initial_scale=1024"},
     "precision.loss_scaling.initial_scale: ... precision.compute: FLOAT16"},
    {{"precision.loss_scaling.growth_interval=10"},
     "precision.loss_scaling.growth_interval: ... precision.compute: FLOAT16"},
    {{"precision.compute=TF32", "precision.loss_scaling.minimum=2"},
     "precision.loss_scaling.minimum: ... precision.compute: FLOAT16"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.initial_scale=1000"},
     "precision.loss_scaling.initial_scale: expected a power of two ... found 1000"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.minimum=3"},
     "precision.loss_scaling.minimum: expected a power of two ... found 3"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.minimum=4.547473508864641e-13"},
     "precision.loss_scaling.minimum: expected"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.minimum=131072"},
     "precision.loss_scaling.minimum: ... 131072 ... initial_scale = 65536"},
    {{"precision.compute=BFLOAT16", "precision.loss_scaling.maximum=65536"},
     "precision.loss_scaling.maximum: ... precision.compute: FLOAT16"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.maximum=100000"},
     "precision.loss_scaling.maximum: expected a power of two ... found 100000"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.maximum=32768"},
     "precision.loss_scaling.maximum: ... 32768 ... initial_scale = 65536"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.initial_scale=33554432"},
     "precision.loss_scaling.maximum: ... 16777216 ... initial_scale = 33554432"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.growth_interval=0"},
     "precision.loss_scaling.growth_interval: expected"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.initial_scale=0"},
     "precision.loss_scaling.initial_scale: expected"},
    {{"precision.compute=FLOAT16", "trainer.nonfinite=IGNORE"}, "trainer.nonfinite: IGNORE ... FLOAT16"},
    {{"parallel.bucket_bytes=0"}, "parallel.bucket_bytes: expected"},
    {{"parallel.dp=0"}, "parallel.dp: expected a whole number, at least 1"},
    {{"parallel.intra_op_threads=0"}, "parallel.intra_op_threads: expected"},
    {{"parallel.reduction=REPRODUCIBLE", "parallel.algorithm=RING"},
     "parallel.algorithm: is RING ... REPRODUCIBLE ... SHARED_MEMORY or TREE"},
    {{"parallel.shard=OPTIMIZER", "parallel.algorithm=SHARED_MEMORY"},
     "parallel.algorithm: is SHARED_MEMORY ... shard: OPTIMIZER"},
    {{"parallel.shard=OPTIMIZER", "parallel.algorithm=TREE"},
     "parallel.algorithm: is TREE ... shard: OPTIMIZER"},
    {{"parallel.reduction=REPRODUCIBLE", "parallel.algorithm=LIBRARY"},
     "parallel.algorithm: is LIBRARY ... REPRODUCIBLE"},
    {{"parallel={sync: PS mode: STALE wire: BFLOAT16}"}, "parallel.wire: is BFLOAT16 ... STALE ... FLOAT32"},
    {{"parallel={sync: PS mode: ASYNC wire: BFLOAT16}"}, "parallel.wire: is BFLOAT16 ... 'sync=ps'"},
    {{"parallel.error_feedback=true"}, "parallel.error_feedback: is true ... FLOAT32 ... BFLOAT16"},
    {{"parallel={wire: BFLOAT16 error_feedback: true}", "precision.compute=FLOAT16"},
     "parallel.error_feedback: is true ... precision.compute: FLOAT16"},
    {{"parallel={sync: PS mode: ASYNC wire: BFLOAT16 error_feedback: true}"},
     "parallel.wire: is BFLOAT16 ... 'sync=ps'"},
    {{"checkpoint.every_steps=-1"}, "checkpoint.every_steps: expected"},
    {{"checkpoint.keep=-1"}, "checkpoint.keep: expected"},
    {{"checkpoint.keep=5", "checkpoint.at_end=false"}, "checkpoint.keep: is ignored"},
    {{"checkpoint.resume_path="}, "checkpoint.resume_path: must not be empty"},
    {{"checkpoint.allow_config_change=true"}, "checkpoint.allow_config_change: is ignored"},
    {{"metrics.log_every_steps=0"}, "metrics.log_every_steps: expected"},
    {{"data.prefetch_threads=-1"}, "data.prefetch_threads: expected"},
    {{"data.prefetch_depth=0"}, "data.prefetch_depth: expected"},
    {{"data.prefetch_threads=0", "data.prefetch_depth=8"},
     "data.prefetch_depth: is ignored ... prefetch_threads: 0"},
    {{"data.synthetic.samples=0"}, "data.synthetic.samples: expected"},
    {{"data.synthetic.eval_samples=-1"}, "data.synthetic.eval_samples: expected"},
    {{"data.synthetic.eval_samples=0", "trainer.eval_every_steps=2"}, "trainer.eval_every_steps: is ignored"},
    {{"trainer.early_stopping=2", "trainer.eval_every_steps=0"}, "trainer.early_stopping: is ignored"},
    {{"checkpoint.keep_best=true", "trainer.eval_every_steps=0"}, "checkpoint.keep_best: is ignored"},
    {{"data.idx={train_images: 'a' train_labels: 'b' eval_images: 'c'}"},
     "data.idx: ... eval_images and eval_labels"},
    {{"data.idx={train_images: 'a' train_labels: 'b' eval_range { begin: 3 }}"},
     "data.idx.eval_range: is ignored"},
    {{"data.synthetic.classes=1"}, "data.synthetic.classes: expected"},
    {{"data.synthetic.shape=[0]"}, "data.synthetic.shape[0]: expected"},
    {{"data.synthetic.shape=[28, 28]"}, "data.synthetic.shape: ... [28, 28] ... 'image' ... [4, 4, 1]"},
    {{"data.synthetic.context=8"}, "data.synthetic.context: ... tokens"},
    {{"data.text.file=x"}, "data.text: ... 'tokens' ... 'label' ... 'image'"},
    {{"model.mlp.image=[1048576, 1048576, 1024]", "model.mlp.hidden=[1048576]"},
     "parameter fc1.weight: shape [1048576, 1125899906842624]"},
    {{"model.mlp.image=[1048576, 1048576, 1]", "model.mlp.hidden=[524288]"},
     "parameter fc1.weight: ... memory"},
    {{"model.mlp.hidden=[8, 0]"}, "model.mlp.hidden[1]: expected"},
    {{"model.mlp.classes=1"}, "model.mlp.classes: expected"},
    {{"model.mlp.dropout=1"}, "model.mlp.dropout: expected"},
    {{"model.mlp.dropout=1e39"}, "model.mlp.dropout: expected a finite number"},
    {{"model.mlp.image=[1,1,1,1,1,1,1,1,1]"}, "model.mlp.image: expected at most 8 dimensions, found 9"},
    {{"model.lenet.image=[8, 8, 1]"}, "12 x 12"},
};

TEST(Nonsense, IsRefusedByTheFieldsFullName) {
  for (const auto& [overrides, message] : kNonsense)
    EXPECT_THAT(refusal(kSmallConfig, overrides), Mentions(message)) << ::testing::PrintToString(overrides);
}

TEST(Nonsense, IsRefusedAtItsPlaceInTheFile) {
  std::string text = kSmallConfig;
  text.replace(text.find("steps: 5"), 8, "steps: 0");
  EXPECT_THAT(refusal(text), StartsWith("c.textproto:3:28: trainer.steps: "));
}

TEST(Nonsense, PlacesForMetricsThatCannotBe) {
  EXPECT_THAT(refusal(kSmallConfig, {"metrics.prometheus_port=65536"}),
              HasSubstr("metrics.prometheus_port: expected"));
  EXPECT_THAT(refusal(kSmallConfig, {"metrics.prometheus_address='localhost'"}),
              Mentions("metrics.prometheus_address: ... 'localhost'"));
  EXPECT_EQ(refusal(kSmallConfig, {"metrics.prometheus_address='::'"}), "accepted");
  EXPECT_THAT(refusal(kSmallConfig, {"metrics.mlflow={}"}), HasSubstr("metrics.mlflow.uri"));
  EXPECT_THAT(refusal(kSmallConfig, {"metrics.mlflow={uri: 'sqlite:///a'}"}),
              Mentions("metrics.mlflow.uri: ... http://"));
  EXPECT_THAT(refusal(kSmallConfig, {"metrics.mlflow={uri: 'http://me:secret@host'}"}),
              Mentions("metrics.mlflow.uri: ... password"));
  EXPECT_THAT(refusal(kSmallConfig, {"metrics.mlflow={uri: 'http://host' experiment: ''}"}),
              Mentions("metrics.mlflow.experiment: ... empty"));
  const RunConfig plain = parse_run_config(kSmallConfig, "test", {});
  EXPECT_FALSE(plain.metrics.mlflow);
  EXPECT_TRUE(plain.metrics.tensorboard);
  const RunConfig tracked = parse_run_config(kSmallConfig, "test", {"metrics.mlflow={uri: 'http://host'}"});
  ASSERT_TRUE(tracked.metrics.mlflow);
  EXPECT_EQ(tracked.metrics.mlflow->experiment, "lockstep");
  EXPECT_EQ(tracked.math_hash, plain.math_hash);
}

TEST(Nonsense, ReversedSampleRanges) {
  const std::string idx =
      "data={idx { train_images: 'a' train_labels: 'b' eval_images: 'c' eval_labels: 'd' train_range { "
      "begin: 10 end: 10 } }}";
  EXPECT_THAT(refusal(kSmallConfig, {idx}), HasSubstr("data.idx.train_range: [10, 10)"));
  EXPECT_THAT(refusal(kSmallConfig, {idx, "data.idx.train_range.end=11", "data.idx.eval_range.end=0"}),
              HasSubstr("data.idx.eval_range: [0, 0)"));
  EXPECT_THAT(refusal(kSmallConfig, {idx, "data.idx.train_range.end=-2"}),
              HasSubstr("data.idx.train_range.end: expected"));
  EXPECT_EQ(refusal(kSmallConfig, {idx, "data.idx.train_range.end=-1"}), "accepted");
  EXPECT_THAT(refusal(kSmallConfig, {idx, "data.idx.train_range.end=11", "data.idx.deviation=0"}),
              HasSubstr("data.idx.deviation: expected"));
}

TEST(Nonsense, TokensOfAnotherLengthThanTheModels) {
  EXPECT_THAT(refusal(kSmallGpt, {"data.text.context=8"}),
              Mentions("data.text.context: ... 8 ... 16 tokens"));
  EXPECT_THAT(refusal(kSmallGpt, {"data.text.train_fraction=1.5"}),
              HasSubstr("data.text.train_fraction: expected"));
  EXPECT_THAT(refusal(kSmallGpt, {"data.synthetic={samples: 4 eval_samples: 4 classes: 65 shape: 3}"}),
              HasSubstr("data.synthetic.shape: "));
  EXPECT_THAT(refusal(kSmallGpt,
                      {"data.idx={train_images: 'a' train_labels: 'b' eval_images: 'c' eval_labels: 'd'}"}),
              Mentions("data.idx: ... 'image' ... 'label' ... 'tokens'"));
  EXPECT_THAT(refusal(kSmallGpt, {"model.gpt.heads=3"}), HasSubstr("nearest are 30 and 33"));
}

/// A model of tokens whose attention is told which document each belongs to.
constexpr const char* kDocuments = R"(
format_version: 1
model {
  input { name: "tokens" shape: [6] type: INT32 }
  input { name: "documents" shape: [6] type: INT32 }
  input { name: "label" shape: [6] type: INT32 }
  layer { name: "wte" input: "tokens" embedding { vocabulary: 9 width: 6 } }
  layer { name: "core" input: ["wte", "documents"] attention { heads: 1 } }
  layer { name: "head" linear { units: 9 } }
  layer { name: "loss" input: ["head", "label"] softmax_cross_entropy {} }
}
data { tokens { files: "a.bin" } }
trainer { global_batch: 4 steps: 1 }
optimizer { learning_rate: 0.1 sgd {} }
)";

TEST(Documents, AreReadIfTheModelReadsThem) {
  const auto options = [](const std::string& text, const Overrides& overrides) {
    return parse_run_config(text, "c.textproto", overrides).data.documents;
  };
  EXPECT_EQ(options(kDocuments, {}), (data::DocumentOptions{.are_read = true}));
  EXPECT_EQ(options(kDocuments, {"data.tokens.end_of_text=0"}),
            (data::DocumentOptions{.are_read = true, .end_of_text = 0}));
  EXPECT_EQ(options(kDocuments, {"data={text {file: 'a' end_of_text: 10}}"}),
            (data::DocumentOptions{.are_read = true, .end_of_text_character = "\n"}));
  EXPECT_TRUE(options(kDocuments, {"data={synthetic {samples: 8 classes: 9}}"}).are_read);
  EXPECT_FALSE(options(kSmallGpt, {}).are_read);
}

TEST(Documents, WithoutAReaderAreRefusedByTheFieldThatSaysWhatBeginsThem) {
  EXPECT_THAT(refusal(kSmallGpt, {"data={tokens {files: 'a' end_of_text: 3}}"}),
              Mentions("data.tokens.end_of_text: ... documents"));
  EXPECT_THAT(refusal(kSmallGpt, {"data={text {file: 'a' end_of_text: 10}}"}),
              Mentions("data.text.end_of_text: ... documents"));
  EXPECT_THAT(refusal(kDocuments, {"data={lines {files: 'a'}}"}), Mentions("data.lines: ... 'documents'"));
}

TEST(Documents, ThatAreEmbeddedAreRefusedIfTheyArePadded) {
  std::string text = kDocuments;
  const std::string wte = R"(layer { name: "wte" input: "tokens" embedding { vocabulary: 9 width: 6 } })";
  text.replace(text.find(wte), wte.size(),
               R"(layer { name: "words" input: "tokens" embedding { vocabulary: 9 width: 6 } }
  layer { name: "segments" input: "documents" embedding { vocabulary: 9 width: 6 } }
  layer { name: "wte" input: ["words", "segments"] add {} })");
  EXPECT_THAT(refusal(text), Mentions("data.tokens: ... segments"));
  EXPECT_THAT(refusal(text, {"data={text {file: 'a'}}"}), Mentions("data.text: ... segments"));
  EXPECT_EQ(refusal(text, {"data={synthetic {samples: 8 classes: 9}}"}), "accepted");
}

TEST(Documents, AndMasksHaveTheTypesThatAttentionTellsThemApartBy) {
  std::string text = kDocuments;
  const std::string input = R"("documents" shape: [6] type: INT32)";
  text.replace(text.find(input), input.size(), R"("documents" shape: [6])");
  EXPECT_THAT(refusal(text), Mentions("core ... documents ... INT32"));
  text = kDocuments;
  for (size_t at = 0; (at = text.find("\"documents\"", at)) != std::string::npos;)
    text.replace(at, std::string("\"documents\"").size(), "\"mask\"");
  EXPECT_THAT(refusal(text, {"data={lines {files: 'a'}}"}), Mentions("core ... mask ... FLOAT32"));
}

TEST(Documents, OfAnotherLengthNameTheLayerAndBothShapes) {
  std::string text = kDocuments;
  const std::string input = "\"documents\" shape: [6]";
  text.replace(text.find(input), input.size(), "\"documents\" shape: [5]");
  EXPECT_THAT(refusal(text), Mentions("core ... [5] ... [6, 6]"));
}

TEST(Division, OfTheBatchNamesTheNearestThatWork) {
  const Overrides reproducible = {"parallel.reduction=REPRODUCIBLE", "trainer.virtual_replicas=8",
                                  "trainer.global_batch=100"};
  EXPECT_THAT(refusal(kSmallConfig, reproducible),
              Mentions("--set trainer.global_batch=100: ... trainer.virtual_replicas 8 ... 96 or 104"));
  EXPECT_THAT(refusal(kSmallConfig, {"parallel.dp=3"}), HasSubstr("use 15 or 18"));
}

TEST(Division, VirtualReplicasMayStandUnderFast) {
  EXPECT_EQ(refusal(kSmallConfig, {"trainer.virtual_replicas=7", "trainer.micro_batch=1000"}), "accepted");
}

TEST(Division, MoreWorkersThanVirtualReplicasAreRefused) {
  EXPECT_THAT(refusal(kSmallConfig,
                      {"parallel.reduction=REPRODUCIBLE", "trainer.virtual_replicas=2", "parallel.dp=3"}),
              StartsWith("--set parallel.dp=3: "));
  EXPECT_EQ(refusal(kSmallConfig, {"parallel.reduction=REPRODUCIBLE", "parallel.dp=3"}), "accepted");
}

TEST(Division, VirtualReplicasAreTheLargestPowerOfTwoUpTo8) {
  const auto resolved = [](int64_t batch) { return resolved_virtual_replicas({.global_batch = batch}); };
  EXPECT_EQ(resolved(64), 8);
  EXPECT_EQ(resolved(12), 4);
  EXPECT_EQ(resolved(10), 2);
  EXPECT_EQ(resolved(7), 1);
  EXPECT_EQ(resolved_virtual_replicas({.global_batch = 12, .virtual_replicas = 6}), 6);
  EXPECT_EQ(parse(kSmallGpt).trainer.virtual_replicas, 4);
}

TEST(Combinations, RunningStatisticsWithoutAWholeBatchNeedToBeStated) {
  const Overrides lenet = {"model.lenet={image: [16, 16, 1] classes: 3 batch_norm: true}"};
  const auto refusal_of = [&](const std::string& parallel) {
    Overrides all = lenet;
    all.push_back("parallel={" + parallel + "}");
    return refusal(kSmallConfig, all);
  };
  EXPECT_THAT(refusal_of("dp: 2 sync: PS servers: 2 mode: ASYNC pushes: 4"),
              Mentions("parallel.async_statistics: ... ASYNC ... 'bn1.running_mean' ... EXPONENTIAL_BY_PUSH "
                       "(docs/parameter-server.md) ... 'dp=2,sync=ps,servers=2'"));
  EXPECT_EQ(refusal_of("dp: 2 sync: PS mode: ASYNC async_statistics: EXPONENTIAL_BY_PUSH"), "accepted");
  for (const char* waits : {"dp: 2", "dp: 2 sync: PS", "dp: 2 sync: PS mode: STALE"}) {
    EXPECT_EQ(refusal_of(waits), "accepted");
    EXPECT_THAT(refusal_of(waits + std::string(" async_statistics: EXPONENTIAL_BY_PUSH")),
                Mentions("parallel.async_statistics: ... ASYNC"));
  }
}

TEST(Combinations, EdgesAreAccepted) {
  for (const Overrides& good : std::vector<Overrides>{
           {"optimizer.schedule.warmup_steps=6"},
           {"optimizer.schedule.cosine.minimum=0.1"},
           {"optimizer.schedule.warmup_steps=100", "trainer.epochs=1"},
           {"optimizer.sgd={momentum: 0.9 nesterov: true}"},
           {"checkpoint.keep=0"},
           {"checkpoint.keep=3", "checkpoint.at_end=false"},
           {"checkpoint={keep_best: true keep: 1 at_end: false}", "trainer.eval_every_steps=2"},
           {"parallel.algorithm=LIBRARY"},
           {"parallel.algorithm=RING"},
           {"parallel.algorithm=SHARED_MEMORY"},
           {"parallel.reduction=REPRODUCIBLE", "parallel.algorithm=SHARED_MEMORY"},
           {"parallel.reduction=REPRODUCIBLE", "parallel.algorithm=TREE"},
           {"parallel={sync: PS mode: STALE bound: 0 reduction: REPRODUCIBLE}"},
           {"parallel={sync: PS mode: STALE bound: 0}", "precision.compute=FLOAT16"},
           {"parallel={sync: PS mode: STALE bound: 0 aggregate: HOST}"},
           {"data.prefetch_threads=0"},
           {"checkpoint={resume_automatic: true allow_config_change: true}"}})
    EXPECT_EQ(refusal(kSmallConfig, good), "accepted") << ::testing::PrintToString(good);
}

}  // namespace
}  // namespace lockstep::config
