// The gradient of a sum lies in one memory with those of its terms. Beside it, models whose sums have a layer
// that does nothing before and behind them, so that each gradient has a memory of its own, and no kernel does
// its neighbours' work.

#include <gtest/gtest.h>

#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

constexpr const char* kCommon = R"(
format_version: 1
trainer { steps: 3 global_batch: 8 virtual_replicas: 4 seed: 7 clip_norm: 0.5 }
optimizer { learning_rate: 0.1 sgd { momentum: 0.9 } }
parallel { reduction: REPRODUCIBLE }
data { synthetic { samples: 24 eval_samples: 5 classes: 3 shape: 4 shape: 2 shape: 1 } }
)";

std::string layer(const std::string& name, const std::vector<std::string>& inputs, const std::string& op) {
  std::string text = "layer { name: '" + name + "' ";
  for (const auto& input : inputs) text += "input: '" + input + "' ";
  return text + op + " }\n";
}

std::string sum(const std::string& name, const std::string& one, const std::string& other, bool shares) {
  if (shares) return layer(name, {one, other}, "add {}");
  const std::string nothing = "dropout { rate: 0 }";
  return layer(name + ".one", {one}, nothing) + layer(name + ".other", {other}, nothing) +
         layer(name + ".sum", {name + ".one", name + ".other"}, "add {}") +
         layer(name, {name + ".sum"}, nothing);
}

/// Sums of a value with itself, of sums, through views, of what has no gradient, of terms that are made far
/// apart in either order, before layer norms and behind them.
std::string model(bool shares) {
  const auto linear = [](const std::string& name, const std::string& input, int units = 8) {
    return layer(name, {input}, "linear { units: " + std::to_string(units) + " }");
  };
  const auto add = [&](const std::string& name, const std::string& one, const std::string& other) {
    return sum(name, one, other, shares);
  };
  return "model {\ninput { name: 'image' shape: [4, 2, 1] }\ninput { name: 'label' type: INT32 }\n" +
         layer("flat", {"image"}, "flatten {}") + linear("fc1", "flat") + add("twice", "fc1", "fc1") +
         linear("fc2", "twice") + add("near", "twice", "fc2") +
         layer("square", {"near"}, "reshape { shape: '2,4' }") +
         layer("row", {"square"}, "reshape { shape: '8' }") + add("data", "flat", "row") +
         layer("ln1", {"data"}, "layer_norm {}") + linear("fc3", "ln1") + add("late", "fc3", "data") +
         add("chain", "late", "near") + add("far", "fc1", "chain") + layer("ln2", {"far"}, "layer_norm {}") +
         linear("fc4", "ln2", 16) + layer("gelu", {"fc4"}, "gelu {}") + linear("fc5", "gelu") +
         add("block", "far", "fc5") + layer("ln3", {"block"}, "layer_norm {}") +
         layer("bn", {"ln3"}, "batch_norm {}") + add("last", "ln2", "bn") + linear("head", "last", 3) +
         layer("loss", {"head", "label"}, "softmax_cross_entropy {}") + "}\n";
}

Trace train(bool shares, device::DeviceKind device, const char* type, const char* bucket_bytes) {
  const config::RunConfig config = config::parse_run_config(
      kCommon + model(shares), "test",
      {std::string("precision.compute=") + type, std::string("parallel.bucket_bytes=") + bucket_bytes});
  return train_on_threads(
      config, 1, {.asynchronous = {}, .shared_memory = false, .output_directory = {}, .device = device});
}

void expect_the_bits_of_copies(device::DeviceKind device) {
  for (const char* type : {"FLOAT32", "BFLOAT16"}) {
    const Trace copies = train(false, device, type, "1000000");
    ASSERT_EQ(copies.losses.size(), 3u);
    EXPECT_NE(copies.losses.front(), copies.losses.back());
    // One segment; one for each layer with parameters; what lies between.
    for (const char* bucket_bytes : {"1000000", "1", "600"})
      EXPECT_EQ(train(true, device, type, bucket_bytes), copies) << type << ", buckets of " << bucket_bytes;
  }
}

TEST(Sums, ShareGradientsToTheBitsOfCopies) { expect_the_bits_of_copies(device::DeviceKind::cpu); }

TEST(Sums, ShareGradientsOnLanesThatRunAtOnce) {
  const config::RunConfig config =
      config::parse_run_config(kCommon + model(true), "test", {"parallel.bucket_bytes=1"});
  const Trace one = train(false, device::DeviceKind::cpu, "FLOAT32", "1000000");
  EXPECT_EQ(train_on_threads(
                config, 2,
                {.asynchronous = device::AsyncCpuOptions{}, .shared_memory = false, .output_directory = {}}),
            one);
}

TEST(Sums, ShareGradientsOnGpusWhereKernelsAddToo) {
  if (const device::GpuProbe probe = device::probe_gpus(); probe.devices.empty())
    GTEST_SKIP() << probe.problem;
  expect_the_bits_of_copies(device::DeviceKind::cuda);
}

}  // namespace
}  // namespace lockstep::train
