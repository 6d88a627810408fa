#pragma once

#include "parallel/program_plan.h"
#include "parallel/program_writer.h"
#include "program/session_terms.h"

namespace lockstep::parallel {

/// A communication lane and its group, which no other lane uses, by their numbers in the program.
struct Channel {
  int lane;
  int group;
};
/// A channel of all ranks.
Channel add_channel(program::Program& program, const std::string& name, program::Transport transport);
/// A channel within stages: a group for each stage, on one lane.
Channel add_stage_channel(const ProgramPlan& plan, program::Program& program, const std::string& name,
                          program::Transport transport, int rank);
/// A channel within replicas: a group for each replica, ordered by stage, on one lane.
Channel add_replica_channel(const ProgramPlan& plan, program::Program& program, const std::string& name,
                            int rank);
/// A channel of all workers.
Channel add_worker_channel(const ProgramPlan& plan, program::Program& program, const std::string& name);
/// The transport of all communication in which servers take part, or may.
program::Transport plain_transport(const ProgramPlan& plan);

/// The common beginning of all programs of a rank.
ProgramWriter begin_program(const ProgramPlan& plan, const char* name, int rank,
                            const program::ModelCode& code);

/// The number of leaves of a rank for whose metrics records of an agreement have room.
inline int most_records(const layout::BatchDivision& division) { return division.leaves_of(0).size(); }

/// What servers and workers agree on before each session, except its steps. REQUIRES: the layout has
/// sessions.
program::SessionTerms session_terms(const ProgramPlan& plan);

}  // namespace lockstep::parallel
