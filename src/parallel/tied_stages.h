#pragma once

#include <map>
#include <utility>
#include <vector>

#include "parallel/program_plan.h"
#include "parallel/program_writer.h"
#include "parallel/rank_program.h"

namespace lockstep::parallel {

/// Parameters that several stages use, if workers update them. Each stage sums the gradients of its own uses
/// over the replicas and sends them to the stage of the first use. That stage adds them in graph order,
/// updates, and returns the parameters. Each replica exchanges only within itself; if it owns a shard, it
/// receives and adds the gradients of that shard.
///
///     stage of the first use    R(use 0) <-.       add, add   N  U  -.
///     stage of another use      R(use 1) --'                         '-> copy
///
/// Servers receive the gradients of all stages and send to all of them, so they do not need this.
class TiedStages {
 public:
  /// Adds a channel to the writer's program if workers of several stages share parameters.
  TiedStages(const ProgramPlan& plan, ProgramWriter& writer, int rank);

  /// After the sums over replicas: receives other stages' gradients of this stage's parameters.
  void collect();
  /// Adds the gradients of later uses of a segment's parameters to those of their first use
  /// (ProgramWriter::add_tied_uses), wherever they were computed; nothing if another rank does that.
  void add(int lane, int segment);
  /// After an update, and after owners have gathered: sends a segment's parameters to the other stages that
  /// use them.
  void spread(int segment);

 private:
  /// A use of a parameter in another stage than the first.
  struct Use {
    int parameter, number;
    int owner, segment;  ///< segments of the first use and of this one
    int64_t offset;      ///< in this one's bucket
    tensor::Part part;   ///< of the parameter, which this replica updates where the first use is
    /// In this one's bucket.
    layout::ByteSpan bytes() const {
      const layout::ByteSpan within = layout::bytes_of(part);
      return {offset + within.begin, offset + within.end};
    }
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
