#include "step/actions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/error.h"
#include "step/vector_sums.h"
#include "tensor/convert.h"

namespace lockstep {
namespace {

const Operand* find(const Instruction& instruction, Role role, int index) {
  for (const auto& operand : instruction.operands)
    if (operand.role == role && operand.index == index) return &operand;
  return nullptr;
}

/// Builds the actions of one program: one function per kind of instruction.
class ActionMaker {
 public:
  ActionMaker(const Program& program, const ExecutionContext& context, const KernelObserver* observer)
      : program_(program), context_(context), observer_(observer) {}

  Action make(int index) {
    index_ = index;
    const auto& instruction = program_.instructions[static_cast<size_t>(index)];
    switch (instruction.kind) {
      case InstructionKind::load: return load(instruction);
      case InstructionKind::forward:
      case InstructionKind::backward: return segment(instruction);
      case InstructionKind::add: return add(instruction);
      case InstructionKind::cast: return cast(instruction);
      case InstructionKind::exchange: return exchange(instruction);
      case InstructionKind::all_reduce: return all_reduce(instruction);
      case InstructionKind::reduce_scatter: return reduce_scatter(instruction);
      case InstructionKind::all_gather: return all_gather(instruction);
      case InstructionKind::broadcast: return broadcast(instruction);
      case InstructionKind::agree: return agree(instruction);
      case InstructionKind::norm: return norm(instruction);
      case InstructionKind::update: return update(instruction);
      case InstructionKind::snapshot: return snapshot(instruction);
      default:
        throw InternalError(fmt::format("{}: this executor has no action for it", describe(program_, index)));
    }
  }

 private:
  /// Where an operand lies, or null where the instruction has none of that kind.
  std::byte* pointer(const Instruction& instruction, Role role, int index) const {
    const Operand* operand = find(instruction, role, index);
    return operand == nullptr ? nullptr : context_.memory.at(program_, operand->range);
  }
  std::byte* required(const Instruction& instruction, Role role, int index) const {
    std::byte* found = pointer(instruction, role, index);
    if (found == nullptr)
      throw InternalError(fmt::format("{} has no operand '{} {}'", describe(program_, index_), name_of(role), index));
    return found;
  }
  /// A segment's parameters as float32 or as their narrow copy.
  std::byte* parameters_of(const Instruction& instruction, int owner, DType dtype) const {
    for (const auto& operand : instruction.operands)
      if (operand.role == Role::parameters && operand.index == owner && operand.dtype == dtype) return at(operand);
    throw InternalError(fmt::format("{} has no operand 'parameters {}' of {}", describe(program_, index_), owner, name_of(dtype)));
  }
  std::byte* at(const Operand& operand) const { return context_.memory.at(program_, operand.range); }

  Communicator* communicator(const Instruction& instruction) const {
    Communicator* found = context_.communicators.at(static_cast<size_t>(instruction.group));
    ensure(found != nullptr, "a rank communicates in groups of which it is a member");
    return found;
  }

  Action load(const Instruction& instruction) {
    std::vector<Tensor> fields;
    for (size_t i = 0; i < context_.graph.inputs.size(); ++i) {
      const auto& spec = context_.graph.values[static_cast<size_t>(context_.graph.inputs[i])].spec;
      fields.push_back({required(instruction, Role::batch, static_cast<int>(i)),
                        spec.shape.batched(context_.code.options().micro_batch), spec.dtype});
    }
    auto* constants = reinterpret_cast<StepConstants*>(pointer(instruction, Role::constants, 0));
    const int64_t position = context_.first_samples[static_cast<size_t>(instruction.micro_batch)];
    return {.start = [fields = std::move(fields), constants, position, batches = context_.batches](
                         Stream&, const StepInputs& inputs, const auto&) {
      if (constants != nullptr) *constants = inputs.constants;
      batches->load(inputs.iteration, position, fields);
    }};
  }

