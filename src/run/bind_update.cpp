#include <fmt/format.h>

#include <algorithm>

#include "base/ensure.h"
#include "base/index.h"
#include "lockstep/error.h"
#include "program/matrix_scratch.h"
#include "program/regions.h"
#include "run/bind.h"
#include "tensor/convert.h"

namespace lockstep::run {

Action bind_add(const Binding& binding) {
  const program::Operand* to = binding.required_operand(program::Role::destination);
  const program::Operand* from = binding.required_operand(program::Role::source);
  const int64_t count = to->range.size_bytes / size_of(to->dtype);
  if (to->dtype != from->dtype || count * size_of(to->dtype) != from->range.size_bytes)
    throw InternalError(fmt::format("{} adds {} bytes of {} to {} of {}", binding.describe(),
                                    from->range.size_bytes, name_of(from->dtype), to->range.size_bytes,
                                    name_of(to->dtype)));
  return {.start = [to = binding.at(*to), from = binding.at(*from), count, dtype = to->dtype,
                    kernels = binding.kernels()](device::Stream& stream, const StepInputs&, const auto&) {
    kernels->add(to, from, dtype, count, stream);
  }};
}

Action bind_cast(const Binding& binding) {
  const program::Operand* to = binding.required_operand(program::Role::destination);
  const program::Operand* from = binding.required_operand(program::Role::source);
  if (to->range.size_bytes / size_of(to->dtype) != from->range.size_bytes / size_of(from->dtype))
    throw InternalError(fmt::format("{} casts {} bytes of {} to {} of {}", binding.describe(),
                                    from->range.size_bytes, name_of(from->dtype), to->range.size_bytes,
                                    name_of(to->dtype)));
  if (const program::Operand* residual = binding.find(program::Role::residual)) {
    if (residual->dtype != DType::float32 || from->dtype != DType::float32 || !tensor::is_narrow(to->dtype) ||
        residual->range.size_bytes != from->range.size_bytes)
      throw InternalError(
          fmt::format("{} rounds {} bytes of {} to {} with {} bytes of {} of residuals; both must be "
                      "float32, and as many",
                      binding.describe(), from->range.size_bytes, name_of(from->dtype), name_of(to->dtype),
                      residual->range.size_bytes, name_of(residual->dtype)));
    return {.start = [to = binding.at(*to), to_type = to->dtype,
                      from = reinterpret_cast<const float*>(binding.at(*from)),
                      residuals = reinterpret_cast<float*>(binding.at(*residual)),
                      count = from->range.size_bytes / size_of(DType::float32), kernels = binding.kernels()](
                         device::Stream& stream, const StepInputs& inputs, const auto&) {
      // A replay, which changes nothing, rounds as the step did not: it looks for what is not finite.
      if (inputs.suppress_updates) return kernels->cast(to, to_type, from, DType::float32, count, stream);
      kernels->round_with_feedback(to, to_type, from, residuals, count, stream);
    }};
  }
  return {
      .start = [to = binding.at(*to), to_type = to->dtype, from = binding.at(*from), from_type = from->dtype,
                count = to->range.size_bytes / size_of(to->dtype), instruction = &binding.instruction(),
                kernels = binding.kernels()](device::Stream& stream, const StepInputs& inputs, const auto&) {
        if (!runs(*instruction, inputs)) return;
        kernels->cast(to, to_type, from, from_type, count, stream);
      }};
}

UpdateCall make_update(const Binding& binding, const program::ByteRange& updated) {
  const auto& context = binding.context();
  UpdateCall call{.optimizer = context.optimizer,
                  .static_count = context.static_count,
                  .statistic_scale = context.statistic_scale};
  for (size_t p = 0; p < binding.program().parameters.size(); ++p) {
    const auto& place = binding.program().parameters[p];
    const int64_t from = std::max(updated.offset, place.offset);
    const int64_t to =
        std::min(updated.offset + updated.size_bytes, place.offset + place.held_range().size_bytes);
    if (place.buffer != updated.buffer || from >= to) continue;
    const auto& spec = context.graph.parameters[p].spec;
    const UpdateCall::Piece piece{
        .offset = (from - updated.offset) / 4,
        .count = (to - from) / 4,
        .rates = optim::rates_of(context.optimizer, context.group_rates, place.name, spec.is_norm_or_bias),
        .is_statistic = spec.role == ops::ParameterRole::statistic,
        .momentum = spec.momentum,
        .parameter = static_cast<int32_t>(p)};
    if (!piece.rates.matrix.is_matrix()) {
      call.pieces.push_back(piece);
      continue;
    }
    // Proofs take a program's word for what is updated as a whole.
    if (place.whole_scratch == 0)
      throw InternalError(fmt::format("{} updates '{}' as a matrix, which the program does not say",
                                      binding.describe(), place.name));
    if (piece.count != piece.rates.matrix.count())
      throw InternalError(fmt::format("{} has {} elements of '{}', which is updated as a matrix of {} x {}",
                                      binding.describe(), piece.count, place.name, piece.rates.matrix.rows,
                                      piece.rates.matrix.columns));
    call.matrices.push_back({.piece = piece});
  }
  std::sort(call.pieces.begin(), call.pieces.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return call;
}

int64_t make_orthogonalizers(UpdateCall& call, device::DeviceKind kind, int threads, device::Device& device) {
  int64_t bytes = 0;
  for (UpdateCall::Matrix& matrix : call.matrices) {
    const MatrixSize& size = matrix.piece.rates.matrix;
    matrix.orthogonalizer = ops::make_orthogonalizer(kind, size, call.optimizer.newton_schulz_steps, threads);
    matrix.orthogonalizer->prepare(device);
    bytes =
        std::max(bytes, program::MatrixScratch(size, matrix.orthogonalizer->workspace_bytes()).size_bytes);
  }
  return bytes;
}

void use_scratch(UpdateCall& call, std::byte* scratch) {
  for (UpdateCall::Matrix& matrix : call.matrices) {
    const int64_t count = matrix.piece.count, chunks = layout::chunks_in(count);
    const program::MatrixScratch places(matrix.piece.rates.matrix, matrix.orthogonalizer->workspace_bytes());
    matrix.direction = reinterpret_cast<float*>(scratch);
    matrix.squares = {.pieces = {{.data = matrix.direction, .count = count, .first_chunk = 0}},
                      .chunks = chunks,
                      .sums = reinterpret_cast<double*>(scratch + places.squares)};
    matrix.workspace = scratch + places.workspace;
  }
}

Action bind_update(const Binding& binding) {
  const program::Operand* parameters = binding.required_operand(program::Role::parameters);
  const program::Operand* gradients = binding.required_operand(program::Role::gradients);
  binding.at_least(program::Role::constants, static_cast<int64_t>(sizeof(StepScalars)));
  UpdateCall call = make_update(binding, parameters->range);
  const int slots = optim::state_slots(call.optimizer);
  const auto given =
      std::ranges::count(binding.instruction().operands, program::Role::state, &program::Operand::role);
  if (slots > 0 && given > slots)
    throw InternalError(
        fmt::format("{} has {} slots of state; the optimizer has {}", binding.describe(), given, slots));
  for (int slot = 0; slot < slots; ++slot)
    call.state[slot] = reinterpret_cast<float*>(
        binding.exactly(program::Role::state, slot, parameters->range.size_bytes, DType::float32));
  // A kernel writes the slots that its formula moves, whatever the program says.
  const int kept = optim::proposed_slots(call.optimizer);
  for (const program::Operand& state : binding.instruction().operands)
    if (state.role == program::Role::state && slots > 0 &&
        program::writes(state.access) != (state.index >= kept))
      throw InternalError(fmt::format("{} {} slot {} of its state; an update of this optimizer {} it",
                                      binding.describe(),
                                      program::writes(state.access) ? "writes" : "only reads", state.index,
                                      state.index >= kept ? "moves" : "only reads"));
  call.parameters = reinterpret_cast<float*>(binding.at(*parameters));
  if (const program::Operand* copy = binding.find(program::Role::destination)) {
    const int64_t count = parameters->range.size_bytes / static_cast<int64_t>(sizeof(float));
    if (!tensor::is_narrow(copy->dtype) || copy->range.size_bytes != count * size_of(copy->dtype))
      throw InternalError(fmt::format("{} copies {} parameters to {} bytes of {}", binding.describe(), count,
                                      copy->range.size_bytes, name_of(copy->dtype)));
    call.copy = {.data = binding.at(*copy), .dtype = copy->dtype};
  }
  if (parameters->dtype != DType::float32 || gradients->dtype != DType::float32 ||
      gradients->range.size_bytes != parameters->range.size_bytes)
    throw InternalError(fmt::format("{} updates {} bytes of {} by {} of {}; expected as many of float32",
                                    binding.describe(), parameters->range.size_bytes,
                                    name_of(parameters->dtype), gradients->range.size_bytes,
                                    name_of(gradients->dtype)));
  call.gradients = reinterpret_cast<const float*>(binding.at(*gradients));
  if (binding.find(program::Role::scales) != nullptr)
    call.scales = reinterpret_cast<const double*>(binding.exactly(
        program::Role::scales, 0, static_cast<int64_t>(sizeof(double) * binding.program().parameters.size()),
        DType::float64));
  else if (optim::measures_parameters(call.optimizer))
    throw InternalError(fmt::format("{} has no scales, which the optimizer needs", binding.describe()));
  if (!call.matrices.empty()) {
    const int64_t bytes = make_orthogonalizers(call, binding.context().device.kind(),
                                               binding.context().matrix_threads, binding.context().device);
    binding.at_least(program::Role::temporary, bytes);
    use_scratch(call, binding.required(program::Role::temporary, 0));
  }
  call.verdict = reinterpret_cast<const program::Verdict*>(binding.required(program::Role::verdict, 0));
  call.constants = reinterpret_cast<const StepScalars*>(binding.required(program::Role::constants, 0));
  call.whole_step = binding.find(program::Role::verdict, 1) != nullptr;
  call.predicated = binding.find(program::Role::predicate, 0) != nullptr;
  return {.start = [call = std::move(call), updates_before = binding.context().updates_before,
                    kernels = binding.kernels(), observer = binding.observer(), index = binding.index()](
                       device::Stream& stream, const StepInputs& inputs, const auto&) mutable {
    if (inputs.suppress_updates) return;
    if (updates_before != nullptr) tell_updates_before(call, *updates_before);
    observe(observer, stream, index, nullptr, [&] { kernels->update(call, stream); });
  }};
}

}  // namespace lockstep::run
