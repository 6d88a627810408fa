#pragma once

#include <array>
#include <vector>

#include "layout/pipeline_events.h"
#include "parallel/program_plan.h"
#include "parallel/program_writer.h"
#include "parallel/rank_program.h"

namespace lockstep::parallel {

/// The storages (SegmentInterface) that each micro-batch passes between a piece of the model and the next
/// one. A value that is read several pieces later passes through the pieces between, and so does its gradient
/// on the way back.
struct PieceBorder {
  std::vector<int> activations;  ///< from the piece to the next
  std::vector<int> gradients;    ///< back
  bool operator==(const PieceBorder&) const = default;
};
/// The borders of all pieces but the last.
std::vector<PieceBorder> piece_borders(const model::Graph& graph, const model::Partition& partition,
                                       const program::ModelCode& code);

/// The links from stage to stage. Each link (a stage, the next one, a direction) has its own channel at both
/// ends, so that sends never delay receives. Links are coloured so that no rank has two links of the same
/// colour: two colours in each direction if pieces are in a row; three if several pieces per rank close the
/// row to a ring of an odd number of stages.
class StageLinks {
 public:
  /// Adds the links' channels to the writer's program; none if there is one stage. `code`: the program's
  /// kernels.
  StageLinks(const ProgramPlan& plan, ProgramWriter& writer, const program::ModelCode& code, int rank);

  const std::vector<PieceBorder>& borders() const { return borders_; }
  void send(const layout::PipelineEvent& event) { transfer(program::Role::send, event); }
  void receive(const layout::PipelineEvent& event) { transfer(program::Role::receive, event); }

 private:
  Channel channel(bool backward, int lower_piece) const;
  void transfer(program::Role direction, const layout::PipelineEvent& event);

  const layout::Ownership& ownership_;
  ProgramWriter& writer_;
  int rank_;
  std::vector<PieceBorder> borders_;
  std::array<std::vector<Channel>, 2> channels_;  // forward and backward, by colour
};

}  // namespace lockstep::parallel
