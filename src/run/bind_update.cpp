#include <fmt/format.h>

#include <algorithm>

#include "base/ensure.h"
#include "base/index.h"
#include "layout/norm_chunks.h"
#include "lockstep/error.h"
#include "program/regions.h"
#include "run/bind.h"
#include "tensor/convert.h"

namespace lockstep::run {
namespace {

/// Ascending, and what lies between: other ranks' chunks.
std::vector<ChunkedPiece> with_gaps(std::vector<ChunkedPiece> pieces, int64_t chunks) {
  std::sort(pieces.begin(), pieces.end(),
            [](const auto& a, const auto& b) { return a.first_chunk < b.first_chunk; });
  std::vector<ChunkedPiece> all;
  int64_t next = 0;
  for (const auto& piece : pieces) {
    if (piece.first_chunk > next)
      all.push_back({nullptr, (piece.first_chunk - next) * layout::kNormChunk, next});
    all.push_back(piece);
    next = piece.first_chunk + (piece.count + layout::kNormChunk - 1) / layout::kNormChunk;
  }
  if (next < chunks) all.push_back({nullptr, (chunks - next) * layout::kNormChunk, next});
  return all;
}

/// The parts of parameters' gradients that a norm reads, in the order of their chunks.
std::vector<ChunkedPiece> norm_pieces(const Binding& binding, const layout::NormChunks& chunks) {
  std::vector<ChunkedPiece> pieces;
  for (const auto& operand : binding.instruction().operands) {
    if (operand.role != program::Role::gradients) continue;
    const int64_t begin = operand.position, end = operand.position + operand.range.size_bytes;
    for (size_t p = 0; p < binding.program().parameters.size(); ++p) {
      const auto& place = binding.program().parameters[p];
      if (place.is_frozen()) continue;
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
                        binding.describe(), first, count, place.name, layout::kNormChunk));
      pieces.push_back({reinterpret_cast<const float*>(binding.at(operand) + (from - begin)), count,
                        chunks.first[p] + first / layout::kNormChunk});
    }
  }
  return with_gaps(std::move(pieces), chunks.count);
}

}  // namespace

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
  return {
      .start = [to = binding.at(*to), to_type = to->dtype, from = binding.at(*from), from_type = from->dtype,
                count = to->range.size_bytes / size_of(to->dtype), instruction = &binding.instruction(),
                kernels = binding.kernels()](device::Stream& stream, const StepInputs& inputs, const auto&) {
        if (!runs(*instruction, inputs)) return;
        kernels->cast(to, to_type, from, from_type, count, stream);
      }};
}

Action bind_norm(const Binding& binding) {
  const layout::NormChunks chunks = layout::norm_chunks_of(binding.context().graph);
  const program::Operand* sums = binding.required_operand(program::Role::chunks);
  ensure(sums->range.size_bytes == chunks.count * static_cast<int64_t>(sizeof(double)),
         "a norm has one sum for each chunk of the model");
  NormCall call{.pieces = norm_pieces(binding, chunks),
                .weight_chunks = chunks.weights,
                .chunks = chunks.count,
                .sums = reinterpret_cast<double*>(binding.at(*sums)),
                .static_count = binding.context().static_count,
                .clip_norm = binding.context().clip_norm};
  const bool squares = program::writes(sums->access);
  const bool folds = binding.find(program::Role::verdict, 1) != nullptr;
  if (folds) {
    call.verdict = reinterpret_cast<program::Verdict*>(binding.required(program::Role::verdict, 0));
    binding.at_least(program::Role::constants, static_cast<int64_t>(sizeof(StepScalars)));
    call.constants = reinterpret_cast<const StepScalars*>(binding.required(program::Role::constants, 0));
  }
  return {.start = [call = std::move(call), squares, folds, kernels = binding.kernels()](
                       device::Stream& stream, const StepInputs&, const auto&) {
    if (squares) kernels->sum_squares(call, stream);
    if (folds) kernels->conclude_norm(call, stream);
  }};
}

