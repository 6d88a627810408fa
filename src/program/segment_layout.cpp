#include <algorithm>

#include "base/ensure.h"
#include "base/index.h"
#include "program/memory/interval_packing.h"
#include "program/segment_code.h"
#include "program/segment_tables.h"

// What a segment needs from outside, and where what is its own lies.

namespace lockstep::program {
namespace {

void insert_once(std::vector<int>& list, int item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

bool contains(const std::vector<int>& list, int item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

int64_t auxiliary_count(const ops::AuxiliarySpec& spec, const ModelCode::Options& options) {
  return spec.shape.count() * (spec.per_sample ? options.micro_batch : options.virtual_replicas);
}

}  // namespace

void ModelCode::lay_out(int segment) {
  const auto& range = partition_.segment(segment);
  auto& layout = nth(segments_, segment);
  auto& face = layout.face;
  const auto inside = [&](int node) { return node >= range.first_node && node <= range.last_node; };
  const auto producer_of = [&](int value) { return graph_.value(value).producer; };

  for (const int v : range.inputs) insert_once(face.reads, graph_.value(v).storage);
  for (const int v : range.outputs)
    if (const int root = graph_.value(v).storage; inside(producer_of(root))) insert_once(face.writes, root);

  std::vector<int> kept, made;  // storages made inside: needed by backward; all
  const auto keep = [&](int value) {
    const int root = graph_.value(value).storage;
    if (contains(face.reads, root) || contains(face.writes, root)) {
      insert_once(face.backward_reads, root);
    } else {
      insert_once(kept, root);
    }
  };
  for (int n = range.first_node; n <= range.last_node; ++n) {
    const auto& node = graph_.node(n);
    const auto& signature = node.signature;
    face.has_loss = face.has_loss || signature.is_loss;
    for (const int output : node.outputs)
      if (graph_.value(output).storage == output) made.push_back(output);
    for (size_t slot = 0; slot < node.parameters.size(); ++slot) {
      const int owner = graph_.parameter(node.parameters[slot]).uses[0].node;
      for (size_t s = 0; s < partition_.segments.size(); ++s)
        if (owner >= partition_.segments[s].first_node && owner <= partition_.segments[s].last_node)
          insert_once(reads_narrow(node, slot) ? face.narrow_parameter_segments : face.parameter_segments,
                      static_cast<int>(s));
    }
    if (!options_.training || !graph_.runs_backward(node)) continue;
    face.has_backward = true;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.backward_needs_input(i)) keep(node.inputs[i]);
    if (signature.backward_needs_output)
      for (const int output : node.outputs) keep(output);
    if (node.signature.passes_gradient) continue;
    for (const int output : node.outputs) {
      const auto& value = graph_.value(output);
      if (!value.needs_gradient) continue;
      // Follow views and sums of this output to whoever really writes its gradient.
      int last = output;
      while (true) {
        const int reader = graph_.value(last).consumer;
        if (!inside(reader)) {
          insert_once(face.output_gradients, value.gradient_storage);
          break;
        }
        if (!graph_.node(reader).signature.passes_gradient) break;
        last = graph_.node(reader).outputs[0];
      }
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto& value = graph_.value(node.inputs[i]);
      if (value.needs_gradient && signature.differentiable[i] && !inside(producer_of(value.gradient_storage)))
        insert_once(face.input_gradients, value.gradient_storage);
    }
  }
  std::sort(face.parameter_segments.begin(), face.parameter_segments.end());
  std::sort(face.narrow_parameter_segments.begin(), face.narrow_parameter_segments.end());

  choose_repeated(segment, kept);
  for (const int root : kept) {
    const bool repeated = nth(layout.repeats, producer_of(root) - range.first_node);
    int64_t& size_bytes = repeated ? face.repeated_stash_bytes : face.stash_bytes;
    (repeated ? layout.repeated : layout.stash).emplace_back(root, size_bytes);
    size_bytes += aligned(activation_bytes(root));
  }
  find_stash_gradients(segment);
  std::vector<int> temporaries;
  for (const int root : made)
    if (!contains(kept, root) && !contains(face.writes, root) && !fusion_.is_unwritten(graph_, root))
      temporaries.push_back(root);
  lay_out_forward(segment, temporaries);
  if (!options_.training) return;
  lay_out_recompute(segment);
  lay_out_weight_stash(segment);
  face.backward_temporary_bytes = lay_out_backward(segment, InstructionKind::backward);
  face.backward_input_temporary_bytes = lay_out_backward(segment, InstructionKind::backward_input);
  face.backward_weight_temporary_bytes = lay_out_backward(segment, InstructionKind::backward_weight);
}

/// Gradients that forward writes over the values that they are gradients of.
void ModelCode::find_stash_gradients(int segment) {
  const auto& range = partition_.segment(segment);
  auto& layout = nth(segments_, segment);
  for (int n = range.first_node; n <= range.last_node; ++n) {
    if (!nth(fusion_.neighbors, n).gradient_in_forward) continue;
    const int logits = graph_.node(n).inputs[0];
    const int64_t* offset = find_offset(layout.stash, logits);
    ensure(offset != nullptr, "logits whose gradient takes their place are kept");
    layout.stash_gradients.emplace_back(logits, *offset);
  }
}

int64_t ModelCode::unused_gradient_bytes(const model::Node& node) const {
  if (!node.frozen || node.signature.backward != ops::BackwardForm::joint) return 0;
  int64_t bytes = 0;
  for (const int p : node.parameters)
    if (graph_.parameter(p).frozen)
      bytes += aligned(graph_.parameter(p).spec.shape.count() * static_cast<int64_t>(sizeof(float)));
  return bytes;
}

void ModelCode::choose_repeated(int segment, const std::vector<int>& kept) {
  const auto& range = partition_.segment(segment);
  auto& layout = nth(segments_, segment);
  layout.repeats.assign(static_cast<size_t>(range.last_node - range.first_node) + 1, false);
  if (!options_.training || !options_.repeats) return;
  for (int n = range.first_node; n <= range.last_node; ++n) {
    const auto& node = graph_.node(n);
    // A fused GELU's numbers are those of its neighbour's kernel.
    if (!node.signature.cheap_to_repeat || !fusion_.runs_forward(n)) continue;
    // What it reads is still there, and what it makes is kept, for this segment alone.
    const bool can_read = std::ranges::all_of(node.inputs, [&](int input) {
      const int root = graph_.value(input).storage;
      return contains(kept, root) || contains(layout.face.reads, root) || contains(layout.face.writes, root);
    });
    const bool stays = std::ranges::all_of(
        node.outputs, [&](int output) { return contains(kept, graph_.value(output).storage); });
    nth(layout.repeats, n - range.first_node) = can_read && stays;
  }
}

void ModelCode::lay_out_recompute(int segment) {
  const auto& range = partition_.segment(segment);
  auto& layout = nth(segments_, segment);
  auto& face = layout.face;
  if (!options_.repeats) {
    face.recompute_reads = face.reads;
    face.recompute_writes = face.writes;
    face.recompute_temporary_bytes = face.forward_temporary_bytes;
    return;
  }
  for (int n = range.first_node; n <= range.last_node; ++n) {
    if (!nth(layout.repeats, n - range.first_node)) continue;
    for (const int input : graph_.node(n).inputs)
      if (const int root = graph_.value(input).storage;
          contains(face.reads, root) || contains(face.writes, root))
        insert_once(face.recompute_reads, root);
    face.recompute_temporary_bytes = std::max(face.recompute_temporary_bytes,
                                              nth(kernels_, n)->workspace_bytes(ops::KernelPhase::forward));
  }
}

void ModelCode::lay_out_forward(int segment, const std::vector<int>& temporaries) {
  const auto& range = partition_.segment(segment);
  auto& layout = nth(segments_, segment);
  // Nodes that one kernel computes share its time: none of what one of them reads may be overwritten by
  // another.
  const auto event = [&](int node) { return nth(fusion_.forward_node, node); };
  std::vector<Interval> intervals;
  for (const int root : temporaries) {
    const int first = event(graph_.value(root).producer);
    int last = first;
    for (const auto& value : graph_.values)
      if (value.storage == root && value.consumer >= 0) last = std::max(last, event(value.consumer));
    intervals.push_back({activation_bytes(root), first, last});
  }
  for (int n = range.first_node; n <= range.last_node; ++n)
    intervals.push_back({nth(kernels_, n)->workspace_bytes(ops::KernelPhase::forward), n, n});
  const size_t first_auxiliary = intervals.size();
  for (int n = range.first_node; n <= range.last_node; ++n)
    for (const auto& spec : graph_.node(n).signature.auxiliary) {
      const int64_t bytes = auxiliary_count(spec, options_) * size_of(spec.dtype);
      intervals.push_back({options_.training ? 0 : bytes, n, n});
    }
  layout.face.forward_temporary_bytes = pack_intervals(intervals);

  size_t next = 0;
  for (const int root : temporaries) layout.forward_temporary.emplace_back(root, intervals[next++].offset);
  for (int n = range.first_node; n <= range.last_node; ++n)
    layout.forward_workspace.push_back(intervals[next++].offset);
  next = first_auxiliary;
  for (int n = range.first_node; n <= range.last_node; ++n) {
    std::vector<int64_t> offsets;
    int64_t& stash_bytes = nth(layout.repeats, n - range.first_node) ? layout.face.repeated_stash_bytes
                                                                     : layout.face.stash_bytes;
    for (const auto& spec : graph_.node(n).signature.auxiliary) {
      offsets.push_back(options_.training ? stash_bytes : intervals[next].offset);
      ++next;
      if (options_.training) stash_bytes += aligned(auxiliary_count(spec, options_) * size_of(spec.dtype));
    }
    layout.auxiliary.push_back(std::move(offsets));
  }
}

/// What the second half of backward reads: what lies outside, and gradients that stay inside the segment.
void ModelCode::lay_out_weight_stash(int segment) {
  const auto& range = partition_.segment(segment);
  auto& layout = nth(segments_, segment);
  const auto reads = [&](int value) {
    if (const int root = graph_.value(value).storage; contains(layout.face.backward_reads, root))
      insert_once(layout.face.weight_reads, root);
  };
  for (int n = range.first_node; n <= range.last_node; ++n) {
    const auto& node = graph_.node(n);
    if (!node.has_second_half()) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.backward_needs_input(i)) reads(node.inputs[i]);
    for (const int output : node.outputs) {
      if (node.signature.backward_needs_output) reads(output);
      const auto& value = graph_.value(output);
      const int root = value.gradient_storage;
      if (!value.needs_gradient || find_offset(layout.weight_stash, root) != nullptr ||
          find_offset(layout.stash_gradients, root) != nullptr)
        continue;
      // A sum's gradient is also that of its terms: what this segment writes for another one may be what the
      // second half of a term's backward reads.
      if (contains(layout.face.output_gradients, root) || contains(layout.face.input_gradients, root)) {
        insert_once(layout.face.weight_output_gradients, root);
        continue;
      }
      layout.weight_stash.emplace_back(root, layout.face.weight_stash_bytes);
      layout.face.weight_stash_bytes += aligned(activation_bytes(root));
    }
  }
}

/// The temporary memory of backward, or of one of its halves: gradients that live within it, and workspaces.
int64_t ModelCode::lay_out_backward(int segment, InstructionKind kind) {
  const auto& range = partition_.segment(segment);
  auto& layout = nth(segments_, segment);
  auto& [temporary, workspace, unused_gradients] = layout.backward[kind];
  // Event number of a node is the distance of whoever computes it from the segment's end: backward runs in
  // reverse.
  const auto event = [&](int node) { return range.last_node - nth(fusion_.backward_node, node); };
  std::vector<Interval> intervals;
  std::vector<int> roots;
  for (int n = range.last_node; n >= range.first_node && kind != InstructionKind::backward_weight; --n) {
    const auto& node = graph_.node(n);
    if (node.signature.passes_gradient) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto& value = graph_.value(node.inputs[i]);
      const int root = value.gradient_storage;
      const int producer = graph_.value(root).producer;
      if (!value.needs_gradient || !node.signature.differentiable[i] || producer < range.first_node) continue;
      if (gradient_stays_inside(node.inputs[i]) || find_offset(layout.stash_gradients, root) != nullptr)
        continue;
      if (kind == InstructionKind::backward_input && find_offset(layout.weight_stash, root) != nullptr)
        continue;
      roots.push_back(root);
      intervals.push_back({activation_bytes(root), event(n), event(producer)});
    }
  }
  for (int n = range.first_node; n <= range.last_node; ++n) {
    const auto& kernel = *nth(kernels_, n);
    int64_t bytes = 0;
    if (kind != InstructionKind::backward_weight)
      bytes = kernel.workspace_bytes(ops::KernelPhase::backward_input);
    if (kind != InstructionKind::backward_input)
      bytes = std::max(bytes, kernel.workspace_bytes(ops::KernelPhase::backward_weight));
    if (const int64_t unused = unused_gradient_bytes(graph_.node(n)); unused > 0)
      bytes = aligned(bytes) + unused;
    intervals.push_back({bytes, event(n), event(n)});
  }
  const int64_t size_bytes = pack_intervals(intervals);
  for (size_t i = 0; i < roots.size(); ++i) temporary.emplace_back(roots[i], intervals[i].offset);
  for (size_t i = roots.size(); i < intervals.size(); ++i) workspace.push_back(intervals[i].offset);
  for (int n = range.first_node; n <= range.last_node; ++n) {
    const size_t i = roots.size() + static_cast<size_t>(n - range.first_node);
    unused_gradients.push_back(intervals[i].offset + intervals[i].size_bytes -
                               unused_gradient_bytes(graph_.node(n)));
  }
  return size_bytes;
}

}  // namespace lockstep::program
