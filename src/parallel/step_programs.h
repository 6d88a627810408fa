#pragma once

#include "parallel/program_plan.h"
#include "program/program.h"

namespace lockstep::parallel {

/// Throws ConfigError if gradients cannot meet as the plan asks for; so would compile_step.
void require_sums_exist(const ProgramPlan& plan);

/// The loop body of one optimizer step of one rank. Drawn for 2 workers with one leaf of two micro-batches
/// each, and three segments (F forward, B backward, A agree, R reduction of a bucket, N norm, U update).
/// Where parameters are read in a narrower type, compute begins with a cast of each segment's:
///
///     copy      L0  L1
///     compute   F0 F1 F2 B2 B1 B0  F0 F1 F2 B2 B1 B0 ------ N U2 U1 U0
///     reduce                                 R2 R1 R0
///     agree                                 A
///
/// With owners (a sharded optimizer, parameter servers) a digest of the parameters comes before N (at servers
/// that send them back as they land: before the last backward), and each U is followed by the gathering of
/// what it has made, in the order in which the next step's forward reads it.
///
/// With servers (one of them drawn, S folds a bucket, G gathers its parameters) their lanes are those of the
/// others without a batch; where updates wait for no verdict, both directions of their links are busy at
/// once, and R, S, U and G are of slices of a bucket, one after the other:
///
///     worker  compute  F0 F1 F2 B2 B1 B0 ...         or  F0 F1 F2 B2 B1 B0
///             reduce               R2 R1 R0                        R2 R1 R0
///             gather                       G0 G1 G2                   G2 G1 G0
///     server  reduce               R2 R1 R0                        R2 R1 R0
///             compute                 S2 S1 S0 N U0 U1 U2            S2U2 S1U1 S0U0
///             gather                             G0 G1 G2               G2  G1  G0
///
/// With stages, each runs its units of the schedule (layout/pipeline_events.h), with messages to and from its
/// neighbours beside them, sums its buckets over the replicas, or brings them to servers, after its last
/// backward, and agrees at the end; then come what stages share (parallel/tied_stages.h), the norm over all
/// stages, and updates.
/// docs/pipeline.md draws the schedules.
program::Program compile_step(const ProgramPlan& plan, int rank);

/// One micro-batch of every leaf of this worker through the forward pass, then an agreement on their loss and
/// counts. Iterations take the evaluation set in order; whoever runs them adds up the verdicts.
program::Program compile_evaluation(const ProgramPlan& plan, int rank);

/// The checkpoint: every rank copies its share of parameters and state for its writer, then all agree on
/// whether that went well.
program::Program compile_boundary(const ProgramPlan& plan, int rank);

}  // namespace lockstep::parallel
