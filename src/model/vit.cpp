#include <cmath>

#include "model/preset_parts.h"
#include "model/presets.h"

namespace lockstep::model {
namespace {

VitOptions checked(VitOptions options) {
  check_range("vit", "patch", options.patch, 1, kMaximumWidth);
  check_image("vit", options.image, options.patch);
  for (const int axis : {0, 1})
    if (options.image[axis] % options.patch != 0)
      throw ConfigError(fmt::format("vit: patch must divide the image's height and width, but is {} with {}",
                                    options.patch, options.image.to_string()));
  check_range("vit", "layers", options.layers, 1, kMaximumLayers);
  check_range("vit", "width", options.width, 1, kMaximumWidth);
  check_range("vit", "heads", options.heads, 1, options.width);
  check_multiple("vit", options.width, options.heads);
  if (options.hidden == 0) options.hidden = 4 * options.width;
  check_range("vit", "hidden", options.hidden, 1, kMaximumWidth);
  check_range("vit", "classes", options.classes, 2, kMaximumWidth);
  check_rate("vit", options.dropout);
  check_rate("vit", options.attention_dropout);
  return options;
}

/// Weights uniform in ±sqrt(6 / (in + out)), Xavier's.
Linear xavier(int64_t in, int64_t out, float bias_std) {
  return {
      .units = out, .init_range = std::sqrt(6.0f / static_cast<float>(in + out)), .bias_init_std = bias_std};
}

/// Block `name`, behind the chain's last value.
void add_vit_block(ModelBuilder& builder, Chain& chain, const std::string& name, const VitOptions& options) {
  const int64_t width = options.width;
  const auto dropout = [&](const std::string& of) {
    if (options.dropout > 0) chain.then(builder, name + of, Dropout{options.dropout});
  };
  const float mlp_bias_std = 1e-6f;
  auto residual = chain.last;
  chain.then(builder, name + "ln_1", LayerNorm{.epsilon = options.epsilon});
  chain.then(builder, name + "self_attention.in_proj", xavier(width, 3 * width, 0));
  chain.then(builder, name + "self_attention.core",
             Attention{.heads = options.heads, .dropout = options.attention_dropout, .causal = false});
  chain.then(builder, name + "self_attention.out_proj",
             Linear{.units = width, .init_range = 1 / std::sqrt(static_cast<float>(width))});
  dropout("dropout");
  residual = chain.last = builder.add(name + "self_attention.residual", Add{}, {residual, chain.last});
  chain.then(builder, name + "ln_2", LayerNorm{.epsilon = options.epsilon});
  chain.then(builder, name + "mlp.0", xavier(width, options.hidden, mlp_bias_std));
  chain.then(builder, name + "mlp.1", Gelu{options.gelu});
  dropout("mlp.2");
  chain.then(builder, name + "mlp.3", xavier(options.hidden, width, mlp_bias_std));
  dropout("mlp.4");
  chain.last = builder.add(name + "mlp.residual", Add{}, {residual, chain.last});
}

}  // namespace

ModelSpec make_vit(const VitOptions& given) {
  const VitOptions options = checked(given);
  const int64_t patches = options.image[0] / options.patch * (options.image[1] / options.patch);
  const auto fan_in = static_cast<float>(options.image[2] * options.patch * options.patch);
  ModelBuilder builder;
  Chain chain(builder.input("image", {options.image}));
  const auto label = builder.input("label", {{}, DType::int32});
  chain.then(builder, "conv_proj",
             Conv2d{.channels = options.width,
                    .kernel = options.patch,
                    .stride = options.patch,
                    .init_std = std::sqrt(1.0f / fan_in)});
  chain.then(builder, "patches", Reshape{fmt::format("{},{}", patches, options.width)});
  if (!options.pools_mean) chain.then(builder, "class_token", PrependToken{});
  chain.then(builder, "encoder.pos_embedding",
             PositionEmbedding{.positions = patches + (options.pools_mean ? 0 : 1), .init_std = 0.02f});
  if (options.dropout > 0) chain.then(builder, "encoder.dropout", Dropout{options.dropout});
  for (int64_t i = 0; i < options.layers; ++i)
    add_vit_block(builder, chain, fmt::format("encoder.layers.encoder_layer_{}.", i), options);
  chain.then(builder, "encoder.ln", LayerNorm{.epsilon = options.epsilon});
  if (options.pools_mean) {
    chain.then(builder, "pool", SequencePool{.kind = SequencePoolKind::mean});
  } else {
    chain.then(builder, "class_token.slice", Slice{.axis = 0, .begin = 0, .end = 1});
    chain.then(builder, "class_token.flatten", Flatten{});
  }
  chain.then(builder, "heads.head", Linear{.units = options.classes, .zero_weight = true});
  builder.add("loss", SoftmaxCrossEntropy{.label_smoothing = options.label_smoothing}, {chain.last, label});
  return builder.build();
}

}  // namespace lockstep::model
