#include "proof/held_parameters.h"

#include <algorithm>

namespace lockstep::proof {

HeldParameters::HeldParameters(const ProgramWorld& world) : world_(world) {
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto& places = world.program(rank).parameters;
    for (size_t p = 0; p < places.size(); ++p) {
      if (places[p].buffer >= 0) places_[{rank, places[p].buffer}].push_back(p);
      if (places[p].narrow_buffer >= 0) copies_[{rank, places[p].narrow_buffer}].push_back(p);
    }
  }
}

std::span<const size_t> HeldParameters::find(const Places& places, int rank, int buffer) {
  const auto found = places.find({rank, buffer});
  return found == places.end() ? std::span<const size_t>() : found->second;
}

void HeldParameters::add_runs(std::vector<HeldRun>& runs, int rank, size_t place, int64_t offset,
                              const program::ByteRange& range, DType dtype) const {
  const tensor::Part& held = world_.program(rank).parameters[place].held;
  const int64_t width = size_of(dtype), row_bytes = held.columns() * width;
  // The first row that ends within the range, or behind it.
  int64_t row = range.offset > offset && row_bytes > 0 ? (range.offset - offset) / row_bytes : 0;
  for (; row < held.rows(); ++row) {
    const int64_t row_begin = offset + row * row_bytes, range_end = range.offset + range.size_bytes;
    const int64_t begin = std::max(row_begin, range.offset), end = std::min(row_begin + row_bytes, range_end);
    if (begin >= end) return;
    runs.push_back({world_.parameter_of_place(rank, place), place, begin - range.offset, end - range.offset,
                    4 * (held.first() + row * held.pitch()) + (begin - row_begin) * 4 / width});
  }
}

std::vector<HeldRun> HeldParameters::in(int rank, const program::ByteRange& range) const {
  std::vector<HeldRun> runs;
  for (const size_t p : find(places_, rank, range.buffer))
    add_runs(runs, rank, p, world_.program(rank).parameters[p].offset, range, DType::float32);
  return runs;
}

std::vector<HeldRun> HeldParameters::copies_in(int rank, const program::ByteRange& range, DType dtype) const {
  std::vector<HeldRun> runs;
  for (const size_t p : find(copies_, rank, range.buffer))
    add_runs(runs, rank, p, world_.program(rank).parameters[p].narrow_offset, range, dtype);
  return runs;
}

std::vector<HeldRun> HeldParameters::in_serve(int server, int serve) const {
  // Where it serves from another place, that is where they lie before and after.
  const program::Operand* owned = nullptr;
  for (const program::Operand& operand : world_.instruction(server, serve).operands)
    if (operand.role == program::Role::destination ||
        (operand.role == program::Role::parameters && owned == nullptr))
      owned = &operand;
  return in(server, owned->range);
}

}  // namespace lockstep::proof
