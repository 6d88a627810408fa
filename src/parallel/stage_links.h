#pragma once

#include <array>
#include <vector>

#include "layout/pipeline_events.h"
#include "parallel/program_plan.h"
#include "parallel/program_writer.h"
#include "parallel/rank_program.h"

namespace lockstep::parallel {

/// What passes between a piece of the model and the next one, of each micro-batch: storages
/// (SegmentInterface). A value that is read some pieces later passes through those between, as does a
/// gradient on its way back.
struct PieceBorder {
  std::vector<int> activations;  ///< from the piece to the next
  std::vector<int> gradients;    ///< back
  bool operator==(const PieceBorder&) const = default;
};
/// Of each piece but the last.
std::vector<PieceBorder> piece_borders(const model::Graph& graph, const model::Partition& partition,
                                       const program::ModelCode& code);

/// The way from stage to stage. Each link (a stage, the next one, a direction) has a channel of its own at
/// both of its ends, so that what is sent never stands in front of what is to arrive. As many channels
/// suffice as no rank is at two links of one colour: with pieces in a row two in each direction; where
/// several pieces of a rank close the row to a ring of an odd number of stages, three.
class StageLinks {
 public:
  /// Adds the links' channels to the writer's program; none if there is one stage. `code`: of that
  /// program.
  StageLinks(const ProgramPlan& plan, ProgramWriter& writer, const program::ModelCode& code, int rank);

  const std::vector<PieceBorder>& borders() const { return borders_; }
  void send(const layout::PipelineEvent& event) { transfer(program::Role::send, event); }
  void receive(const layout::PipelineEvent& event) { transfer(program::Role::receive, event); }

 private:
  Channel channel(bool backward, int lower_piece) const;
  void transfer(program::Role direction, const layout::PipelineEvent& event);

  const layout::Placement& placement_;
  ProgramWriter& writer_;
  int rank_;
  std::vector<PieceBorder> borders_;
  std::array<std::vector<Channel>, 2> channels_;  // forward and backward, by colour
};

}  // namespace lockstep::parallel
