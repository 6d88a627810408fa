#pragma once

#include <map>
#include <utility>
#include <vector>

#include "parallel/program_writer.h"
#include "parallel/rank_program.h"
#include "parallel/step_programs.h"

namespace lockstep::parallel {

/// Parameters that several stages use. Each stage sums the gradients of its own uses over the replicas; then
/// they go to the stage of the first use, which adds them in graph order and sends the sum back: all of them
/// make the same update, so that what they hold stays equal.
///
///     stage of the first use    R(use 0) <-.       add, add  -.  N  U
///     stage of another use      R(use 1) --'                  '->   U
class TiedStages {
 public:
  /// Adds a channel to the writer's program where stages share parameters.
  TiedStages(const ProgramPlan& plan, ProgramWriter& writer, int rank);

  /// After the sums over replicas: what other stages have of this one's parameters arrives.
  void collect();
  /// Adds the gradients of later uses of a segment's parameters to those of their first
  /// (ProgramWriter::add_tied_uses), wherever they were computed; nothing where another stage does that.
  void add(int lane, int segment);
  /// After they were added: the sums get to the other stages.
  void spread();

 private:
  template <class Visit>
  void for_uses(const Visit& visit) const;
  program::Operand operand(program::Role role, int index, int stage, const program::ByteRange& range) const;

  const ProgramPlan& plan_;
  ProgramWriter& writer_;
  int rank_;
  Channel channel_{-1, -1};
  std::map<std::pair<int, int>, program::ByteRange> arrived_;  // by parameter, use
};

}  // namespace lockstep::parallel
