#include <algorithm>
#include <cmath>
#include <map>

#include "model/preset_parts.h"
#include "model/presets.h"

namespace lockstep::model {
namespace {

constexpr int kVggStages = 5;  // each ends with a pooling by two

/// Convolutions of each stage.
const std::map<int64_t, std::vector<int>> kVggDepths{
    {11, {1, 1, 2, 2, 2}}, {13, {2, 2, 2, 2, 2}}, {16, {2, 2, 3, 3, 3}}, {19, {2, 2, 4, 4, 4}}};

void check_vgg(const VggOptions& options) {
  check_image("vgg", options.image, 1 << kVggStages);
  check_range("vgg", "classes", options.classes, 2, kMaximumWidth);
  check_range("vgg", "width", options.width, 1, 65536);
  check_range("vgg", "hidden", options.hidden, 1, kMaximumWidth);
  check_rate("vgg", options.dropout);
  if (!kVggDepths.contains(options.depth))
    throw ConfigError(fmt::format("vgg: depth must be 11, 13, 16 or 19, but is {}", options.depth));
}

void add_features(ModelBuilder& builder, Chain& chain, const VggOptions& options) {
  int number = 0;
  const auto then = [&](Op op) { chain.then(builder, fmt::format("features.{}", number++), std::move(op)); };
  int64_t channels = options.width;
  for (const int convolutions : kVggDepths.at(options.depth)) {
    for (int i = 0; i < convolutions; ++i) {
      then(Conv2d{.channels = channels,
                  .kernel = 3,
                  .padding = 1,
                  .init_std = std::sqrt(2.0f / static_cast<float>(channels * 9))});
      if (options.batch_norm) then(BatchNorm{});
      then(Relu{});
    }
    then(Pool2d{.kind = PoolKind::max, .kernel = 2});
    channels = std::min(2 * channels, 8 * options.width);
  }
}

}  // namespace

ModelSpec make_vgg(const VggOptions& options) {
  check_vgg(options);
  ModelBuilder builder;
  Chain chain(builder.input("image", {options.image}));
  const auto label = builder.input("label", {{}, DType::int32});
  add_features(builder, chain, options);
  chain.then(builder, "flatten", Flatten{});
  const auto linear = [](int64_t units) { return Linear{.units = units, .init_std = 0.01f}; };
  for (const int number : {0, 3}) {
    const auto name = [&](int after) { return fmt::format("classifier.{}", number + after); };
    chain.then(builder, name(0), linear(options.hidden));
    chain.then(builder, name(1), Relu{});
    if (options.dropout > 0) chain.then(builder, name(2), Dropout{options.dropout});
  }
  chain.then(builder, "classifier.6", linear(options.classes));
  builder.add("loss", SoftmaxCrossEntropy{.label_smoothing = options.label_smoothing}, {chain.last, label});
  return builder.build();
}

}  // namespace lockstep::model
