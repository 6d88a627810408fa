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

std::vector<HeldPart> HeldParameters::in(int rank, const program::ByteRange& range) const {
  std::vector<HeldPart> parts;
  for (const size_t p : find(places_, rank, range.buffer)) {
    const program::ParameterPlace& place = world_.program(rank).parameters[p];
    const int64_t begin = std::max(place.offset, range.offset);
    const int64_t end = std::min(place.offset + place.size_bytes, range.offset + range.size_bytes);
    if (begin < end)
      parts.push_back({world_.parameter_of_place(rank, p), p, begin - range.offset, end - range.offset,
                       begin - place.offset});
  }
  return parts;
}

std::vector<HeldPart> HeldParameters::copies_in(int rank, const program::ByteRange& range,
                                                DType dtype) const {
  std::vector<HeldPart> parts;
  for (const size_t p : find(copies_, rank, range.buffer)) {
    const program::ParameterPlace& place = world_.program(rank).parameters[p];
    const int64_t size_bytes = place.size_bytes / 4 * size_of(dtype);
    const int64_t begin = std::max(place.narrow_offset, range.offset);
    const int64_t end = std::min(place.narrow_offset + size_bytes, range.offset + range.size_bytes);
    if (begin < end)
      parts.push_back({world_.parameter_of_place(rank, p), p, begin - range.offset, end - range.offset,
                       (begin - place.narrow_offset) * 4 / size_of(dtype)});
  }
  return parts;
}

std::vector<HeldPart> HeldParameters::in_serve(int server, int serve) const {
  // Where it serves from another place, that is where they lie before and after.
  const program::Operand* owned = nullptr;
  for (const program::Operand& operand : world_.instruction(server, serve).operands)
    if (operand.role == program::Role::destination ||
        (operand.role == program::Role::parameters && owned == nullptr))
      owned = &operand;
  return in(server, owned->range);
}

}  // namespace lockstep::proof