  Action segment(const Instruction& instruction) {
    const auto& graph = context_.graph;
    const auto& partition = context_.partition;
    SegmentBindings bindings;
    bindings.activation = [&](int storage) {
      std::byte* data = pointer(instruction, Role::input, storage);
      return data != nullptr ? data : pointer(instruction, Role::output, storage);
    };
    bindings.gradient = [&](int storage) {
      std::byte* data = pointer(instruction, Role::output_gradient, storage);
      return data != nullptr ? data : pointer(instruction, Role::input_gradient, storage);
    };
    const auto entry_of = [&](int parameter, int use) -> std::pair<int, const BucketEntry*> {
      const int node = graph.parameters[static_cast<size_t>(parameter)].uses[static_cast<size_t>(use)].node;
      for (size_t s = 0; s < partition.segments.size(); ++s)
        if (node >= partition.segments[s].first_node && node <= partition.segments[s].last_node)
          for (const auto& entry : partition.buckets[s].entries)
            if (entry.parameter == parameter && entry.use == use) return {static_cast<int>(s), &entry};
      throw InternalError("a parameter has no place in any bucket");
    };
    bindings.parameter = [&](int parameter) {
      const auto [owner, entry] = entry_of(parameter, 0);
      return parameters_of(instruction, owner, DType::float32) + entry->offset_bytes;
    };
    bindings.narrow_parameter = [&](int parameter) {
      const auto [owner, entry] = entry_of(parameter, 0);
      return parameters_of(instruction, owner, graph.compute) + entry->offset_bytes / 4 * size_of(graph.compute);
    };
    bindings.parameter_gradient = [&](int parameter, int use) {
      const auto [owner, entry] = entry_of(parameter, use);
      return required(instruction, Role::gradients, owner) + entry->offset_bytes;
    };
    bindings.stash = pointer(instruction, Role::stash, 0);
    bindings.temporary = pointer(instruction, Role::temporary, 0);
    bindings.metrics = reinterpret_cast<double*>(pointer(instruction, Role::metrics, 0));
    bindings.constants = reinterpret_cast<const StepConstants*>(pointer(instruction, Role::constants, 0));
    bindings.accumulate = instruction.accumulate;

    const bool forward = instruction.kind == InstructionKind::forward;
    auto calls = forward ? context_.code.bind_forward(instruction.segment, bindings)
                         : context_.code.bind_backward(instruction.segment, bindings);
    const int64_t first_sample = context_.first_samples[static_cast<size_t>(instruction.micro_batch)];
    return {.start = [calls = std::move(calls), first_sample, observer = observer_, index = index_](
                       Stream& stream, const StepInputs&, const std::function<void()>& between) {
      for (const auto& call : calls) {
        call.run(stream, first_sample);
        if (observer != nullptr && *observer) (*observer)({index, call});
        between();
      }
    }};
  }

  Action add(const Instruction& instruction) {
    const Operand* to = find(instruction, Role::destination, 0);
    const Operand* from = find(instruction, Role::source, 0);
    auto* destination = reinterpret_cast<float*>(at(*to));
    const auto* source = reinterpret_cast<const float*>(at(*from));
    const int64_t count = to->range.size_bytes / 4;
    return {.start = [destination, source, count](Stream& stream, const StepInputs&, const auto&) {
      stream.launch([destination, source, count] { add_into(destination, source, count); });
    }};
  }

  Action cast(const Instruction& instruction) {
    const Operand* to = find(instruction, Role::destination, 0);
    const Operand* from = find(instruction, Role::source, 0);
    const auto work = [to = at(*to), to_type = to->dtype, from = at(*from), from_type = from->dtype,
                       count = to->range.size_bytes / size_of(to->dtype)] { convert(to, to_type, from, from_type, count); };
    return {.start = [work](Stream& stream, const StepInputs&, const auto&) { stream.launch(work); }};
  }

