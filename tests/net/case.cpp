#include "net/case.h"

#include <fmt/format.h>

#include <algorithm>

#include "net/replay.h"

namespace lockstep::net {
namespace {

std::string trainer_text(const Training& training) {
  std::string text = fmt::format("trainer {{\n  steps: 3 global_batch: {} virtual_replicas: {} seed: {}\n",
                                 training.global_batch, training.virtual_replicas, training.seed);
  text +=
      fmt::format("  micro_batch: {} clip_norm: {} nonfinite: {} check_every_steps: {}\n}}\n",
                  training.micro_batch, training.clip_norm, training.nonfinite, training.check_every_steps);
  return text;
}

std::string parallel_text(const Case& test_case) {
  std::string text =
      fmt::format("parallel {{\n  reduction: {}\n", test_case.training.fast ? "FAST" : "REPRODUCIBLE");
  if (test_case.training.wire != "FLOAT32") text += fmt::format("  wire: {}\n", test_case.training.wire);
  if (test_case.training.error_feedback) text += "  error_feedback: true\n";
  if (test_case.training.algorithm != "AUTOMATIC")
    text += fmt::format("  algorithm: {}\n", test_case.training.algorithm);
  if (test_case.training.intra_op_threads > 1)
    text += fmt::format("  intra_op_threads: {}\n", test_case.training.intra_op_threads);
  if (test_case.training.bucket_bytes > 0)
    text += fmt::format("  bucket_bytes: {}\n", test_case.training.bucket_bytes);
  if (!test_case.cuts.empty()) {
    text += "  pipeline {";
    for (const auto& cut : test_case.cuts) text += fmt::format(" cuts: \"{}\"", cut);
    text += " }\n";
  }
  return text + "}\n";
}

std::string data_text(const Case& test_case) {
  const Training& training = test_case.training;
  const auto& inputs = test_case.model.inputs;
  const bool mixes = std::ranges::find(inputs, "label_mix", &ModelInput::name) != inputs.end();
  return fmt::format(
      "data {{ synthetic {{ samples: {} eval_samples: 5 classes: {} seed: {} }} shuffle: {}{} }}\n",
      training.samples, training.classes, training.data_seed, training.shuffle,
      mixes
          ? " transforms { mixup { alpha: 0.7 probability: 0.5 } } transforms { cutmix { probability: 0.3 } }"
          : "");
}

std::string optimizer_text(const Training& training) {
  std::string text = fmt::format(
      "optimizer {{\n  learning_rate: {} {} weight_decay: {} decay_norm_and_bias: {}\n",
      training.learning_rate, training.optimizer, training.weight_decay, training.decay_norm_and_bias);
  for (const std::string& group : training.groups) text += fmt::format("  groups {{ {} }}\n", group);
  if (training.adaptive_clip > 0)
    text += fmt::format("  adaptive_clip {{ clipping: {} }}\n", training.adaptive_clip);
  if (!training.ema.empty()) text += fmt::format("  ema {{ {} }}\n", training.ema);
  return text + "}\n";
}

}  // namespace

std::vector<int> hosts_of(int ranks, int ranks_per_host) {
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks && ranks_per_host > 0; ++rank) hosts.push_back(rank / ranks_per_host);
  return hosts;
}

std::string config_text(const Case& test_case) {
  const Training& training = test_case.training;
  std::string text = "format_version: 1\nmodel {\n" + config::model_to_text(test_case.model) + "}\n";
  text += data_text(test_case) + trainer_text(training);
  text += optimizer_text(training);
  text += fmt::format("precision {{ compute: {} ", training.compute);
  if (training.loss_scale > 0)
    text += fmt::format("loss_scaling {{ initial_scale: {} }} ", training.loss_scale);
  if (training.fused_gelu) text += "fused_gelu: true ";
  text += "}\n" + parallel_text(test_case);
  if (training.memory_limit > 0)
    text += fmt::format("device {{ memory_limit: {} }}\n", training.memory_limit);
  return text;
}

std::string describe(const Case& test_case) {
  return config_text(test_case) + fmt::format("# {}\n", replay_command(test_case, "case.textproto"));
}

}  // namespace lockstep::net
