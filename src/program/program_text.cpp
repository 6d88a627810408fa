#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <iterator>
#include <optional>
#include <set>

#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "program/program.h"

namespace lockstep::program {
namespace {

bool is_bare(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/' || c == '-';
}

constexpr int kMostRanks =
    1 << 24;  ///< of a run in a text: more than any job has, and far from what an int holds

/// Names of ordinary characters stand bare, others in quotes with \" and \\.
std::string quoted(const std::string& name) {
  bool bare = !name.empty();
  for (char c : name) bare = bare && is_bare(c);
  if (bare) return name;
  std::string text = "\"";
  for (char c : name) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + "\"";
}

template <class Named>
void require_unique_names(const std::vector<Named>& list, std::string_view what) {
  std::set<std::string_view> seen;
  for (const Named& one : list)
    ensure(seen.insert(one.name).second, fmt::format("two {}s are named '{}'", what, one.name));
}

class Writer {
 public:
  explicit Writer(const Program& program) : program_(program) {}

  std::string write() {
    require_unique_names(program_.lanes, "lane");
    require_unique_names(program_.groups, "group");
    require_unique_names(program_.buffers, "buffer");
    put("program {} rank={} world_size={} reduction={} virtual_replicas={} micro_batches_per_leaf={}\n",
        quoted(program_.name), program_.rank, program_.world_size,
        program_.reduction == layout::Reduction::fast ? "fast" : "reproducible", program_.virtual_replicas,
        program_.micro_batches_per_leaf);
    for (const Lane& lane : program_.lanes) put("lane {} {}\n", quoted(lane.name), name_of(lane.kind));
    for (const Group& group : program_.groups)
      put("group {} {}{}\n", quoted(group.name), to_text(group.members),
          group.transport == Transport::host ? "" : fmt::format(" {}", name_of(group.transport)));
    for (const ProgramBuffer& buffer : program_.buffers) {
      put("buffer {} space={} category={} size={}", quoted(buffer.name), name_of(buffer.space),
          name_of(buffer.category), buffer.size_bytes);
      if (buffer.offset >= 0) put(" offset={}", buffer.offset);
      put("\n");
    }
    for (const ParameterPlace& place : program_.parameters) write_place(place);
    for (size_t i = 0; i < program_.instructions.size(); ++i) write_instruction(i);
    return std::move(text_);
  }

 private:
  template <class... Arguments>
  void put(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  void write_place(const ParameterPlace& place) {
    put("parameter {}", quoted(place.name));
    if (place.buffer >= 0)
      put(" buffer={}", quoted(program_.buffers.at(static_cast<size_t>(place.buffer)).name));
    put(" offset={} size={}", place.offset, place.size_bytes);
    if (place.narrow_buffer >= 0)
      put(" narrow={} narrow_offset={}",
          quoted(program_.buffers.at(static_cast<size_t>(place.narrow_buffer)).name), place.narrow_offset);
    for (const auto& state : place.states)
      put(" state={}@{}", quoted(program_.buffers.at(static_cast<size_t>(state.buffer)).name), state.offset);
    if (place.owned_end > place.owned_begin)
      put(" owns={}+{}", place.owned_begin, place.owned_end - place.owned_begin);
    put(" uses");
    for (const auto& use : place.uses) put(" {}+{}", use.segment, use.bucket_offset);
    put("\n");
  }

  void write_instruction(size_t number) {
    const Instruction& i = program_.instructions[number];
    put("{} {} @{}", number, name_of(i.kind), quoted(program_.lanes.at(static_cast<size_t>(i.lane)).name));
    if (i.segment >= 0) put(" segment={}", i.segment);
    if (i.micro_batch >= 0) put(" micro_batch={}", i.micro_batch);
    if (i.leaf >= 0) put(" leaf={}", i.leaf);
    if (i.accumulate) put(" accumulate");
    if (i.ordered) put(" ordered");
    if (i.group >= 0) put(" group={}", quoted(program_.groups.at(static_cast<size_t>(i.group)).name));
    if (i.root >= 0) put(" root={}", i.root);
    if (!i.blocks.empty()) put(" blocks={}", to_text(i.blocks));
    if (i.bound >= 0) put(" bound={}", i.bound);
    if (i.deadline != DeadlineClass::compute)
      put(" deadline={}", i.deadline == DeadlineClass::communication ? "communication"
                          : i.deadline == DeadlineClass::input       ? "input"
                                                                     : "storage");
    std::optional<Access> section;
    for (const Operand& operand : i.operands) {
      if (section != operand.access)
        put(" {}", operand.access == Access::read    ? "reads"
                   : operand.access == Access::write ? "writes"
                                                     : "updates");
      section = operand.access;
      write_operand(operand);
    }
    if (!i.after.empty()) put(" after");
    for (const Dependency& dependency : i.after)
      put(" {}{}", dependency.instruction, dependency.distance == 1 ? "'" : "");
    put("\n");
  }

  void write_operand(const Operand& operand) {
    const ProgramBuffer& buffer = program_.buffers.at(static_cast<size_t>(operand.range.buffer));
    put(" {}", name_of(operand.role));
    if (operand.index != 0) put(".{}", operand.index);
    put(":{}", quoted(buffer.name));
    if (operand.range.offset != 0 || operand.range.size_bytes != buffer.size_bytes)
      put("[{}+{}]", operand.range.offset, operand.range.size_bytes);
    if (operand.peer >= 0) put("@{}", operand.peer);
    if (operand.dtype != DType::float32) put("~{}", name_of(operand.dtype));
    if (operand.position != 0) put("^{}", operand.position);
  }

  const Program& program_;
  std::string text_;
};

/// One line of text and a place in it.
class Line {
 public:
  Line(std::string_view text, int number) : text_(text), number_(number) { skip_blanks(); }

