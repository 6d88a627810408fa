#include "train/faults/nonfinite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "comm/gather_texts.h"
#include "tensor/convert.h"

namespace lockstep::train {
namespace {

/// REQUIRES: the tensor is of float32 or narrower.
float element_of(const Tensor& tensor, int64_t index) {
  float value = 0;
  tensor::convert(&value, DType::float32, tensor.as<const std::byte>() + index * size_of(tensor.dtype),
                  tensor.dtype, 1);
  return value;
}

/// Values for the host to look at: a device's memory itself, or a copy of it.
class HostView {
 public:
  HostView(device::Device& device, const Tensor& tensor) : tensor_(tensor) {
    if (tensor.data == nullptr || device.shares_host_memory()) return;
    copy_.resize(static_cast<size_t>(tensor.size_bytes()));
    device.copy_now(copy_.data(), tensor.data, tensor.size_bytes());
    tensor_.data = copy_.data();
  }
  const Tensor& tensor() const { return tensor_; }

 private:
  std::vector<std::byte> copy_;
  Tensor tensor_;
};

/// Index of the first element that is not finite, or -1.
int64_t first_nonfinite(const Tensor& tensor) {
  if (tensor.data == nullptr || (tensor.dtype != DType::float32 && !tensor::is_narrow(tensor.dtype)))
    return -1;
  constexpr int64_t kBlock = 1024;
  float values[kBlock];
  const int64_t count = tensor.count();
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    tensor::convert(values, DType::float32, tensor.as<const std::byte>() + begin * size_of(tensor.dtype),
                    tensor.dtype, size);
    for (int64_t i = 0; i < size; ++i)
      if (!std::isfinite(values[i])) return begin + i;
  }
  return -1;
}

std::string describe_finding(const Worker& worker, const run::KernelObservation& observation,
                             const model::Node& node, const char* verb, const std::string& tensor,
                             int64_t element, float value) {
  const auto& program = worker.programs().step;
  const auto& instruction = program.instruction(observation.instruction);
  const char* phase = observation.call->phase == ops::KernelPhase::forward ? "forward" : "backward";
  return fmt::format("{} of layer {} ({}) {} {} in {}, element {}, micro-batch {} of rank {} ({})", phase,
                     node.name, name_of(node.op), verb, std::isnan(value) ? "NaN" : "infinity", tensor,
                     element, instruction.micro_batch, program.rank,
                     program::describe(program, observation.instruction));
}

/// Places of `values`, the earliest of the graph first: a kernel that did the work of several nodes is blamed
/// on the first.
std::vector<size_t> in_graph_order(const std::vector<int>& values) {
  std::vector<size_t> places(values.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::sort(places.begin(), places.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  return places;
}

/// What forward reads and no kernel has made, with a name: model inputs, and parameters' narrow copies. Both
/// were finite in float32, but may be too large for their type.
std::vector<std::pair<Tensor, std::string>> narrow_sources(const model::Graph& graph,
                                                           const program::KernelCall& call) {
  const auto& node = graph.node(call.node);
  std::vector<std::pair<Tensor, std::string>> sources;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int root = graph.value(node.inputs[i]).storage;
    const auto& value = graph.value(root);
    if (value.producer < 0 && tensor::is_narrow(value.spec.dtype))
      sources.emplace_back(call.inputs[i],
                           fmt::format("model input {} as {}", value.name, name_of(value.spec.dtype)));
  }
  for (size_t p = 0; p < call.parameters.size(); ++p)
    if (tensor::is_narrow(call.parameters[p].dtype))
      sources.emplace_back(call.parameters[p],
                           fmt::format("parameter {} as {}", graph.parameter(node.parameters[p]).name,
                                       name_of(call.parameters[p].dtype)));
  return sources;
}

/// What a kernel call read and wrote, in the order in which it is worth naming.
std::optional<std::string> examine(const Worker& worker, const run::KernelObservation& observation) {
  const auto& call = *observation.call;
  const auto& graph = worker.compiled().graph();
  const auto& node = graph.node(call.node);
  const auto look = [&](const Tensor& tensor, const model::Node& of, const std::string& name,
                        const char* verb = "made") -> std::optional<std::string> {
    const HostView view(worker.device(), tensor);
    const int64_t element = first_nonfinite(view.tensor());
    if (element < 0) return std::nullopt;
    return describe_finding(worker, observation, of, verb, name, element, element_of(view.tensor(), element));
  };
  if (call.phase == ops::KernelPhase::forward) {
    for (const auto& [tensor, name] : narrow_sources(graph, call))
      if (auto found = look(tensor, node, name, "read")) return found;
    for (const size_t o : in_graph_order(call.output_values)) {
      const auto& value = graph.value(call.output_values[o]);
      if (auto found = look(call.outputs[o], graph.node(value.producer), "its output " + value.name))
        return found;
    }
    for (size_t a = 0; a < call.auxiliary.size(); ++a)
      if (auto found = look(call.auxiliary[a], node, "its " + node.signature.auxiliary[a].name)) return found;
    if (call.metrics == nullptr) return std::nullopt;
    const auto records =
        static_cast<size_t>(worker.programs().step.instruction(observation.instruction).leaves);
    std::vector<double> metrics(records * ops::kMetricCount);
    worker.device().copy_now(metrics.data(), call.metrics,
                             static_cast<int64_t>(metrics.size() * sizeof(double)));
    for (size_t record = 0; record < records; ++record)
      if (const double loss = metrics[record * ops::kMetricCount + ops::kLossSum]; !std::isfinite(loss))
        return describe_finding(worker, observation, node, "made", "the loss", static_cast<int64_t>(record),
                                static_cast<float>(loss));
    // Below: a gradient that forward has made, too.
  }
  for (size_t i = 0; i < call.input_gradients.size(); ++i) {
    const auto& value = graph.value(call.gradient_values[i]);
    if (auto found = look(call.input_gradients[i], node, "the gradient of " + value.name)) return found;
  }
  for (size_t p = 0; p < call.parameter_gradients.size(); ++p)
    if (auto found = look(call.parameter_gradients[p], node,
                          "the gradient of parameter " + graph.parameter(call.gradient_parameters[p]).name))
      return found;
  return std::nullopt;
}

}  // namespace

std::string to_text(const NonFiniteFinding& finding) {
  return fmt::format("{} {} {} {}", finding.micro_batch, finding.place, finding.call, finding.message);
}

NonFiniteFinding finding_from_text(const std::string& text) {
  NonFiniteFinding finding;
  size_t begin = 0;
  for (int* number : {&finding.micro_batch, &finding.place, &finding.call}) {
    const size_t end = text.find(' ', begin);
    *number = std::stoi(text.substr(begin, end - begin));
    begin = end + 1;
  }
  finding.message = text.substr(begin);
  return finding;
}

std::string earliest_message(const std::vector<NonFiniteFinding>& by_rank) {
  const NonFiniteFinding* earliest = nullptr;
  const auto when = [](const NonFiniteFinding& finding) {
    return std::tuple(finding.micro_batch, finding.place, finding.call);
  };
  for (const auto& finding : by_rank)
    if (!finding.message.empty() && (earliest == nullptr || when(finding) < when(*earliest)))
      earliest = &finding;
  return earliest == nullptr ? "" : earliest->message;
}

std::string locate_nonfinite(Worker& worker, comm::Communicator& world, const run::StepInputs& inputs) {
  NonFiniteFinding finding;
  worker.finish_step();
  const auto& graph = worker.compiled().graph();
  for (const HeldParameter& held : worker.held_parameters()) {
    if (!finding.message.empty()) break;
    const HostView values(worker.device(), {held.data, Shape{held.part.count()}});
    if (const int64_t element = first_nonfinite(values.tensor()); element >= 0)
      finding.message = fmt::format(
          "parameter {} is not finite before the step on rank {}, element {}: the step before this one "
          "overflowed",
          graph.parameter(held.parameter).name, world.rank(), held.part.element(element));
  }
  int last = -1, call = 0;
  worker.replay_step(inputs, [&](const run::KernelObservation& observation) {
    if (observation.call == nullptr) return;
    call = observation.instruction == last ? call + 1 : 0;
    last = observation.instruction;
    if (!finding.message.empty()) return;
    const auto& instruction = worker.programs().step.instruction(last);
    const int segments = static_cast<int>(worker.compiled().partition().segments.size());
    const int place = instruction.kind == program::InstructionKind::forward
                          ? instruction.segment
                          : 2 * segments - instruction.segment;
    if (const auto found = examine(worker, observation))
      finding = {instruction.micro_batch, place, call, *found};
  });
  std::vector<NonFiniteFinding> findings;
  for (const auto& text : comm::gather_texts(world, to_text(finding), comm::kPatience))
    findings.push_back(finding_from_text(text));
  const std::string message = earliest_message(findings);
  return !message.empty() ? message
                          : "every kernel's result was finite in the replay: the sum of finite gradients "
                            "overflowed, or the "
                            "hardware erred";
}

std::string first_nonfinite_gradient(const Worker& worker) {
  const auto& program = worker.programs().step;
  const auto& graph = worker.compiled().graph();
  int last = -1;  // micro-batch
  for (const auto& instruction : program.instructions) last = std::max(last, instruction.micro_batch);
  for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
    const auto& instruction = program.instruction(i);
    if (instruction.kind != program::InstructionKind::backward || instruction.micro_batch != last) continue;
    for (const auto& operand : instruction.operands) {
      if (operand.role != program::Role::gradients) continue;
      for (const auto& entry : worker.compiled().partition().bucket(instruction.segment).entries) {
        const program::ByteRange bytes{operand.range.buffer, operand.range.offset + entry.offset_bytes,
                                       4 * entry.count};
        const HostView view(
            worker.device(),
            {.data = worker.memory().at(program, bytes), .shape = {entry.count}, .dtype = DType::float32});
        if (const int64_t element = first_nonfinite(view.tensor()); element >= 0)
          return fmt::format("the gradient of parameter {}, element {}, on rank {} ({})",
                             graph.parameter(entry.parameter).name, element, program.rank,
                             program::describe(program, i));
      }
    }
  }
  return fmt::format("the loss of rank {}", program.rank);
}

}  // namespace lockstep::train
