#include "net/model_generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/index.h"
#include "net/model_maker.h"

namespace lockstep::net {

int ModelMaker::then(const char* prefix, Op op, std::vector<int> inputs, Shape shape, std::vector<Tie> ties,
                     bool product) {
  const std::string name = fmt::format("{}{}", prefix, spec_.layers.size());
  std::vector<std::string> names;
  for (const int input : inputs) {
    names.push_back(at(input).name);
    ++nth(values_, input).readers;
  }
  own_parameters(name);
  spec_.layers.push_back({name, std::move(op), std::move(names), std::move(ties)});
  values_.push_back({name, std::move(shape), 0, product});
  last_ = static_cast<int>(values_.size()) - 1;
  return last_;
}

/// A parameter of the layer that is about to be made: somebody else's of that shape now and then.
void ModelMaker::tie_or_own(std::vector<Tie>& ties, std::string_view op, const std::string& parameter,
                            Shape shape, int chance) {
  std::vector<const OwnedParameter*> alike;
  for (const auto& other : parameters_)
    if (other.shape == shape && ((other.op == op && other.parameter == parameter) || draw_.percent(10)))
      alike.push_back(&other);
  if (!alike.empty() && draw_.percent(chance))
    ties.push_back({parameter, draw_.of(alike)->name});
  else
    new_parameters_.push_back({parameter, std::move(shape), op, ""});
}

void ModelMaker::own_parameters(const std::string& layer) {
  for (auto& parameter : new_parameters_) {
    std::string_view word = parameter.name == "weight" ? "weight" : "bias";
    parameters_.push_back({layer + "." + parameter.name, parameter.shape, parameter.op, word});
  }
  new_parameters_.clear();
}

int64_t ModelMaker::some_width() {
  if (draw_.percent(65)) return usual_width_;
  return draw_.of<int64_t>({1, 2, 3, 5, 7, 8, 13, 16, 17});
}

void ModelMaker::linear(int64_t units) {
  Linear op{.units = units, .bias = draw_.percent(80)};
  if (draw_.percent(30)) op.init_std = 0.3f;
  std::vector<Tie> ties;
  tie_or_own(ties, "linear", "weight", {units, width()}, 30);
  if (op.bias) tie_or_own(ties, "linear", "bias", {units}, 15);
  std::vector<int64_t> dims;
  for (int i = 0; i + 1 < shape().rank(); ++i) dims.push_back(shape()[i]);
  dims.push_back(units);
  then("linear", op, {last_}, Shape(dims), ties, true);
}

std::vector<int> ModelMaker::of_equal_shape(int value) const {
  std::vector<int> alike;
  for (int v = 0; v < static_cast<int>(values_.size()); ++v)
    if (v != value && at(v).shape == at(value).shape) alike.push_back(v);
  return alike;
}

/// Adds the last value to one of the same shape, or multiplies both, however long ago that was made.
void ModelMaker::residual() {
  std::vector<int> others = of_equal_shape(last_);
  if (draw_.percent(5)) others.push_back(last_);
  if (others.empty()) {
    // A product makes the shape of an earlier value.
    std::vector<int> earlier;
    for (int v = 0; v < static_cast<int>(values_.size()); ++v) {
      bool same = at(v).shape.rank() == shape().rank() && v != last_;
      for (int i = 0; same && i + 1 < shape().rank(); ++i) same = at(v).shape[i] == shape()[i];
      if (same && at(v).shape[-1] <= 20) earlier.push_back(v);
    }
    if (earlier.empty()) return linear(some_width());
    const int other = draw_.of(earlier);
    linear(at(other).shape[-1]);
    others = {other};
  }
  const int other = draw_.of(others);
  const bool first = draw_.percent(50);
  const std::vector<int> terms{first ? last_ : other, first ? other : last_};
  if (draw_.percent(20))
    then("product", Multiply{}, terms, Shape(shape()));
  else
    then("sum", Add{}, terms, Shape(shape()));
}

void ModelMaker::norm() {
  const Shape same = shape();
  if (draw_.percent(35)) {
    std::vector<Tie> ties;
    tie_or_own(ties, "batch_norm", "weight", {width()}, 15);
    tie_or_own(ties, "batch_norm", "bias", {width()}, 15);
    BatchNorm op;
    if (draw_.percent(50)) op.epsilon = 0.1f;
    then("bn", op, {last_}, same, ties);
    // Kernels for CPUs take both in one pass with the norm (model::fuse_for_cpu).
    const std::vector<int> others = of_equal_shape(last_);
    if (!others.empty() && draw_.percent(25)) {
      const int other = draw_.of(others);
      const bool first = draw_.percent(50);
      then("sum", Add{}, {first ? last_ : other, first ? other : last_}, same);
    }
    if (draw_.percent(35)) then("relu", Relu{}, {last_}, same);
    return;
  }
  if (draw_.percent(30)) {
    std::vector<Tie> ties;
    tie_or_own(ties, "rms_norm", "weight", {width()}, 20);
    then("rms", RmsNorm{.epsilon = draw_.of({1e-5f, 0.1f})}, {last_}, same, ties);
    return;
  }
  LayerNorm op{.bias = draw_.percent(70)};
  if (draw_.percent(50)) op.epsilon = 0.1f;
  std::vector<Tie> ties;
  tie_or_own(ties, "layer_norm", "weight", {width()}, 20);
  if (op.bias) tie_or_own(ties, "layer_norm", "bias", {width()}, 20);
  then("ln", op, {last_}, same, ties);
}

void ModelMaker::activation() {
  const Shape same = shape();
  switch (draw_.weighted({3, 3, 2, 1, 2, 3})) {
    case 0:
      then("tanh", Tanh{}, {last_}, same);
      break;
    case 1:
      then("gelu", Gelu{draw_.of({GeluKind::tanh, GeluKind::erf})}, {last_}, same);
      break;
    case 2:
      then("sigmoid", Sigmoid{}, {last_}, same);
      break;
    case 3:
      then("relu", Relu{}, {last_}, same);
      break;
    case 4:
      then("silu", Silu{}, {last_}, same);
      break;
    default:
      then("drop", Dropout{draw_.of({0.0f, 0.1f, 0.3f, 0.5f})}, {last_}, same);
  }
}

void ModelMaker::attention() {
  Attention op{.heads = draw_.of<int64_t>({1, 2, 3, 4}), .dropout = draw_.of({0.0f, 0.0f, 0.2f})};
  if (draw_.percent(40)) op.key_value_heads = op.heads % 2 == 0 && draw_.percent(50) ? op.heads / 2 : 1;
  op.causal = draw_.percent(75);
  const int64_t size = draw_.of<int64_t>({1, 2, 3, 4, 5}), positions = shape()[0];
  const int64_t key_heads = op.key_value_heads == 0 ? op.heads : op.key_value_heads;
  linear((op.heads + 2 * key_heads) * size);
  if (size % 2 == 0 && draw_.percent(60)) {
    RotaryEmbedding rotary{.head_size = size, .heads = draw_.percent(70) ? op.heads + key_heads : 0};
    if (draw_.percent(30)) {  // so few positions that some pairs turn often, and some do not
      rotary.scaling_factor = draw_.of({2.0f, 8.0f});
      rotary.low_frequency_factor = 0.5f;
      rotary.high_frequency_factor = 2.0f;
      rotary.original_positions = draw_.between(1, 20);
    }
    then("rotary", rotary, {last_}, Shape(shape()));
  }
  then("attention", op, masked_or_not(), {positions, op.heads * size});
  // Texts keep their positions, so that each has a document.
  if (!tokens_ || !draw_.percent(40)) return;
  spec_.layers.back().inputs.push_back("documents");
  if (std::ranges::find(spec_.inputs, "documents", &ModelInput::name) == spec_.inputs.end())
    spec_.inputs.push_back({"documents", {sample_, DType::int32}});
}

void ModelMaker::convolution() {
  const int64_t smallest = std::min(shape()[0], shape()[1]);
  Conv2d op{.channels = draw_.of<int64_t>({1, 2, 3, 4, 5}),
            .kernel = draw_.between(1, 3),
            .bias = draw_.percent(70)};
  op.padding = draw_.between(0, op.kernel - 1);
  op.stride = draw_.weighted({3, 1}) + 1;
  if (op.kernel > smallest + 2 * op.padding) op.kernel = smallest + 2 * op.padding;
  if (draw_.percent(50)) {  // keeps its shape, so that it can be added to what it reads
    op = {.channels = shape()[2], .kernel = 3, .padding = 1, .bias = op.bias};
  }
  if (draw_.percent(30)) {
    op.groups = draw_.percent(50) ? shape()[2] : std::gcd(shape()[2], draw_.between(2, 4));
    op.channels = (op.channels + op.groups - 1) / op.groups * op.groups;
  }
  if (draw_.percent(25)) {  // more padding by as much as the windows grow
    op.dilation = draw_.between(2, 3);
    op.padding += op.kernel / 2 * (op.dilation - 1);
    if (op.dilation * (op.kernel - 1) >= smallest + 2 * op.padding) op.dilation = 1;
  }
  const auto extent = [&](int64_t size) {
    return (size + 2 * op.padding - op.dilation * (op.kernel - 1) - 1) / op.stride + 1;
  };
  const Shape made{extent(shape()[0]), extent(shape()[1]), op.channels};
  if (made.count() > kMostElements) return;
  std::vector<Tie> ties;
  tie_or_own(ties, "conv2d", "weight", {op.channels, op.kernel, op.kernel, shape()[2] / op.groups}, 25);
  if (op.bias) tie_or_own(ties, "conv2d", "bias", {op.channels}, 15);
  then("conv", op, {last_}, made, ties, true);
}

void ModelMaker::pool() {
  if (draw_.percent(30)) {
    then("mean", GlobalPool2d{}, {last_}, {shape()[2]});
    return;
  }
  Pool2d op{.kind = draw_.percent(30) ? PoolKind::max : PoolKind::average, .kernel = draw_.between(1, 3)};
  op.kernel = std::min(op.kernel, std::min(shape()[0], shape()[1]));
  op.stride = draw_.between(0, 2);
  op.padding = draw_.between(0, op.kernel / 2);
  op.count_include_pad = op.kind == PoolKind::average && draw_.percent(50);
  const int64_t stride = op.stride == 0 ? op.kernel : op.stride;
  const auto extent = [&](int64_t size) { return (size + 2 * op.padding - op.kernel) / stride + 1; };
  then("pool", op, {last_}, {extent(shape()[0]), extent(shape()[1]), shape()[2]});
}

void ModelMaker::upsample() {
  Upsample2d op{.kind = draw_.of({UpsampleKind::nearest, UpsampleKind::bilinear})};
  op.align_corners = op.kind == UpsampleKind::bilinear && draw_.percent(40);
  Shape made;
  if (draw_.percent(50)) {
    op.scale = draw_.of({1.0, 1.5, 2.0, 3.0});
    const auto size = [&](int64_t n) { return static_cast<int64_t>(static_cast<double>(n) * op.scale); };
    made = {size(shape()[0]), size(shape()[1]), shape()[2]};
  } else {
    op.height = draw_.between(1, 9);
    op.width = draw_.between(1, 9);
    made = {op.height, op.width, shape()[2]};
  }
  if (made.count() > kMostElements) return;
  then("up", op, {last_}, made);
}

/// Goes on from an earlier value.
void ModelMaker::branch() {
  const int earlier = static_cast<int>(draw_.below(static_cast<int64_t>(values_.size())));
  last_ = earlier;
}

bool ModelMaker::add_by_rank(int rank) {
  switch (draw_.weighted({4, 2, 1, 2, 2, 2})) {
    case 4:
      if (rank != 2) return false;
      return draw_.percent(tokens_ ? 100 : 75) ? recurrence() : sequence_to_vector(), true;
    case 5:
      return move_elements(), true;
    case 0:
      if (rank == 3) return convolution(), true;
      if (rank == 2 && (tokens_ || draw_.percent(50))) return attention(), true;
      return false;
    case 1:
      if (rank == 3) return draw_.percent(30) ? upsample() : pool(), true;
      if (tokens_ && rank == 2) return mix_positions(), true;
      return false;
    case 2:
      if (!tokens_) return view(), true;
      return false;
    default:
      if (rank != 2) return false;
      if (draw_.percent(60)) return false;
      std::vector<Tie> ties;
      const Shape same = shape();
      const int64_t positions = same[0] + draw_.between(0, 2);
      tie_or_own(ties, "position_embedding", "weight", {positions, same[1]}, 30);
      then("wpe", PositionEmbedding{.positions = positions, .init_std = 0.3f}, {last_}, same, ties);
      return true;
  }
}

void ModelMaker::add_layer() {
  if (draw_.percent(15)) branch();
  if (at(last_).product && draw_.percent(45)) return residual();
  const int rank = shape().rank();
  if (draw_.percent(35) && add_by_rank(rank)) return;
  switch (draw_.weighted({35, 20, 25, 20})) {
    case 0:
      if (rank == 3 && shape().count() > 60 && draw_.percent(70)) return convolution();
      return linear(some_width());
    case 1:
      return norm();
    case 2:
      return activation();
    default:
      return residual();
  }
}

void ModelMaker::begin_with_images() {
  sample_ = draw_.percent(30) ? Shape{8, 8, 1}
                              : Shape{draw_.between(1, 7), draw_.between(1, 7), draw_.between(1, 3)};
  classes_ = draw_.of<int64_t>({2, 3, 5});
  spec_.inputs.push_back({"image", {sample_, DType::float32}});
  values_.push_back({"image", sample_});
  last_ = 0;
  if (draw_.percent(45)) {
    then("flat", Flatten{}, {last_}, {sample_.count()});
    if (draw_.percent(80)) linear(usual_width_);
  }
}

void ModelMaker::begin_with_tokens() {
  tokens_ = true;
  sample_ = {draw_.between(1, 7)};
  classes_ = draw_.of<int64_t>({2, 5, 11});
  spec_.inputs.push_back({"tokens", {sample_, DType::int32}});
  const int64_t width = usual_width_;
  new_parameters_.push_back({"weight", {classes_, width}, "linear", ""});
  own_parameters("wte");
  spec_.layers.push_back(
      {"wte", Embedding{.vocabulary = classes_, .width = width, .init_std = 0.5f}, {"tokens"}, {}});
  values_.push_back({"wte", {sample_[0], width}});
  last_ = 0;
  if (draw_.percent(60))
    then("wpe", PositionEmbedding{.positions = sample_[0], .init_std = 0.3f}, {last_}, shape());
}

std::vector<int> ModelMaker::unread() const {
  std::vector<int> ends;
  for (int v = 0; v < static_cast<int>(values_.size()); ++v)
    if (at(v).readers == 0 && v != last_) ends.push_back(v);
  return ends;
}

/// Brings a value that nobody reads into the last one's shape and adds it.
void ModelMaker::join(int value) {
  const int here = last_;
  if (at(value).shape != at(here).shape) {
    last_ = value;
    if (!tokens_ && shape().rank() > 1) then("flat", Flatten{}, {last_}, {shape().count()});
    if (shape() != at(here).shape) linear(at(here).shape[-1]);
  }
  const int there = at(value).shape == at(here).shape ? value : last_;
  const bool first = draw_.percent(50);
  then("sum", Add{}, {first ? here : there, first ? there : here}, at(here).shape);
}

void ModelMaker::end_as_regression() {
  linear(sample_.count());
  then("view", Reshape{fmt::format("{},{},{}", sample_[0], sample_[1], sample_[2])}, {last_}, sample_);
  spec_.layers.push_back({"loss", MeanSquaredError{}, {at(last_).name, "image"}, {}});
}

void ModelMaker::end() {
  if (!tokens_ && shape().rank() > 1) then("flat", Flatten{}, {last_}, {shape().count()});
  bool joined = draw_.percent(50);
  if (!joined || parameters_.empty()) linear(classes_);
  for (const int value : unread()) join(value);
  if (!tokens_ && sample_.count() <= 64 && draw_.percent(15)) return end_as_regression();
  if (width() != classes_ || joined || at(last_).readers > 0) linear(classes_);
  SoftmaxCrossEntropy loss;
  if (draw_.percent(15)) loss.ignore_index = draw_.below(classes_);
  std::string labels = "label";
  if (tokens_ && draw_.percent(15))
    labels = "tokens";
  else
    spec_.inputs.push_back({"label", {tokens_ ? sample_ : Shape{}, DType::int32}});
  if (draw_.percent(20)) loss.label_smoothing = draw_.of<float>({0.1f, 0.5f, 1.0f});
  spec_.layers.push_back({"loss", loss, {at(last_).name, labels}, {}});
  if (tokens_ || !draw_.percent(25)) return;
  spec_.inputs.push_back({"label_mix", {Shape{2}, DType::int32}});
  spec_.layers.back().inputs.emplace_back("label_mix");
}

GeneratedModel ModelMaker::make() {
  usual_width_ = draw_.of<int64_t>({3, 4, 5, 6, 8, 12});
  if (draw_.percent(65))
    begin_with_images();
  else
    begin_with_tokens();
  const int64_t layers = draw_.between(2, 12);
  for (int64_t i = 0; i < layers; ++i) add_layer();
  end();
  return {std::move(spec_), classes_};
}

GeneratedModel generate_model(Draw& draw) { return ModelMaker(draw).make(); }

}  // namespace lockstep::net
