#include "proof/call_accesses.h"

#include <utility>

#include "base/ensure.h"
#include "base/index.h"
#include "program/step_scalars.h"

namespace lockstep::proof {
namespace {

CallAccess access(const Tensor& tensor, const CallSymbol& symbol) {
  return {tensor.data, tensor.size_bytes(), symbol};
}

class AccessFinder {
 public:
  AccessFinder(const GraphSymbols& symbols, const program::ModelCode& code, const program::KernelCall& call)
      : symbols_(symbols),
        code_(code),
        graph_(symbols.graph()),
        call_(call),
        node_(graph_.node(call.node)),
        fused_(nth(code.fusion().neighbors, call.node)) {}

  CallAccesses find() {
    require_neighbors();
    found_.workspace = {call_.workspace, call_.kernel->workspace_bytes(call_.phase), {}};
    found_.reads.push_back(
        {call_.constants, static_cast<int64_t>(sizeof(ops::StepConstants)), {CallSymbol::Kind::constants}});
    parameters();
    switch (call_.phase) {
      case ops::KernelPhase::forward:
        forward();
        break;
      case ops::KernelPhase::backward_input:
        backward();
        input_gradients();
        if (node_.signature.backward == ops::BackwardForm::joint) parameter_gradients();
        bias_of_neighbour();
        break;
      case ops::KernelPhase::backward_weight:
        backward();
        parameter_gradients();
        break;
    }
    return std::move(found_);
  }

 private:
  const model::Node& producer_of(int value) const { return graph_.node(graph_.value(value).producer); }
  const model::Node& consumer_of(int value) const { return graph_.node(graph_.value(value).consumer); }

  template <class OpType>
  static void require(const model::Node& neighbor, const char* what) {
    ensure(std::holds_alternative<OpType>(neighbor.op), what);
  }

  /// A kernel computes certain ops of its neighbours. That the graph has these there is not taken from who
  /// fused them.
  void require_neighbors() const {
    const auto output = [&] { return node_.outputs[0]; };  // losses have none
    if (fused_.gelu_behind) require<Gelu>(consumer_of(output()), "a GELU is computed behind a product");
    if (fused_.fork_behind)
      require<Fork>(consumer_of(output()), "gradients of a fork are added before a ReLU");
    if (fused_.add_before)  // perhaps with a fork between
      require<Add>(producer_of(symbols_.activation_value(node_.inputs[0])),
                   "a sum is computed before a norm");
    if (fused_.fork_before) require<Fork>(producer_of(node_.inputs[0]), "a fork's gradients are added");
    if (fused_.gelu_before) require<Gelu>(producer_of(node_.inputs[0]), "a GELU's gradient is computed");
    if (fused_.add_behind) require<Add>(consumer_of(output()), "a sum is computed behind a batch norm");
    if (fused_.relu_behind)
      require<Relu>(consumer_of(fused_.add_behind ? consumer_of(output()).outputs[0] : output()),
                    "a ReLU is computed behind a batch norm");
    if (fused_.gradient_in_forward) ensure(node_.signature.is_loss, "a loss writes gradients in forward");
  }

  // The next two are not asked of the fusion, whose mistakes the proof would then repeat.

  /// The other term of the sum that is computed behind this node.
  int other_term() const {
    const model::Value& output = graph_.value(node_.outputs[0]);
    return nth(consumer_of(node_.outputs[0]).inputs, 1 - output.consumer_input);
  }
  /// The last value that is made of this node's output.
  int last_made() const {
    int value = node_.outputs[0];
    if (fused_.add_behind) value = consumer_of(value).outputs[0];
    return fused_.relu_behind ? consumer_of(value).outputs[0] : value;
  }

  void forward() {
    std::vector<int> inputs = node_.inputs, outputs = node_.outputs;
    if (fused_.gelu_behind) outputs.push_back(graph_.node(graph_.value(outputs[0]).consumer).outputs[0]);
    if (fused_.add_behind) inputs.push_back(other_term());
    if (fused_.add_behind || fused_.relu_behind) outputs[0] = last_made();
    if (fused_.add_before) {
      const int sum = symbols_.activation_value(node_.inputs[0]);
      inputs = producer_of(sum).inputs;
      outputs.push_back(sum);
    }
    ensure(call_.inputs.size() == inputs.size() && call_.outputs.size() == outputs.size(),
           "a call has a tensor for each value");
    for (size_t i = 0; i < inputs.size(); ++i)
      found_.reads.push_back(access(call_.inputs[i], symbols_.activation(inputs[i])));
    for (size_t o = 0; o < outputs.size(); ++o)
      found_.writes.push_back(access(call_.outputs[o], symbols_.activation(outputs[o])));
    auxiliaries(found_.writes);
    if (node_.signature.is_loss)
      found_.writes.push_back({call_.metrics, code_.metric_bytes(), {CallSymbol::Kind::metrics}});
    if (fused_.gradient_in_forward) {
      ensure(!call_.input_gradients.empty(), "a call has a tensor for the gradient that it writes");
      found_.writes.push_back(access(call_.input_gradients[0], symbols_.gradient(node_.inputs[0])));
      found_.writes.back().in_place = true;
    }
  }

