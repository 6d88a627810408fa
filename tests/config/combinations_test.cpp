#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.h"

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
    {{"optimizer.decay_norm_and_bias=true"},
     "optimizer.decay_norm_and_bias: is ignored without optimizer.weight_decay"},
    {{"optimizer.schedule.warmup_steps=-1"}, "optimizer.schedule.warmup_steps: expected"},
    {{"optimizer.schedule.cosine.minimum=-1"}, "optimizer.schedule.cosine.minimum: expected"},
    {{"optimizer.schedule.cosine.minimum=0.2"}, "is 0.2, above optimizer.learning_rate = 0.1"},
    {{"precision.compute=FLOAT8"}, "precision.compute"},
    {{"precision.fused_gelu=true"}, "precision.fused_gelu: is for precision.compute: BFLOAT16 and FLOAT16"},
    {{"precision.compute=TF32", "precision.fused_gelu=true"},
     "precision.fused_gelu: is for precision.compute"},
    {{"parallel={sync: PS algorithm: RING}"},
     "parallel.algorithm: RING is how workers sum among themselves, and with sync: PS"},
    {{"parallel.server_threads=2"}, "parallel.server_threads: is for servers that are no workers"},
    {{"parallel.async_learning_rate=AS_STATED"}, "parallel.async_learning_rate: is for mode: ASYNC"},
    {{"parallel={sync: PS async_learning_rate: DIVIDED_BY_ROOT}"},
     "parallel.async_learning_rate: is for mode: ASYNC"},
    {{"parallel={sync: PS mode: STALE async_learning_rate: AS_STATED}"},
     "parallel.async_learning_rate: is for mode: ASYNC"},
    {{"parallel={sync: PS mode: ASYNC reduction: REPRODUCIBLE}"},
     "parallel.reduction: is REPRODUCIBLE, and with mode: ASYNC numbers depend on who comes first; use FAST, "
     "or mode: SYNC; the nearest layout that works is 'sync=ps'"},
    {{"parallel={dp: 2 sync: PS servers: 2 mode: STALE bound: 3 reduction: REPRODUCIBLE}"},
     "or mode: SYNC or bound: 0; the nearest layout that works is "
     "'dp=2,sync=ps,servers=2,mode=stale,bound=0'"},
    {{"parallel={sync: PS mode: ASYNC}", "precision.compute=FLOAT16"},
     "precision.compute: is FLOAT16, whose scale of the loss all workers agree on after each step, and with "
     "mode: ASYNC they do not meet; use BFLOAT16; the nearest layout that works is 'sync=ps'"},
    {{"parallel={sync: PS mode: STALE}", "precision.compute=FLOAT16"},
     "the nearest layout that works is 'sync=ps,mode=stale,bound=0'"},
    {{"parallel={sync: PS mode: STALE aggregate: HOST}"},
     "parallel.aggregate: lets the workers of a host wait for each other, and with mode: STALE they do not; "
     "the nearest layout that works is 'sync=ps,mode=stale'"},
    {{"parallel={sync: PS assign: WHOLE}"},
     "parallel.assign: the only server has all parameters, whole or in parts; the nearest that works is "
     "'sync=ps'"},
    {{"parallel={dp: 2 sync: PS async_statistics: EXPONENTIAL_BY_PUSH}"},
     "parallel.async_statistics: is for mode: ASYNC; leave it out"},
    {{"parallel={dp: 2 sync: PS mode: ASYNC async_statistics: EXPONENTIAL_BY_PUSH}"},
     "parallel.async_statistics: is for running statistics, and the model has none; leave it out"},
    {{"parallel={sync: PS placement: COLOCATED server_threads: 2}"},
     "parallel.server_threads: is for servers that are no workers"},
    {{"precision.compute=BFLOAT16", "precision.loss_scaling.initial_scale=1024"},
     "precision.loss_scaling.initial_scale: is for precision.compute: FLOAT16"},
    {{"precision.loss_scaling.growth_interval=10"},
     "precision.loss_scaling.growth_interval: is for precision.compute: FLOAT16"},
    {{"precision.compute=TF32", "precision.loss_scaling.minimum=2"},
     "precision.loss_scaling.minimum: is for precision.compute: FLOAT16"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.initial_scale=1000"},
     "precision.loss_scaling.initial_scale: expected a power of two, such as 1024, found 1000"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.minimum=3"},
     "precision.loss_scaling.minimum: expected a power of two, such as 1024, found 3"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.minimum=4.547473508864641e-13"},
     "precision.loss_scaling.minimum: expected"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.minimum=131072"},
     "precision.loss_scaling.minimum: is 131072, above initial_scale = 65536"},
    {{"precision.compute=BFLOAT16", "precision.loss_scaling.maximum=65536"},
     "precision.loss_scaling.maximum: is for precision.compute: FLOAT16"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.maximum=100000"},
     "precision.loss_scaling.maximum: expected a power of two, such as 1024, found 100000"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.maximum=32768"},
     "precision.loss_scaling.maximum: is 32768, below initial_scale = 65536"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.initial_scale=33554432"},
     "precision.loss_scaling.maximum: is 16777216, below initial_scale = 33554432"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.growth_interval=0"},
     "precision.loss_scaling.growth_interval: expected"},
    {{"precision.compute=FLOAT16", "precision.loss_scaling.initial_scale=0"},
     "precision.loss_scaling.initial_scale: expected"},
    {{"precision.compute=FLOAT16", "trainer.nonfinite=IGNORE"},
     "trainer.nonfinite: IGNORE would apply gradients that overflowed"},
    {{"parallel.bucket_bytes=0"}, "parallel.bucket_bytes: expected"},
    {{"parallel.dp=0"}, "parallel.dp: expected a whole number, at least 1"},
    {{"parallel.data_parallel=-1"}, "parallel.data_parallel: expected"},
    {{"parallel.intra_op_threads=0"}, "parallel.intra_op_threads: expected"},
    {{"parallel.reduction=REPRODUCIBLE", "parallel.algorithm=RING"},
     "parallel.algorithm: RING has an order of sums of its own, which REPRODUCIBLE rules out; use "
     "SHARED_MEMORY or TREE"},
    {{"parallel.shard=OPTIMIZER", "parallel.algorithm=SHARED_MEMORY"},
     "parallel.algorithm: SHARED_MEMORY adds whole gradients on every worker"},
    {{"parallel.shard=OPTIMIZER", "parallel.algorithm=TREE"},
     "parallel.algorithm: TREE adds whole gradients on every worker"},
    {{"parallel.reduction=REPRODUCIBLE", "parallel.algorithm=LIBRARY"},
     "parallel.algorithm: LIBRARY has an order of sums of its own"},
    {{"checkpoint.every_steps=-1"}, "checkpoint.every_steps: expected"},
    {{"checkpoint.keep=-1"}, "checkpoint.keep: expected"},
    {{"checkpoint.keep=5", "checkpoint.at_end=false"}, "checkpoint.keep: is ignored where nothing is saved"},
    {{"checkpoint.resume_path="}, "checkpoint.resume_path: must not be empty"},
    {{"checkpoint.allow_config_change=true"},
     "checkpoint.allow_config_change: is ignored where nothing is resumed"},
    {{"metrics.log_every_steps=0"}, "metrics.log_every_steps: expected"},
    {{"data.prefetch_threads=-1"}, "data.prefetch_threads: expected"},
    {{"data.prefetch_depth=0"}, "data.prefetch_depth: expected"},
    {{"data.prefetch_threads=0", "data.prefetch_depth=8"},
     "data.prefetch_depth: is ignored with prefetch_threads: 0"},
    {{"data.synthetic.samples=0"}, "data.synthetic.samples: expected"},
    {{"data.synthetic.eval_samples=-1"}, "data.synthetic.eval_samples: expected"},
    {{"data.synthetic.eval_samples=0", "trainer.eval_every_steps=2"},
     "trainer.eval_every_steps: is ignored, since the data have nothing to evaluate on"},
    {{"trainer.early_stopping=2", "trainer.eval_every_steps=0"},
     "trainer.early_stopping: is ignored where training is not evaluated"},
    {{"checkpoint.keep_best=true", "trainer.eval_every_steps=0"},
     "checkpoint.keep_best: is ignored where training is not evaluated"},
    {{"data.idx={train_images: 'a' train_labels: 'b' eval_images: 'c'}"},
     "data.idx: names one of eval_images and eval_labels"},
    {{"data.idx={train_images: 'a' train_labels: 'b' eval_range { begin: 3 }}"},
     "data.idx.eval_range: is ignored without eval_images"},
    {{"data.synthetic.classes=1"}, "data.synthetic.classes: expected"},
    {{"data.synthetic.shape=[0]"}, "data.synthetic.shape[0]: expected"},
    {{"data.synthetic.shape=[28, 28]"},
     "data.synthetic.shape: is [28, 28], but the model's input 'image' is [4, 4, 1]"},
    {{"data.synthetic.context=8"}, "data.synthetic.context: is for tokens"},
    {{"data.text.file=x"},
     "data.text: its samples have the fields 'tokens' and 'label', but the model reads 'image'"},
    {{"model.mlp.image=[1048576, 1048576, 1024]", "model.mlp.hidden=[1048576]"},
     "parameter fc1.weight: shape [1048576, 1125899906842624] has more elements than 63 bits count"},
    {{"model.mlp.image=[1048576, 1048576, 1]", "model.mlp.hidden=[524288]"},
     "parameter fc1.weight: with it, the parameters are more than any memory holds"},
    {{"model.mlp.hidden=[8, 0]"}, "model.mlp.hidden[1]: expected"},
    {{"model.mlp.classes=1"}, "model.mlp.classes: expected"},
    {{"model.mlp.dropout=1"}, "model.mlp.dropout: expected"},
    {{"model.mlp.dropout=1e39"}, "model.mlp.dropout: expected a finite number"},
    {{"model.mlp.image=[1,1,1,1,1,1,1,1,1]"}, "model.mlp.image: expected at most 8 dimensions, found 9"},
    {{"model.lenet.image=[8, 8, 1]"}, "12 x 12"},
};

