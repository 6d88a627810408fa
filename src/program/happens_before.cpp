#include "program/happens_before.h"

#include <algorithm>

namespace lockstep::program {

HappensBefore::HappensBefore(const Program& program, int iterations)
    : program_(program),
      instruction_count_(static_cast<int>(program.instructions.size())),
      lane_count_(program.lanes.size()) {
  const size_t nodes = program.instructions.size() * static_cast<size_t>(iterations);
  lane_.reserve(nodes);
  sequence_.reserve(nodes);
  previous_.reserve(nodes);
  std::vector<int> last(lane_count_, -1), count(lane_count_, 0);
  for (int k = 0; k < iterations; ++k) {
    for (const Instruction& instruction : program.instructions) {
      const auto lane = static_cast<size_t>(instruction.lane);
      lane_.push_back(instruction.lane);
      sequence_.push_back(++count[lane]);
      previous_.push_back(last[lane]);
      last[lane] = static_cast<int>(lane_.size()) - 1;
    }
  }
  clocks_.assign(nodes * lane_count_, 0);
}

void HappensBefore::visit(int node) {
  if (previous_[index(node)] >= 0) depend(node, previous_[index(node)]);
  const int iteration = node / instruction_count_;
  for (const Dependency& dependency : program_.instructions[index(node % instruction_count_)].after) {
    const int from = iteration - dependency.distance;
    if (from >= 0) depend(node, from * instruction_count_ + dependency.instruction);
  }
}

void HappensBefore::visit_all() {
  for (int node = 0; node < node_count(); ++node) visit(node);
}

void HappensBefore::depend(int later, int earlier) {
  int* into = &clocks_[index(later) * lane_count_];
  const int* from = clock(earlier);
  for (size_t lane = 0; lane < lane_count_; ++lane) into[lane] = std::max(into[lane], from[lane]);
  int& own = into[lane_[index(earlier)]];
  own = std::max(own, sequence_[index(earlier)]);
}

}  // namespace lockstep::program
