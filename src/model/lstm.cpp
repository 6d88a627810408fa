#include "model/preset_parts.h"
#include "model/presets.h"

namespace lockstep::model {
namespace {

constexpr float kInitRange = 0.1f;  // of encoder and decoder

LstmOptions checked(LstmOptions options) {
  check_range("lstm", "vocabulary", options.vocabulary, 2, kMaximumWidth);
  check_range("lstm", "context", options.context, 1, kMaximumWidth);
  check_range("lstm", "layers", options.layers, 1, kMaximumLayers);
  check_range("lstm", "width", options.width, 1, kMaximumWidth);
  if (options.units == 0) options.units = options.width;
  check_range("lstm", "units", options.units, 1, kMaximumWidth);
  check_rate("lstm", options.dropout);
  if (options.classes != 0) check_range("lstm", "classes", options.classes, 2, kMaximumWidth);
  const bool classifies = options.classes > 0;
  if (!classifies && (options.bidirectional || options.pools_last))
    throw ConfigError(fmt::format(
        "lstm: {} is of classifiers, and a language model has none: state classes, or leave it out",
        options.bidirectional ? "bidirectional" : "pool"));
  if (options.tied_head && (classifies || options.units != options.width))
    throw ConfigError(fmt::format(
        "lstm: tied_head needs a language model with as many units as the width, but there are {} "
        "units, a width of {} and {} classes",
        options.units, options.width, options.classes));
  return options;
}

}  // namespace

ModelSpec make_lstm(const LstmOptions& given) {
  const LstmOptions options = checked(given);
  const bool classifies = options.classes > 0;
  ModelBuilder builder;
  Chain chain(builder.input("tokens", {{options.context}, DType::int32}));
  std::vector<ModelBuilder::Ref> mask;
  if (classifies) mask.push_back(builder.input("mask", {{options.context}}));
  const auto label = builder.input("label", {classifies ? Shape{} : Shape{options.context}, DType::int32});
  const auto with_mask = [&](const std::string& name, Op op) {
    std::vector<ModelBuilder::Ref> inputs{chain.last};
    inputs.insert(inputs.end(), mask.begin(), mask.end());
    chain.last = builder.add(name, std::move(op), std::move(inputs));
  };
  const auto dropout = [&](const std::string& name) {
    if (options.dropout > 0) chain.then(builder, name, Dropout{options.dropout});
  };
  chain.then(builder, "encoder",
             Embedding{.vocabulary = options.vocabulary, .width = options.width, .init_range = kInitRange});
  dropout("drop");
  for (int64_t i = 0; i < options.layers; ++i) {
    with_mask(fmt::format("rnn.l{}", i),
              Lstm{.units = options.units, .bidirectional = options.bidirectional});
    dropout(fmt::format("rnn.drop{}", i));
  }
  if (classifies) {
    using enum SequencePoolKind;
    with_mask("pool", SequencePool{.kind = !options.pools_last ? mean : options.bidirectional ? ends : last});
  }
  const std::vector<Tie> tie =
      options.tied_head ? std::vector<Tie>{{"weight", "encoder.weight"}} : std::vector<Tie>{};
  chain.then(builder, "decoder",
             Linear{.units = classifies ? options.classes : options.vocabulary, .init_range = kInitRange},
             tie);
  builder.add("loss", SoftmaxCrossEntropy{.label_smoothing = options.label_smoothing}, {chain.last, label});
  return builder.build();
}

}  // namespace lockstep::model
