#pragma once

#include <algorithm>
#include <vector>

#include "base/index.h"
#include "program/program.h"
#include "program/range_map.h"
#include "program/regions.h"

namespace lockstep::program {

/// The last writer of each byte and its readers since, while a program is walked in program order. These must
/// happen before the next access: the last writer and, for a write, the readers since. Earlier accesses
/// already come before them. Among several readers on one lane, the last one stands for all.
class AccessHistory {
 public:
  struct Bytes {
    int writer = -1;           ///< node
    int writer_buffer = -1;    ///< through which buffer it wrote
    bool defined = false;      ///< false: scratch, or left unspecified
    std::vector<int> readers;  ///< nodes
  };

  explicit AccessHistory(const Program& program)
      : program_(program), regions_(static_cast<size_t>(region_count(program))) {}

  RangeMap<Bytes>& region(const Region& where) { return nth(regions_, where.index); }

  /// Calls conflict(earlier node, begin, end) for everything that must happen before this access.
  template <class Conflict>
  void conflicts(const Operand& operand, Conflict&& conflict) {
    const Region where = region_of(program_, operand.range);
    region(where).visit(where.begin, where.end, [&](int64_t begin, int64_t end, Bytes& bytes) {
      if (bytes.writer >= 0) conflict(bytes.writer, begin, end);
      if (!writes(operand.access)) return;
      for (int reader : bytes.readers) conflict(reader, begin, end);
    });
  }

  /// Enters the access of `node`.
  void record(const Operand& operand, int node) {
    const Region where = region_of(program_, operand.range);
    if (writes(operand.access)) {
      region(where).assign(where.begin, where.end,
                           Bytes{node, operand.range.buffer, operand.role != Role::temporary, {}});
      return;
    }
    const auto add_reader = [&](Bytes& bytes) {
      for (int& reader : bytes.readers)
        if (lane_of(reader) == lane_of(node)) {
          reader = std::max(reader, node);
          return;
        }
      bytes.readers.push_back(node);
    };
    gaps_.clear();
    region(where).visit_all(
        where.begin, where.end, [&](int64_t, int64_t, Bytes& bytes) { add_reader(bytes); },
        [&](int64_t begin, int64_t end) { gaps_.emplace_back(begin, end); });
    for (const auto& [begin, end] : gaps_) region(where).assign(begin, end, Bytes{-1, -1, false, {node}});
  }

 private:
  int lane_of(int node) const {
    return program_.instructions[static_cast<size_t>(node) % program_.instructions.size()].lane;
  }

  const Program& program_;
  std::vector<RangeMap<Bytes>> regions_;
  std::vector<std::pair<int64_t, int64_t>> gaps_;
};

}  // namespace lockstep::program