TEST(Nonsense, IsRefusedByTheFieldsFullName) {
  for (const auto& [overrides, message] : kNonsense)
    EXPECT_THAT(refusal(kSmallConfig, overrides), HasSubstr(message)) << ::testing::PrintToString(overrides);
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
              HasSubstr("metrics.prometheus_address: expected an IP address, found 'localhost'"));
  EXPECT_EQ(refusal(kSmallConfig, {"metrics.prometheus_address='::'"}), "accepted");
  EXPECT_THAT(refusal(kSmallConfig, {"metrics.mlflow={}"}), HasSubstr("metrics.mlflow.uri"));
  EXPECT_THAT(refusal(kSmallConfig, {"metrics.mlflow={uri: 'sqlite:///a'}"}),
              HasSubstr("metrics.mlflow.uri: expected a server such as http://"));
  EXPECT_THAT(refusal(kSmallConfig, {"metrics.mlflow={uri: 'http://me:secret@host'}"}),
              HasSubstr("metrics.mlflow.uri: must not hold a password"));
  EXPECT_THAT(refusal(kSmallConfig, {"metrics.mlflow={uri: 'http://host' experiment: ''}"}),
              HasSubstr("metrics.mlflow.experiment: must not be empty"));
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
  EXPECT_THAT(refusal(kSmallConfig, {idx}), HasSubstr("data.idx.train_range: [10, 10) holds no samples"));
  EXPECT_THAT(refusal(kSmallConfig, {idx, "data.idx.train_range.end=11", "data.idx.eval_range.end=0"}),
              HasSubstr("data.idx.eval_range: [0, 0) holds no samples"));
  EXPECT_THAT(refusal(kSmallConfig, {idx, "data.idx.train_range.end=-2"}),
              HasSubstr("data.idx.train_range.end: expected"));
  EXPECT_EQ(refusal(kSmallConfig, {idx, "data.idx.train_range.end=-1"}), "accepted");
  EXPECT_THAT(refusal(kSmallConfig, {idx, "data.idx.train_range.end=11", "data.idx.deviation=0"}),
              HasSubstr("data.idx.deviation: expected"));
}

