#include "step/actions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/error.h"

namespace lockstep {
namespace {

const Operand* find(const Instruction& instruction, Role role, int index) {
  for (const auto& operand : instruction.operands)
    if (operand.role == role && operand.index == index) return &operand;
  return nullptr;
}

constexpr int64_t kMetricBytes = kMetricCount * sizeof(double);

/// Model inputs of a micro-batch, without memory.
std::vector<Tensor> batch_fields(const Graph& graph, int64_t micro_batch) {
  std::vector<Tensor> fields;
  for (const int input : graph.inputs) {
    const auto& spec = graph.values[static_cast<size_t>(input)].spec;
    fields.push_back({nullptr, spec.shape.batched(micro_batch), spec.dtype});
  }
  return fields;
}

/// Host memory that a batch passes through on its way to a device with memory of its own: one while the other is copied.
struct Staging {
  Buffer memory;
  std::vector<Tensor> fields;
  StepConstants* constants = nullptr;   // they come first
  std::unique_ptr<Event> copied;

  static constexpr int64_t kAlignment = 256;
  static int64_t aligned(int64_t size_bytes) { return (size_bytes + kAlignment - 1) / kAlignment * kAlignment; }
  static int64_t size_bytes_for(const std::vector<Tensor>& fields) {
    int64_t size_bytes = aligned(sizeof(StepConstants));
    for (const auto& field : fields) size_bytes += aligned(field.size_bytes());
    return size_bytes;
  }

