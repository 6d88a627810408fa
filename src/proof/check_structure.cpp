#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/index.h"
#include "program/instruction_rules.h"
#include "program/regions.h"
#include "proof/check_world.h"

namespace lockstep::proof {
namespace {

constexpr auto kStructure = CheckFinding::Property::structure;
/// Sizes and offsets end here, so that sums of two and positions in float32 bytes fit into 64 bits: an
/// exbibyte.
constexpr int64_t kMostBytes = int64_t{1} << 60;
bool is_sound(int64_t bytes) { return bytes >= 0 && bytes <= kMostBytes; }

/// One rank's program by itself.
class ProgramStructure {
 public:
  ProgramStructure(const program::Program& program, int rank, int world_size, Findings& findings)
      : program_(program), rank_(rank), world_size_(world_size), findings_(findings) {}

  void check() {
    if (program_.rank != rank_ || program_.world_size != world_size_)
      fail(-1, fmt::format("the program says rank {} of {}, but stands at {} of {}", program_.rank,
                           program_.world_size, rank_, world_size_));
    if (program_.virtual_replicas < 1 || program_.micro_batches_per_leaf < 1)
      fail(-1, "there must be at least one leaf and one micro-batch per leaf");
    check_unique(program_.lanes, "lane");
    check_unique(program_.groups, "group");
    check_unique(program_.buffers, "buffer");
    check_unique(program_.parameters, "parameter");
    check_groups();
    check_buffers();
    check_places();
    for (size_t i = 0; i < program_.instructions.size(); ++i) check_instruction(static_cast<int>(i));
  }

 private:
  void fail(int instruction, const std::string& what) { findings_.add(kStructure, rank_, instruction, what); }

  template <class Named>
  void check_unique(const std::vector<Named>& list, std::string_view what) {
    std::set<std::string_view> seen;
    for (const Named& one : list)
      if (!seen.insert(one.name).second) fail(-1, fmt::format("two {}s are named '{}'", what, one.name));
  }

  void check_groups() {
    for (const program::Group& group : program_.groups) {
      if (!group.members.are_distinct_below(world_size_))
        fail(-1, fmt::format("group '{}' must list different ranks below {}", group.name, world_size_));
    }
  }

