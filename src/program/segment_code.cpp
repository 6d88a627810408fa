#include "program/segment_code.h"

#include <fmt/format.h>

#include "base/ensure.h"
#include "base/index.h"
#include "lockstep/error.h"
#include "program/instruction_rules.h"
#include "program/segment_tables.h"

namespace lockstep::program {
namespace {

const std::vector<int> kNone;

model::Fusion fusion_for(const model::Graph& graph, const model::Partition& partition,
                         const ModelCode::Options& options) {
  if (options.device == device::DeviceKind::cuda)
    return model::fuse_for_gpu(graph, partition,
                               {.loss = options.training && !options.repeats, .gelu = options.fuse_gelu});
  // What a neighbour's kernel computes could not be repeated by itself.
  return options.repeats ? model::no_fusion(graph) : model::fuse_for_cpu(graph, partition);
}

}  // namespace

const std::vector<int>& SegmentInterface::inputs_of(InstructionKind kind) const {
  if (kind == InstructionKind::recompute) return recompute_reads;
  if (!is_backward(kind)) return reads;
  return kind == InstructionKind::backward_weight ? weight_reads : backward_reads;
}

const std::vector<int>& SegmentInterface::output_gradients_of(InstructionKind kind) const {
  if (!is_backward(kind)) return kNone;
  return kind == InstructionKind::backward_weight ? weight_output_gradients : output_gradients;
}

const std::vector<int>& SegmentInterface::input_gradients_of(InstructionKind kind) const {
  return is_backward(kind) && kind != InstructionKind::backward_weight ? input_gradients : kNone;
}

int64_t SegmentInterface::temporary_bytes_of(InstructionKind kind) const {
  switch (kind) {
    case InstructionKind::backward:
      return backward_temporary_bytes;
    case InstructionKind::backward_input:
      return backward_input_temporary_bytes;
    case InstructionKind::backward_weight:
      return backward_weight_temporary_bytes;
    case InstructionKind::recompute:
      return recompute_temporary_bytes;
    default:
      return forward_temporary_bytes;
  }
}

void KernelCall::run(device::Stream& stream, int64_t first_sample) const {
  const ops::KernelArguments arguments{.inputs = inputs,
                                       .outputs = outputs,
                                       .parameters = parameters,
                                       .auxiliary = auxiliary,
                                       .output_gradients = output_gradients,
                                       .input_gradients = input_gradients,
                                       .parameter_gradients = parameter_gradients,
                                       .metrics = metrics,
                                       .accumulate = accumulate,
                                       .workspace = workspace,
                                       .constants = constants,
                                       .first_sample = first_sample};
  switch (phase) {
    case ops::KernelPhase::forward:
      kernel->forward(arguments, stream);
      break;
    case ops::KernelPhase::backward_input:
      kernel->backward_input(arguments, stream);
      break;
    case ops::KernelPhase::backward_weight:
      kernel->backward_weight(arguments, stream);
      break;
  }
}

ModelCode::ModelCode(const model::Graph& graph, const model::Partition& partition, const Options& options)
    : graph_(graph),
      partition_(partition),
      options_(options),
      fusion_(fusion_for(graph, partition, options)) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    std::vector<TensorSpec> inputs;
    for (const int input : node.inputs) inputs.push_back(graph.logical_spec(input));
    kernels_.push_back(ops::make_kernel(options.device, node.op, inputs,
                                        {.batch = options.micro_batch,
                                         .virtual_replicas = options.virtual_replicas,
                                         .training = options.training,
                                         .intra_op_threads = options.intra_op_threads,
                                         .loss_weight = options.loss_weight,
                                         .op_number = static_cast<uint32_t>(n),
                                         .compute = graph.compute,
                                         .tf32 = options.tf32,
                                         .reproducible = options.reproducible,
                                         .fused = fusion_.neighbors[n]}));
  }
  segments_.resize(partition.segments.size());
  for (size_t s = 0; s < segments_.size(); ++s) lay_out(static_cast<int>(s));
  for (const int replicas : options.fewer_replicas) {
    ensure(replicas < options.virtual_replicas, "other micro-batches are smaller");
    Options smaller = options;
    smaller.fewer_replicas.clear();
    smaller.virtual_replicas = replicas;
    smaller.micro_batch = options.micro_batch / options.virtual_replicas * replicas;
    fewer_.emplace(replicas, std::make_unique<ModelCode>(graph, partition, smaller));
  }
}

