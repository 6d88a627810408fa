#pragma once

#include "base/clock.h"
#include "run/binding.h"
#include "run/serve/served_range.h"
#include "run/staging.h"

namespace lockstep::run {

/// Does `work`, which is on `stream`, and tells the observer, if there is one.
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

// One function for each kind of instruction.

Action bind_constants(const Binding& binding);
/// Loads what this rank needs of a micro-batch. A rank that needs only some fields, such as a pipeline's last
/// stage, reads the others into memory that is not used.
Action bind_load(const Binding& binding, const std::shared_ptr<Staging>& staging);
/// forward and backward
Action bind_segment(const Binding& binding);
Action bind_add(const Binding& binding);
Action bind_cast(const Binding& binding);
Action bind_exchange(const Binding& binding);
Action bind_all_reduce(const Binding& binding);
/// ring_reduce_scatter and ring_all_gather
Action bind_ring(const Binding& binding);
/// All-gathers a record per member of the group. Then each member sums the leaves' metrics in the group's
/// order: the same numbers for any number of workers. A member without metrics contributes none.
Action bind_agree(const Binding& binding);
/// Sums of squares by chunks of each parameter, folded in graph order, so that neither buckets nor layouts
/// change bits. With gradients it writes their chunks' sums, and zero for all other chunks; sums of several
/// ranks are then added. The same with parameters. With a verdict to write, it folds all sums of gradients.
Action bind_norm(const Binding& binding);
/// Moves the state from which updates follow, and sums their squares likewise.
Action bind_propose(const Binding& binding);
/// A scale for each parameter, from all of its sums.
Action bind_ratios(const Binding& binding);
/// Digests of the parameters that its operands hold completely.
Action bind_digest(const Binding& binding);
/// The optimizer for parameters in `updated`: everything that is the same in each of their updates, without
/// addresses.
UpdateCall make_update(const Binding& binding, const program::ByteRange& updated);
/// Prepares what makes the call's matrices orthogonal, on `device`, or on its host's processor. Returns how
/// many bytes of scratch they need, one after the other.
int64_t make_orthogonalizers(UpdateCall& call, device::DeviceKind kind, int threads, device::Device& device);
/// Then gives them this scratch.
void use_scratch(UpdateCall& call, std::byte* scratch);
/// The optimizer on the part of parameters that the operands hold, with as many bytes of state for each slot.
Action bind_update(const Binding& binding);
/// Completes a receive that began when the step was granted.
Action bind_pull(const Binding& binding);
/// Completes at once: gradients then belong to the session, which sends them before the next step.
Action bind_push(const Binding& binding);
/// A `serve` is no action: a ServerSession executes all `serve` instructions of a program.
ServedRange bind_serve(const Binding& binding);
/// Host memory that one of these three needs, if the device has its own memory.
int64_t session_staging_bytes(const program::Instruction& instruction);
/// Host memory in which a `serve` updates whole matrices; a session has it once, for its largest.
int64_t served_scratch_bytes(const program::Program& program, const program::Instruction& serve);
/// Copies what it reads, one operand after the other, so that training can continue while the copy is saved.
/// Then calls ExecutionContext::snapshot.
Action bind_snapshot(const Binding& binding);

}  // namespace lockstep::run
