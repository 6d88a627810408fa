#pragma once

#include "parallel/program_plan.h"
#include "parallel/program_writer.h"
#include "program/session_terms.h"

namespace lockstep::parallel {

/// A communication lane and the group that it alone uses, by their numbers in the program.
struct Channel {
  int lane;
  int group;
};
/// Of all ranks.
Channel add_channel(program::Program& program, const std::string& name, program::Transport transport);
/// Of the ranks of one stage, each with those of its own: a group for each stage, on one lane.
Channel add_stage_channel(const ProgramPlan& plan, program::Program& program, const std::string& name,
                          program::Transport transport, int rank);
/// Of the ranks of one replica, by stage: a group for each replica, on one lane.
Channel add_replica_channel(const ProgramPlan& plan, program::Program& program, const std::string& name,
                            int rank);
/// Of all workers.
Channel add_worker_channel(const ProgramPlan& plan, program::Program& program, const std::string& name);
/// What everything travels through that servers take part in, or may.
program::Transport plain_transport(const ProgramPlan& plan);

/// What all programs of a rank begin with.
ProgramWriter begin_program(const ProgramPlan& plan, const char* name, int rank,
                            const program::ModelCode& code);

/// Records of an agreement have room for so many leaves of a rank.
inline int most_leaves(const layout::BatchDivision& division) { return division.leaves_of(0).size(); }

/// What servers and workers agree on before each session, but for its steps. REQUIRES: the layout has
/// sessions.
program::SessionTerms session_terms(const ProgramPlan& plan);

}  // namespace lockstep::parallel