  [[noreturn]] void fail(const std::string& what) const {
    throw ConfigError(
        fmt::format("program text, line {}: {}, at column {} of: {}", number_, what, at_ + 1, text_));
  }
  bool at_end() const { return at_ >= text_.size() || text_[at_] == '#'; }
  bool at_number() const {
    return !at_end() && (std::isdigit(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-');
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }
  bool accept(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("expected '{}'", c));
  }
  /// A key word: letters and underscores.
  std::string_view word() {
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalpha(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
      ++at_;
    if (begin == at_) fail("expected a word");
    return text_.substr(begin, at_ - begin);
  }
  void expect_word(std::string_view expected) {
    if (at_end() || word() != expected) fail(fmt::format("expected '{}'", expected));
  }
  std::string name() {
    std::string result;
    if (!accept('"')) {
      while (at_ < text_.size() && is_bare(text_[at_])) result += text_[at_++];
      if (result.empty()) fail("expected a name");
      return result;
    }
    while (!accept('"')) {
      const bool escaped = accept('\\');
      if (at_ >= text_.size()) fail("a quoted name has no end");
      result += escaped && text_[at_] == 'n' ? '\n' : text_[at_];
      ++at_;
    }
    return result;
  }
  template <class Integer = int>
  Integer number() {
    Integer value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("expected a number");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  /// KEY=NUMBER
  template <class Integer = int>
  Integer field(std::string_view key) {
    expect_word(key);
    expect('=');
    const Integer value = number<Integer>();
    skip_blanks();
    return value;
  }
  /// One of the values of an enumeration, found by its name; `count` of them.
  template <class Enum>
  Enum one_of(int count, std::string_view what) {
    return choose<Enum>(name(), count, what);
  }
  template <class Enum>
  Enum choose(const std::string& found, int count, std::string_view what) {
    std::vector<std::string> known;
    for (int i = 0; i < count; ++i) {
      known.emplace_back(name_of(static_cast<Enum>(i)));
      if (known.back() == found) return static_cast<Enum>(i);
    }
    fail(fmt::format("unknown {} '{}'{}; known are {}", what, found, did_you_mean(found, known),
                     join(known, ", ")));
  }

 private:
  std::string_view text_;
  int number_;
  size_t at_ = 0;
};

class Reader {
 public:
  std::vector<Program> read(std::string_view text) {
    int number = 0;
    while (!text.empty()) {
      const size_t end = text.find('\n');
      Line line(text.substr(0, end), ++number);
      if (!line.at_end()) read_line(line);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    return std::move(programs_);
  }

 private:
  Program& program(Line& line) {
    if (programs_.empty()) line.fail("expected 'program NAME ...' before anything else");
    return programs_.back();
  }

  void read_line(Line& line) {
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
    } else {
      line.fail(fmt::format(
          "unknown line '{}'; expected program, lane, group, buffer, parameter or the number of an "
          "instruction",
          what));
    }
    line.skip_blanks();
    if (!line.at_end()) line.fail("expected the end of the line");
  }

  void read_program(Line& line) {
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
    p.virtual_replicas = line.field("virtual_replicas");
    p.micro_batches_per_leaf = line.field("micro_batches_per_leaf");
  }

  template <class Named>
  static std::string new_name(Line& line, const std::vector<Named>& list, std::string_view what) {
    const std::string name = line.name();
    for (const Named& one : list)
      if (one.name == name) line.fail(fmt::format("a second {} named '{}'", what, name));
    line.skip_blanks();
    return name;
  }

  template <class Named>
  static int find(Line& line, const std::vector<Named>& list, std::string_view what) {
    const std::string name = line.name();
    std::vector<std::string> known;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].name == name) return static_cast<int>(i);
      known.push_back(list[i].name);
    }
    line.fail(fmt::format("no {} is named '{}'{}", what, name, did_you_mean(name, known)));
  }