  void make(Device& device, const std::vector<Tensor>& like) {
    memory = device.allocate_host(size_bytes_for(like));
    copied = device.create_event();
    constants = reinterpret_cast<StepConstants*>(memory.data());
    std::byte* at = memory.data() + aligned(sizeof(StepConstants));
    for (const auto& field : like) {
      fields.push_back({at, field.shape, field.dtype});
      at += aligned(field.size_bytes());
    }
  }
};

/// Builds the actions of one program: one function per kind of instruction.
class ActionMaker {
 public:
  ActionMaker(const Program& program, const ExecutionContext& context, const KernelObserver* observer)
      : program_(program),
        context_(context),
        observer_(observer),
        kernels_(make_step_kernels(context.device.kind())),
        staging_{std::make_shared<Staging>(), std::make_shared<Staging>()} {}

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
    std::vector<Tensor> fields = batch_fields(context_.graph, context_.code.options().micro_batch);
    for (size_t i = 0; i < fields.size(); ++i) fields[i].data = required(instruction, Role::batch, static_cast<int>(i));
    auto* constants = reinterpret_cast<StepConstants*>(pointer(instruction, Role::constants, 0));
    const int64_t position = context_.first_samples[static_cast<size_t>(instruction.micro_batch)];
    if (context_.device.shares_host_memory())
      return {.start = [fields = std::move(fields), constants, position, batches = context_.batches](
                           Stream&, const StepInputs& inputs, const auto&) {
        if (constants != nullptr) *constants = inputs.constants;
        batches->load(inputs.iteration, position, fields);
      }};
    auto staging = staging_[instruction.micro_batch % 2];
    if (staging->fields.empty()) staging->make(context_.device, fields);
    return {.start = [fields = std::move(fields), staging = std::move(staging), constants, position, batches = context_.batches](
                         Stream& stream, const StepInputs& inputs, const auto&) {
      staging->copied->synchronize();
      std::vector<Tensor>& host = staging->fields;
      batches->load(inputs.iteration, position, host);
      for (size_t i = 0; i < host.size(); ++i) stream.copy(fields[i].data, host[i].data, host[i].size_bytes());
      if (constants != nullptr) {
        *staging->constants = inputs.constants;
        stream.copy(constants, staging->constants, sizeof *constants);
      }
      stream.record(*staging->copied);
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
        if (observer != nullptr && *observer) {
          stream.synchronize();
          (*observer)({index, call});
        }
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
    return {.start = [destination, source, count, kernels = kernels_](Stream& stream, const StepInputs&, const auto&) {
      kernels->add(destination, source, count, stream);
    }};
  }

  Action cast(const Instruction& instruction) {
    const Operand* to = find(instruction, Role::destination, 0);
    const Operand* from = find(instruction, Role::source, 0);
    return {.start = [to = at(*to), to_type = to->dtype, from = at(*from), from_type = from->dtype,
                      count = to->range.size_bytes / size_of(to->dtype), kernels = kernels_](Stream& stream, const StepInputs&, const auto&) {
      kernels->cast(to, to_type, from, from_type, count, stream);
    }};
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
    const int ranks = static_cast<int>(context_.leaves_by_rank.size());
    const int leaves = context_.leaves_by_rank[static_cast<size_t>(program_.rank)];
    const Operand* data = find(instruction, Role::data, 0);
    const AgreementCall call{.records = at(*data), .block_bytes = data->range.size_bytes / ranks, .ranks = ranks,
                             .verdict = reinterpret_cast<Verdict*>(required(instruction, Role::verdict, 0))};
    std::byte* records = at(*data);
    std::byte* own = records + call.block_bytes * program_.rank;
    auto record = std::make_shared<Buffer>(context_.device.allocate_host(sizeof(AgreeRecord)));
    Communicator* comm = communicator(instruction);
    return {.start = [=](Stream& stream, const StepInputs& inputs, const auto&) {
              *reinterpret_cast<AgreeRecord*>(record->data()) = {.stop_requested = static_cast<float>(inputs.stop_requested),
                                                                 .leaves = leaves, .state_hash = inputs.state_hash};
              stream.copy(own, record->data(), sizeof(AgreeRecord));
              stream.copy(own + sizeof(AgreeRecord), metrics, leaves * static_cast<int64_t>(kMetricCount * sizeof(double)));
              comm->all_gather(records, call.block_bytes, stream);
            },
            .communicator = comm,
            .finish = [call, kernels = kernels_](Stream& stream) { kernels->agree(call, stream); }};
  }

  /// Sums of squares by chunks of each parameter, folded in graph order, so that neither buckets nor layouts change a bit.
  Action norm(const Instruction& instruction) {
    struct Place {
      const float* data;
      int64_t count;
      int parameter;
      bool is_statistic;
    };
    std::vector<Place> places;
    for (size_t s = 0; s < context_.partition.buckets.size(); ++s)
      for (const auto& entry : context_.partition.buckets[s].entries)
        if (entry.use == 0) {
          std::byte* base = required(instruction, Role::gradients, static_cast<int>(s));
          const auto role = context_.graph.parameters[static_cast<size_t>(entry.parameter)].spec.role;
          places.push_back({reinterpret_cast<const float*>(base + entry.offset_bytes), entry.count, entry.parameter,
                            role == ParameterRole::statistic});
        }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::pair(a.is_statistic, a.parameter) < std::pair(b.is_statistic, b.parameter);
    });
    NormCall call{.sums = reinterpret_cast<double*>(required(instruction, Role::chunks, 0)),
                  .verdict = reinterpret_cast<Verdict*>(required(instruction, Role::verdict, 0)),
                  .constants = reinterpret_cast<const StepConstants*>(required(instruction, Role::constants, 0)),
                  .static_count = context_.static_count,
                  .clip_norm = context_.clip_norm};
    for (const auto& place : places) {
      call.pieces.push_back({place.data, place.count, call.chunks});
      call.chunks += (place.count + kNormChunk - 1) / kNormChunk;
      if (!place.is_statistic) call.weight_chunks = call.chunks;
    }
    return {.start = [call = std::move(call), kernels = kernels_](Stream& stream, const StepInputs&, const auto&) {
      kernels->norm(call, stream);
    }};
  }