const ModelCode& ModelCode::of_replicas(int count) const {
  if (count == options_.virtual_replicas) return *this;
  const auto found = fewer_.find(count);
  if (found == fewer_.end())
    throw InternalError(fmt::format("there are no kernels for {} virtual replicas at once", count));
  return *found->second;
}

void ModelCode::prepare(device::Device& device) {
  for (auto& kernel : kernels_) kernel->prepare(device);
  for (auto& [replicas, code] : fewer_) code->prepare(device);
}

int64_t ModelCode::activation_bytes(int value) const {
  const auto& spec = graph_.value(value).spec;
  return spec.shape.count() * options_.micro_batch * size_of(spec.dtype);
}

int64_t ModelCode::metric_bytes() const {
  return options_.virtual_replicas * static_cast<int64_t>(ops::kMetricCount * sizeof(double));
}

Tensor ModelCode::view(int value, std::byte* data) const {
  const auto& spec = graph_.value(value).spec;
  return {data, spec.shape.batched(options_.micro_batch), spec.dtype};
}

bool ModelCode::reads_narrow(const model::Node& node, size_t slot) const {
  return graph_.compute != DType::float32 && node.signature.parameters[slot].narrow;
}

bool ModelCode::gradient_stays_inside(int value) const {
  const auto& of = graph_.value(value);
  if (of.producer < 0 || of.consumer < 0) return false;
  return nth(fusion_.backward_node, of.producer) == of.consumer ||
         nth(fusion_.backward_node, of.consumer) == of.producer;
}

std::byte* ModelCode::activation(int segment, int value, const SegmentBindings& bindings) const {
  const auto& layout = nth(segments_, segment);
  const int root = graph_.value(value).storage;
  if (const auto* offset = find_offset(layout.stash, root)) return bindings.stash + *offset;
  if (const auto* offset = find_offset(layout.repeated, root)) return bindings.repeated_stash + *offset;
  if (const auto* offset = find_offset(layout.forward_temporary, root)) return bindings.temporary + *offset;
  return bindings.activation(root);
}

/// What forward and backward have in common: activations, parameters, auxiliaries.
KernelCall ModelCode::begin_call(int segment, int n, const SegmentBindings& bindings) const {
  const auto& range = partition_.segment(segment);
  const auto& layout = nth(segments_, segment);
  const auto& node = graph_.node(n);
  KernelCall call;
  call.kernel = nth(kernels_, n).get();
  call.node = n;
  for (const int input : node.inputs)
    call.inputs.push_back(view(input, activation(segment, input, bindings)));
  for (const int output : node.outputs)
    call.outputs.push_back(view(output, activation(segment, output, bindings)));
  call.output_values = node.outputs;
  for (size_t slot = 0; slot < node.parameters.size(); ++slot) {
    const int p = node.parameters[slot];
    const Shape& shape = graph_.parameter(p).spec.shape;
    call.parameters.push_back(reads_narrow(node, slot)
                                  ? Tensor{bindings.narrow_parameter(p), shape, graph_.compute}
                                  : Tensor{bindings.parameter(p), shape});
  }
  const auto& offsets = nth(layout.auxiliary, n - range.first_node);
  for (size_t a = 0; a < offsets.size(); ++a) {
    const auto& spec = node.signature.auxiliary[a];
    std::byte* base = !options_.training                          ? bindings.temporary
                      : nth(layout.repeats, n - range.first_node) ? bindings.repeated_stash
                                                                  : bindings.stash;
    call.auxiliary.push_back({base + offsets[a],
                              spec.per_sample ? spec.shape.batched(options_.micro_batch)
                              : options_.virtual_replicas == 1
                                  ? spec.shape
                                  : spec.shape.batched(options_.virtual_replicas),
                              spec.dtype});
  }
  call.constants = bindings.constants;
  call.accumulate = bindings.accumulate;
  return call;
}

