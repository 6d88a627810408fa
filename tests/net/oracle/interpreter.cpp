#include "net/oracle/interpreter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "base/index.h"

namespace lockstep::net {

namespace {

double largest_in(const Values& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace

void Roundings::disturb_gradients(std::vector<Values>& gradients) {
  double largest = 0;
  for (const Values& values : gradients) largest = std::max(largest, largest_in(values));
  for (Values& values : gradients)
    for (double& value : values) value += of_gradients * largest * draw.centred();
}

void Roundings::disturb(Values& values, double least_scale) {
  const double largest = std::max(largest_in(values), least_scale);
  // What is zero (dropped, clipped by a ReLU, never looked up) is exact.
  for (double& value : values)
    if (value != 0) value += amplitude * largest * draw.centred();
}

Interpreter::Interpreter(const ModelSpec& spec, const model::Graph& graph)
    : input_count_(spec.inputs.size()) {
  std::map<std::string, int> values, parameters, nodes;
  for (size_t p = 0; p < graph.parameters.size(); ++p)
    parameters[graph.parameters[p].name] = static_cast<int>(p);
  for (size_t n = 0; n < graph.nodes.size(); ++n) nodes[graph.nodes[n].name] = static_cast<int>(n);
  for (const auto& input : spec.inputs) {
    values[input.name] = static_cast<int>(shapes_.size());
    shapes_.push_back(input.spec.shape);
    types_.push_back(input.spec.dtype);
  }
  for (const auto& written : spec.layers) {
    const int number = nodes.at(written.name);
    const model::Node& node = graph.node(number);
    Layer layer{.op = written.op, .op_number = static_cast<uint32_t>(number)};
    for (const auto& input : written.inputs) layer.inputs.push_back(values.at(input));
    for (const auto& spec_of_parameter : node.signature.parameters) {
      std::string name = written.name + "." + spec_of_parameter.name;
      for (const auto& tie : written.ties)
        if (tie.parameter == spec_of_parameter.name) name = tie.with;
      layer.parameters.push_back(parameters.at(name));
    }
    if (!node.outputs.empty()) layer.shape = graph.value(node.outputs[0]).spec.shape;
    values[written.name] = static_cast<int>(shapes_.size());
    shapes_.push_back(layer.shape);
    types_.push_back(DType::float32);
    layers_.push_back(std::move(layer));
  }
}

OpCall Interpreter::call_of(const Layer& layer, const std::vector<Values>& values,
                            const std::vector<Values>& parameters, const MicroBatch& batch,
                            const Pass& pass) const {
  OpCall call{.samples = batch.samples,
              .training = pass.training,
              .output_shape = layer.shape,
              .seed = pass.seed,
              .step = pass.step,
              .op_number = layer.op_number,
              .first_sample = batch.first_sample,
              .kinks = pass.kinks};
  if (pass.roundings != nullptr)
    call.error = [&roundings = *pass.roundings](double size) {
      return roundings.amplitude * size * roundings.draw.centred();
    };
  for (const int input : layer.inputs) {
    call.input_shapes.push_back(nth(shapes_, input));
    call.input_types.push_back(nth(types_, input));
    call.inputs.push_back(&nth(values, input));
  }
  for (const int parameter : layer.parameters) call.parameters.push_back(&nth(parameters, parameter));
  return call;
}

LossSums Interpreter::run(const MicroBatch& batch, const Pass& pass, std::vector<Values>* gradients) const {
  std::vector<Values> values = batch.inputs, parameters = pass.parameters;
  if (pass.roundings != nullptr)
    for (Values& parameter : parameters) pass.roundings->disturb(parameter);
  for (const Layer& layer : layers_) {
    values.push_back(forward(layer.op, call_of(layer, values, parameters, batch, pass)));
    if (pass.roundings != nullptr && &layer != &layers_.back()) pass.roundings->disturb(values.back());
  }
  if (gradients != nullptr) go_back(values, parameters, batch, pass, *gradients);
  return {values.back()[0], values.back()[1]};
}

void Interpreter::go_back(const std::vector<Values>& values, const std::vector<Values>& parameters,
                          const MicroBatch& batch, const Pass& pass, std::vector<Values>& gradients) const {
  const auto add = [](Values& to, const Values& from) {
    if (to.empty()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  };
  std::vector<Values> of_values(values.size());
  for (size_t l = layers_.size(); l-- > 0;) {
    const Layer& layer = layers_[l];
    // Nobody sends back what a mask was made of, nor the loss.
    Values& from = of_values[input_count_ + l];
    if (from.empty() && l + 1 < layers_.size()) from.resize(values[input_count_ + l].size());
    OpGradients made = backward(layer.op, call_of(layer, values, parameters, batch, pass), from);
    // What a loss sends back is a difference of numbers as large as what it reads, or probabilities.
    const bool is_loss = &layer == &layers_.back();
    const double scale = is_loss ? std::max(1.0, largest_in(nth(values, layer.inputs[0]))) : 0;
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      if (pass.roundings != nullptr) pass.roundings->disturb(made.inputs[i], scale);
      add(nth(of_values, layer.inputs[i]), made.inputs[i]);
    }
    for (size_t p = 0; p < layer.parameters.size(); ++p) {
      if (pass.roundings != nullptr) pass.roundings->disturb(made.parameters[p]);
      add(nth(gradients, layer.parameters[p]), made.parameters[p]);
    }
  }
}

}  // namespace lockstep::net