  Action exchange(const Instruction& instruction) {
    std::vector<Transfer> transfers;
    for (const auto& operand : instruction.operands)
      transfers.push_back({operand.role == Role::send ? Transfer::Direction::send : Transfer::Direction::receive,
                           operand.peer, at(operand), operand.range.size_bytes});
    Communicator* comm = communicator(instruction);
    return {.start = [transfers = std::move(transfers), comm](Stream& stream, const StepInputs&, const auto&) {
              comm->exchange(transfers, stream);
            },
            .communicator = comm};
  }

  Action all_reduce(const Instruction& instruction) {
    const Operand* data = find(instruction, Role::data, 0);
    void* at_data = at(*data);
    const DType dtype = data->dtype;
    const int64_t count = data->range.size_bytes / size_of(dtype);
    Communicator* comm = communicator(instruction);
    if (instruction.ordered && comm->size() > 1 && !comm->sums_along_tree())
      throw InternalError(fmt::format("{} needs a sum along the canonical tree, and its communicator ({}) adds in an order of its "
                                      "own; give its group one through shared memory", describe(program_, index_), comm->backend()));
    return {.start = [=](Stream& stream, const StepInputs&, const auto&) {
              comm->all_reduce(at_data, count, dtype, ReduceOp::sum, stream);
            },
            .communicator = comm};
  }

  Action reduce_scatter(const Instruction& instruction) {
    const Operand* data = find(instruction, Role::data, 0);
    void* at_data = at(*data);
    const DType dtype = data->dtype;
    Communicator* comm = communicator(instruction);
    const int64_t count = data->range.size_bytes / size_of(dtype) / comm->size();
    return {.start = [=](Stream& stream, const StepInputs&, const auto&) {
              comm->reduce_scatter(at_data, count, dtype, ReduceOp::sum, stream);
            },
            .communicator = comm};
  }

  Action all_gather(const Instruction& instruction) {
    const Operand* data = find(instruction, Role::data, 0);
    void* at_data = at(*data);
    Communicator* comm = communicator(instruction);
    const int64_t block_bytes = data->range.size_bytes / comm->size();
    return {.start = [=](Stream& stream, const StepInputs&, const auto&) { comm->all_gather(at_data, block_bytes, stream); },
            .communicator = comm};
  }

  Action broadcast(const Instruction& instruction) {
    const Operand* data = find(instruction, Role::data, 0);
    void* at_data = at(*data);
    const int64_t size_bytes = data->range.size_bytes;
    Communicator* comm = communicator(instruction);
    const int root = instruction.root;
    return {.start = [=](Stream& stream, const StepInputs&, const auto&) { comm->broadcast(at_data, size_bytes, root, stream); },
            .communicator = comm};
  }

  /// All-gathers a record per rank, then every rank sums the leaves' metrics in leaf order: the same numbers for any
  /// number of workers.
  Action agree(const Instruction& instruction) {
    const auto* metrics = reinterpret_cast<const double*>(required(instruction, Role::metrics, 0));
    std::byte* records = required(instruction, Role::data, 0);
    auto* verdict = reinterpret_cast<Verdict*>(required(instruction, Role::verdict, 0));
    const auto leaves = context_.leaves_by_rank;
    const int64_t block = find(instruction, Role::data, 0)->range.size_bytes / static_cast<int64_t>(leaves.size());
    Communicator* comm = communicator(instruction);
    const auto own_leaves = static_cast<size_t>(leaves[static_cast<size_t>(program_.rank)]);
    std::byte* own = records + block * program_.rank;
    return {.start = [=](Stream& stream, const StepInputs& inputs, const auto&) {
              const AgreeRecord record{.stop_requested = inputs.stop_requested, .state_hash = inputs.state_hash};
              std::memcpy(own, &record, sizeof record);
              std::memcpy(own + sizeof record, metrics, own_leaves * kMetricCount * sizeof(double));
              comm->all_gather(records, block, stream);
            },
            .communicator = comm,
            .finish = [=] {
              Verdict agreed;
              AgreeRecord first;
              std::memcpy(&first, records, sizeof first);
              for (size_t rank = 0; rank < leaves.size(); ++rank) {
                const std::byte* at_record = records + block * static_cast<int64_t>(rank);
                AgreeRecord record;
                std::memcpy(&record, at_record, sizeof record);
                agreed.stop_requested = std::max(agreed.stop_requested, static_cast<float>(record.stop_requested));
                if (record.state_hash != first.state_hash) agreed.replicas_differ = 1;
                const auto* leaf = reinterpret_cast<const double*>(at_record + sizeof record);
                for (int l = 0; l < leaves[rank]; ++l, leaf += kMetricCount) {
                  agreed.loss_sum += leaf[kLossSum];
                  agreed.count += leaf[kCount];
                  agreed.correct += leaf[kCorrect];
                }
              }
              std::memcpy(static_cast<void*>(verdict), &agreed, kAgreedBytes);  // the rest is norm's
            }};
  }

