#include "run/actions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/index.h"
#include "layout/norm_chunks.h"
#include "lockstep/error.h"
#include "program/regions.h"
#include "run/ring_action.h"

namespace lockstep::run {
namespace {

bool holds(const program::ByteRange& outer, const program::ByteRange& inner) {
  return outer.buffer == inner.buffer && inner.offset >= outer.offset &&
         inner.offset + inner.size_bytes <= outer.offset + outer.size_bytes;
}

/// The operand of this role, or null where there is none. REQUIRES: there is at most one.
const program::Operand* find(const program::Instruction& instruction, program::Role role) {
  for (const auto& operand : instruction.operands)
    if (operand.role == role) return &operand;
  return nullptr;
}

const program::Operand* find(const program::Instruction& instruction, program::Role role, int index) {
  for (const auto& operand : instruction.operands)
    if (operand.role == role && operand.index == index) return &operand;
  return nullptr;
}

constexpr int64_t kMetricBytes = ops::kMetricCount * sizeof(double);

/// Model inputs of a micro-batch, without memory.
std::vector<Tensor> batch_fields(const model::Graph& graph, int64_t micro_batch) {
  std::vector<Tensor> fields;
  for (const int input : graph.inputs) {
    const auto& spec = graph.value(input).spec;
    fields.push_back({nullptr, spec.shape.batched(micro_batch), spec.dtype});
  }
  return fields;
}

/// Host memory that a batch passes through on its way to a device with memory of its own: one while the other
/// is copied.
struct Staging {
  device::Buffer memory;
  std::vector<Tensor> fields;
  ops::StepConstants* constants = nullptr;  // they come first
  std::unique_ptr<device::Event> copied;

