#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "program/instruction_rules.h"
#include "proof/check_structure.h"

namespace lockstep::proof {
namespace {

/// More than any model's matrix has. Proofs walk over rows, while a text may state any number of them.
constexpr int64_t kMostRows = int64_t{1} << 24;

class Declarations {
 public:
  Declarations(const program::Program& program, int rank, int world_size, Findings& findings)
      : program_(program), rank_(rank), world_size_(world_size), findings_(findings) {}

  void check() {
    if (program_.rank != rank_ || program_.world_size != world_size_)
      fail(fmt::format("the program says rank {} of {}, but is that of rank {} of {}", program_.rank,
                       program_.world_size, rank_, world_size_));
    if (program_.leaves < 1 || program_.micro_batches_per_leaf < 1)
      fail("there must be at least one leaf and one micro-batch per leaf");
    if (program_.wire != DType::float32 && program_.wire != DType::bfloat16)
      fail(fmt::format("its wire is {}; expected float32 or bfloat16", name_of(program_.wire)));
    if (program_.error_feedback && program_.wire == DType::float32)
      fail("it has error feedback, but its wire is float32, to which nothing rounds");
    check_unique(program_.lanes, "lane");
    check_unique(program_.groups, "group");
    check_unique(program_.buffers, "buffer");
    check_unique(program_.parameters, "parameter");
    check_groups();
    check_buffers();
    check_places();
    check_residuals();
  }

 private:
  void fail(const std::string& what) { findings_.add(CheckFinding::Property::structure, rank_, -1, what); }

  template <class Named>
  void check_unique(const std::vector<Named>& list, std::string_view what) {
    std::set<std::string_view> seen;
    for (const Named& one : list)
      if (!seen.insert(one.name).second) fail(fmt::format("two {}s are named '{}'", what, one.name));
  }

  void check_groups() {
    for (const program::Group& group : program_.groups) {
      if (!group.members.are_distinct_below(world_size_))
        fail(fmt::format("group '{}' must list different ranks below {}", group.name, world_size_));
    }
  }

  void check_buffers() {
    std::map<program::Space, std::vector<const program::ProgramBuffer*>> placed;
    size_t placed_count = 0, sound_count = 0;
    for (const program::ProgramBuffer& buffer : program_.buffers) {
      if (!is_sound(buffer.size_bytes) || buffer.offset > kMostBytes) {
        fail(fmt::format("buffer '{}' has {} bytes at offset {}; expected 0 to {}", buffer.name,
                         buffer.size_bytes, buffer.offset, kMostBytes));
        continue;
      }
      ++sound_count;
      if (buffer.offset < 0) continue;
      ++placed_count;
      if (buffer.space != program::Space::arena && buffer.size_bytes > 0)
        placed[buffer.space].push_back(&buffer);
    }
    if (placed_count != 0 && placed_count != sound_count)
      fail(fmt::format("{} of {} buffers are placed; all or none must be", placed_count, sound_count));
    for (auto& [space, list] : placed) {
      std::sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
      for (size_t i = 1; i < list.size(); ++i)
        if (list[i - 1]->offset + list[i - 1]->size_bytes > list[i]->offset)
          fail(fmt::format("buffers '{}' and '{}' share bytes of space {}; only the arena is shared",
                           list[i - 1]->name, list[i]->name, program::name_of(space)));
    }
  }

  void check_places() {
    std::map<int, std::vector<const program::ParameterPlace*>> by_buffer;
    for (const program::ParameterPlace& place : program_.parameters)
      if (check_place(place) && place.buffer >= 0) by_buffer[place.buffer].push_back(&place);
    for (auto& [buffer, list] : by_buffer) {
      std::sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
      for (size_t i = 1; i < list.size(); ++i)
        if (list[i - 1]->offset + list[i - 1]->held_range().size_bytes > list[i]->offset)
          fail(fmt::format("parameters '{}' and '{}' share bytes", list[i - 1]->name, list[i]->name));
    }
  }

  void check_residuals() {
    std::set<int> taken;
    std::set<int> segments;  // whose gradients are rounded
    for (const program::ParameterPlace& place : program_.parameters) {
      for (const auto& state : place.states) taken.insert(state.buffer);
      for (const auto& use : place.uses) segments.insert(use.segment);
    }
    if (!program_.residuals.empty() && !program_.error_feedback)
      fail("it has residuals, but no error feedback");
    for (const program::ResidualPlace& place : program_.residuals) {
      if (place.buffer < 0 || place.buffer >= static_cast<int>(program_.buffers.size()) ||
          !segments.contains(place.segment) || place.first_leaf < 0 || place.leaves < 1 ||
          place.first_leaf > program_.leaves - place.leaves) {
        fail(fmt::format(
            "residuals of segment {} of {} leaves from {} on lie in buffer {}; expected a segment with "
            "parameters, and there are {} leaves and {} buffers",
            place.segment, place.leaves, place.first_leaf, place.buffer, program_.leaves,
            program_.buffers.size()));
        continue;
      }
      const program::ProgramBuffer& buffer = program_.buffer(place.buffer);
      if (buffer.space != program::Space::optimizer || buffer.size_bytes % (4 * int64_t{place.leaves}) != 0)
        fail(
            fmt::format("residuals of segment {} lie in {} bytes of space {}; expected as many float32 of "
                        "each of {} leaves in space optimizer",
                        place.segment, buffer.size_bytes, program::name_of(buffer.space), place.leaves));
      if (!taken.insert(place.buffer).second)
        fail(fmt::format("residuals of segment {} share buffer '{}'", place.segment, buffer.name));
    }
  }