  /// Sums of squares by chunks of each parameter, folded per parameter and then over parameters in graph order, so that
  /// neither buckets nor layouts change a bit. Statistics are no gradients and do not count, but must be finite too.
  Action norm(const Instruction& instruction) {
    struct Piece {
      const float* data;
      int64_t count;
      int64_t chunk;      // index of its sum
      int parameter;
      bool is_weight;
    };
    std::vector<Piece> pieces;
    for (size_t s = 0; s < context_.partition.buckets.size(); ++s)
      for (const auto& entry : context_.partition.buckets[s].entries)
        if (entry.use == 0) {
          std::byte* base = required(instruction, Role::gradients, static_cast<int>(s));
          const auto role = context_.graph.parameters[static_cast<size_t>(entry.parameter)].spec.role;
          pieces.push_back({reinterpret_cast<const float*>(base + entry.offset_bytes), entry.count, 0, entry.parameter,
                            role == ParameterRole::weight});
        }
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.parameter < b.parameter; });
    int64_t chunks = 0;
    for (auto& piece : pieces) {
      piece.chunk = chunks;
      chunks += (piece.count + kNormChunk - 1) / kNormChunk;
    }
    auto* sums = reinterpret_cast<double*>(required(instruction, Role::chunks, 0));
    auto* agreed = reinterpret_cast<Verdict*>(required(instruction, Role::verdict, 0));
    const double static_count = context_.static_count, clip = context_.clip_norm;
    const auto* constants = reinterpret_cast<const StepConstants*>(required(instruction, Role::constants, 0));
    return {.start = [=, pieces = std::move(pieces)](Stream& stream, const StepInputs&, const auto&) {
      stream.launch([&pieces, sums, agreed, static_count, clip, constants] {
        double total = 0, statistics = 0;
        for (const auto& piece : pieces)
          for (int64_t begin = 0, c = piece.chunk; begin < piece.count; begin += kNormChunk, ++c) {
            sums[c] = sum_of_squares(piece.data + begin, std::min(kNormChunk, piece.count - begin));
            (piece.is_weight ? total : statistics) += sums[c];
          }
        const double ratio = agreed->count > 0 ? static_count / agreed->count : 0;
        // Dividing by the scale of the loss, a power of two, is exact.
        agreed->gradient_norm = std::sqrt(total) * ratio / constants->loss_scale;
        agreed->finite = std::isfinite(total) && std::isfinite(statistics) && std::isfinite(agreed->loss_sum) ? 1 : 0;
        // As PyTorch's clip_grad_norm_: the coefficient is max_norm / (norm + 1e-6), at most 1.
        agreed->gradient_scale = clip > 0 ? std::min(1.0, clip / (agreed->gradient_norm + 1e-6)) : 1.0;
      });
    }};
  }

