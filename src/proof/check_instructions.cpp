#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/index.h"
#include "layout/norm_chunks.h"
#include "program/instruction_rules.h"
#include "program/regions.h"
#include "proof/check_structure.h"
#include "tensor/convert.h"

namespace lockstep::proof {
namespace {

/// One rank's instructions.
class InstructionStructure {
 public:
  InstructionStructure(const program::Program& program, int rank, Findings& findings)
      : program_(program), rank_(rank), findings_(findings) {
    for (const program::ResidualPlace& place : program.residuals) residuals_.insert(place.buffer);
  }

  void check() {
    for (size_t i = 0; i < program_.instructions.size(); ++i) check_instruction(static_cast<int>(i));
  }

 private:
  void fail(int instruction, const std::string& what) { findings_.add(kStructure, rank_, instruction, what); }

  void check_instruction(int index) {
    const program::Instruction& i = program_.instruction(index);
    const program::InstructionRule& rule = program::rule_of(i.kind);
    if (i.lane < 0 || i.lane >= static_cast<int>(program_.lanes.size()))
      return fail(index, fmt::format("lane {} does not exist; there are {}", i.lane, program_.lanes.size()));
    const program::LaneKind lane = program_.lane(i.lane).kind;
    if (!rule.runs_on(lane))
      fail(index, fmt::format("a lane of kind {} does not run it", program::name_of(lane)));
    if (rule.needs_segment && i.segment < 0) fail(index, "it needs a segment");
    if (rule.needs_micro_batch && (i.micro_batch < 0 || i.leaf < 0 || i.leaf >= program_.leaves))
      fail(index, fmt::format("it needs a micro-batch and a leaf below {}", program_.leaves));
    if (i.anew && i.kind != program::InstructionKind::cast)
      fail(index, "only a cast can be made anew; everything else runs in every iteration");
    check_leaves(index, i);
    check_micro_batch(index, i);
    check_dependencies(index, i);
    const bool group_is_sound = check_group(index, i);
    for (const program::Operand& operand : i.operands)
      if (!check_range(index, operand)) return;
    check_roles(index, i, rule);
    check_types(index, i);
    check_indices(index, i);
    check_residuals(index, i);
    check_chunks(index, i);
    check_whole_elements(index, i);
    check_overlaps(index, i);
    if (group_is_sound) check_shapes(index, i);
  }

  /// A micro-batch of several leaves has all of each, so that its gradients are complete.
  void check_leaves(int index, const program::Instruction& i) {
    if (i.leaves == 1) return;
    if (i.leaves < 1 || i.leaf < 0 || i.leaf > program_.leaves - i.leaves)
      return fail(
          index, fmt::format("it has {} leaves from {} on; there are {}", i.leaves, i.leaf, program_.leaves));
    if (program_.micro_batches_per_leaf > 1 || i.accumulate)
      fail(index, "a micro-batch of several leaves holds all of each, and its gradients are not accumulated");
    for (const program::Operand& operand : i.operands)
      if (operand.role == program::Role::metrics && operand.range.size_bytes % i.leaves != 0)
        fail(index, fmt::format("its metrics are not those of {} leaves", i.leaves));
  }

  /// What a micro-batch loads is what it computes: all of these instructions have the same leaves.
  void check_micro_batch(int index, const program::Instruction& i) {
    if (i.micro_batch < 0 || (i.kind != program::InstructionKind::load && !program::runs_segment(i.kind)))
      return;
    const auto& [first, is_new] = micro_batches_.try_emplace(i.micro_batch, index);
    const program::Instruction& other = program_.instruction(first->second);
    if (is_new || (i.leaf == other.leaf && i.leaves == other.leaves)) return;
    fail(index, fmt::format("micro-batch {} has {} leaves from {} on here, and {} from {} on in instruction "
                            "{}; it must be the same ones in all",
                            i.micro_batch, i.leaves, i.leaf, other.leaves, other.leaf, first->second));
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
    // What comes from servers does not stand behind what goes there.
    const bool pulls = i.kind == program::InstructionKind::pull;
    const auto [lane, is_new] = lane_of_group_.emplace(std::pair(i.group, pulls), i.lane);
    if (!is_new && lane->second != i.lane)
      fail(index,
           fmt::format("group '{}' communicates on lane {} elsewhere; a group has one lane, which orders it",
                       group.name, program_.lane(lane->second).name));
    return true;
  }