TEST(Nonsense, TokensOfAnotherLengthThanTheModels) {
  EXPECT_THAT(refusal(kSmallGpt, {"data.text.context=8"}),
              HasSubstr("data.text.context: is 8, but the model takes 16 tokens"));
  EXPECT_THAT(refusal(kSmallGpt, {"data.text.train_fraction=1.5"}),
              HasSubstr("data.text.train_fraction: expected"));
  EXPECT_THAT(refusal(kSmallGpt, {"data.synthetic={samples: 4 eval_samples: 4 classes: 65 shape: 3}"}),
              HasSubstr("data.synthetic.shape: is for images"));
  EXPECT_THAT(
      refusal(kSmallGpt,
              {"data.idx={train_images: 'a' train_labels: 'b' eval_images: 'c' eval_labels: 'd'}"}),
      HasSubstr("data.idx: its samples have the fields 'image' and 'label', but the model reads 'tokens'"));
  EXPECT_THAT(refusal(kSmallGpt, {"model.gpt.heads=3"}), HasSubstr("nearest are 30 and 33"));
}

TEST(Division, OfTheBatchNamesTheNearestThatWork) {
  const Overrides reproducible = {"parallel.reduction=REPRODUCIBLE", "trainer.virtual_replicas=8",
                                  "trainer.global_batch=100"};
  EXPECT_EQ(refusal(kSmallConfig, reproducible),
            "--set trainer.global_batch=100: trainer.global_batch 100 is not divisible by "
            "trainer.virtual_replicas 8; use 96 "
            "or 104");
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
  EXPECT_THAT(
      refusal_of("dp: 2 sync: PS servers: 2 mode: ASYNC pushes: 4"),
      HasSubstr("parallel.async_statistics: is required: with mode: ASYNC no batch is seen as a whole, "
                "and how 'bn1.running_mean' is averaged has to be said; state EXPONENTIAL_BY_PUSH "
                "(docs/parameter-server.md), or use 'dp=2,sync=ps,servers=2', where statistics are "
                "those of each batch"));
  EXPECT_EQ(refusal_of("dp: 2 sync: PS mode: ASYNC async_statistics: EXPONENTIAL_BY_PUSH"), "accepted");
  for (const char* waits : {"dp: 2", "dp: 2 sync: PS", "dp: 2 sync: PS mode: STALE"}) {
    EXPECT_EQ(refusal_of(waits), "accepted");
    EXPECT_THAT(refusal_of(waits + std::string(" async_statistics: EXPONENTIAL_BY_PUSH")),
                HasSubstr("parallel.async_statistics: is for mode: ASYNC; leave it out"));
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
