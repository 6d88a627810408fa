#include <fmt/format.h>

#include <optional>

#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "program/program.h"
#include "program/text_line.h"

namespace lockstep::program {
namespace {

constexpr int kMostRanks =
    1 << 24;  ///< of a run in a text: more than any job has, and far from what an int holds

class Reader {
 public:
  std::vector<Program> read(std::string_view text) {
    int number = 0;
    while (!text.empty()) {
      const size_t end = text.find('\n');
      TextLine line(text.substr(0, end), ++number);
      if (!line.at_end()) read_line(line);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    return std::move(programs_);
  }

 private:
  Program& program(TextLine& line) {
    if (programs_.empty()) line.fail("expected 'program NAME ...' before anything else");
    return programs_.back();
  }

  void read_line(TextLine& line) {
    if (line.at_number()) return read_instruction(line, program(line));
    const std::string_view what = line.word();
    line.skip_blanks();
    if (what == "program") {
      read_program(line);
    } else if (what == "lane") {
      const std::string name = new_name(line, program(line).lanes, "lane");
      program(line).add_lane(name, line.one_of<LaneKind>(4, "kind of lane"));
    } else if (what == "group") {
      Group group{new_name(line, program(line).groups, "group"), read_members(line)};
      if (!line.at_end()) group.transport = line.one_of<Transport>(kTransportCount, "transport");
      program(line).groups.push_back(std::move(group));
    } else if (what == "buffer") {
      read_buffer(line, program(line));
    } else if (what == "parameter") {
      read_place(line, program(line));
    } else if (what == "residuals") {
      read_residuals(line, program(line));
    } else {
      line.fail(
          fmt::format("unknown line '{}'; expected program, lane, group, buffer, parameter, residuals or the "
                      "number of an instruction",
                      what));
    }
    line.skip_blanks();
    if (!line.at_end()) line.fail("expected the end of the line");
  }

  void read_program(TextLine& line) {
    Program& p = programs_.emplace_back();
    p.name = line.name();
    line.skip_blanks();
    p.rank = line.field("rank");
    p.world_size = line.field("world_size");
    line.expect_word("reduction");
    line.expect('=');
    const std::string_view reduction = line.word();
    if (reduction != "fast" && reduction != "reproducible") line.fail("reduction is fast or reproducible");
    p.reduction = reduction == "fast" ? layout::Reduction::fast : layout::Reduction::reproducible;
    line.skip_blanks();
    p.leaves = line.field("leaves");
    p.micro_batches_per_leaf = line.field("micro_batches_per_leaf");
    for (line.skip_blanks(); !line.at_end(); line.skip_blanks()) {
      const std::string_view key = line.word();
      line.expect('=');
      if (key == "replicas") {
        p.replicas = line.number();
        if (p.replicas < 1) line.fail("a stage has at least one replica");
      } else if (key == "wire") {
        p.wire = line.one_of<DType>(6, "element type");
      } else if (key == "error_feedback") {
        if (line.word() != "true") line.fail("error_feedback is true, or not stated");
        p.error_feedback = true;
      } else {
        line.fail(
            fmt::format("unknown key '{}' of a program; known are replicas, wire, error_feedback", key));
      }
    }
  }

  template <class Named>
  static std::string new_name(TextLine& line, const std::vector<Named>& list, std::string_view what) {
    const std::string name = line.name();
    for (const Named& one : list)
      if (one.name == name) line.fail(fmt::format("a second {} named '{}'", what, name));
    line.skip_blanks();
    return name;
  }

  template <class Named>
  static int find(TextLine& line, const std::vector<Named>& list, std::string_view what) {
    const std::string name = line.name();
    std::vector<std::string> known;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].name == name) return static_cast<int>(i);
      known.push_back(list[i].name);
    }
    line.fail(fmt::format("no {} is named '{}'{}", what, name, did_you_mean(name, known)));
  }

  static void read_buffer(TextLine& line, Program& p) {
    const std::string name = new_name(line, p.buffers, "buffer");
    line.expect_word("space");
    line.expect('=');
    const auto space = line.one_of<Space>(kSpaceCount, "space");
    line.skip_blanks();
    line.expect_word("category");
    line.expect('=');
    const auto category = line.one_of<Category>(6, "category");
    line.skip_blanks();
    const int buffer = p.add_buffer(name, space, category, line.field<int64_t>("size"));
    if (!line.at_end()) nth(p.buffers, buffer).offset = line.field<int64_t>("offset");
  }