Action bind_digest(const Binding& binding) {
  const program::Instruction& instruction = binding.instruction();
  const layout::NormChunks chunks = layout::norm_chunks_of(binding.context().graph);
  const program::Operand* digests = binding.required_operand(program::Role::chunks);
  ensure(digests->range.size_bytes == chunks.count * static_cast<int64_t>(sizeof(uint64_t)),
         "a digest has one number for each chunk of the model");
  std::vector<ChunkedPiece> pieces;
  for (size_t p = 0; p < binding.program().parameters.size(); ++p) {
    const auto& place = binding.program().parameters[p];
    const program::ByteRange whole{place.buffer, place.offset, place.size_bytes};
    for (const auto& operand : instruction.operands)
      if (operand.role == program::Role::parameters && holds(operand.range, whole))
        pieces.push_back(
            {reinterpret_cast<const float*>(binding.context().memory.at(binding.program(), whole)),
             place.size_bytes / 4, chunks.first[p]});
  }
  const DigestCall call{.pieces = with_gaps(std::move(pieces), chunks.count),
                        .chunks = chunks.count,
                        .digests = reinterpret_cast<uint64_t*>(binding.at(*digests))};
  return {.start = [call, kernels = binding.kernels()](device::Stream& stream, const StepInputs&,
                                                       const auto&) { kernels->digest(call, stream); }};
}

UpdateCall make_update(const Binding& binding, const program::ByteRange& updated) {
  const auto& context = binding.context();
  UpdateCall call{.optimizer = context.optimizer,
                  .static_count = context.static_count,
                  .statistic_scale = context.statistic_scale};
  for (size_t p = 0; p < binding.program().parameters.size(); ++p) {
    const auto& place = binding.program().parameters[p];
    const int64_t from = std::max(updated.offset, place.offset);
    const int64_t to = std::min(updated.offset + updated.size_bytes, place.offset + place.size_bytes);
    if (place.buffer != updated.buffer || from >= to) continue;
    const auto& spec = context.graph.parameters[p].spec;
    call.pieces.push_back(
        {.offset = (from - updated.offset) / 4,
         .count = (to - from) / 4,
         .rates = optim::rates_of(context.optimizer, context.group_rates, place.name, spec.is_norm_or_bias),
         .is_statistic = spec.role == ops::ParameterRole::statistic,
         .momentum = spec.momentum});
  }
  std::sort(call.pieces.begin(), call.pieces.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return call;
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
  call.parameters = reinterpret_cast<float*>(binding.at(*parameters));
  if (const program::Operand* copy = binding.find(program::Role::destination)) {
    const int64_t count = parameters->range.size_bytes / static_cast<int64_t>(sizeof(float));
    if (!tensor::is_narrow(copy->dtype) || copy->range.size_bytes != count * size_of(copy->dtype))
      throw InternalError(fmt::format("{} copies {} parameters to {} bytes of {}", binding.describe(), count,
                                      copy->range.size_bytes, name_of(copy->dtype)));
    call.copy = {.data = binding.at(*copy), .dtype = copy->dtype};
  }
  call.gradients = reinterpret_cast<const float*>(binding.at(*gradients));
  call.verdict = reinterpret_cast<const program::Verdict*>(binding.required(program::Role::verdict, 0));
  call.constants = reinterpret_cast<const StepScalars*>(binding.required(program::Role::constants, 0));
  call.whole_step = binding.find(program::Role::verdict, 1) != nullptr;
  call.predicated = binding.find(program::Role::predicate, 0) != nullptr;
  return {.start = [call = std::move(call), kernels = binding.kernels(), observer = binding.observer(),
                    index = binding.index()](device::Stream& stream, const StepInputs& inputs, const auto&) {
    if (inputs.suppress_updates) return;
    observe(observer, stream, index, nullptr, [&] { kernels->update(call, stream); });
  }};
}

}  // namespace lockstep::run