  /// What both halves read.
  void backward() {
    for (size_t i = 0; i < node_.inputs.size(); ++i)
      if (node_.backward_needs_input(i))
        found_.reads.push_back(access(call_.inputs[i], symbols_.activation(node_.inputs[i])));
    if (node_.signature.backward_needs_output)
      for (size_t o = 0; o < node_.outputs.size(); ++o)
        found_.reads.push_back(access(call_.outputs[o], symbols_.activation(node_.outputs[o])));
    const bool is_first_half = call_.phase == ops::KernelPhase::backward_input;
    if (is_first_half && fused_.gelu_before)
      found_.reads.push_back(
          access(call_.inputs.back(), symbols_.activation(producer_of(node_.inputs[0]).inputs[0])));
    auxiliaries(found_.reads);
    const std::vector<int> gradients = code_.fusion().gradients_read(graph_, call_.node);
    for (size_t o = 0; o < gradients.size(); ++o)
      if (graph_.value(gradients[o]).needs_gradient)
        found_.reads.push_back(access(call_.output_gradients[o], symbols_.gradient(gradients[o])));
    if (is_first_half && fused_.fork_before) {
      const auto& input = graph_.value(node_.inputs[0]);
      const int other = nth(producer_of(node_.inputs[0]).outputs, 1 - input.producer_output);
      found_.reads.push_back(access(call_.output_gradients.back(), symbols_.gradient(other)));
    }
  }

  void auxiliaries(std::vector<CallAccess>& list) {
    for (size_t a = 0; a < call_.auxiliary.size(); ++a)
      list.push_back(
          access(call_.auxiliary[a], {CallSymbol::Kind::auxiliary, call_.node, static_cast<int>(a)}));
  }

  void parameters() {
    for (size_t slot = 0; slot < node_.parameters.size(); ++slot) {
      const bool narrow = graph_.compute != DType::float32 && node_.signature.parameters[slot].narrow;
      found_.reads.push_back(access(
          call_.parameters[slot], {narrow ? CallSymbol::Kind::narrow_parameter : CallSymbol::Kind::parameter,
                                   node_.parameters[slot]}));
    }
  }

  void input_gradients() {
    const bool is_of_neighbour = fused_.gelu_before || fused_.fork_before;
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      const int input = node_.inputs[i];
      if (!graph_.value(input).needs_gradient || !node_.signature.differentiable[i]) continue;
      const int made = is_of_neighbour ? producer_of(input).inputs[0] : input;
      found_.writes.push_back(access(call_.input_gradients[i], symbols_.gradient(made)));
    }
  }

  void parameter_gradients() {
    for (size_t slot = 0; slot < node_.parameters.size(); ++slot) {
      ensure(slot < call_.parameter_gradients.size(), "a call has a tensor for each parameter's gradient");
      // What the kernel of another node writes.
      if (call_.parameter_gradients[slot].data != nullptr) parameter_gradient(node_, call_.node, slot, slot);
    }
  }

  /// The gradient of a parameter in a slot of a node, which is the `at`th of the call.
  void parameter_gradient(const model::Node& node, int number, size_t slot, size_t at) {
    const auto& uses = graph_.parameter(node.parameters[slot]).uses;
    int use = 0;
    while (nth(uses, use).node != number || nth(uses, use).slot != static_cast<int>(slot)) ++use;
    found_.writes.push_back(access(call_.parameter_gradients[at],
                                   {CallSymbol::Kind::parameter_gradient, node.parameters[slot], use}));
  }

  /// The gradient of the bias of the linear layer before a norm or an activation.
  void bias_of_neighbour() {
    const size_t own = node_.signature.backward == ops::BackwardForm::joint ? node_.parameters.size() : 0;
    if (!fused_.bias_before || call_.parameter_gradients.size() == own) return;
    const int linear = nth(code_.fusion().bias_of, call_.node);
    parameter_gradient(graph_.node(linear), linear, 1, call_.parameter_gradients.size() - 1);
  }

  const GraphSymbols& symbols_;
  const program::ModelCode& code_;
  const model::Graph& graph_;
  const program::KernelCall& call_;
  const model::Node& node_;
  const ops::FusedNeighbors& fused_;
  CallAccesses found_;
};

}  // namespace

CallAccesses accesses_of(const GraphSymbols& symbols, const program::ModelCode& code,
                         const program::KernelCall& call) {
  return AccessFinder(symbols, code, call).find();
}

}  // namespace lockstep::proof
