// Sums of squares by chunks of parameters, what follows from them, and digests.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/ensure.h"
#include "base/index.h"
#include "layout/byte_span.h"
#include "layout/norm_chunks.h"
#include "lockstep/error.h"
#include "program/regions.h"
#include "run/bind.h"

namespace lockstep::run {
namespace {

/// Ascending, and what lies between: other ranks' chunks.
template <class Piece>
std::vector<Piece> with_gaps(std::vector<Piece> pieces, int64_t chunks) {
  const auto gap = [](int64_t from, int64_t to) {
    Piece piece{};
    piece.count = (to - from) * layout::kNormChunk;
    piece.first_chunk = from;
    return piece;
  };
  std::ranges::sort(pieces, {}, &Piece::first_chunk);
  std::vector<Piece> all;
  int64_t next = 0;
  for (const Piece& piece : pieces) {
    if (piece.first_chunk > next) all.push_back(gap(next, piece.first_chunk));
    all.push_back(piece);
    next = piece.first_chunk + layout::chunks_in(piece.count);
  }
  if (next < chunks) all.push_back(gap(next, chunks));
  return all;
}

/// A part of a parameter in an operand.
struct MeasuredPart {
  size_t parameter;
  int64_t offset;  ///< bytes within the operand
  tensor::Part part;

