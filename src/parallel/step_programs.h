#pragma once

#include "parallel/program_plan.h"
#include "program/program.h"

namespace lockstep::parallel {

/// The program of one optimizer step of one rank. Drawn for 2 workers, each with one leaf of two
/// micro-batches, and three segments (F forward, B backward, A agree, R reduction of a bucket, N norm, U
/// update). If parameters are read in a narrower type, compute begins with a cast of each segment's. If this
/// rank updates all of a segment, its updates write the copy too, and only the first step casts:
///
///     copy      L0  L1
///     compute   F0 F1 F2 B2 B1 B0  F0 F1 F2 B2 B1 B0 ------ N U2 U1 U0
///     reduce                                 R2 R1 R0
///     agree                                 A
///
/// With owners (a sharded optimizer, parameter servers) a digest of the parameters comes before N. (If
/// servers return parameters as they land, it comes before the last backward.) After each U its results are
/// gathered, in the order in which the next step's forward reads them.
///
/// Servers have the same lanes, without a batch; one server is drawn (S folds a bucket, G gathers its
/// parameters). On the right: if updates wait for no verdict, both directions of the links are busy at once,
/// and R, S, U and G handle slices of a bucket, one after the other:
///
///     worker  compute  F0 F1 F2 B2 B1 B0 ...         or  F0 F1 F2 B2 B1 B0
///             reduce               R2 R1 R0                        R2 R1 R0
///             gather                       G0 G1 G2                   G2 G1 G0
///     server  reduce               R2 R1 R0                        R2 R1 R0
///             compute                 S2 S1 S0 N U0 U1 U2            S2U2 S1U1 S0U0
///             gather                             G0 G1 G2               G2  G1  G0
///
/// With stages, each stage runs its units of the schedule (layout/pipeline_events.h), with messages to and
/// from its neighbours beside them. After its last backward it sums its buckets over the replicas, or sends
/// them to servers, and agrees. Then follow parameters that stages share (parallel/tied_stages.h), the norm
/// over all stages, and updates. docs/pipeline.md draws the schedules.
program::Program compile_step(const ProgramPlan& plan, int rank);

/// The program of an evaluation: one micro-batch of every leaf of this worker passes forward, then all agree
/// on loss and counts. Iterations take the evaluation set in order; the caller adds up the verdicts.
program::Program compile_evaluation(const ProgramPlan& plan, int rank);

/// The program of a checkpoint: every rank copies its share of parameters and state for its writer, then all
/// agree on whether that succeeded.
program::Program compile_boundary(const ProgramPlan& plan, int rank);

}  // namespace lockstep::parallel
