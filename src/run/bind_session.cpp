#include <fmt/format.h>

#include "lockstep/error.h"
#include "run/bind.h"
#include "run/serve/worker_session.h"

namespace lockstep::run {
namespace {

WorkerSession& session_of(const Binding& binding) {
  WorkerSession* session = binding.context().session;
  if (session == nullptr)
    throw InternalError(
        fmt::format("{} belongs to a session with servers, and there is none", binding.describe()));
  return *session;
}

int world_rank_of(const Binding& binding, const program::Operand& operand) {
  return nth(binding.program().group(binding.instruction().group).members, operand.peer);
}

PushFacts facts_of(const program::Verdict& verdict, bool has_norm, bool predicated) {
  PushFacts facts{.loss_sum = verdict.loss_sum, .count = verdict.count, .correct = verdict.correct};
  if (!has_norm) return facts;
  facts.gradient_norm = verdict.gradient_norm;
  facts.gradient_scale = verdict.gradient_scale;
  if (predicated) facts.finite = verdict.finite;
  return facts;
}

}  // namespace

Action bind_pull(const Binding& binding) {
  const program::Operand* parameters = binding.required_operand(program::Role::parameters);
  WorkerSession& session = session_of(binding);
  const int pull = session.add_pull(world_rank_of(binding, *parameters), binding.instruction().segment,
                                    binding.at(*parameters), parameters->range.size_bytes);
  return {.arrived = [&session, pull] { return session.has_arrived(pull); }};
}

Action bind_push(const Binding& binding) {
  const program::Operand* gradients = binding.required_operand(program::Role::gradients);
  WorkerSession& session = session_of(binding);
  const int push = session.add_push(world_rank_of(binding, *gradients), binding.instruction().segment,
                                    binding.at(*gradients), gradients->range.size_bytes);
  const auto* verdict =
      reinterpret_cast<const program::Verdict*>(binding.required(program::Role::verdict, 0));
  const bool has_norm = binding.find(program::Role::verdict, 1) != nullptr;
  const bool predicated = binding.find(program::Role::predicate, 0) != nullptr;
  return {.start = [=, &session](device::Stream&, const StepInputs&, const auto&) {
    session.push(push, facts_of(*verdict, has_norm, predicated));
  }};
}

ServedRange bind_serve(const Binding& binding) {
  const program::Operand* parameters = binding.required_operand(program::Role::parameters);
  const program::Operand* replica = binding.find(program::Role::destination);
  const program::ByteRange& placed = (replica != nullptr ? replica : parameters)->range;
  const int64_t size_bytes = parameters->range.size_bytes;
  ensure(placed.size_bytes == size_bytes, "a replica's part is as large as what is served of it");
  ServedRange range{.contents = binding.at(*parameters),
                    .replica = replica != nullptr ? binding.at(*replica) : nullptr,
                    .size_bytes = size_bytes,
                    .workers = 0,
                    .landings = {},
                    .copies = {},
                    .update = make_update(binding, placed, state_of(binding, size_bytes))};
  for (const auto& operand : binding.instruction().operands) {
    const bool lands = operand.role == program::Role::gradients;
    if (!lands && operand.role != program::Role::temporary) continue;
    ensure(operand.range.size_bytes == size_bytes, "pushes and copies are as large as their range");
    (lands ? range.landings : range.copies).push_back(binding.at(operand));
    if (lands) range.workers = std::max(range.workers, operand.peer + 1);
  }
  range.update.parameters = reinterpret_cast<float*>(range.contents);
  range.update.whole_step = range.update.predicated = true;
  return range;
}

}  // namespace lockstep::run