  int64_t first_chunk(const layout::NormChunks& chunks) const {
    return chunks.first[parameter] + part.first() / layout::kNormChunk;
  }
};

/// The parts of parameters, or of their gradients, in an operand that states its place in a bucket.
std::vector<MeasuredPart> parts_in(const Binding& binding, const program::Operand& operand) {
  if (operand.dtype != DType::float32)
    throw InternalError(fmt::format("{} measures elements of {}; expected float32", binding.describe(),
                                    name_of(operand.dtype)));
  const layout::ByteSpan all{operand.position, operand.position + operand.range.size_bytes};
  std::vector<MeasuredPart> parts;
  for (size_t p = 0; p < binding.program().parameters.size(); ++p) {
    const auto& place = binding.program().parameters[p];
    if (place.is_frozen()) continue;
    const auto& [segment, begin] = place.uses[0];
    const layout::ByteSpan within{all.begin - begin, all.end - begin};
    const tensor::Part part = elements_of(intersection(within, {0, place.size_bytes}));
    if (segment != operand.index || part.empty()) continue;
    tensor::require_whole_chunks(part, place.elements(),
                                 fmt::format("{}: {}", binding.describe(), place.name));
    parts.push_back(
        {.parameter = p, .offset = begin + layout::bytes_of(part).begin - all.begin, .part = part});
  }
  return parts;
}

/// What a norm reads in operands of this role, in the order of chunks.
std::vector<ChunkedPiece> measured_pieces(const Binding& binding, program::Role role,
                                          const layout::NormChunks& chunks) {
  std::vector<ChunkedPiece> pieces;
  for (const auto& operand : binding.instruction().operands) {
    if (operand.role != role) continue;
    for (const MeasuredPart& measured : parts_in(binding, operand))
      pieces.push_back({reinterpret_cast<const float*>(binding.at(operand) + measured.offset),
                        measured.part.count(), measured.first_chunk(chunks)});
  }
  return with_gaps(std::move(pieces), chunks.count);
}

/// The sums of what is measured; null if the instruction has none.
double* sums_of(const Binding& binding, layout::Measured measured, const layout::NormChunks& chunks) {
  const program::Operand* sums = binding.find(program::Role::chunks, static_cast<int>(measured));
  if (sums == nullptr) return nullptr;
  ensure(sums->range.size_bytes == chunks.count * static_cast<int64_t>(sizeof(double)),
         "there is one sum for each chunk of the model");
  return reinterpret_cast<double*>(binding.at(*sums));
}

bool writes_sums(const Binding& binding, layout::Measured measured) {
  const program::Operand* sums = binding.find(program::Role::chunks, static_cast<int>(measured));
  return sums != nullptr && program::writes(sums->access);
}

const StepScalars* constants_of(const Binding& binding) {
  binding.at_least(program::Role::constants, static_cast<int64_t>(sizeof(StepScalars)));
  return reinterpret_cast<const StepScalars*>(binding.required(program::Role::constants, 0));
}

optim::ParameterRates rates_of(const Binding& binding, size_t parameter) {
  const auto& context = binding.context();
  const auto& of = context.graph.parameters[parameter];
  return optim::rates_of(context.optimizer, context.group_rates, of.name, of.spec.is_norm_or_bias);
}

bool is_weight(const Binding& binding, size_t parameter) {
  return binding.context().graph.parameters[parameter].spec.role == ops::ParameterRole::weight;
}

}  // namespace

Action bind_norm(const Binding& binding) {
  using layout::Measured;
  const layout::NormChunks chunks = layout::norm_chunks_of(binding.context().graph);
  const bool squares = writes_sums(binding, Measured::gradients),
             parameters = writes_sums(binding, Measured::parameters);
  NormCall call{.pieces = measured_pieces(binding, program::Role::gradients, chunks),
                .weight_chunks = chunks.weights,
                .chunks = chunks.count,
                .sums = sums_of(binding, Measured::gradients, chunks),
                .static_count = binding.context().static_count,
                .clip_norm = binding.context().clip_norm};
  if (call.sums == nullptr) binding.required(program::Role::chunks, 0);  // which says that it is missing
  NormCall of_parameters{.pieces = measured_pieces(binding, program::Role::parameters, chunks),
                         .chunks = chunks.count,
                         .sums = sums_of(binding, Measured::parameters, chunks)};
  const bool folds = binding.find(program::Role::verdict, 1) != nullptr;
  if (folds) {
    call.verdict = reinterpret_cast<program::Verdict*>(binding.required(program::Role::verdict, 0));
    call.constants = constants_of(binding);
  }
  return {.start = [call = std::move(call), of_parameters = std::move(of_parameters), squares, parameters,
                    folds,
                    kernels = binding.kernels()](device::Stream& stream, const StepInputs&, const auto&) {
    if (squares) kernels->sum_squares(call, stream);
    if (parameters) kernels->sum_squares(of_parameters, stream);
    if (folds) kernels->conclude_norm(call, stream);
  }};
}

Action bind_propose(const Binding& binding) {
  const auto& context = binding.context();
  const layout::NormChunks chunks = layout::norm_chunks_of(context.graph);
  const int slots = optim::proposed_slots(context.optimizer);
  if (slots == 0)
    throw InternalError(fmt::format("{} is for optimizers that need the norms of updates; this one does not",
                                    binding.describe()));
  ProposeCall call{
      .pieces = {},
      .chunks = chunks.count,
      .sums = sums_of(binding, layout::Measured::updates, chunks),
      .optimizer = context.optimizer,
      .verdict = reinterpret_cast<const program::Verdict*>(binding.required(program::Role::verdict, 0)),
      .constants = constants_of(binding),
      .whole_step = binding.find(program::Role::verdict, 1) != nullptr,
      .predicated = binding.find(program::Role::predicate, 0) != nullptr,
      .static_count = context.static_count};
  if (call.sums == nullptr)
    binding.required(program::Role::chunks, static_cast<int>(layout::Measured::updates));
  for (const auto& gradients : binding.instruction().operands) {
    if (gradients.role != program::Role::gradients) continue;
    const int64_t bytes = gradients.range.size_bytes;
    const std::byte* parameters =
        binding.exactly(program::Role::parameters, gradients.index, bytes, DType::float32);
    std::byte* state = binding.exactly(program::Role::state, gradients.index, slots * bytes, DType::float32);
    for (const MeasuredPart& part : parts_in(binding, gradients)) {
      if (!is_weight(binding, part.parameter)) continue;
      call.pieces.push_back({.gradients = reinterpret_cast<const float*>(binding.at(gradients) + part.offset),
                             .parameters = reinterpret_cast<const float*>(parameters + part.offset),
                             .state = {reinterpret_cast<float*>(state + part.offset),
                                       reinterpret_cast<float*>(state + bytes + part.offset)},
                             .count = part.part.count(),
                             .first_chunk = part.first_chunk(chunks),
                             .rates = rates_of(binding, part.parameter),
                             .parameter = static_cast<int32_t>(part.parameter)});
    }
  }
  call.pieces = with_gaps(std::move(call.pieces), chunks.count);
  return {.start = [call = std::move(call), updates_before = binding.context().updates_before,
                    kernels = binding.kernels(), observer = binding.observer(), index = binding.index()](
                       device::Stream& stream, const StepInputs& inputs, const auto&) mutable {
    if (inputs.suppress_updates) return;
    if (updates_before != nullptr) tell_updates_before(call, *updates_before);
    observe(observer, stream, index, nullptr, [&] { kernels->propose(call, stream); });
  }};
}

Action bind_ratios(const Binding& binding) {
  const auto& context = binding.context();
  const layout::NormChunks chunks = layout::norm_chunks_of(context.graph);
  const size_t parameters = binding.program().parameters.size();
  RatiosCall call{
      .pieces = {},
      .optimizer = context.optimizer,
      .verdict = reinterpret_cast<const program::Verdict*>(binding.required(program::Role::verdict, 0)),
      .constants = constants_of(binding),
      .whole_step = binding.find(program::Role::verdict, 1) != nullptr,
      .static_count = context.static_count,
      .scales = reinterpret_cast<double*>(binding.exactly(
          program::Role::scales, 0, static_cast<int64_t>(sizeof(double) * parameters), DType::float64))};
  for (int m = 0; m < layout::kMeasuredCount; ++m) {
    const auto measured = static_cast<layout::Measured>(m);
    call.sums[m] = sums_of(binding, measured, chunks);
    // Where there are none, a kernel takes norms for 0, and scales for 1.
    const bool needed = measured != layout::Measured::updates || optim::proposed_slots(context.optimizer) > 0;
    if ((call.sums[m] != nullptr) != needed)
      throw InternalError(fmt::format("{} has {} operand chunks.{}; for this optimizer it needs {}",
                                      binding.describe(), call.sums[m] == nullptr ? "no" : "an", m,
                                      needed ? "one" : "none"));
  }
  for (size_t p = 0; p < parameters; ++p) {
    const auto& spec = context.graph.parameters[p].spec;
    const optim::ParameterRates rates = rates_of(binding, p);
    const bool is_trained = is_weight(binding, p) && !binding.program().parameters[p].is_frozen();
    call.pieces.push_back(
        {.first_chunk = chunks.first[p],
         .chunks = layout::chunks_in(spec.shape.count()),
         .parameter = static_cast<int32_t>(p),
         .is_scaled = is_trained && optim::is_scaled(context.optimizer, rates, spec.is_norm_or_bias),
         .rates = rates});
  }
  return {.start = [call = std::move(call), kernels = binding.kernels()](device::Stream& stream,
                                                                         const StepInputs&, const auto&) {
    kernels->ratios(call, stream);
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
    const program::ByteRange held = place.held_range();
    for (const auto& operand : instruction.operands) {
      const program::ByteRange& read = operand.range;
      if (operand.role != program::Role::parameters || read.buffer != held.buffer ||
          read.offset >= held.offset + held.size_bytes || held.offset >= read.offset + read.size_bytes)
        continue;
      // A replica that left a parameter out would seem to be equal to the others.
      if (!place.is_held_whole() || !holds(read, held))
        throw InternalError(fmt::format("{} reads some of '{}'; a digest is of whole parameters",
                                        binding.describe(), place.name));
      pieces.push_back({reinterpret_cast<const float*>(binding.context().memory.at(binding.program(), held)),
                        place.elements(), chunks.first[p]});
    }
  }
  const DigestCall call{.pieces = with_gaps(std::move(pieces), chunks.count),
                        .chunks = chunks.count,
                        .digests = reinterpret_cast<uint64_t*>(binding.at(*digests))};
  return {.start = [call, kernels = binding.kernels()](device::Stream& stream, const StepInputs&,
                                                       const auto&) { kernels->digest(call, stream); }};
}

}  // namespace lockstep::run