std::vector<KernelCall> ModelCode::bind_forward(int segment, const SegmentBindings& bindings) const {
  const auto& range = partition_.segment(segment);
  const auto& layout = nth(segments_, segment);
  std::vector<KernelCall> calls;
  for (int n = range.first_node; n <= range.last_node; ++n) {
    const auto& node = graph_.node(n);
    if (node.signature.alias || !fusion_.runs_forward(n)) continue;
    KernelCall call = begin_call(segment, n, bindings);
    call.phase = ops::KernelPhase::forward;
    fuse_forward(segment, call, bindings);
    call.workspace = bindings.temporary + nth(layout.forward_workspace, n - range.first_node);
    if (node.signature.is_loss) call.metrics = bindings.metrics;
    if (nth(fusion_.neighbors, n).gradient_in_forward) {
      call.input_gradients = {call.inputs[0]};
      call.gradient_values = {node.inputs[0]};
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

std::vector<KernelCall> ModelCode::bind_recompute(int segment, const SegmentBindings& bindings) const {
  if (!options_.repeats) return bind_forward(segment, bindings);
  const auto& range = partition_.segment(segment);
  std::vector<KernelCall> calls;
  for (int n = range.first_node; n <= range.last_node; ++n) {
    if (!nth(nth(segments_, segment).repeats, n - range.first_node)) continue;
    KernelCall call = begin_call(segment, n, bindings);
    call.phase = ops::KernelPhase::forward;
    call.workspace = bindings.temporary;
    calls.push_back(std::move(call));
  }
  return calls;
}

void ModelCode::fuse_forward(int segment, KernelCall& call, const SegmentBindings& bindings) const {
  const auto& node = graph_.node(call.node);
  const auto& fused = nth(fusion_.neighbors, call.node);
  const auto writes = [&](int value) {
    call.outputs.push_back(view(value, activation(segment, value, bindings)));
    call.output_values.push_back(value);
  };
  if (fused.gelu_behind) writes(graph_.node(graph_.value(node.outputs[0]).consumer).outputs[0]);
  if (fused.add_behind || fused.relu_behind) {
    if (const int term = fusion_.other_term(graph_, call.node); term >= 0)
      call.inputs.push_back(view(term, activation(segment, term, bindings)));
    // output_values stay: if what is made is not finite, the first of the nodes is blamed.
    const int last = fusion_.last_made(graph_, call.node);
    call.outputs[0] = view(last, activation(segment, last, bindings));
  }
  if (!fused.add_before) return;
  const int sum = graph_.value(node.inputs[0]).storage;
  call.inputs.clear();
  for (const int term : graph_.node(graph_.value(sum).producer).inputs)
    call.inputs.push_back(view(term, activation(segment, term, bindings)));
  writes(sum);
}

Tensor ModelCode::parameter_gradient(int n, size_t slot, const SegmentBindings& bindings) const {
  const int p = nth(graph_.node(n).parameters, static_cast<int>(slot));
  const auto& parameter = graph_.parameter(p);
  int use = 0;
  while (nth(parameter.uses, use).node != n || nth(parameter.uses, use).slot != static_cast<int>(slot)) ++use;
  return {bindings.parameter_gradient(p, use), parameter.spec.shape};
}

void ModelCode::add_parameter_gradients(int n, std::byte* unused, const SegmentBindings& bindings,
                                        KernelCall& call) const {
  const auto& node = graph_.node(n);
  for (size_t slot = 0; slot < node.parameters.size(); ++slot) {
    const auto& parameter = graph_.parameter(node.parameters[slot]);
    call.gradient_parameters.push_back(node.parameters[slot]);
    if (parameter.frozen) {
      call.parameter_gradients.push_back({unused, parameter.spec.shape});
      unused += aligned(parameter.spec.shape.count() * static_cast<int64_t>(sizeof(float)));
    } else {
      call.parameter_gradients.push_back(parameter_gradient(n, slot, bindings));
    }
  }
}

void ModelCode::pass_bias(int n, const SegmentBindings& bindings, KernelCall& call) const {
  constexpr size_t kBias = 1;  // its slot
  if (fusion_.leaves_bias(n)) nth(call.parameter_gradients, kBias).data = nullptr;
  const int linear = nth(fusion_.bias_of, n);
  if (linear < 0) return;
  call.parameter_gradients.push_back(parameter_gradient(linear, kBias, bindings));
  call.gradient_parameters.push_back(nth(graph_.node(linear).parameters, static_cast<int>(kBias)));
}

std::vector<KernelCall> ModelCode::bind_backward(int segment, const SegmentBindings& bindings,
                                                 InstructionKind kind) const {
  const auto& range = partition_.segment(segment);
  const auto& layout = nth(segments_, segment);
  const auto& [temporary, workspace, unused_gradients] = layout.backward.at(kind);
  const auto gradient = [&](int value) -> std::byte* {
    const int root = graph_.value(value).gradient_storage;
    if (const auto* offset = find_offset(layout.stash_gradients, root)) return bindings.stash + *offset;
    if (const auto* offset = find_offset(layout.weight_stash, root);
        offset != nullptr && kind != InstructionKind::backward)
      return bindings.weight_stash + *offset;
    if (const auto* offset = find_offset(temporary, root)) return bindings.temporary + *offset;
    return bindings.gradient(root);
  };
  std::vector<KernelCall> calls;
  for (int n = range.last_node; n >= range.first_node; --n) {
    const auto& node = graph_.node(n);
    const auto& signature = node.signature;
    if (node.signature.passes_gradient || !fusion_.runs_backward(n)) continue;
    if (nth(fusion_.neighbors, n).gradient_in_forward) continue;
    const bool has_second_half = node.has_second_half();
    if (kind == InstructionKind::backward_weight && !has_second_half) continue;
    KernelCall call = begin_call(segment, n, bindings);
    // Outputs and inputs that lived in forward's temporary memory are gone; backward does not read them.
    for (size_t i = 0; i < call.inputs.size(); ++i)
      if (!node.backward_needs_input(i)) call.inputs[i].data = nullptr;
    if (!signature.backward_needs_output)
      for (auto& output : call.outputs) output.data = nullptr;
    call.workspace = bindings.temporary + nth(workspace, n - range.first_node);

    bool wanted = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto& value = graph_.value(node.inputs[i]);
      const bool want = value.needs_gradient && signature.differentiable[i];
      wanted = wanted || want;
      const int made =
          gradient_stays_inside(node.inputs[i]) ? graph_.node(value.producer).inputs[0] : node.inputs[i];
      call.input_gradients.push_back(
          view(made, want && kind != InstructionKind::backward_weight ? gradient(made) : nullptr));
      call.gradient_values.push_back(made);
    }
    bool reached = signature.is_loss;
    for (const int output : fusion_.gradients_read(graph_, n)) {
      const bool has = graph_.value(output).needs_gradient;
      reached = reached || has;
      call.output_gradients.push_back(view(output, has ? gradient(output) : nullptr));
    }
    const auto& input = graph_.value(node.inputs[0]);
    if (const auto& fused = nth(fusion_.neighbors, n); fused.gelu_before) {
      const int read = graph_.node(input.producer).inputs[0];
      call.inputs.push_back(view(read, activation(segment, read, bindings)));
    } else if (fused.fork_before) {
      const int other = nth(graph_.node(input.producer).outputs, 1 - input.producer_output);
      call.output_gradients.push_back(view(other, gradient(other)));
    }
    if (!reached) continue;  // nothing to train at or before this op
    const bool has_gradients = signature.backward == ops::BackwardForm::joint ||
                               (has_second_half && kind != InstructionKind::backward_input);
    if (has_gradients)
      add_parameter_gradients(n, bindings.temporary + nth(unused_gradients, n - range.first_node), bindings,
                              call);
    if (kind == InstructionKind::backward) pass_bias(n, bindings, call);
    if (signature.is_loss) call.metrics = bindings.metrics;
    if (kind != InstructionKind::backward_weight &&
        (wanted || signature.backward == ops::BackwardForm::joint)) {
      call.phase = ops::KernelPhase::backward_input;
      calls.push_back(call);
    }
    if (kind != InstructionKind::backward_input && has_second_half) {
      call.phase = ops::KernelPhase::backward_weight;
      calls.push_back(std::move(call));
    }
  }
  return calls;
}

}  // namespace lockstep::program