  static void read_place(TextLine& line, Program& p) {
    ParameterPlace place;
    place.name = line.name();
    std::optional<tensor::Part> held;
    bool owns_all = false;
    for (line.skip_blanks(); !line.at_end(); line.skip_blanks()) {
      const std::string_view key = line.word();
      if (key == "uses") break;
      line.expect('=');
      if (key == "buffer") {
        place.buffer = find(line, p.buffers, "buffer");
      } else if (key == "offset") {
        place.offset = line.number<int64_t>();
      } else if (key == "size") {
        place.size_bytes = line.number<int64_t>();
      } else if (key == "narrow") {
        place.narrow_buffer = find(line, p.buffers, "buffer");
      } else if (key == "narrow_offset") {
        place.narrow_offset = line.number<int64_t>();
      } else if (key == "state") {
        auto& state = place.states.emplace_back(find(line, p.buffers, "buffer"));
        line.expect('@');
        state.offset = line.number<int64_t>();
      } else if (key == "holds") {
        held = read_part(line, line.token());
      } else if (key == "owns") {
        const std::string_view owned = line.token();
        owns_all = owned == "all";
        if (!owns_all) place.owned = read_part(line, owned);
      } else if (key == "whole") {
        place.whole_scratch = line.number<int64_t>();
      } else {
        line.fail(fmt::format(
            "unknown field '{}'; expected buffer, offset, size, holds, narrow, narrow_offset, state, owns, "
            "whole or uses",
            key));
      }
    }
    if (place.size_bytes < 0) line.fail("a size is from 0 on");
    const tensor::Part all = tensor::Part::range(0, place.elements());
    place.held = held ? *held : place.buffer >= 0 ? all : tensor::Part();
    if (owns_all) place.owned = all;
    for (line.skip_blanks(); !line.at_end(); line.skip_blanks()) {
      const int segment = line.number();
      line.expect('+');
      place.uses.push_back({segment, line.number<int64_t>()});
    }
    p.parameters.push_back(std::move(place));
  }

  /// "residuals grad.0 segment=0 leaf=2 leaves=2".
  static void read_residuals(TextLine& line, Program& p) {
    ResidualPlace place;
    place.buffer = find(line, p.buffers, "buffer");
    line.skip_blanks();
    place.segment = line.field("segment");
    place.first_leaf = line.field("leaf");
    place.leaves = line.field("leaves");
    p.residuals.push_back(place);
  }

  static tensor::Part read_part(const TextLine& line, std::string_view text) {
    try {
      return tensor::part_from_text(text);
    } catch (const ConfigError& error) {
      line.fail(error.what());
    }
  }

  static void read_instruction(TextLine& line, Program& p) {
    const int number = line.number();
    if (number != static_cast<int>(p.instructions.size()))
      line.fail(fmt::format("this is instruction {}, but it is numbered {}", p.instructions.size(), number));
    Instruction& i = p.instructions.emplace_back();
    line.skip_blanks();
    i.kind = line.one_of<InstructionKind>(kInstructionKindCount, "instruction");
    line.skip_blanks();
    line.expect('@');
    i.lane = find(line, p.lanes, "lane");
    std::optional<Access> access;
    for (line.skip_blanks(); !line.at_end(); line.skip_blanks()) {
      const std::string word(line.word());
      if (word == "reads" || word == "writes" || word == "updates") {
        access = word == "reads" ? Access::read : word == "writes" ? Access::write : Access::read_write;
      } else if (word == "after") {
        read_dependencies(line, i);
      } else if (word == "accumulate") {
        i.accumulate = true;
      } else if (word == "ordered") {
        i.ordered = true;
      } else if (word == "anew") {
        i.anew = true;
      } else if (line.accept('=')) {
        read_field(line, p, i, word);
      } else if (access) {
        read_operand(line, p, i, word, *access);
      } else {
        line.fail(fmt::format("'{}' is neither a field nor reads, writes, updates or after", word));
      }
    }
  }