  /// Whether its buffers exist and its bytes can be counted; reports what else is wrong, too.
  bool check_place(const program::ParameterPlace& place) {
    if (place.size_bytes <= 0 || place.uses.empty())
      fail(fmt::format("parameter '{}' needs a size and a use", place.name));
    const bool lies_sound =
        is_sound(place.size_bytes) && is_sound(place.offset) && is_sound(place.narrow_offset) &&
        std::all_of(place.uses.begin(), place.uses.end(), [&](const program::ParameterPlace::Use& use) {
          return place.is_frozen() ? use.bucket_offset == program::kNoGradient : is_sound(use.bucket_offset);
        });
    if (!lies_sound) {
      fail(fmt::format("parameter '{}' has an offset, size or place in a bucket beyond {} bytes", place.name,
                       kMostBytes));
      return false;
    }
    const bool cuts_elements = place.size_bytes % 4 != 0 || place.offset % 4 != 0 ||
                               std::ranges::any_of(place.uses, [&](const program::ParameterPlace::Use& use) {
                                 return !place.is_frozen() && use.bucket_offset % 4 != 0;
                               });
    if (cuts_elements) {
      fail(fmt::format(
          "parameter '{}' has {} bytes at byte {}; its size, offset and places in buckets must be "
          "multiples of the 4 bytes of an element",
          place.name, place.size_bytes, place.offset));
      return false;
    }
    const auto buffers = static_cast<int>(program_.buffers.size());
    for (const int buffer : {place.buffer, place.narrow_buffer})
      if (buffer >= buffers) {
        fail(fmt::format("parameter '{}' lies in buffer {}, but there are {}", place.name, buffer, buffers));
        return false;
      }
    for (const auto& state : place.states)
      if (state.buffer < 0 || state.buffer >= buffers || !is_sound(state.offset)) {
        fail(fmt::format("state of parameter '{}' lies at byte {} of buffer {}, but there are {}", place.name,
                         state.offset, state.buffer, buffers));
        return false;
      }
    return check_parts(place);
  }

  /// Whether they are parts of the parameter; reports what else is wrong, too.
  bool check_parts(const program::ParameterPlace& place) {
    for (const tensor::Part* part : {&place.held, &place.owned}) {
      if (part->end() > place.elements()) {
        fail(fmt::format("this rank has {} of parameter '{}'; expected a part of its {} elements",
                         describe(*part), place.name, place.elements()));
        return false;
      }
      if (part->rows() > kMostRows) {
        fail(fmt::format("this rank has a part of parameter '{}' in {} rows; expected up to {}", place.name,
                         part->rows(), kMostRows));
        return false;
      }
    }
    if ((place.buffer >= 0) == place.held.empty())
      fail(fmt::format("this rank has {} of parameter '{}', and {} buffer for it", describe(place.held),
                       place.name, place.buffer >= 0 ? "a" : "no"));
    if (place.buffer >= 0) check_room(place, "", place.held_range());
    if (place.narrow_buffer >= 0)
      // Which narrow type it has, its operands say.
      check_room(place, "copy of the ", place.narrow_range(DType::bfloat16));
    for (int slot = 0; slot < static_cast<int>(place.states.size()); ++slot)
      check_room(place, "state of the ", place.state_range(slot));
    check_owned(place);
    check_computed(place);
    return true;
  }

  void check_room(const program::ParameterPlace& place, std::string_view what,
                  const program::ByteRange& range) {
    const program::ProgramBuffer& buffer = program_.buffer(range.buffer);
    if (range.offset + range.size_bytes > buffer.size_bytes)
      fail(
          fmt::format("the {}part of parameter '{}' that this rank has ends at byte {} of buffer '{}', which "
                      "has {}",
                      what, place.name, range.offset + range.size_bytes, buffer.name, buffer.size_bytes));
  }

  void check_owned(const program::ParameterPlace& place) {
    if (place.owned.empty() && !place.states.empty())
      fail(fmt::format("it has optimizer state of parameter '{}', of which this rank owns nothing",
                       place.name));
    if (!place.held.contains(place.owned))
      fail(fmt::format("this rank owns {} of parameter '{}', but has {}", describe(place.owned), place.name,
                       describe(place.held)));
    if (place.whole_scratch != 0 && !place.owned.empty() && !place.owned.is_whole(place.elements()))
      fail(
          fmt::format("this rank owns {} of parameter '{}', which is updated as a whole; expected all of its "
                      "{} elements, or none",
                      describe(place.owned), place.name, place.elements()));
    if (!is_sound(place.whole_scratch))
      fail(fmt::format("the update of parameter '{}' has {} bytes of scratch; expected 0 to {}", place.name,
                       place.whole_scratch, kMostBytes));
  }

  /// Segments compute with whole parameters. That memory holds one when they run is not enough: whoever binds
  /// them, hashes or saves asks the program.
  void check_computed(const program::ParameterPlace& place) {
    if (place.buffer < 0 || place.is_held_whole()) return;
    const auto computes_with = [&](const program::Instruction& i) {
      return program::runs_segment(i.kind) &&
             std::ranges::any_of(place.uses, [&](const auto& use) { return use.segment == i.segment; });
    };
    if (std::ranges::any_of(program_.instructions, computes_with))
      fail(fmt::format(
          "it computes with parameter '{}', but this rank has {}; expected all of its {} elements",
          place.name, describe(place.held), place.elements()));
  }

  const program::Program& program_;
  int rank_, world_size_;
  Findings& findings_;
};

}  // namespace

void check_declarations(const program::Program& program, int rank, int world_size, Findings& findings) {
  Declarations(program, rank, world_size, findings).check();
}

}  // namespace lockstep::proof