  Action update(const Instruction& instruction) {
    struct Piece {
      UpdateArguments arguments;
      ParameterRole role;
      float momentum;
    };
    const int segment = instruction.segment;
    const auto& bucket = context_.partition.buckets[static_cast<size_t>(segment)];
    auto* parameters = required(instruction, Role::parameters, segment);
    const auto* gradients = required(instruction, Role::gradients, segment);
    auto* state = pointer(instruction, Role::state, segment);
    std::vector<Piece> pieces;
    for (const auto& entry : bucket.entries) {
      if (entry.use != 0) continue;
      const auto& spec = context_.graph.parameters[static_cast<size_t>(entry.parameter)].spec;
      UpdateArguments arguments;
      arguments.parameters = reinterpret_cast<float*>(parameters + entry.offset_bytes);
      arguments.gradients = reinterpret_cast<const float*>(gradients + entry.offset_bytes);
      for (int slot = 0; slot < state_slots(context_.optimizer); ++slot)
        arguments.state[slot] = reinterpret_cast<float*>(state + slot * bucket.owned_bytes + entry.offset_bytes);
      arguments.count = entry.count;
      arguments.decay = context_.optimizer.decay_norm_and_bias || !spec.is_norm_or_bias;
      pieces.push_back({arguments, spec.role, spec.momentum});
    }
    const auto* verdict = reinterpret_cast<const Verdict*>(required(instruction, Role::verdict, 0));
    const bool whole_step = find(instruction, Role::verdict, 1) != nullptr;
    const bool predicated = find(instruction, Role::predicate, 0) != nullptr;
    const auto* constants = reinterpret_cast<const StepConstants*>(required(instruction, Role::constants, 0));
    return {.start = [=, this_context = &context_, pieces = std::move(pieces)](Stream& stream, const StepInputs& inputs, const auto&) {
      if (inputs.suppress_updates || (predicated && verdict->finite == 0)) return;
      const double ratio = verdict->count > 0 ? this_context->static_count / verdict->count : 0;
      const double scale = ratio * (whole_step ? verdict->gradient_scale : 1.0) / constants->loss_scale;
      for (auto piece : pieces) {
        piece.arguments.gradient_scale = scale;
        if (piece.role == ParameterRole::statistic) {
          update_statistic(piece.arguments.parameters, piece.arguments.gradients, piece.arguments.count, piece.momentum,
                           this_context->statistic_scale, stream);
        } else {
          lockstep::update(this_context->optimizer, piece.arguments, *constants, stream);
        }
      }
    }};
  }

  /// Copies what it reads, one operand behind the other, so that training may go on while the copy is saved; then asks
  /// whoever saves it whether all is well.
  Action snapshot(const Instruction& instruction) {
    struct Piece {
      const std::byte* source;
      size_t size_bytes;
    };
    std::vector<Piece> pieces;
    size_t size_bytes = 0;
    for (const auto& operand : instruction.operands) {
      if (operand.role != Role::parameters && operand.role != Role::state) continue;
      pieces.push_back({at(operand), static_cast<size_t>(operand.range.size_bytes)});
      size_bytes += pieces.back().size_bytes;
    }
    const Operand* destination = find(instruction, Role::destination, 0);
    ensure(size_bytes == static_cast<size_t>(destination == nullptr ? 0 : destination->range.size_bytes),
           "a snapshot has room for exactly what it copies");
    std::byte* copy = pointer(instruction, Role::destination, 0);
    auto* failures = reinterpret_cast<double*>(required(instruction, Role::metrics, 0));
    return {.start = [=, pieces = std::move(pieces), save = context_.snapshot](Stream& stream, const StepInputs&, const auto&) {
      stream.launch([&pieces, copy] {
        std::byte* to = copy;
        for (const auto& piece : pieces) {
          std::memcpy(to, piece.source, piece.size_bytes);
          to += piece.size_bytes;
        }
      });
      std::fill_n(failures, static_cast<size_t>(kMetricCount), 0.0);
      if (!save()) failures[0] = 1;
    }};
  }

  const Program& program_;
  const ExecutionContext& context_;
  const KernelObserver* observer_;
  int index_ = 0;
};

}  // namespace

std::vector<Action> make_actions(const Program& program, const ExecutionContext& context, const KernelObserver* observer) {
  ActionMaker maker(program, context, observer);
  std::vector<Action> actions;
  for (size_t i = 0; i < program.instructions.size(); ++i) actions.push_back(maker.make(static_cast<int>(i)));
  return actions;
}

}  // namespace lockstep
