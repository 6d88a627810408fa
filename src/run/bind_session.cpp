#include <fmt/format.h>

#include <algorithm>

#include "base/ensure.h"
#include "lockstep/error.h"
#include "program/instruction_rules.h"
#include "run/bind.h"
#include "run/serve/worker_session.h"

namespace lockstep::run {
namespace {

WorkerSession& session_of(const Binding& binding) {
  WorkerSession* session = binding.context().session;
  if (session == nullptr)
    throw InternalError(
        fmt::format("{} belongs to a session with servers, but there is none", binding.describe()));
  return *session;
}

int world_rank_of(const Binding& binding, const program::Operand& operand) {
  return nth(binding.program().group(binding.instruction().group).members, operand.peer);
}

/// What a push says of the step that it is of.
struct FactsOperands {
  const program::Verdict* verdict;  // null: nothing
  bool has_norm, predicated;
};

FactsOperands facts_operands(const Binding& binding) {
  const program::Operand* agreed = binding.find(program::Role::verdict, 0);
  return {
      .verdict = agreed != nullptr ? reinterpret_cast<const program::Verdict*>(binding.at(*agreed)) : nullptr,
      .has_norm = binding.find(program::Role::verdict, 1) != nullptr,
      .predicated = binding.find(program::Role::predicate, 0) != nullptr};
}

std::optional<PushFacts> facts_of(const FactsOperands& operands, const program::Verdict* verdict) {
  if (operands.verdict == nullptr) return {};
  PushFacts facts{.loss_sum = verdict->loss_sum, .count = verdict->count, .correct = verdict->correct};
  if (!operands.has_norm) return facts;
  facts.gradient_norm = verdict->gradient_norm;
  facts.gradient_scale = verdict->gradient_scale;
  if (operands.predicated) facts.finite = verdict->finite;
  return facts;
}

/// Messages are between hosts: what a pull brings passes through here on its way to a device with memory of
/// its own.
struct PulledBytes {
  device::Buffer memory;
  std::unique_ptr<device::Event> copied;
};

/// Likewise what a push takes away, with the verdict that its facts are from.
struct PushedBytes {
  device::Buffer memory;
  program::Verdict* verdict() const { return reinterpret_cast<program::Verdict*>(memory.data()); }
  std::byte* gradients() const { return memory.data() + sizeof(program::Verdict); }
};

Action bind_staged_push(const Binding& binding, const program::Operand& gradients, WorkerSession& session) {
  const FactsOperands facts = facts_operands(binding);
  const int64_t size_bytes = gradients.range.size_bytes;
  auto pushed = std::make_shared<PushedBytes>(
      PushedBytes{binding.context().device.allocate_host(session_staging_bytes(binding.instruction()))});
  const int push = session.add_push(world_rank_of(binding, gradients), binding.instruction().segment,
                                    pushed->gradients(), size_bytes);
  // The second part may not be there yet: whoever does not wait for the norm does not read it.
  const int64_t verdict_bytes =
      facts.has_norm ? static_cast<int64_t>(sizeof(program::Verdict)) : program::kAgreedBytes;
  return {.start =
              [=, from = binding.at(gradients)](device::Stream& stream, const StepInputs&, const auto&) {
                if (facts.verdict != nullptr) stream.copy(pushed->verdict(), facts.verdict, verdict_bytes);
                stream.copy(pushed->gradients(), from, size_bytes);
              },
          .deliver = [=, &session] { session.push(push, facts_of(facts, pushed->verdict())); },
          .delivered = [push, &session] { return session.has_sent(push); }};
}

}  // namespace

Action bind_pull(const Binding& binding) {
  const program::Operand* parameters = binding.required_operand(program::Role::parameters);
  WorkerSession& session = session_of(binding);
  device::Device& device = binding.context().device;
  const int server = world_rank_of(binding, *parameters), segment = binding.instruction().segment;
  const int64_t size_bytes = parameters->range.size_bytes;
  std::byte* const to = binding.at(*parameters);
  if (device.shares_host_memory()) {
    const int pull = session.add_pull(server, segment, to, size_bytes);
    return {.arrived = [&session, pull] { return session.has_arrived(pull); }};
  }
  auto pulled =
      std::make_shared<PulledBytes>(PulledBytes{device.allocate_host(size_bytes), device.create_event()});
  const int pull = session.add_pull(server, segment, pulled->memory.data(), size_bytes, pulled->copied.get());
  return {.arrived = [&session, pull] { return session.has_arrived(pull); },
          .finish =
              [=](device::Stream& stream) {
                stream.copy(to, pulled->memory.data(), size_bytes);
                stream.record(*pulled->copied);
              }};
}

Action bind_push(const Binding& binding) {
  const program::Operand* gradients = binding.required_operand(program::Role::gradients);
  WorkerSession& session = session_of(binding);
  if (!binding.context().device.shares_host_memory()) return bind_staged_push(binding, *gradients, session);
  const int push = session.add_push(world_rank_of(binding, *gradients), binding.instruction().segment,
                                    binding.at(*gradients), gradients->range.size_bytes);
  return {.start = [push, &session, facts = facts_operands(binding)](device::Stream&, const StepInputs&,
                                                                     const auto&) {
    session.push(push, facts_of(facts, facts.verdict));
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
                    .state = nullptr,
                    .state_mirror = {},
                    .workers = 0,
                    .landings = {},
                    .copies = {},
                    .outboxes = {},
                    .update = {}};
  device::Device& device = binding.context().device;
  // One slot after the other.
  const int slots = optim::state_slots(binding.context().optimizer);
  if (slots > 0) range.state = binding.exactly(program::Role::state, 0, slots * size_bytes, DType::float32);
  if (range.state != nullptr && !device.shares_host_memory())
    range.state_mirror = device.allocate_host(session_staging_bytes(binding.instruction()));
  range.update = make_update(binding, placed);
  std::byte* state = range.state_mirror.data() != nullptr ? range.state_mirror.data() : range.state;
  for (int slot = 0; slot < slots; ++slot)
    range.update.state[slot] = reinterpret_cast<float*>(state + slot * size_bytes);
  for (const auto& operand : binding.instruction().operands) {
    const bool lands = operand.role == program::Role::gradients;
    if (!lands && operand.role != program::Role::temporary) continue;
    if (program::is_outbox(binding.instruction(), operand)) {
      ensure(operand.peer >= 0, "an outbox is a worker's");
      if (std::ssize(range.outboxes) <= operand.peer)
        range.outboxes.resize(static_cast<size_t>(operand.peer) + 1, nullptr);
      std::byte*& outbox = nth(range.outboxes, operand.peer);
      ensure(outbox == nullptr, "each worker has one outbox");
      outbox = binding.at(operand);
      range.outbox_bytes = range.outbox_bytes == 0 ? operand.range.size_bytes
                                                   : std::min(range.outbox_bytes, operand.range.size_bytes);
      continue;
    }
    ensure(operand.range.size_bytes == size_bytes, "pushes and copies are as large as their range");
    (lands ? range.landings : range.copies).push_back(binding.at(operand));
    if (lands) range.workers = std::max(range.workers, operand.peer + 1);
  }
  range.update.parameters = reinterpret_cast<float*>(range.contents);
  range.update.whole_step = range.update.predicated = true;
  range.scratch_bytes =
      make_orthogonalizers(range.update, device::DeviceKind::cpu, binding.context().matrix_threads, device);
  if (!optim::measures_parameters(range.update.optimizer)) return range;
  std::vector<int64_t> elements;
  std::vector<bool> is_norm_or_bias;
  for (const auto& parameter : binding.context().graph.parameters) {
    elements.push_back(parameter.spec.shape.count());
    is_norm_or_bias.push_back(parameter.spec.is_norm_or_bias);
  }
  range.measures.emplace(range.update, elements, is_norm_or_bias);
  return range;
}

int64_t served_scratch_bytes(const program::Program& program, const program::Instruction& serve) {
  int64_t most = 0;
  for (const program::ParameterPlace& place : program.parameters)
    if (place.uses[0].segment == serve.segment && !place.owned.empty())
      most = std::max(most, place.whole_scratch);
  return most;
}

int64_t session_staging_bytes(const program::Instruction& instruction) {
  const auto bytes_of = [&](program::Role role) {
    for (const auto& operand : instruction.operands)
      if (operand.role == role) return operand.range.size_bytes;
    return int64_t{0};
  };
  switch (instruction.kind) {
    case program::InstructionKind::pull:
      return bytes_of(program::Role::parameters);
    case program::InstructionKind::push:
      return static_cast<int64_t>(sizeof(program::Verdict)) + bytes_of(program::Role::gradients);
    case program::InstructionKind::serve:
      return bytes_of(program::Role::state);
    default:
      return 0;
  }
}

}  // namespace lockstep::run
