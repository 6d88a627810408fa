#include <cmath>
#include <map>

#include "model/preset_parts.h"
#include "model/presets.h"

namespace lockstep::model {
namespace {

constexpr int64_t kResnetStages = 4;

struct ResnetDepth {
  bool bottleneck;
  int64_t blocks[kResnetStages];
};

const std::map<int64_t, ResnetDepth> kResnetDepths{{18, {false, {2, 2, 2, 2}}},
                                                   {34, {false, {3, 4, 6, 3}}},
                                                   {50, {true, {3, 4, 6, 3}}},
                                                   {101, {true, {3, 4, 23, 3}}},
                                                   {152, {true, {3, 8, 36, 3}}}};

/// What N(0, 2 / (channels kernel²)) needs: the variance of gradients stays the same from layer to layer
/// (He et al., 2015, by fan-out).
Conv2d convolution(int64_t channels, int64_t kernel, int64_t stride, int64_t groups = 1) {
  return {.channels = channels,
          .kernel = kernel,
          .stride = stride,
          .padding = kernel / 2,
          .bias = false,
          .groups = groups,
          .init_std = std::sqrt(2.0f / static_cast<float>(channels * kernel * kernel))};
}

class Resnet {
 public:
  explicit Resnet(const ResnetOptions& options)
      : options_(options),
        depth_(kResnetDepths.at(options.depth)),
        chain_(builder_.input("image", {options.image})) {}

  ModelSpec make() {
    const auto label = builder_.input("label", {{}, DType::int32});
    stem();
    for (int64_t stage = 0; stage < kResnetStages; ++stage)
      for (int64_t block = 0; block < depth_.blocks[stage]; ++block)
        add_block(fmt::format("layer{}.{}.", stage + 1, block), options_.width << stage,
                  stage > 0 && block == 0 ? 2 : 1);
    then("avgpool", GlobalPool2d{});
    then("fc", Linear{.units = options_.classes});
    builder_.add("loss", SoftmaxCrossEntropy{.label_smoothing = options_.label_smoothing},
                 {chain_.last, label});
    return builder_.build();
  }

 private:
  void then(const std::string& name, Op op) { chain_.then(builder_, name, std::move(op)); }

  void stem() {
    channels_ = options_.width;
    then("conv1", options_.small_stem ? convolution(channels_, 3, 1) : convolution(channels_, 7, 2));
    then("bn1", BatchNorm{});
    then("relu", Relu{});
    if (!options_.small_stem)
      then("maxpool", Pool2d{.kind = PoolKind::max, .kernel = 3, .stride = 2, .padding = 1});
  }

  /// A convolution with its norm, and a ReLU unless it is the block's last, which the sum comes before.
  void step(const std::string& block, int number, const Conv2d& conv, bool is_last) {
    then(fmt::format("{}conv{}", block, number), conv);
    then(fmt::format("{}bn{}", block, number), BatchNorm{.zero_weight = is_last && options_.zero_init});
    if (!is_last) then(fmt::format("{}relu{}", block, number), Relu{});
  }

  void add_block(const std::string& name, int64_t planes, int64_t stride) {
    const auto input = chain_.last;
    const int64_t out = depth_.bottleneck ? 4 * planes : planes;
    if (depth_.bottleneck) {
      const int64_t inner = planes * options_.width_per_group / 64 * options_.groups;
      step(name, 1, convolution(inner, 1, 1), false);
      step(name, 2, convolution(inner, 3, stride, options_.groups), false);
      step(name, 3, convolution(out, 1, 1), true);
    } else {
      step(name, 1, convolution(planes, 3, stride), false);
      step(name, 2, convolution(planes, 3, 1), true);
    }
    auto shortcut = input;
    if (stride != 1 || channels_ != out) {
      shortcut = builder_.add(name + "downsample.0", convolution(out, 1, stride), {input});
      shortcut = builder_.add(name + "downsample.1", BatchNorm{}, {shortcut});
    }
    channels_ = out;
    chain_.last = builder_.add(name + "add", Add{}, {chain_.last, shortcut});
    then(name + "relu", Relu{});
  }

  ResnetOptions options_;
  ResnetDepth depth_;
  ModelBuilder builder_;
  Chain chain_;
  int64_t channels_ = 0;  // of the chain's last value
};

void check_resnet(const ResnetOptions& options) {
  check_image("resnet", options.image, 1);
  check_range("resnet", "classes", options.classes, 2, kMaximumWidth);
  check_range("resnet", "width", options.width, 1, 65536);
  check_range("resnet", "groups", options.groups, 1, 65536);
  check_range("resnet", "width_per_group", options.width_per_group, 1, 65536);
  if (!kResnetDepths.contains(options.depth))
    throw ConfigError(fmt::format("resnet: depth must be 18, 34, 50, 101 or 152, but is {}", options.depth));
  const bool is_plain = options.groups == 1 && options.width_per_group == 64;
  if (!kResnetDepths.at(options.depth).bottleneck && !is_plain)
    throw ConfigError(
        fmt::format("resnet: groups and width_per_group are of bottlenecks, which depth {} does "
                    "not have; remove them, or take depth 50, 101 or 152",
                    options.depth));
  if (options.width * options.width_per_group % 64 != 0)
    throw ConfigError(fmt::format("resnet: width * width_per_group must be a multiple of 64, but is {} * {}",
                                  options.width, options.width_per_group));
}

}  // namespace

ModelSpec make_resnet(const ResnetOptions& options) {
  check_resnet(options);
  return Resnet(options).make();
}

}  // namespace lockstep::model