  static void read_field(TextLine& line, const Program& p, Instruction& i, const std::string& key) {
    if (key == "segment") {
      i.segment = line.number();
    } else if (key == "micro_batch") {
      i.micro_batch = line.number();
    } else if (key == "leaf") {
      i.leaf = line.number();
    } else if (key == "leaves") {
      i.leaves = line.number();
    } else if (key == "group") {
      i.group = find(line, p.groups, "group");
    } else if (key == "blocks") {
      read_blocks(line, i.blocks);
    } else if (key == "bound") {
      i.bound = line.number();
    } else if (key == "deadline") {
      const std::string_view name = line.word();
      if (name != "compute" && name != "communication" && name != "input" && name != "storage")
        line.fail("deadline is compute, communication, input or storage");
      i.deadline = name == "compute"         ? DeadlineClass::compute
                   : name == "communication" ? DeadlineClass::communication
                   : name == "input"         ? DeadlineClass::input
                                             : DeadlineClass::storage;
    } else {
      line.fail(fmt::format("unknown field '{}'{}", key,
                            did_you_mean(key, {"segment", "micro_batch", "leaf", "leaves", "group", "blocks",
                                               "bound", "deadline"})));
    }
  }

  /// "0+4096/1024@3,4096+64@0".
  static void read_blocks(TextLine& line, Blocks& blocks) {
    do {
      BlockRun& run = blocks.emplace_back();
      run.begin = line.number<int64_t>();
      line.expect('+');
      run.each = line.number<int64_t>();
      // The text may hold any number; the checker refuses what lies beyond its operand.
      run.end = static_cast<int64_t>(static_cast<uint64_t>(run.begin) + static_cast<uint64_t>(run.each));
      if (line.accept('/')) run.each = line.number<int64_t>();
      line.expect('@');
      run.owner = line.number();
    } while (line.accept(','));
  }

  /// "0 2 5", "0..1023" or "0..1022/2".
  static Members read_members(TextLine& line) {
    std::vector<int> list;
    while (line.at_number()) {
      const int first = line.number();
      if (list.empty() && line.accept('.')) {
        line.expect('.');
        const auto last = line.number<int64_t>();
        const int stride = line.accept('/') ? line.number() : 1;
        line.skip_blanks();
        if (first < 0 || last < first || last > kMostRanks || stride < 1 || (last - first) % stride != 0)
          line.fail(
              fmt::format("expected FIRST..LAST or FIRST..LAST/STRIDE with ranks up to {}", kMostRanks));
        return Members::run(first, static_cast<int>((last - first) / stride) + 1, stride);
      }
      list.push_back(first);
      line.skip_blanks();
    }
    return list;
  }

  static void read_operand(TextLine& line, const Program& p, Instruction& i, const std::string& role,
                           Access access) {
    Operand operand{line.choose<Role>(role, kRoleCount, "role"), 0, access, {}};
    if (line.accept('.')) operand.index = line.number();
    line.expect(':');
    operand.range = p.whole(find(line, p.buffers, "buffer"));
    if (line.accept('[')) {
      operand.range.offset = line.number<int64_t>();
      line.expect('+');
      operand.range.size_bytes = line.number<int64_t>();
      line.expect(']');
    }
    if (line.accept('@')) operand.peer = line.number();
    if (line.accept('~')) operand.dtype = line.one_of<DType>(6, "element type");
    if (line.accept('^')) operand.position = line.number<int64_t>();
    i.operands.push_back(operand);
  }

  static void read_dependencies(TextLine& line, Instruction& i) {
    for (line.skip_blanks(); line.at_number(); line.skip_blanks()) {
      const int instruction = line.number();
      i.after.push_back({instruction, line.accept('\'') ? 1 : 0});
    }
  }

  std::vector<Program> programs_;
};

}  // namespace

std::vector<Program> programs_from_text(std::string_view text) { return Reader().read(text); }

Program program_from_text(std::string_view text) {
  std::vector<Program> programs = programs_from_text(text);
  require(programs.size() == 1, fmt::format("program text: expected one program, found {}", programs.size()));
  return std::move(programs.front());
}

}  // namespace lockstep::program
