#pragma once

#include "base/clock.h"
#include "run/binding.h"
#include "run/serve/served_range.h"
#include "run/staging.h"

namespace lockstep::run {

/// Does `work`, which is on `stream`, and tells the observer, where there is one.
template <class Work>
void observe(const KernelObserver* observer, device::Stream& stream, int instruction,
             const program::KernelCall* call, const Work& work) {
  if (observer == nullptr || !*observer) return work();
  stream.synchronize();
  const auto began = Clock::now();
  work();
  stream.synchronize();
  (*observer)({instruction, call, 1e-3 * milliseconds_between(began, Clock::now())});
}

// What becomes of each kind of instruction, one function for each.

Action bind_constants(const Binding& binding);
/// What this rank wants of a micro-batch. A rank that wants some of its fields, such as a pipeline's last
/// stage, reads the others into memory that nobody looks at.
Action bind_load(const Binding& binding, const std::shared_ptr<Staging>& staging);
/// forward and backward
Action bind_segment(const Binding& binding);
Action bind_add(const Binding& binding);
Action bind_cast(const Binding& binding);
Action bind_exchange(const Binding& binding);
Action bind_all_reduce(const Binding& binding);
Action bind_reduce_scatter(const Binding& binding);
Action bind_all_gather(const Binding& binding);
/// ring_reduce_scatter and ring_all_gather
Action bind_ring(const Binding& binding);
Action bind_broadcast(const Binding& binding);
/// All-gathers a record per member of the group, then each of them sums the leaves' metrics in the order of
/// the group: the same numbers for any number of workers. A member without metrics contributes none.
Action bind_agree(const Binding& binding);
/// Sums of squares by chunks of each parameter, folded in graph order, so that neither buckets nor layouts
/// change a bit. With gradients it writes their chunks' sums, and zero for all other chunks: those of several
/// ranks are then added. With a verdict to write it folds all sums.
Action bind_norm(const Binding& binding);
/// Of the parameters that its operands hold whole.
Action bind_digest(const Binding& binding);
/// The optimizer on parameters that lie in `updated`: what is the same in every update of them, but for where
/// anything lies.
UpdateCall make_update(const Binding& binding, const program::ByteRange& updated);
/// The optimizer on the part of parameters that the operands hold, with as many bytes of state for each slot.
Action bind_update(const Binding& binding);
/// Completes a receive that began when the step was granted.
Action bind_pull(const Binding& binding);
/// Complete at once: gradients then belong to the session, which sends them before the next step.
Action bind_push(const Binding& binding);
/// A `serve` is no action: a ServerSession carries all of a program out.
ServedRange bind_serve(const Binding& binding);
/// What one of these three takes of the host's memory, where the device has one of its own.
int64_t session_staging_bytes(const program::Instruction& instruction);
/// Copies what it reads, one operand after the other, so that training may go on while the copy is saved;
/// then asks whoever saves it whether all is well.
Action bind_snapshot(const Binding& binding);

}  // namespace lockstep::run
