#include "ops/custom_op.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "base/text.h"
#include "ops/checks.h"

namespace lockstep {
namespace ops {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const CustomOp>> ops;
};

Registry& registry() {
  static Registry registry;
  return registry;
}

bool is_name(const std::string& name, std::string_view also) {
  return !name.empty() && std::ranges::all_of(name, [&](unsigned char c) {
    return std::isalnum(c) != 0 || also.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

std::string quoted(const std::vector<std::string>& names) {
  return names.empty() ? "none" : "'" + join(names, "', '") + "'";
}

[[noreturn]] void refuse(const Custom& op, const std::string& what) {
  throw ConfigError(fmt::format("custom op '{}': {}", op.name, what));
}

void check_shape(const Custom& op, const std::string& of, const Shape& shape) {
  if (std::ranges::any_of(shape.dims(), [](int64_t dim) { return dim <= 0; }))
    refuse(op, fmt::format("its signature gives {} the shape {}; dimensions must be positive", of,
                           shape.to_string()));
  shape.count();  // throws if it is more than can be counted
}

Initializer initializer_of(const CustomOp::Weight& weight) {
  switch (weight.initial) {
    case CustomOp::Initial::zero:
      return {Initializer::Kind::zero};
    case CustomOp::Initial::one:
      return {Initializer::Kind::one};
    case CustomOp::Initial::normal:
      return {Initializer::Kind::normal, weight.scale};
    case CustomOp::Initial::uniform:
      return {Initializer::Kind::uniform, weight.scale};
  }
  throw InternalError("an initial value of no kind");
}

CustomOp::Signature signature_of(const Custom& op, const std::vector<Shape>& inputs) {
  const auto registered = registered_op(op.name);
  try {
    return registered->signature(inputs, attributes_of(op));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // such as inputs.at(1) of one input
    std::vector<std::string> shapes;
    for (const Shape& shape : inputs) shapes.push_back(shape.to_string());
    refuse(op, fmt::format("its signature threw for the inputs {}: {}", join(shapes, ", "), error.what()));
  }
}

std::vector<Shape> shapes_of(const Custom& op, Inputs inputs) {
  if (inputs.empty()) refuse(op, "takes at least one input, is given none");
  std::vector<Shape> shapes;
  for (const TensorSpec& input : inputs) {
    expect_float32_input(fmt::format("custom op '{}'", op.name), {&input, 1});
    shapes.push_back(input.shape);
  }
  return shapes;
}

}  // namespace

std::shared_ptr<const CustomOp> registered_op(const std::string& name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.ops.find(name); found != all.ops.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [other, op] : all.ops) known.push_back(other);
  throw ConfigError(
      fmt::format("custom op '{}' is not registered in this program{}; registered are: {}. A program calls "
                  "lockstep::register_op before it reads the model; the command `lockstep` has no such ops",
                  name, did_you_mean(name, known), quoted(known)));
}

CustomOp::Attributes attributes_of(const Custom& op) { return {op.name, op.attribute}; }

CustomOp::Signature checked_signature(const Custom& op, const std::vector<Shape>& inputs) {
  std::set<std::string> names;
  for (const CustomAttribute& attribute : op.attribute) {
    if (!is_name(attribute.name, "_-."))
      refuse(op, fmt::format("attribute '{}' must have a name of letters, digits, '_', '-' and '.'",
                             attribute.name));
    if (!names.insert(attribute.name).second)
      refuse(op, fmt::format("attribute '{}' is given twice", attribute.name));
    if (std::isnan(attribute.value)) refuse(op, fmt::format("attribute '{}' is no number", attribute.name));
  }
  CustomOp::Signature signature = signature_of(op, inputs);
  check_shape(op, "its output", signature.output);
  if (signature.backward_needs_input.empty()) signature.backward_needs_input.resize(inputs.size());
  if (signature.backward_needs_input.size() != inputs.size())
    refuse(op, fmt::format("its signature says of {} inputs whether backward needs them, but there are {}",
                           signature.backward_needs_input.size(), inputs.size()));
  names.clear();
  for (const CustomOp::Weight& weight : signature.parameters) {
    if (!is_name(weight.name, "_-"))
      refuse(op, fmt::format("parameter '{}' must have a name of letters, digits, '_' and '-'", weight.name));
    if (!names.insert(weight.name).second)
      refuse(op, fmt::format("two parameters are called '{}'", weight.name));
    check_shape(op, fmt::format("parameter '{}'", weight.name), weight.shape);
    if (!(weight.scale >= 0) || !std::isfinite(weight.scale))
      refuse(op, fmt::format("parameter '{}' begins with the scale {}", weight.name, weight.scale));
  }
  for (const Shape& input : inputs)
    if (signature.by_position &&
        (signature.output.rank() == 0 || input.rank() == 0 || signature.output[0] != input[0]))
      refuse(op,
             fmt::format("its signature says by_position, but output {} and input {} have other positions",
                         signature.output.to_string(), input.to_string()));
  return signature;
}

template <>
OpSignature infer_op(const Custom& op, Inputs inputs) {
  const CustomOp::Signature given = checked_signature(op, shapes_of(op, inputs));
  OpSignature signature{.outputs = {{given.output}},
                        // Both gradients in one call: an input that either needs is kept for both.
                        .backward = given.parameters.empty() ? BackwardForm::none : BackwardForm::joint,
                        .differentiable = std::vector<bool>(inputs.size(), true),
                        .backward_needs_input = given.backward_needs_input,
                        .backward_needs_output = given.backward_needs_output,
                        .positions = given.by_position ? PositionUse::own : PositionUse::any};
  for (const CustomOp::Weight& weight : given.parameters)
    signature.parameters.push_back({.name = weight.name,
                                    .shape = weight.shape,
                                    .init = initializer_of(weight),
                                    .is_norm_or_bias = weight.is_norm_or_bias});
  return signature;
}

template <>
OpCost cost_op(const Custom& op, Inputs inputs, int64_t batch) {
  const CustomOp::Signature signature = checked_signature(op, shapes_of(op, inputs));
  const auto samples = static_cast<double>(batch);
  double in = 0, weights = 0;
  for (const TensorSpec& input : inputs) in += static_cast<double>(input.shape.count());
  for (const auto& weight : signature.parameters) weights += static_cast<double>(weight.shape.count());
  const auto out = static_cast<double>(signature.output.count());
  const double flops = samples * (signature.flops > 0 ? signature.flops : out);
  const double bytes = 4 * (samples * (in + out) + weights);
  return {.forward_flops = flops,
          .backward_input_flops = flops,
          .backward_weight_flops = weights > 0 ? flops : 0,
          .forward_bytes = bytes,
          .backward_input_bytes = bytes,
          .backward_weight_bytes = weights > 0 ? bytes : 0};
}

}  // namespace ops

double CustomOp::Attributes::number(const std::string& name) const {
  for (const CustomAttribute& attribute : values_)
    if (attribute.name == name) return attribute.value;
  std::vector<std::string> given;
  for (const CustomAttribute& attribute : values_) given.push_back(attribute.name);
  throw ConfigError(
      fmt::format("custom op '{}': needs the attribute '{}'; given are: {}", op_, name, ops::quoted(given)));
}

double CustomOp::Attributes::number(const std::string& name, double otherwise) const {
  for (const CustomAttribute& attribute : values_)
    if (attribute.name == name) return attribute.value;
  return otherwise;
}

void CustomOp::Attributes::expect_only(const std::vector<std::string>& known) const {
  for (const CustomAttribute& attribute : values_)
    if (std::ranges::find(known, attribute.name) == known.end())
      throw ConfigError(fmt::format("custom op '{}': there is no attribute '{}'{}; there are: {}", op_,
                                    attribute.name, did_you_mean(attribute.name, known), ops::quoted(known)));
}

void register_op(const std::string& name, std::shared_ptr<const CustomOp> op) {
  if (!ops::is_name(name, "_-./"))
    throw ConfigError(
        fmt::format("register_op: '{}' must consist of letters, digits, '_', '-', '.' and '/'", name));
  if (op == nullptr) throw ConfigError(fmt::format("register_op: '{}' has no op", name));
  ops::Registry& all = ops::registry();
  const std::lock_guard lock(all.mutex);
  if (!all.ops.emplace(name, std::move(op)).second)
    throw ConfigError(fmt::format("register_op: there is an op '{}' already; choose another name", name));
}

}  // namespace lockstep