  bool check_range(int index, const program::Operand& operand) {
    if (operand.range.buffer < 0 || operand.range.buffer >= static_cast<int>(program_.buffers.size())) {
      fail(index, fmt::format("operand {} names buffer {}, but there are {}", program::name_of(operand.role),
                              operand.range.buffer, program_.buffers.size()));
      return false;
    }
    const program::ProgramBuffer& buffer = program_.buffer(operand.range.buffer);
    if (!is_sound(operand.position)) {
      fail(index, fmt::format("operand {} is at position {}; expected 0 to {}",
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

  /// What learns has the elements of parameters: float32. Other types are those of copies and of the wire,
  /// which kernels of updates and norms do not read. An `add` and transfers name their type.
  void check_types(int index, const program::Instruction& i) {
    using program::InstructionKind;
    const bool is_of_parameters = i.kind == InstructionKind::norm || i.kind == InstructionKind::propose ||
                                  i.kind == InstructionKind::update || i.kind == InstructionKind::digest ||
                                  i.kind == InstructionKind::snapshot || i.kind == InstructionKind::push ||
                                  i.kind == InstructionKind::pull || i.kind == InstructionKind::serve;
    for (const program::Operand& operand : i.operands) {
      const bool learns = operand.role == program::Role::gradients || operand.role == program::Role::state ||
                          (operand.role == program::Role::parameters && is_of_parameters);
      if (learns && operand.dtype != DType::float32)
        fail(index, fmt::format("its operand {} has elements of {}; expected float32",
                                program::name_of(operand.role), name_of(operand.dtype)));
      if (i.kind == InstructionKind::cast && operand.dtype != DType::float32 &&
          !tensor::is_narrow(operand.dtype))
        fail(index, fmt::format("it casts elements of {}; expected float32, bfloat16 or float16",
                                name_of(operand.dtype)));
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
      if (operand.role != program::Role::parameters && operand.role != program::Role::gradients) continue;
      if (expected < 0) expected = operand.index;
      if (operand.index != expected)
        fail(index, fmt::format("its operand {} has index {}; expected {}, the segment that it updates",
                                program::name_of(operand.role), operand.index, expected));
    }
  }

  /// What roundings keep is nobody else's.
  void check_residuals(int index, const program::Instruction& i) {
    for (const program::Operand& operand : i.operands)
      if ((operand.role == program::Role::residual) != residuals_.contains(operand.range.buffer))
        fail(index, fmt::format("its operand {} lies in '{}', which holds {}residuals",
                                program::name_of(operand.role), program_.buffer(operand.range.buffer).name,
                                residuals_.contains(operand.range.buffer) ? "" : "no "));
  }

  /// The index of an operand `chunks` says of what its sums are: each kind of instruction makes some of them.
  void check_chunks(int index, const program::Instruction& i) {
    using layout::Measured;
    const bool is_norm = i.kind == program::InstructionKind::norm,
               proposes = i.kind == program::InstructionKind::propose;
    if (!is_norm && !proposes && i.kind != program::InstructionKind::ratios) return;
    const int first = static_cast<int>(proposes ? Measured::updates : Measured::gradients);
    const int last = static_cast<int>(is_norm ? Measured::parameters : Measured::updates);
    bool reads_parameters = false, sums_parameters = false;
    for (const program::Operand& operand : i.operands) {
      reads_parameters = reads_parameters || operand.role == program::Role::parameters;
      if (operand.role != program::Role::chunks) continue;
      sums_parameters = sums_parameters || (operand.index == static_cast<int>(Measured::parameters) &&
                                            program::writes(operand.access));
      if (operand.index < first || operand.index > last)
        fail(index,
             fmt::format("it has an operand chunks.{}; expected {} to {}", operand.index, first, last));
    }
    if (is_norm && reads_parameters && !sums_parameters)
      fail(index, fmt::format("it reads parameters; then it must write their sums, chunks.{}",
                              static_cast<int>(Measured::parameters)));
  }

  /// What is updated is counted in elements, so that it must not begin within one.
  void check_whole_elements(int index, const program::Instruction& i) {
    if (i.kind != program::InstructionKind::update && i.kind != program::InstructionKind::propose &&
        i.kind != program::InstructionKind::norm)
      return;
    for (const program::Operand& operand : i.operands)
      if ((operand.role == program::Role::parameters || operand.role == program::Role::gradients ||
           operand.role == program::Role::state) &&
          operand.range.offset % size_of(operand.dtype) != 0)
        fail(index, fmt::format("its operand {} begins at byte {} of '{}', within an element of {}",
                                program::name_of(operand.role), operand.range.offset,
                                program_.buffer(operand.range.buffer).name, name_of(operand.dtype)));
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
        fail(index,
             fmt::format("{} bytes of operand {} are not a whole number of {}", operand.range.size_bytes,
                         program::name_of(operand.role), name_of(operand.dtype)));
    switch (i.kind) {
      case program::InstructionKind::add:
        return equal_elements(index, i, program::Role::destination, program::Role::source);
      case program::InstructionKind::cast:
        equal_elements(index, i, program::Role::destination, program::Role::source);
        check_feedback(index, i);
        return check_kept(index, i);
      case program::InstructionKind::update:
        check_scales(index, i);
        return check_updated(index, i);
      case program::InstructionKind::ratios:
        return check_scales(index, i);
      case program::InstructionKind::propose:
        return check_proposed(index, i);
      case program::InstructionKind::ring_reduce_scatter:
      case program::InstructionKind::ring_all_gather:
        return check_ring(index, i);
      case program::InstructionKind::snapshot:
        return check_room(index, i);
      case program::InstructionKind::push:
      case program::InstructionKind::exchange:
      case program::InstructionKind::pull:
        return check_peers(index, i);
      case program::InstructionKind::serve:
        check_peers(index, i);
        return check_served(index, i);
      default:
        return;
    }
  }

  void equal_elements(int index, const program::Instruction& i, program::Role a, program::Role b) {
    if (elements(i, a) != elements(i, b))
      fail(index,
           fmt::format("{} has {} elements, but {} has {}; both must have as many", program::name_of(a),
                       elements(i, a).value_or(0), program::name_of(b), elements(i, b).value_or(0)));
  }

  /// There is a residual, in float32, of each element that is rounded.
  void check_feedback(int index, const program::Instruction& i) {
    if (!elements(i, program::Role::residual)) return;
    equal_elements(index, i, program::Role::residual, program::Role::source);
    for (const program::Operand& operand : i.operands) {
      const DType expected = operand.role == program::Role::destination ? program_.wire : DType::float32;
      if (operand.dtype != expected)
        fail(index,
             fmt::format("its operand {} is of {}; a rounding with a residual is of float32 to the wire's "
                         "type, and this is to be {}",
                         program::name_of(operand.role), name_of(operand.dtype), name_of(expected)));
    }
    if (i.anew) fail(index, "it has a residual, so that it must be made in every iteration");
  }

  /// What is not made in every iteration lies where it is kept.
  void check_kept(int index, const program::Instruction& i) {
    for (const program::Operand& operand : i.operands)
      if (i.anew && operand.role == program::Role::destination &&
          program_.buffer(operand.range.buffer).space != program::Space::parameters)
        fail(index, fmt::format("it is not made in every iteration, so that its destination must be in space "
                                "parameters; it is in {}",
                                program::name_of(program_.buffer(operand.range.buffer).space)));
  }

  /// Gradients are of the parameters' elements, and so is the copy; every slot of state, numbered from 0 on,
  /// is of their bytes.
  void check_updated(int index, const program::Instruction& i) {
    equal_elements(index, i, program::Role::parameters, program::Role::gradients);
    int64_t expected = 0;
    std::vector<int> slots;
    for (const program::Operand& operand : i.operands) {
      if (operand.role == program::Role::parameters) expected = operand.range.size_bytes;
      if (operand.role == program::Role::state) slots.push_back(operand.index);
    }
    std::ranges::sort(slots);
    for (size_t slot = 0; slot < slots.size(); ++slot)
      if (slots[slot] != static_cast<int>(slot)) {
        fail(index, fmt::format("its {} slots of state are numbered {}; they must be 0 to {}", slots.size(),
                                fmt::join(slots, ", "), slots.size() - 1));
        break;
      }
    for (const program::Operand& operand : i.operands) {
      if (operand.role == program::Role::destination &&
          operand.range.size_bytes / size_of(operand.dtype) != expected / size_of(DType::float32))
        fail(index, fmt::format("its copy has {} bytes of {} for {} bytes of parameters; both must have as "
                                "many elements",
                                operand.range.size_bytes, name_of(operand.dtype), expected));
      if (operand.role != program::Role::state) continue;
      if (operand.range.size_bytes != expected)
        fail(index, fmt::format("state {} has {} bytes, but parameters has {}; both must have as many",
                                operand.index, operand.range.size_bytes, expected));
    }
  }

  /// There is one for each parameter of the model.
  void check_scales(int index, const program::Instruction& i) {
    const auto expected = static_cast<int64_t>(program_.parameters.size() * sizeof(double));
    for (const program::Operand& operand : i.operands)
      if (operand.role == program::Role::scales &&
          (operand.range.size_bytes != expected || operand.dtype != DType::float64))
        fail(index, fmt::format("its scales are {} bytes of {}; {} parameters have {} of {}",
                                operand.range.size_bytes, name_of(operand.dtype), program_.parameters.size(),
                                expected, name_of(DType::float64)));
  }

  /// Of each segment gradients, parameters and slots of state are of the same elements.
  void check_proposed(int index, const program::Instruction& i) {
    std::map<int, std::map<program::Role, const program::Operand*>> segments;
    for (const program::Operand& operand : i.operands)
      if (operand.role == program::Role::gradients || operand.role == program::Role::parameters ||
          operand.role == program::Role::state)
        segments[operand.index][operand.role] = &operand;
    for (const auto& [segment, operands] : segments) {
      if (operands.size() != 3) {
        fail(index, fmt::format("of segment {} it needs gradients, parameters and state", segment));
        continue;
      }
      const program::Operand &gradients = *operands.at(program::Role::gradients),
                             &parameters = *operands.at(program::Role::parameters),
                             &state = *operands.at(program::Role::state);
      const int64_t bytes = parameters.range.size_bytes;
      if (gradients.range.size_bytes != bytes || gradients.position != parameters.position || bytes == 0 ||
          state.range.size_bytes % bytes != 0 || state.range.size_bytes == 0)
        fail(index,
             fmt::format("of segment {} it has gradients {}+{}, parameters {}+{} and {} bytes of state; they "
                         "must be of the same elements",
                         segment, gradients.position, gradients.range.size_bytes, parameters.position, bytes,
                         state.range.size_bytes));
    }
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

  /// A snapshot that copies lays what it reads side by side.
  void check_room(int index, const program::Instruction& i) {
    int64_t read = 0, room = 0;
    for (const program::Operand& operand : i.operands) {
      if (operand.role == program::Role::parameters || operand.role == program::Role::state ||
          operand.role == program::Role::residual)
        read += operand.range.size_bytes;
      if (operand.role == program::Role::destination) room += operand.range.size_bytes;
    }
    if (elements(i, program::Role::destination) && read != room)
      fail(index, fmt::format("it copies {} bytes to a destination of {}; they must be as many", read, room));
  }

  /// What is served in another place comes from there, and goes back.
  void check_served(int index, const program::Instruction& i) {
    const bool apart = elements(i, program::Role::destination).has_value();
    if (apart) equal_elements(index, i, program::Role::parameters, program::Role::destination);
    for (const program::Operand& operand : i.operands)
      if (operand.role == program::Role::parameters && program::reads(operand.access) == apart)
        fail(index, apart ? "its parameters come from its destination, and are only written"
                          : "it reads its parameters where they lie");
  }

  void check_peers(int index, const program::Instruction& i) {
    const auto& members = program_.group(i.group).members;
    for (const program::Operand& operand : i.operands) {
      const bool names_peer = i.kind == program::InstructionKind::exchange ||
                              operand.role == moved_role(i.kind) || program::is_outbox(i, operand);
      if (!names_peer) continue;
      if (operand.peer < 0 || operand.peer >= static_cast<int>(members.size()) ||
          nth(members, operand.peer) == rank_)
        fail(index, fmt::format("operand {} has peer {}; expected another member of a group of {}",
                                program::name_of(operand.role), operand.peer, members.size()));
    }
  }

  const program::Program& program_;
  int rank_;
  Findings& findings_;
  std::set<int> residuals_;                            ///< buffers
  std::map<int, int> micro_batches_;                   ///< the first instruction of each
  std::map<std::pair<int, bool>, int> lane_of_group_;  ///< of the group's first communication; pulls apart
};

}  // namespace

void check_instructions(const program::Program& program, int rank, Findings& findings) {
  InstructionStructure(program, rank, findings).check();
}

}  // namespace lockstep::proof