  void check_buffers() {
    std::map<program::Space, std::vector<const program::ProgramBuffer*>> placed;
    size_t placed_count = 0, sound_count = 0;
    for (const program::ProgramBuffer& buffer : program_.buffers) {
      if (!is_sound(buffer.size_bytes) || buffer.offset > kMostBytes) {
        fail(-1, fmt::format("buffer '{}' has {} bytes at offset {}; expected 0 to {}", buffer.name,
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
      fail(-1, fmt::format("{} of {} buffers are placed; all or none must be", placed_count, sound_count));
    for (auto& [space, list] : placed) {
      std::sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
      for (size_t i = 1; i < list.size(); ++i)
        if (list[i - 1]->offset + list[i - 1]->size_bytes > list[i]->offset)
          fail(-1, fmt::format("buffers '{}' and '{}' share bytes of space {}; only the arena is shared",
                               list[i - 1]->name, list[i]->name, program::name_of(space)));
    }
  }

  void check_places() {
    std::map<int, std::vector<const program::ParameterPlace*>> by_buffer;
    for (const program::ParameterPlace& place : program_.parameters) {
      if (place.size_bytes <= 0 || place.uses.empty())
        fail(-1, fmt::format("parameter '{}' needs a size and a use", place.name));
      const bool lies_sound =
          is_sound(place.size_bytes) && place.offset >= -kMostBytes && place.offset <= kMostBytes &&
          std::all_of(place.uses.begin(), place.uses.end(),
                      [](const program::ParameterPlace::Use& use) { return is_sound(use.bucket_offset); });
      if (!lies_sound) {
        fail(-1, fmt::format("parameter '{}' has an offset, size or place in a bucket beyond {} bytes",
                             place.name, kMostBytes));
        continue;
      }
      for (const int buffer : {place.buffer, place.narrow_buffer})
        if (buffer >= static_cast<int>(program_.buffers.size()))
          return fail(-1, fmt::format("parameter '{}' lies in buffer {}, and there are {}", place.name,
                                      buffer, program_.buffers.size()));
      for (const auto& state : place.states)
        if (state.buffer < 0 || state.buffer >= static_cast<int>(program_.buffers.size()) ||
            state.offset < -kMostBytes || state.offset > kMostBytes)
          return fail(-1,
                      fmt::format("state of parameter '{}' lies at byte {} of buffer {}, and there are {}",
                                  place.name, state.offset, state.buffer, program_.buffers.size()));
      if (place.owned_end == place.owned_begin && !place.states.empty())
        fail(-1, fmt::format("it has optimizer state of parameter '{}', of which this rank owns nothing",
                             place.name));
      if (place.owned_begin < 0 || place.owned_end < place.owned_begin ||
          place.owned_end > place.size_bytes || place.owned_begin % 4 != 0 || place.owned_end % 4 != 0)
        fail(-1,
             fmt::format(
                 "this rank owns bytes {} to {} of parameter '{}'; expected whole elements of its {} bytes",
                 place.owned_begin, place.owned_end, place.name, place.size_bytes));
      if (!is_sound(place.narrow_offset))
        fail(-1, fmt::format("parameter '{}' has a copy at byte {}; expected 0 to {}", place.name,
                             place.narrow_offset, kMostBytes));
      if (place.buffer >= 0) by_buffer[place.buffer].push_back(&place);
    }
    for (auto& [buffer, list] : by_buffer) {
      std::sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
      for (size_t i = 1; i < list.size(); ++i)
        if (list[i - 1]->offset + list[i - 1]->size_bytes > list[i]->offset)
          fail(-1, fmt::format("parameters '{}' and '{}' share bytes", list[i - 1]->name, list[i]->name));
    }
  }

  void check_instruction(int index) {
    const program::Instruction& i = program_.instruction(index);
    const program::InstructionRule& rule = program::rule_of(i.kind);
    if (i.lane < 0 || i.lane >= static_cast<int>(program_.lanes.size()))
      return fail(index, fmt::format("lane {} does not exist; there are {}", i.lane, program_.lanes.size()));
    const program::LaneKind lane = program_.lane(i.lane).kind;
    if (!rule.runs_on(lane))
      fail(index, fmt::format("a lane of kind {} does not run it", program::name_of(lane)));
    if (rule.needs_segment && i.segment < 0) fail(index, "it needs a segment");
    if (rule.needs_micro_batch && (i.micro_batch < 0 || i.leaf < 0 || i.leaf >= program_.virtual_replicas))
      fail(index, fmt::format("it needs a micro-batch and a leaf below {}", program_.virtual_replicas));
    check_dependencies(index, i);
    const bool group_is_sound = check_group(index, i);
    for (const program::Operand& operand : i.operands)
      if (!check_range(index, operand)) return;
    check_roles(index, i, rule);
    check_indices(index, i);
    check_overlaps(index, i);
    if (group_is_sound) check_shapes(index, i);
  }

  void check_dependencies(int index, const program::Instruction& i) {
    for (const program::Dependency& d : i.after) {
      const bool known = d.instruction >= 0 && d.instruction < static_cast<int>(program_.instructions.size());
      if (!known || d.distance < 0 || d.distance > 1 || (d.distance == 0 && d.instruction >= index))
        fail(index,
             fmt::format("it depends on instruction {} at distance {}; expected an earlier one of this "
                         "iteration (0) or any of the one before (1)",
                         d.instruction, d.distance));
    }
  }

  bool check_group(int index, const program::Instruction& i) {
    if (!program::communicates(i.kind) && i.kind != program::InstructionKind::serve) return true;
    if (i.group < 0 || i.group >= static_cast<int>(program_.groups.size())) {
      fail(index, "it communicates and needs a group");
      return false;
    }
    const program::Group& group = program_.group(i.group);
    if (!group.members.contains(rank_)) {
      fail(index, fmt::format("rank {} is not a member of group '{}'", rank_, group.name));
      return false;
    }
    if (i.kind == program::InstructionKind::serve) return true;
    const auto [lane, is_new] = lane_of_group_.emplace(i.group, i.lane);
    if (!is_new && lane->second != i.lane)
      fail(index,
           fmt::format("group '{}' communicates on lane {} elsewhere; a group has one lane, which orders it",
                       group.name, program_.lane(lane->second).name));
    return true;
  }

  bool check_range(int index, const program::Operand& operand) {
    if (operand.range.buffer < 0 || operand.range.buffer >= static_cast<int>(program_.buffers.size())) {
      fail(index, fmt::format("operand {} names buffer {}, and there are {}", program::name_of(operand.role),
                              operand.range.buffer, program_.buffers.size()));
      return false;
    }
    const program::ProgramBuffer& buffer = program_.buffer(operand.range.buffer);
    if (!is_sound(operand.position)) {
      fail(index, fmt::format("operand {} stands at position {}; expected 0 to {}",
                              program::name_of(operand.role), operand.position, kMostBytes));
      return false;
    }
    // Subtracted, not added: the text may hold any number.
    if (is_sound(buffer.size_bytes) && operand.range.offset >= 0 && operand.range.size_bytes >= 0 &&
        operand.range.size_bytes <= buffer.size_bytes - operand.range.offset)
      return true;
    fail(index,
         fmt::format("operand {} takes bytes {}+{} of '{}', which has {}", program::name_of(operand.role),
                     operand.range.offset, operand.range.size_bytes, buffer.name, buffer.size_bytes));
    return false;
  }

  void check_roles(int index, const program::Instruction& i, const program::InstructionRule& rule) {
    for (const program::Operand& operand : i.operands) {
      const program::RoleRule* role = rule.find(operand.role);
      if (role == nullptr) {
        fail(index, fmt::format("it has an operand {}; it may have {}", program::name_of(operand.role),
                                rule.roles_text()));
      } else if (!role->allows(operand.access)) {
        fail(index, fmt::format("its operand {} is {}; expected {}", program::name_of(operand.role),
                                program::name_of(operand.access), role->access_text()));
      }
    }
    if (i.ordered && i.kind != program::InstructionKind::all_reduce)
      fail(index, "it is ordered; only the sum of an all_reduce has an order to state");
    if (!i.blocks.empty() && i.kind != program::InstructionKind::ring_reduce_scatter &&
        i.kind != program::InstructionKind::ring_all_gather)
      fail(index, "it has blocks; only a ring's are stated");
    if (i.kind == program::InstructionKind::push && i.operands.empty()) return;  // the worker leaves
    for (const program::RoleRule& role : rule.roles) {
      const auto count = std::count_if(i.operands.begin(), i.operands.end(),
                                       [&](const program::Operand& o) { return o.role == role.role; });
      if (count < role.least || count > role.most)
        fail(index, fmt::format("it has {} operands {}; expected {}", count, program::name_of(role.role),
                                role.count_text()));
    }
    for (const program::Operand& operand : i.operands) {
      const bool adds_up = operand.role == program::Role::gradients && program::is_backward(i.kind);
      const bool adds_metrics =
          operand.role == program::Role::metrics && i.kind == program::InstructionKind::forward;
      if ((adds_up || adds_metrics) && program::writes(operand.access) &&
          (operand.access == program::Access::read_write) != i.accumulate)
        fail(index,
             fmt::format("it {}, but its operand {} is {}", i.accumulate ? "accumulates" : "overwrites",
                         program::name_of(operand.role), program::name_of(operand.access)));
    }
  }

  /// Executors find operands by role and index, by peer where there is one on the other side, and parameters
  /// by their type.
  void check_indices(int index, const program::Instruction& i) {
    std::set<std::tuple<program::Role, int, int, DType>> seen;
    for (const program::Operand& operand : i.operands) {
      const bool by_peer = operand.role == program::Role::send || operand.role == program::Role::receive;
      const DType by_type = operand.role == program::Role::parameters ? operand.dtype : DType::float32;
      if (!seen.insert({operand.role, operand.index, by_peer ? operand.peer : -1, by_type}).second)
        fail(index, fmt::format("it has two operands {}.{}{}; their indices must differ",
                                program::name_of(operand.role), operand.index,
                                by_peer ? fmt::format("@{}", operand.peer) : ""));
    }
    if (i.kind != program::InstructionKind::update) return;
    int expected = i.segment;
    for (const program::Operand& operand : i.operands) {
      if (operand.role != program::Role::parameters && operand.role != program::Role::gradients &&
          operand.role != program::Role::state)
        continue;
      if (expected < 0) expected = operand.index;
      if (operand.index != expected)
        fail(index, fmt::format("its operand {} has index {}; expected {}, the segment that it updates",
                                program::name_of(operand.role), operand.index, expected));
    }
  }

  /// What an instruction writes must not touch its other operands: kernels run in any order inside.
  void check_overlaps(int index, const program::Instruction& i) {
    for (size_t a = 0; a < i.operands.size(); ++a) {
      if (!program::writes(i.operands[a].access)) continue;
      const program::Region x = program::region_of(program_, i.operands[a].range);
      for (size_t b = 0; b < i.operands.size(); ++b) {
        if (b == a || (b < a && program::writes(i.operands[b].access))) continue;
        const program::Region y = program::region_of(program_, i.operands[b].range);
        if (x.index == y.index && x.begin < y.end && y.begin < x.end)
          fail(index,
               fmt::format("its operands {} ({}) and {} ({}) share bytes, one of them written",
                           program::name_of(i.operands[a].role), describe(program_, i.operands[a].range),
                           program::name_of(i.operands[b].role), describe(program_, i.operands[b].range)));
      }
    }
  }

  /// Elements of the first operand of a role, or nothing where there is none.
  std::optional<int64_t> elements(const program::Instruction& i, program::Role role) const {
    for (const program::Operand& operand : i.operands)
      if (operand.role == role) return operand.range.size_bytes / size_of(operand.dtype);
    return std::nullopt;
  }

  void check_shapes(int index, const program::Instruction& i) {
    for (const program::Operand& operand : i.operands)
      if (program::rule_of(i.kind).sums_elements && operand.range.size_bytes % size_of(operand.dtype) != 0)
        fail(index, fmt::format("{} bytes of operand {} are no whole number of {}", operand.range.size_bytes,
                                program::name_of(operand.role), name_of(operand.dtype)));
    switch (i.kind) {
      case program::InstructionKind::add:
        return equal_elements(index, i, program::Role::destination, program::Role::source);
      case program::InstructionKind::cast:
        return equal_elements(index, i, program::Role::destination, program::Role::source);
      case program::InstructionKind::update:
        return equal_elements(index, i, program::Role::parameters, program::Role::gradients);
      case program::InstructionKind::reduce_scatter:
      case program::InstructionKind::all_gather:
        return check_blocks(index, i);
      case program::InstructionKind::ring_reduce_scatter:
      case program::InstructionKind::ring_all_gather:
        return check_ring(index, i);
      case program::InstructionKind::broadcast:
        return check_root(index, i);
      case program::InstructionKind::snapshot:
        return check_room(index, i);
      case program::InstructionKind::push:
        if (!i.operands.empty() && i.segment < 0) fail(index, "it needs a segment");
        return check_peers(index, i);
      case program::InstructionKind::exchange:
      case program::InstructionKind::pull:
      case program::InstructionKind::serve:
        return check_peers(index, i);
      default:
        return;
    }
  }

  void equal_elements(int index, const program::Instruction& i, program::Role a, program::Role b) {
    if (elements(i, a) != elements(i, b))
      fail(index, fmt::format("{} has {} elements and {} has {}; they must be as many", program::name_of(a),
                              elements(i, a).value_or(0), program::name_of(b), elements(i, b).value_or(0)));
  }

  void check_blocks(int index, const program::Instruction& i) {
    const auto members = static_cast<int64_t>(program_.group(i.group).members.size());
    for (const program::Operand& operand : i.operands)
      if (operand.range.size_bytes % (members * size_of(operand.dtype)) != 0)
        fail(index, fmt::format("{} bytes of {} are no {} equal blocks", operand.range.size_bytes,
                                name_of(operand.dtype), members));
  }

  /// Sums are of whole elements; what is gathered is bytes.
  void check_ring(int index, const program::Instruction& i) {
    const int ranks = static_cast<int>(program_.group(i.group).members.size());
    const bool sums = i.kind == program::InstructionKind::ring_reduce_scatter;
    for (const program::Operand& data : i.operands) {
      if (data.role != program::Role::data) continue;
      const std::string fault =
          fault_of(i.blocks, data.range.size_bytes, ranks, sums ? size_of(data.dtype) : 1);
      if (!fault.empty()) return fail(index, fault);
    }
    for (const program::Operand& scratch : i.operands)
      if (const int64_t largest = largest_block_bytes(i.blocks, ranks);
          scratch.role == program::Role::temporary && scratch.range.size_bytes < largest)
        fail(index, fmt::format("it receives blocks of up to {} bytes into {}; they must fit", largest,
                                scratch.range.size_bytes));
  }

  void check_root(int index, const program::Instruction& i) {
    const auto& members = program_.group(i.group).members;
    if (i.root < 0 || i.root >= static_cast<int>(members.size()))
      return fail(index, fmt::format("root {} is no member of a group of {}", i.root, members.size()));
    const bool is_root = nth(members, i.root) == rank_;
    for (const program::Operand& operand : i.operands)
      if ((operand.access == program::Access::read) != is_root)
        fail(index,
             is_root ? "the root only reads what it sends" : "all but the root only write what they receive");
  }

  /// A snapshot that copies lays what it reads side by side.
  void check_room(int index, const program::Instruction& i) {
    int64_t read = 0, room = 0;
    for (const program::Operand& operand : i.operands) {
      if (operand.role == program::Role::parameters || operand.role == program::Role::state)
        read += operand.range.size_bytes;
      if (operand.role == program::Role::destination) room += operand.range.size_bytes;
    }
    if (elements(i, program::Role::destination) && read != room)
      fail(index, fmt::format("it copies {} bytes to a destination of {}; they must be as many", read, room));
  }

  void check_peers(int index, const program::Instruction& i) {
    const auto& members = program_.group(i.group).members;
    for (const program::Operand& operand : i.operands) {
      const bool names_peer = i.kind != program::InstructionKind::serve ||
                              operand.role == program::Role::gradients ||
                              operand.role == program::Role::metrics;
      if (!names_peer) continue;
      if (operand.peer < 0 || operand.peer >= static_cast<int>(members.size()) ||
          nth(members, operand.peer) == rank_)
        fail(index, fmt::format("operand {} has peer {}; expected another member of a group of {}",
                                program::name_of(operand.role), operand.peer, members.size()));
    }
  }

  const program::Program& program_;
  int rank_, world_size_;
  Findings& findings_;
  std::map<int, int> lane_of_group_;
};

/// Communicators are made for one group after the other, by all ranks together: members or not.
void check_same_groups(const program::Program& first, const program::Program& own, int rank,
                       Findings& findings) {
  if (own.groups.size() != first.groups.size())
    return findings.add(kStructure, rank, -1,
                        fmt::format("it has {} groups and rank 0 has {}; every rank must list all groups",
                                    own.groups.size(), first.groups.size()));
  for (size_t g = 0; g < own.groups.size(); ++g) {
    const program::Group &a = own.groups[g], &b = first.groups[g];
    if (a.name != b.name)
      return findings.add(kStructure, rank, -1,
                          fmt::format("group {} is '{}', and '{}' on rank 0; all ranks must list the same "
                                      "groups in the same order",
                                      g, a.name, b.name));
    if (a.members != b.members)
      findings.add(kStructure, rank, -1,
                   fmt::format("group '{}' has members {} here and {} on rank 0", a.name,
                               program::to_text(a.members), program::to_text(b.members)));
    if (a.transport != b.transport)
      findings.add(kStructure, rank, -1,
                   fmt::format("the transport of group '{}' is '{}' here and '{}' on rank 0", a.name,
                               program::name_of(a.transport), program::name_of(b.transport)));
  }
}

/// What the programs say in common.
void check_agreement(std::span<const program::Program> programs, Findings& findings) {
  std::map<std::string_view, const program::ParameterPlace*> parameters;
  for (size_t r = 0; r < programs.size(); ++r) {
    const program::Program& p = programs[r];
    const int rank = static_cast<int>(r);
    if (p.name != programs[0].name || p.reduction != programs[0].reduction ||
        p.virtual_replicas != programs[0].virtual_replicas ||
        p.micro_batches_per_leaf != programs[0].micro_batches_per_leaf)
      findings.add(kStructure, rank, -1,
                   "name, reduction, leaves or micro-batches per leaf differ from rank 0's");
    check_same_groups(programs[0], p, rank, findings);
    for (const program::ParameterPlace& place : p.parameters) {
      const program::ParameterPlace* known = parameters.emplace(place.name, &place).first->second;
      if (known->size_bytes != place.size_bytes || known->uses != place.uses)
        findings.add(kStructure, rank, -1,
                     fmt::format("parameter '{}' has another size or other uses than elsewhere", place.name));
    }
  }
  std::map<int, std::map<int64_t, std::pair<int64_t, std::string_view>>>
      buckets;  // segment, begin -> end, name
  for (const auto& [name, place] : parameters)
    for (const auto& use : place->uses) {
      auto& bucket = buckets[use.segment];
      const int64_t end = use.bucket_offset + place->size_bytes;
      const auto next = bucket.lower_bound(use.bucket_offset);
      const bool hits_next = next != bucket.end() && next->first < end;
      const bool hits_previous = next != bucket.begin() && std::prev(next)->second.first > use.bucket_offset;
      if (hits_next || hits_previous)
        findings.add(
            kStructure, -1, -1,
            fmt::format("gradients of '{}' and '{}' share bytes of segment {}'s bucket", name,
                        hits_next ? next->second.second : std::prev(next)->second.second, use.segment));
      bucket.emplace(use.bucket_offset, std::pair(end, name));
    }
}

}  // namespace

void check_structure(std::span<const program::Program> programs, Findings& findings) {
  if (programs.empty()) return findings.add(kStructure, -1, -1, "there are no programs");
  for (size_t rank = 0; rank < programs.size(); ++rank)
    ProgramStructure(programs[rank], static_cast<int>(rank), static_cast<int>(programs.size()), findings)
        .check();
  if (findings.empty()) check_agreement(programs, findings);
}

}  // namespace lockstep::proof