  Action update(const Instruction& instruction) {
    const int segment = instruction.segment;
    const auto& bucket = context_.partition.buckets[static_cast<size_t>(segment)];
    UpdateCall call{.optimizer = context_.optimizer,
                    .parameters = reinterpret_cast<float*>(required(instruction, Role::parameters, segment)),
                    .gradients = reinterpret_cast<const float*>(required(instruction, Role::gradients, segment)),
                    .verdict = reinterpret_cast<const Verdict*>(required(instruction, Role::verdict, 0)),
                    .constants = reinterpret_cast<const StepConstants*>(required(instruction, Role::constants, 0)),
                    .whole_step = find(instruction, Role::verdict, 1) != nullptr,
                    .predicated = find(instruction, Role::predicate, 0) != nullptr,
                    .static_count = context_.static_count,
                    .statistic_scale = context_.statistic_scale};
    for (int slot = 0; slot < state_slots(context_.optimizer); ++slot)
      call.state[slot] = reinterpret_cast<float*>(required(instruction, Role::state, segment) + slot * bucket.owned_bytes);
    for (const auto& entry : bucket.entries) {
      if (entry.use != 0) continue;
      const auto& spec = context_.graph.parameters[static_cast<size_t>(entry.parameter)].spec;
      call.pieces.push_back({.offset = entry.offset_bytes / static_cast<int64_t>(sizeof(float)), .count = entry.count,
                             .decay = context_.optimizer.decay_norm_and_bias || !spec.is_norm_or_bias,
                             .is_statistic = spec.role == ParameterRole::statistic, .momentum = spec.momentum});
    }
    return {.start = [call = std::move(call), kernels = kernels_](Stream& stream, const StepInputs& inputs, const auto&) {
      if (!inputs.suppress_updates) kernels->update(call, stream);
    }};
  }

  /// Copies what it reads, one operand behind the other, so that training may go on while the copy is saved; then asks
  /// whoever saves it whether all is well.
  Action snapshot(const Instruction& instruction) {
    struct Piece {
      const std::byte* source;
      int64_t size_bytes;
    };
    std::vector<Piece> pieces;
    int64_t size_bytes = 0;
    for (const auto& operand : instruction.operands) {
      if (operand.role != Role::parameters && operand.role != Role::state) continue;
      pieces.push_back({at(operand), operand.range.size_bytes});
      size_bytes += pieces.back().size_bytes;
    }
    const Operand* destination = find(instruction, Role::destination, 0);
    ensure(size_bytes == (destination == nullptr ? 0 : destination->range.size_bytes), "a snapshot has room for exactly what it copies");
    std::byte* copy = pointer(instruction, Role::destination, 0);
    auto* failures = reinterpret_cast<double*>(required(instruction, Role::metrics, 0));
    auto outcome = std::make_shared<Buffer>(context_.device.allocate_host(kMetricBytes));
    return {.start = [=, pieces = std::move(pieces), save = context_.snapshot](Stream& stream, const StepInputs&, const auto&) {
      std::byte* to = copy;
      for (const auto& piece : pieces) {
        stream.copy(to, piece.source, piece.size_bytes);
        to += piece.size_bytes;
      }
      stream.synchronize();
      reinterpret_cast<double*>(outcome->data())[0] = save() ? 0 : 1;
      stream.copy(failures, outcome->data(), kMetricBytes);
    }};
  }

  const Program& program_;
  const ExecutionContext& context_;
  const KernelObserver* observer_;
  std::shared_ptr<StepKernels> kernels_;
  std::shared_ptr<Staging> staging_[2];   // by parity of the micro-batch
  int index_ = 0;
};

}  // namespace

std::vector<Action> make_actions(const Program& program, const ExecutionContext& context, const KernelObserver* observer) {
  ActionMaker maker(program, context, observer);
  std::vector<Action> actions;
  for (size_t i = 0; i < program.instructions.size(); ++i) actions.push_back(maker.make(static_cast<int>(i)));
  return actions;
}

int64_t staging_bytes(const Program& program, const Graph& graph, int64_t micro_batch, DeviceKind device) {
  int64_t size_bytes = 0;
  bool loads[2] = {};
  for (const auto& instruction : program.instructions) {
    if (instruction.kind == InstructionKind::load) loads[instruction.micro_batch % 2] = true;
    if (instruction.kind == InstructionKind::agree) size_bytes += static_cast<int64_t>(sizeof(AgreeRecord));
    if (instruction.kind == InstructionKind::snapshot) size_bytes += kMetricBytes;
  }
  if (device == DeviceKind::cuda) size_bytes += (loads[0] + loads[1]) * Staging::size_bytes_for(batch_fields(graph, micro_batch));
  return size_bytes;
}

}  // namespace lockstep