  static constexpr int64_t kAlignment = 256;
  static int64_t aligned(int64_t size_bytes) {
    return (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static int64_t size_bytes_for(const std::vector<Tensor>& fields) {
    int64_t size_bytes = aligned(sizeof(ops::StepConstants));
    for (const auto& field : fields) size_bytes += aligned(field.size_bytes());
    return size_bytes;
  }

  void make(device::Device& device, const std::vector<Tensor>& like) {
    memory = device.allocate_host(size_bytes_for(like));
    copied = device.create_event();
    constants = reinterpret_cast<ops::StepConstants*>(memory.data());
    std::byte* at = memory.data() + aligned(sizeof(ops::StepConstants));
    for (const auto& field : like) {
      fields.push_back({at, field.shape, field.dtype});
      at += aligned(field.size_bytes());
    }
  }
};

/// Which of two stagings a load takes.
size_t staging_of(const program::Instruction& load) {
  return static_cast<size_t>(std::max(load.micro_batch, 0) % 2);
}

/// Whether a load needs one: on a device with memory of its own; elsewhere for fields that this rank does not
/// want, which are read all the same.
bool stages(const program::Instruction& load, size_t fields, device::DeviceKind device) {
  const auto wanted = std::ranges::count(load.operands, program::Role::batch, &program::Operand::role);
  return device == device::DeviceKind::cuda || (wanted > 0 && static_cast<size_t>(wanted) < fields);
}

void require_runnable(const program::Program& program) {
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (!is_runnable(program.instructions[i].kind))
      throw InternalError(fmt::format("{} cannot be run: no executor can {} yet",
                                      program::describe(program, static_cast<int>(i)),
                                      program::name_of(program.instructions[i].kind)));
}

/// Builds the actions of one program: one function per kind of instruction.
class ActionMaker {
 public:
  ActionMaker(const program::Program& program, const ExecutionContext& context,
              const KernelObserver* observer)
      : program_(program),
        context_(context),
        observer_(observer),
        kernels_(make_step_kernels(context.device.kind())),
        staging_{std::make_shared<Staging>(), std::make_shared<Staging>()} {}

  Action make(int index) {
    index_ = index;
    const auto& instruction = program_.instruction(index);
    switch (instruction.kind) {
      case program::InstructionKind::load:
        return load(instruction);
      case program::InstructionKind::forward:
      case program::InstructionKind::backward:
        return segment(instruction);
      case program::InstructionKind::add:
        return add(instruction);
      case program::InstructionKind::cast:
        return cast(instruction);
      case program::InstructionKind::exchange:
        return exchange(instruction);
      case program::InstructionKind::all_reduce:
        return all_reduce(instruction);
      case program::InstructionKind::reduce_scatter:
        return reduce_scatter(instruction);
      case program::InstructionKind::all_gather:
        return all_gather(instruction);
      case program::InstructionKind::ring_reduce_scatter:
      case program::InstructionKind::ring_all_gather:
        return ring(instruction);
      case program::InstructionKind::broadcast:
        return broadcast(instruction);
      case program::InstructionKind::agree:
        return agree(instruction);
      case program::InstructionKind::norm:
        return norm(instruction);
      case program::InstructionKind::update:
        return update(instruction);
      case program::InstructionKind::snapshot:
        return snapshot(instruction);
      default:
        break;  // require_runnable() has refused it
    }
    throw InternalError(fmt::format("{} has no action", program::describe(program_, index)));
  }

 private:
  /// Where an operand lies, or null where the instruction has none of that kind.
  std::byte* pointer(const program::Instruction& instruction, program::Role role, int index) const {
    const program::Operand* operand = find(instruction, role, index);
    return operand == nullptr ? nullptr : context_.memory.at(program_, operand->range);
  }
  const program::Operand* required_operand(const program::Instruction& instruction,
                                           program::Role role) const {
    const program::Operand* found = find(instruction, role);
    if (found == nullptr)
      throw InternalError(
          fmt::format("{} has no operand '{}'", program::describe(program_, index_), program::name_of(role)));
    return found;
  }
  std::byte* required(const program::Instruction& instruction, program::Role role, int index) const {
    std::byte* found = pointer(instruction, role, index);
    if (found == nullptr)
      throw InternalError(fmt::format("{} has no operand '{} {}'", program::describe(program_, index_),
                                      program::name_of(role), index));
    return found;
  }
  /// Where an operand of just this many bytes, of this type, lies.
  std::byte* exactly(const program::Instruction& instruction, program::Role role, int index,
                     int64_t size_bytes, DType dtype) const {
    std::byte* found = required(instruction, role, index);
    const program::Operand& operand = *find(instruction, role, index);
    if (operand.range.size_bytes != size_bytes || operand.dtype != dtype)
      throw InternalError(fmt::format("{} has an operand '{} {}' of {} bytes of {}; the model's has {} of {}",
                                      program::describe(program_, index_), program::name_of(role), index,
                                      operand.range.size_bytes, name_of(operand.dtype), size_bytes,
                                      name_of(dtype)));
    return found;
  }
  /// Refuses an instruction whose memory of this role is smaller than this; none where 0 bytes are needed.
  void at_least(const program::Instruction& instruction, program::Role role, int64_t size_bytes) const {
    if (size_bytes == 0) return;
    if (const int64_t found = required_operand(instruction, role)->range.size_bytes; found < size_bytes)
      throw InternalError(fmt::format("{} has {} bytes of '{}' and needs {}",
                                      program::describe(program_, index_), found, program::name_of(role),
                                      size_bytes));
  }
  const program::ParameterPlace& place_of(int parameter) const { return program_.parameter(parameter); }
  /// Where bytes lie that one of the instruction's operands must hold.
  std::byte* in_operand(const program::Instruction& instruction, program::Role role, DType dtype,
                        const program::ByteRange& bytes) const {
    for (const auto& operand : instruction.operands)
      if (operand.role == role && operand.dtype == dtype && holds(operand.range, bytes))
        return context_.memory.at(program_, bytes);
    throw InternalError(fmt::format("{} has no operand '{}' of {} with bytes {}+{} of {}",
                                    program::describe(program_, index_), program::name_of(role),
                                    name_of(dtype), bytes.offset, bytes.size_bytes,
                                    bytes.buffer < 0 ? "nothing" : program_.buffer(bytes.buffer).name));
  }
  /// Where a gradient lies that the instruction writes into its segment's bucket.
  std::byte* in_bucket(const program::Instruction& instruction, const program::ParameterPlace::Use& use,
                       int64_t size_bytes) const {
    for (const auto& operand : instruction.operands)
      if (operand.role == program::Role::gradients && operand.dtype == DType::float32 &&
          use.segment == instruction.segment && use.bucket_offset >= operand.position &&
          use.bucket_offset + size_bytes <= operand.position + operand.range.size_bytes)
        return at(operand) + (use.bucket_offset - operand.position);
    throw InternalError(
        fmt::format("{} has no operand of float32 for the gradient at bytes {}+{} of its bucket",
                    program::describe(program_, index_), use.bucket_offset, size_bytes));
  }
  std::byte* at(const program::Operand& operand) const { return context_.memory.at(program_, operand.range); }

  comm::Communicator* communicator(const program::Instruction& instruction) const {
    comm::Communicator* found = context_.communicators.at(static_cast<size_t>(instruction.group));
    ensure(found != nullptr, "a rank communicates in groups of which it is a member");
    return found;
  }

  /// What this rank wants of a micro-batch, and the constants. A rank that wants some of its fields, such as
  /// a pipeline's last stage, reads the others into memory that nobody looks at; one that wants none of them
  /// reads nothing.
  Action load(const program::Instruction& instruction) {
    std::vector<Tensor> fields = batch_fields(context_.graph, context_.code.options().micro_batch);
    const bool wants_batch = find(instruction, program::Role::batch) != nullptr;
    for (size_t i = 0; i < fields.size(); ++i)
      if (find(instruction, program::Role::batch, static_cast<int>(i)) != nullptr)
        fields[i].data = exactly(instruction, program::Role::batch, static_cast<int>(i),
                                 fields[i].size_bytes(), fields[i].dtype);
    auto* constants =
        reinterpret_cast<ops::StepConstants*>(pointer(instruction, program::Role::constants, 0));
    const int64_t position =
        wants_batch ? context_.first_samples.at(static_cast<size_t>(instruction.micro_batch)) : 0;
    auto staging = staging_[staging_of(instruction)];
    if (stages(instruction, fields.size(), context_.device.kind()) && staging->fields.empty())
      staging->make(context_.device, fields);
    BatchSource* batches = wants_batch ? context_.batches : nullptr;
    if (context_.device.shares_host_memory()) {
      for (size_t i = 0; i < fields.size(); ++i)
        if (fields[i].data == nullptr && wants_batch) fields[i].data = staging->fields[i].data;
      return {.start = [fields = std::move(fields), staging = std::move(staging), constants, position,
                        batches](device::Stream&, const StepInputs& inputs, const auto&) {
        if (constants != nullptr) *constants = inputs.constants;
        if (batches != nullptr) batches->load(inputs.iteration, position, fields);
      }};
    }
    return {.start = [fields = std::move(fields), staging = std::move(staging), constants, position, batches](
                         device::Stream& stream, const StepInputs& inputs, const auto&) {
      staging->copied->synchronize();
      std::vector<Tensor>& host = staging->fields;
      if (batches != nullptr) batches->load(inputs.iteration, position, host);
      for (size_t i = 0; i < host.size(); ++i)
        if (fields[i].data != nullptr) stream.copy(fields[i].data, host[i].data, host[i].size_bytes());
      if (constants != nullptr) {
        *staging->constants = inputs.constants;
        stream.copy(constants, staging->constants, sizeof *constants);
      }
      stream.record(*staging->copied);
    }};
  }

  /// Whether the operands of a segment are as large as its kernels take them to be.
  void check_room(const program::Instruction& instruction) const {
    if (instruction.segment < 0 || instruction.segment >= context_.code.segment_count())
      throw InternalError(fmt::format("{}: the model has {} segments", program::describe(program_, index_),
                                      context_.code.segment_count()));
    const auto& face = context_.code.segment(instruction.segment);
    const auto activations = [&](program::Role role, const std::vector<int>& storages) {
      for (const int storage : storages)
        exactly(instruction, role, storage, context_.code.activation_bytes(storage),
                context_.graph.value(storage).spec.dtype);
    };
    const bool forward = instruction.kind == program::InstructionKind::forward;
    activations(program::Role::input, forward ? face.reads : face.backward_reads);
    activations(program::Role::output, forward ? face.writes : std::vector<int>{});
    activations(program::Role::output_gradient, forward ? std::vector<int>{} : face.output_gradients);
    activations(program::Role::input_gradient, forward ? std::vector<int>{} : face.input_gradients);
    at_least(instruction, program::Role::stash, face.stash_bytes);
    at_least(instruction, program::Role::temporary,
             forward ? face.forward_temporary_bytes : face.backward_temporary_bytes);
    at_least(instruction, program::Role::metrics, forward && face.has_loss ? kMetricBytes : 0);
    at_least(instruction, program::Role::constants, static_cast<int64_t>(sizeof(ops::StepConstants)));
  }

  Action segment(const program::Instruction& instruction) {
    check_room(instruction);
    const auto& graph = context_.graph;
    program::SegmentBindings bindings;
    bindings.activation = [&](int storage) {
      std::byte* data = pointer(instruction, program::Role::input, storage);
      return data != nullptr ? data : pointer(instruction, program::Role::output, storage);
    };
    bindings.gradient = [&](int storage) {
      std::byte* data = pointer(instruction, program::Role::output_gradient, storage);
      return data != nullptr ? data : pointer(instruction, program::Role::input_gradient, storage);
    };
    bindings.parameter = [&](int parameter) {
      const auto& place = place_of(parameter);
      return in_operand(instruction, program::Role::parameters, DType::float32,
                        {place.buffer, place.offset, place.size_bytes});
    };
    bindings.narrow_parameter = [&](int parameter) {
      const auto& place = place_of(parameter);
      return in_operand(
          instruction, program::Role::parameters, graph.compute,
          {place.narrow_buffer, place.narrow_offset, place.size_bytes / 4 * size_of(graph.compute)});
    };
    bindings.parameter_gradient = [&](int parameter, int use) {
      const auto& place = place_of(parameter);
      return in_bucket(instruction, nth(place.uses, use), place.size_bytes);
    };
    bindings.stash = pointer(instruction, program::Role::stash, 0);
    bindings.temporary = pointer(instruction, program::Role::temporary, 0);
    bindings.metrics = reinterpret_cast<double*>(pointer(instruction, program::Role::metrics, 0));
    bindings.constants =
        reinterpret_cast<const ops::StepConstants*>(pointer(instruction, program::Role::constants, 0));
    bindings.accumulate = instruction.accumulate;

    const bool forward = instruction.kind == program::InstructionKind::forward;
    auto calls = forward ? context_.code.bind_forward(instruction.segment, bindings)
                         : context_.code.bind_backward(instruction.segment, bindings);
    const int64_t first_sample = nth(context_.first_samples, instruction.micro_batch);
    return {.start = [calls = std::move(calls), first_sample, observer = observer_, index = index_](
                         device::Stream& stream, const StepInputs&, const std::function<void()>& between) {
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

  Action add(const program::Instruction& instruction) {
    const program::Operand* to = required_operand(instruction, program::Role::destination);
    const program::Operand* from = required_operand(instruction, program::Role::source);
    const int64_t count = to->range.size_bytes / size_of(to->dtype);
    if (to->dtype != from->dtype || count * size_of(to->dtype) != from->range.size_bytes)
      throw InternalError(fmt::format("{} adds {} bytes of {} to {} of {}",
                                      program::describe(program_, index_), from->range.size_bytes,
                                      name_of(from->dtype), to->range.size_bytes, name_of(to->dtype)));
    return {.start = [to = at(*to), from = at(*from), count, dtype = to->dtype, kernels = kernels_](
                         device::Stream& stream, const StepInputs&, const auto&) {
      kernels->add(to, from, dtype, count, stream);
    }};
  }

  Action cast(const program::Instruction& instruction) {
    const program::Operand* to = required_operand(instruction, program::Role::destination);
    const program::Operand* from = required_operand(instruction, program::Role::source);
    if (to->range.size_bytes / size_of(to->dtype) != from->range.size_bytes / size_of(from->dtype))
      throw InternalError(fmt::format("{} casts {} bytes of {} to {} of {}",
                                      program::describe(program_, index_), from->range.size_bytes,
                                      name_of(from->dtype), to->range.size_bytes, name_of(to->dtype)));
    return {.start = [to = at(*to), to_type = to->dtype, from = at(*from), from_type = from->dtype,
                      count = to->range.size_bytes / size_of(to->dtype),
                      kernels = kernels_](device::Stream& stream, const StepInputs&, const auto&) {
      kernels->cast(to, to_type, from, from_type, count, stream);
    }};
  }

  Action exchange(const program::Instruction& instruction) {
    std::vector<comm::Transfer> transfers;
    for (const auto& operand : instruction.operands)
      transfers.push_back({operand.role == program::Role::send ? comm::Transfer::Direction::send
                                                               : comm::Transfer::Direction::receive,
                           operand.peer, at(operand), operand.range.size_bytes});
    comm::Communicator* comm = communicator(instruction);
    return {.communicate = [transfers = std::move(transfers), comm](
                               device::Stream& stream,
                               const StepInputs&) { return comm->exchange(transfers, stream); },
            .communicator = comm};
  }

  Action all_reduce(const program::Instruction& instruction) {
    const program::Operand* data = required_operand(instruction, program::Role::data);
    void* at_data = at(*data);
    const DType dtype = data->dtype;
    const int64_t count = data->range.size_bytes / size_of(dtype);
    comm::Communicator* comm = communicator(instruction);
    if (instruction.ordered && comm->size() > 1 && !comm->sums_along_tree())
      throw InternalError(fmt::format(
          "{} needs a sum along the canonical tree, and its communicator ({}) adds in an order of its "
          "own; give its group one through shared memory",
          program::describe(program_, index_), comm->backend()));
    return {.communicate =
                [=](device::Stream& stream, const StepInputs&) {
                  return comm->all_reduce(at_data, count, dtype, comm::ReduceOp::sum, stream);
                },
            .communicator = comm};
  }

  Action reduce_scatter(const program::Instruction& instruction) {
    const program::Operand* data = required_operand(instruction, program::Role::data);
    void* at_data = at(*data);
    const DType dtype = data->dtype;
    comm::Communicator* comm = communicator(instruction);
    const int64_t count = data->range.size_bytes / size_of(dtype) / comm->size();
    return {.communicate =
                [=](device::Stream& stream, const StepInputs&) {
                  return comm->reduce_scatter(at_data, count, dtype, comm::ReduceOp::sum, stream);
                },
            .communicator = comm};
  }

  Action all_gather(const program::Instruction& instruction) {
    const program::Operand* data = required_operand(instruction, program::Role::data);
    void* at_data = at(*data);
    comm::Communicator* comm = communicator(instruction);
    const int64_t block_bytes = data->range.size_bytes / comm->size();
    return {.communicate = [=](device::Stream& stream,
                               const StepInputs&) { return comm->all_gather(at_data, block_bytes, stream); },
            .communicator = comm};
  }

  Action ring(const program::Instruction& instruction) {
    const program::Operand* data = required_operand(instruction, program::Role::data);
    comm::Communicator* comm = communicator(instruction);
    const bool sums = instruction.kind == program::InstructionKind::ring_reduce_scatter;
    if (const auto fault = fault_of(instruction.blocks, data->range.size_bytes, comm->size(),
                                    sums ? size_of(data->dtype) : 1);
        !fault.empty())
      throw InternalError(fmt::format("{}: {}", program::describe(program_, index_), fault));
    if (sums)
      at_least(instruction, program::Role::temporary, largest_block_bytes(instruction.blocks, comm->size()));
    return make_ring_action({.pass = sums ? program::RingPass::reduce_scatter : program::RingPass::all_gather,
                             .blocks = instruction.blocks,
                             .data = at(*data),
                             .scratch = pointer(instruction, program::Role::temporary, 0),
                             .dtype = data->dtype,
                             .communicator = comm},
                            kernels_);
  }

  Action broadcast(const program::Instruction& instruction) {
    const program::Operand* data = required_operand(instruction, program::Role::data);
    void* at_data = at(*data);
    const int64_t size_bytes = data->range.size_bytes;
    comm::Communicator* comm = communicator(instruction);
    const int root = instruction.root;
    return {
        .communicate = [=](device::Stream& stream,
                           const StepInputs&) { return comm->broadcast(at_data, size_bytes, root, stream); },
        .communicator = comm};
  }

  /// All-gathers a record per member of the group, then each of them sums the leaves' metrics in the order of
  /// the group: the same numbers for any number of workers. A member without metrics contributes none.
  Action agree(const program::Instruction& instruction) {
    const auto& members = program_.group(instruction.group).members;
    const program::Operand* metrics = find(instruction, program::Role::metrics);
    const int64_t metric_bytes = metrics == nullptr ? 0 : metrics->range.size_bytes;
    const std::byte* own_metrics = metrics == nullptr ? nullptr : at(*metrics);
    const auto leaves = static_cast<int32_t>(metric_bytes / kMetricBytes);
    const program::Operand* data = required_operand(instruction, program::Role::data);
    const int64_t block_bytes = data->range.size_bytes / static_cast<int64_t>(members.size());
    ensure(static_cast<int64_t>(sizeof(program::AgreeRecord)) + metric_bytes <= block_bytes,
           "a record of an agreement has room for all metrics");
    const AgreementCall call{
        .records = at(*data),
        .block_bytes = block_bytes,
        .ranks = static_cast<int>(members.size()),
        .verdict = reinterpret_cast<program::Verdict*>(required(instruction, program::Role::verdict, 0))};
    comm::Communicator* comm = communicator(instruction);
    std::byte* records = at(*data);
    std::byte* own = records + block_bytes * comm->rank();
    auto record =
        std::make_shared<device::Buffer>(context_.device.allocate_host(sizeof(program::AgreeRecord)));
    return {.communicate =
                [=](device::Stream& stream, const StepInputs& inputs) {
                  *reinterpret_cast<program::AgreeRecord*>(record->data()) = {
                      .stop_requested = static_cast<float>(inputs.stop_requested),
                      .leaves = leaves,
                      .state_hash = inputs.state_hash};
                  stream.copy(own, record->data(), sizeof(program::AgreeRecord));
                  stream.copy(own + sizeof(program::AgreeRecord), own_metrics, metric_bytes);
                  return comm->all_gather(records, call.block_bytes, stream);
                },
            .communicator = comm,
            .finish = [call, kernels = kernels_](device::Stream& stream) { kernels->agree(call, stream); }};
  }

  /// Sums of squares by chunks of each parameter, folded in graph order, so that neither buckets nor layouts
  /// change a bit. With gradients it writes their chunks' sums, and zero for all other chunks: those of
  /// several ranks are then added. With a verdict to write it folds all sums.
  Action norm(const program::Instruction& instruction) {
    const layout::NormChunks chunks = layout::norm_chunks_of(context_.graph);
    const program::Operand* sums = required_operand(instruction, program::Role::chunks);
    ensure(sums->range.size_bytes == chunks.count * static_cast<int64_t>(sizeof(double)),
           "a norm has one sum for each chunk of the model");
    NormCall call{.pieces = norm_pieces(instruction, chunks),
                  .weight_chunks = chunks.weights,
                  .chunks = chunks.count,
                  .sums = reinterpret_cast<double*>(at(*sums)),
                  .static_count = context_.static_count,
                  .clip_norm = context_.clip_norm};
    const bool squares = program::writes(sums->access);
    const bool folds = find(instruction, program::Role::verdict, 1) != nullptr;
    if (folds) {
      call.verdict = reinterpret_cast<program::Verdict*>(required(instruction, program::Role::verdict, 0));
      call.constants =
          reinterpret_cast<const ops::StepConstants*>(required(instruction, program::Role::constants, 0));
    }
    return {.start = [call = std::move(call), squares, folds, kernels = kernels_](
                         device::Stream& stream, const StepInputs&, const auto&) {
      if (squares) kernels->sum_squares(call, stream);
      if (folds) kernels->conclude_norm(call, stream);
    }};
  }

  /// The parts of parameters' gradients that a norm reads, in the order of their chunks.
  std::vector<NormCall::Piece> norm_pieces(const program::Instruction& instruction,
                                           const layout::NormChunks& chunks) const {
    std::vector<NormCall::Piece> pieces;
    for (const auto& operand : instruction.operands) {
      if (operand.role != program::Role::gradients) continue;
      const int64_t begin = operand.position, end = operand.position + operand.range.size_bytes;
      for (size_t p = 0; p < program_.parameters.size(); ++p) {
        const auto& place = program_.parameters[p];
        const auto& use = place.uses[0];
        const int64_t from = std::max(begin, use.bucket_offset),
                      to = std::min(end, use.bucket_offset + place.size_bytes);
        if (use.segment != operand.index || from >= to) continue;
        const int64_t first = (from - use.bucket_offset) / 4, count = (to - from) / 4;
        if (first % layout::kNormChunk != 0 ||
            ((first + count) % layout::kNormChunk != 0 && first + count != place.size_bytes / 4))
          throw InternalError(
              fmt::format("{} reads elements {}+{} of the gradient of '{}'; parts begin and end on borders "
                          "of {} elements",
                          program::describe(program_, index_), first, count, place.name, layout::kNormChunk));
        pieces.push_back({reinterpret_cast<const float*>(at(operand) + (from - begin)), count,
                          chunks.first[p] + first / layout::kNormChunk});
      }
    }
    std::sort(pieces.begin(), pieces.end(),
              [](const auto& a, const auto& b) { return a.first_chunk < b.first_chunk; });
    std::vector<NormCall::Piece> all;  // and what lies between: other ranks' chunks
    int64_t next = 0;
    for (const auto& piece : pieces) {
      if (piece.first_chunk > next)
        all.push_back({nullptr, (piece.first_chunk - next) * layout::kNormChunk, next});
      all.push_back(piece);
      next = piece.first_chunk + (piece.count + layout::kNormChunk - 1) / layout::kNormChunk;
    }
    if (next < chunks.count) all.push_back({nullptr, (chunks.count - next) * layout::kNormChunk, next});
    return all;
  }

  /// The optimizer on the part of parameters that the operands hold, with as many bytes of state for each
  /// slot.
  Action update(const program::Instruction& instruction) {
    const program::Operand* parameters = required_operand(instruction, program::Role::parameters);
    const program::Operand* gradients = required_operand(instruction, program::Role::gradients);
    UpdateCall call{
        .optimizer = context_.optimizer,
        .parameters = reinterpret_cast<float*>(at(*parameters)),
        .gradients = reinterpret_cast<const float*>(at(*gradients)),
        .verdict =
            reinterpret_cast<const program::Verdict*>(required(instruction, program::Role::verdict, 0)),
        .constants =
            reinterpret_cast<const ops::StepConstants*>(required(instruction, program::Role::constants, 0)),
        .whole_step = find(instruction, program::Role::verdict, 1) != nullptr,
        .predicated = find(instruction, program::Role::predicate, 0) != nullptr,
        .static_count = context_.static_count,
        .statistic_scale = context_.statistic_scale};
    const int slots = optim::state_slots(context_.optimizer);
    const int64_t size_bytes = parameters->range.size_bytes;
    if (slots > 0) {
      const program::Operand* state = required_operand(instruction, program::Role::state);
      if (state->range.size_bytes != slots * size_bytes)
        throw InternalError(
            fmt::format("{} has {} bytes of state for {} of parameters; expected {} times as many",
                        program::describe(program_, index_), state->range.size_bytes, size_bytes, slots));
      for (int slot = 0; slot < slots; ++slot)
        call.state[slot] = reinterpret_cast<float*>(at(*state) + slot * size_bytes);
    }
    for (size_t p = 0; p < program_.parameters.size(); ++p) {
      const auto& place = program_.parameters[p];
      const int64_t from = std::max(parameters->range.offset, place.offset);
      const int64_t to = std::min(parameters->range.offset + size_bytes, place.offset + place.size_bytes);
      if (place.buffer != parameters->range.buffer || from >= to) continue;
      const auto& spec = context_.graph.parameters[p].spec;
      call.pieces.push_back({.offset = (from - parameters->range.offset) / 4,
                             .count = (to - from) / 4,
                             .decay = context_.optimizer.decay_norm_and_bias || !spec.is_norm_or_bias,
                             .is_statistic = spec.role == ops::ParameterRole::statistic,
                             .momentum = spec.momentum});
    }
    std::sort(call.pieces.begin(), call.pieces.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    return {.start = [call = std::move(call), kernels = kernels_](device::Stream& stream,
                                                                  const StepInputs& inputs, const auto&) {
      if (!inputs.suppress_updates) kernels->update(call, stream);
    }};
  }

  /// Copies what it reads, one operand after the other, so that training may go on while the copy is saved;
  /// then asks whoever saves it whether all is well.
  Action snapshot(const program::Instruction& instruction) {
    struct Piece {
      const std::byte* source;
      int64_t size_bytes;
    };
    std::vector<Piece> pieces;
    int64_t size_bytes = 0;
    for (const auto& operand : instruction.operands) {
      if (operand.role != program::Role::parameters && operand.role != program::Role::state) continue;
      pieces.push_back({at(operand), operand.range.size_bytes});
      size_bytes += pieces.back().size_bytes;
    }
    const program::Operand* destination = find(instruction, program::Role::destination, 0);
    ensure(size_bytes == (destination == nullptr ? 0 : destination->range.size_bytes),
           "a snapshot has room for exactly what it copies");
    std::byte* copy = pointer(instruction, program::Role::destination, 0);
    auto* failures = reinterpret_cast<double*>(required(instruction, program::Role::metrics, 0));
    auto outcome = std::make_shared<device::Buffer>(context_.device.allocate_host(kMetricBytes));
    return {.start = [=, pieces = std::move(pieces), save = context_.snapshot](
                         device::Stream& stream, const StepInputs&, const auto&) {
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

  const program::Program& program_;
  const ExecutionContext& context_;
  const KernelObserver* observer_;
  std::shared_ptr<StepKernels> kernels_;
  std::shared_ptr<Staging> staging_[2];  // by parity of the micro-batch
  int index_ = 0;
};

}  // namespace

bool is_runnable(program::InstructionKind kind) {
  switch (kind) {
    case program::InstructionKind::backward_input:
    case program::InstructionKind::backward_weight:
    case program::InstructionKind::recompute:
    case program::InstructionKind::push:
    case program::InstructionKind::pull:
    case program::InstructionKind::finite:
    case program::InstructionKind::serve:
      return false;
    default:
      return true;
  }
}

std::vector<Action> make_actions(const program::Program& program, const ExecutionContext& context,
                                 const KernelObserver* observer) {
  require_runnable(program);
  ActionMaker maker(program, context, observer);
  std::vector<Action> actions;
  for (size_t i = 0; i < program.instructions.size(); ++i) actions.push_back(maker.make(static_cast<int>(i)));
  return actions;
}

int64_t staging_bytes(const program::Program& program, const model::Graph& graph, int64_t micro_batch,
                      device::DeviceKind device) {
  int64_t size_bytes = 0;
  bool staged[2] = {};
  for (const auto& instruction : program.instructions) {
    if (instruction.kind == program::InstructionKind::load &&
        stages(instruction, graph.inputs.size(), device))
      staged[staging_of(instruction)] = true;
    if (instruction.kind == program::InstructionKind::agree)
      size_bytes += static_cast<int64_t>(sizeof(program::AgreeRecord));
    if (instruction.kind == program::InstructionKind::snapshot) size_bytes += kMetricBytes;
  }
  size_bytes += (staged[0] + staged[1]) * Staging::size_bytes_for(batch_fields(graph, micro_batch));
  return size_bytes;
}

}  // namespace lockstep::run
