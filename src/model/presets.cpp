#include "model/presets.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/error.h"
#include "model/preset_parts.h"

namespace lockstep::model {

ModelSpec make_mlp(const MlpOptions& options) {
  check_range("mlp", "classes", options.classes, 2, kMaximumWidth);
  check_range("mlp", "the number of hidden layers", static_cast<int64_t>(options.hidden.size()), 0,
              kMaximumLayers);
  check_rate("mlp", options.dropout);
  ModelBuilder builder;
  Chain chain(builder.input("image", {options.image}));
  const auto label = builder.input("label", {{}, DType::int32});
  chain.then(builder, "flatten", Flatten{});
  int number = 1;
  for (const int64_t units : options.hidden) {
    check_range("mlp", fmt::format("hidden[{}]", number - 1), units, 1, kMaximumWidth);
    chain.then(builder, fmt::format("fc{}", number), Linear{.units = units});
    chain.then(builder, fmt::format("relu{}", number), Relu{});
    if (options.dropout > 0) chain.then(builder, fmt::format("drop{}", number), Dropout{options.dropout});
    ++number;
  }
  chain.then(builder, fmt::format("fc{}", number), Linear{.units = options.classes});
  builder.add("loss", SoftmaxCrossEntropy{.label_smoothing = options.label_smoothing}, {chain.last, label});
  return builder.build();
}

void read_label_mixtures(ModelSpec& model) {
  std::vector<int64_t> dims = model.inputs.back().spec.shape.dims();
  dims.push_back(2);
  model.inputs.push_back({"label_mix", {Shape(dims), DType::int32}});
  model.layers.back().inputs.emplace_back("label_mix");
}

ModelSpec make_lenet(const LenetOptions& options) {
  check_range("lenet", "classes", options.classes, 2, kMaximumWidth);
  check_rate("lenet", options.dropout);
  check_image("lenet", options.image, 12);
  ModelBuilder builder;
  Chain chain(builder.input("image", {options.image}));
  const auto label = builder.input("label", {{}, DType::int32});
  const auto convolution = [&](int number, const Conv2d& conv) {
    chain.then(builder, fmt::format("conv{}", number), conv);
    if (options.batch_norm) chain.then(builder, fmt::format("bn{}", number), BatchNorm{});
    chain.then(builder, fmt::format("relu{}", number), Relu{});
    chain.then(builder, fmt::format("pool{}", number), Pool2d{.kind = PoolKind::max, .kernel = 2});
  };
  convolution(1, {.channels = 6, .kernel = 5, .padding = 2});
  convolution(2, {.channels = 16, .kernel = 5});
  chain.then(builder, "flatten", Flatten{});
  chain.then(builder, "fc1", Linear{.units = 120});
  chain.then(builder, "relu3", Relu{});
  if (options.dropout > 0) chain.then(builder, "drop1", Dropout{options.dropout});
  chain.then(builder, "fc2", Linear{.units = 84});
  chain.then(builder, "relu4", Relu{});
  if (options.dropout > 0) chain.then(builder, "drop2", Dropout{options.dropout});
  chain.then(builder, "fc3", Linear{.units = options.classes});
  builder.add("loss", SoftmaxCrossEntropy{.label_smoothing = options.label_smoothing}, {chain.last, label});
  return builder.build();
}

ModelSpec make_gpt(const GptOptions& options) {
  check_range("gpt", "vocabulary", options.vocabulary, 2, kMaximumWidth);
  check_range("gpt", "context", options.context, 1, kMaximumWidth);
  check_range("gpt", "layers", options.layers, 1, kMaximumLayers);
  check_range("gpt", "width", options.width, 1, kMaximumWidth);
  check_range("gpt", "heads", options.heads, 1, options.width);
  check_rate("gpt", options.dropout);
  check_multiple("gpt", options.width, options.heads);

  const float std = 0.02f;
  // The variance of the residual stream grows with each of its 2 * layers summands; this keeps it at one
  // summand's.
  const float residual_std = static_cast<float>(0.02 / std::sqrt(2.0 * static_cast<double>(options.layers)));
  const auto linear = [&](int64_t units, float init_std) {
    return Linear{.units = units, .bias = options.bias, .init_std = init_std};
  };
  ModelBuilder builder;
  Chain chain(builder.input("tokens", {{options.context}, DType::int32}));
  const auto label = builder.input("label", {{options.context}, DType::int32});
  const auto dropout = [&](const std::string& name) {
    if (options.dropout > 0) chain.then(builder, name, Dropout{options.dropout});
  };
  const LayerNorm norm{.epsilon = options.epsilon, .bias = options.bias};

  chain.then(builder, "wte",
             Embedding{.vocabulary = options.vocabulary, .width = options.width, .init_std = std});
  chain.then(builder, "wpe", PositionEmbedding{.positions = options.context, .init_std = std});
  dropout("drop");
  for (int64_t i = 0; i < options.layers; ++i) {
    const std::string block = fmt::format("h.{}.", i);
    auto residual = chain.last;
    chain.then(builder, block + "ln_1", norm);
    chain.then(builder, block + "attn.c_attn", linear(3 * options.width, std));
    chain.then(builder, block + "attn.core", Attention{.heads = options.heads, .dropout = options.dropout});
    chain.then(builder, block + "attn.c_proj", linear(options.width, residual_std));
    dropout(block + "attn.drop");
    residual = chain.last = builder.add(block + "attn.residual", Add{}, {residual, chain.last});
    chain.then(builder, block + "ln_2", norm);
    chain.then(builder, block + "mlp.c_fc", linear(4 * options.width, std));
    chain.then(builder, block + "mlp.gelu", Gelu{options.gelu});
    chain.then(builder, block + "mlp.c_proj", linear(options.width, residual_std));
    dropout(block + "mlp.drop");
    chain.last = builder.add(block + "mlp.residual", Add{}, {residual, chain.last});
  }
  chain.then(builder, "ln_f", norm);
  const std::vector<Tie> tie =
      options.tied_head ? std::vector<Tie>{{"weight", "wte.weight"}} : std::vector<Tie>{};
  chain.then(builder, "lm_head", Linear{.units = options.vocabulary, .bias = false, .init_std = std}, tie);
  builder.add("loss", SoftmaxCrossEntropy{.label_smoothing = options.label_smoothing}, {chain.last, label});
  return builder.build();
}

namespace {

/// Checks options, and fills in those that are 0 for a default.
LlamaOptions checked(LlamaOptions options) {
  check_range("llama", "vocabulary", options.vocabulary, 2, kMaximumWidth);
  check_range("llama", "context", options.context, 1, kMaximumWidth);
  check_range("llama", "layers", options.layers, 1, kMaximumLayers);
  check_range("llama", "width", options.width, 1, kMaximumWidth);
  check_range("llama", "heads", options.heads, 1, options.width);
  check_multiple("llama", options.width, options.heads);
  if (options.width / options.heads % 2 != 0)
    throw ConfigError(fmt::format(
        "llama: heads must have an even number of channels for rotary positions, but have width / heads = {}",
        options.width / options.heads));
  if (options.key_value_heads == 0) options.key_value_heads = options.heads;
  check_range("llama", "key_value_heads", options.key_value_heads, 1, options.heads);
  if (options.heads % options.key_value_heads != 0)
    throw ConfigError(fmt::format("llama: key_value_heads must divide heads, but is {} with {} heads",
                                  options.key_value_heads, options.heads));
  if (options.hidden == 0) options.hidden = (options.width * 8 / 3 + 63) / 64 * 64;
  check_range("llama", "hidden", options.hidden, 1, kMaximumWidth);
  return options;
}

/// Block `name` of a Llama, behind the chain's last value.
void add_llama_block(ModelBuilder& builder, Chain& chain, const std::string& name,
                     const LlamaOptions& options) {
  const auto linear = [&](int64_t units) {
    return Linear{.units = units, .bias = false, .init_std = options.init_std};
  };
  const RmsNorm norm{.epsilon = options.epsilon};
  const int64_t head_size = options.width / options.heads,
                turned = options.heads + options.key_value_heads;  // queries and keys
  auto residual = chain.last;
  chain.then(builder, name + "input_layernorm", norm);
  chain.then(builder, name + "self_attn.qkv_proj", linear((turned + options.key_value_heads) * head_size));
  chain.then(builder, name + "self_attn.rotary",
             RotaryEmbedding{.head_size = head_size,
                             .heads = turned,
                             .theta = options.theta,
                             .scaling_factor = options.scaling_factor,
                             .low_frequency_factor = options.low_frequency_factor,
                             .high_frequency_factor = options.high_frequency_factor,
                             .original_positions = options.original_positions});
  chain.then(builder, name + "self_attn.core",
             Attention{.heads = options.heads, .key_value_heads = options.key_value_heads});
  chain.then(builder, name + "self_attn.o_proj", linear(options.width));
  residual = chain.last = builder.add(name + "self_attn.residual", Add{}, {residual, chain.last});
  chain.then(builder, name + "post_attention_layernorm", norm);
  const auto normalized = chain.last;
  chain.then(builder, name + "mlp.gate_proj", linear(options.hidden));
  chain.then(builder, name + "mlp.silu", Silu{});
  const auto up = builder.add(name + "mlp.up_proj", linear(options.hidden), {normalized});
  chain.last = builder.add(name + "mlp.gated", Multiply{}, {chain.last, up});
  chain.then(builder, name + "mlp.down_proj", linear(options.width));
  chain.last = builder.add(name + "mlp.residual", Add{}, {residual, chain.last});
}

}  // namespace

ModelSpec make_llama(const LlamaOptions& given) {
  const LlamaOptions options = checked(given);
  ModelBuilder builder;
  Chain chain(builder.input("tokens", {{options.context}, DType::int32}));
  const auto label = builder.input("label", {{options.context}, DType::int32});
  chain.then(
      builder, "embed_tokens",
      Embedding{.vocabulary = options.vocabulary, .width = options.width, .init_std = options.init_std});
  for (int64_t i = 0; i < options.layers; ++i)
    add_llama_block(builder, chain, fmt::format("layers.{}.", i), options);
  chain.then(builder, "norm", RmsNorm{.epsilon = options.epsilon});
  const std::vector<Tie> tie =
      options.tied_head ? std::vector<Tie>{{"weight", "embed_tokens.weight"}} : std::vector<Tie>{};
  chain.then(builder, "lm_head",
             Linear{.units = options.vocabulary, .bias = false, .init_std = options.init_std}, tie);
  builder.add("loss", SoftmaxCrossEntropy{.label_smoothing = options.label_smoothing}, {chain.last, label});
  return builder.build();
}

}  // namespace lockstep::model