  static void read_buffer(Line& line, Program& p) {
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

  static void read_place(Line& line, Program& p) {
    ParameterPlace place;
    place.name = line.name();
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
      } else if (key == "owns") {
        place.owned_begin = line.number<int64_t>();
        line.expect('+');
        place.owned_end = place.owned_begin + line.number<int64_t>();
      } else {
        line.fail(fmt::format(
            "unknown field '{}'; expected buffer, offset, size, narrow, narrow_offset, state, owns or uses",
            key));
      }
    }
    for (line.skip_blanks(); !line.at_end(); line.skip_blanks()) {
      const int segment = line.number();
      line.expect('+');
      place.uses.push_back({segment, line.number<int64_t>()});
    }
    p.parameters.push_back(std::move(place));
  }

  static void read_instruction(Line& line, Program& p) {
    const int number = line.number();
    if (number != static_cast<int>(p.instructions.size()))
      line.fail(fmt::format("this is instruction {}, but it is numbered {}", p.instructions.size(), number));
    Instruction& i = p.instructions.emplace_back();
    line.skip_blanks();
    i.kind = line.one_of<InstructionKind>(23, "instruction");
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
      } else if (line.accept('=')) {
        read_field(line, p, i, word);
      } else if (access) {
        read_operand(line, p, i, word, *access);
      } else {
        line.fail(fmt::format("'{}' is neither a field nor reads, writes, updates or after", word));
      }
    }
  }

  static void read_field(Line& line, const Program& p, Instruction& i, const std::string& key) {
    if (key == "segment") {
      i.segment = line.number();
    } else if (key == "micro_batch") {
      i.micro_batch = line.number();
    } else if (key == "leaf") {
      i.leaf = line.number();
    } else if (key == "group") {
      i.group = find(line, p.groups, "group");
    } else if (key == "root") {
      i.root = line.number();
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
                            did_you_mean(key, {"segment", "micro_batch", "leaf", "group", "root", "blocks",
                                               "bound", "deadline"})));
    }
  }

  /// "0+4096/1024@3,4096+64@0".
  static void read_blocks(Line& line, Blocks& blocks) {
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
  static Members read_members(Line& line) {
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

  static void read_operand(Line& line, const Program& p, Instruction& i, const std::string& role,
                           Access access) {
    Operand operand{line.choose<Role>(role, 20, "role"), 0, access, {}};
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

  static void read_dependencies(Line& line, Instruction& i) {
    for (line.skip_blanks(); line.at_number(); line.skip_blanks()) {
      const int instruction = line.number();
      i.after.push_back({instruction, line.accept('\'') ? 1 : 0});
    }
  }

  std::vector<Program> programs_;
};

}  // namespace

std::string to_text(const Program& program) { return Writer(program).write(); }

std::vector<Program> programs_from_text(std::string_view text) { return Reader().read(text); }

Program program_from_text(std::string_view text) {
  std::vector<Program> programs = programs_from_text(text);
  require(programs.size() == 1, fmt::format("program text: expected one program, found {}", programs.size()));
  return std::move(programs.front());
}

}  // namespace lockstep::program
