#pragma once

#include <map>
#include <utility>
#include <vector>

#include "parallel/program_plan.h"
#include "parallel/program_writer.h"
#include "parallel/rank_program.h"

namespace lockstep::parallel {

/// Parameters that several stages use, where workers update them. Each stage sums the gradients of its own
/// uses over the replicas; they go to the stage of the first use, which adds them in graph order, updates,
/// and sends the parameters back. A replica has to do with itself alone: where it owns a shard, it gets and
/// adds the gradients of that.
///
///     stage of the first use    R(use 0) <-.       add, add   N  U  -.
///     stage of another use      R(use 1) --'                         '-> copy
///
/// Servers have the gradients of all stages, and send to all of them.
class TiedStages {
 public:
  /// Adds a channel to the writer's program where workers of several stages share parameters.
  TiedStages(const ProgramPlan& plan, ProgramWriter& writer, int rank);

  /// After the sums over replicas: what other stages have of this one's parameters arrives.
  void collect();
  /// Adds the gradients of later uses of a segment's parameters to those of their first
  /// (ProgramWriter::add_tied_uses), wherever they were computed; nothing if another rank does that.
  void add(int lane, int segment);
  /// After an update, and after owners have gathered what they made of it: a segment's parameters get to the
  /// other stages that use them.
  void spread(int segment);

 private:
  /// A use of a parameter in another stage than the first.
  struct Use {
    int parameter, number;
    int owner, segment;      ///< segments of the first use and of this one
    int64_t offset;          ///< in this one's bucket
    layout::ByteSpan bytes;  ///< of the parameter, which this replica updates where the first use is
  };
  std::vector<Use> uses() const;
  program::Operand operand(program::Role role, int index, int stage, const program::ByteRange& range) const;

  const ProgramPlan& plan_;
  ProgramWriter& writer_;
  int rank_;
  Channel channel_{-1, -1};
  std::map<std::pair<int, int>, program::ByteRange> arrived_;  // by parameter, use
};

}  // namespace lockstep::parallel
