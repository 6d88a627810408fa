#include <fmt/format.h>

#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "program/access_history.h"
#include "program/happens_before.h"
#include "proof/check_world.h"

namespace lockstep::proof {
namespace {

constexpr auto kData = CheckFinding::Property::data;

/// Walks one rank's program in program order, twice over, and asks for every access whether what it follows
/// there also happens before it in every other order that lanes and dependencies allow.
class DataOrder {
 public:
  DataOrder(const ProgramWorld& world, int rank, Findings& findings)
      : world_(world),
        program_(world.program(rank)),
        rank_(rank),
        count_(static_cast<int>(program_.instructions.size())),
        findings_(findings),
        order_(program_, kIterations),
        history_(program_) {
    order_.visit_all();
  }

  void check() {
    enter_initial_contents();
    for (int node = 0; node < kIterations * count_; ++node) {
      const program::Instruction& instruction = program_.instruction(node % count_);
      for (const program::Operand& operand : instruction.operands) {
        history_.conflicts(operand, [&](int earlier, int64_t begin, int64_t end) {
          if (!order_.before(earlier, node)) report_race(earlier, node, operand, end - begin);
        });
        for (const program::Operand& read : what_is_read(instruction, operand)) check_defined(node, read);
      }
      for (const program::Operand& operand : instruction.operands)
        for (const program::Operand& touched : what_is_touched(instruction, operand))
          history_.record(touched, node);
    }
  }

 private:
  void enter_initial_contents() {
    std::set<int> initial;
    for (const program::ParameterPlace& place : program_.parameters)
      if (place.buffer >= 0) initial.insert(place.buffer);
    for (size_t b = 0; b < program_.buffers.size(); ++b)
      if (program_.buffers[b].space == program::Space::optimizer) initial.insert(static_cast<int>(b));
    for (int buffer : initial) {
      const program::Region where = program::region_of(program_, program_.whole(buffer));
      history_.region(where).assign(where.begin, where.end, {-1, buffer, true, {}});
    }
  }

  void report_race(int earlier, int node, const program::Operand& operand, int64_t size_bytes) {
    const int a = earlier % count_, b = node % count_, distance = node / count_ - earlier / count_;
    if (!reported_.insert({a, b, distance}).second) return;
    findings_.add(kData, rank_, b,
                  fmt::format("it {} {} bytes of {}, but nothing orders it after {}{}, which uses them, too; "
                              "it must depend on that one, at distance {}",
                              operand.access == program::Access::read ? "reads" : "writes", size_bytes,
                              describe(program_, operand.range), program::describe(program_, a),
                              distance == 1 ? " of the iteration before" : "", distance));
  }

  /// A ring leaves alone what lies between its blocks.
  static std::vector<program::Operand> what_is_touched(const program::Instruction& instruction,
                                                       const program::Operand& operand) {
    if (instruction.blocks.empty() || operand.role != program::Role::data) return {operand};
    std::vector<program::Operand> touched;
    for (const layout::ByteSpan& span : covered_by(instruction.blocks)) {
      program::Operand& part = touched.emplace_back(operand);
      part.range.offset += span.begin;
      part.range.size_bytes = span.size();
    }
    return touched;
  }

  /// A gathering ring reads its own block and writes the others.
  std::vector<program::Operand> what_is_read(const program::Instruction& instruction,
                                             const program::Operand& operand) const {
    if (!program::reads(operand.access)) return {};
    if (instruction.kind != program::InstructionKind::ring_all_gather) return {operand};
    const auto ranks = static_cast<int>(world_.members(rank_, instruction).size());
    const int own = world_.rank_in_group(rank_, instruction);
    std::vector<program::Operand> read;
    for (const layout::ByteSpan& span : block_of(instruction.blocks, own, ranks)) {
      read.push_back(operand);
      read.back().range.offset += span.begin;
      read.back().range.size_bytes = span.size();
    }
    return read;
  }

  void check_defined(int node, const program::Operand& operand) {
    const auto fail = [&](const std::string& what) {
      if (reported_.insert({node % count_, static_cast<int>(operand.role), -1 - operand.range.buffer}).second)
        findings_.add(kData, rank_, node % count_,
                      fmt::format("it reads {} ({}) {}", describe(program_, operand.range),
                                  program::name_of(operand.role), what));
    };
    const program::Region where = program::region_of(program_, operand.range);
    const bool in_arena = program_.buffer(operand.range.buffer).space == program::Space::arena;
    history_.region(where).visit_all(
        where.begin, where.end,
        [&](int64_t begin, int64_t end, program::AccessHistory::Bytes& bytes) {
          if (!bytes.defined) {
            fail(bytes.writer < 0
                     ? "before anything has written it"
                     : fmt::format("after {} used {} bytes of it as scratch",
                                   program::describe(program_, bytes.writer % count_), end - begin));
          } else if (bytes.writer_buffer != operand.range.buffer) {
            fail(fmt::format("but {} has overwritten {} bytes of it as {}",
                             program::describe(program_, bytes.writer % count_), end - begin,
                             program_.buffer(bytes.writer_buffer).name));
          } else if (in_arena && bytes.writer / count_ != node / count_) {
            fail(
                "which was last written in the iteration before; nothing in the arena outlives an iteration");
          }
        },
        [&](int64_t, int64_t) { fail("before anything has written it"); });
  }

  const ProgramWorld& world_;
  const program::Program& program_;
  int rank_, count_;
  Findings& findings_;
  program::HappensBefore order_;
  program::AccessHistory history_;
  std::set<std::tuple<int, int, int>> reported_;
};

}  // namespace

void check_data(const ProgramWorld& world, int rank, Findings& findings) {
  if (!world.program(rank).instructions.empty()) DataOrder(world, rank, findings).check();
}

}  // namespace lockstep::proof
