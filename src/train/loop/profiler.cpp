#include "train/loop/profiler.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/index.h"
#include "comm/gather_texts.h"

namespace lockstep::train {
namespace {

/// By rank, numbers in an order that all know.
std::vector<std::vector<double>> gather_numbers(comm::Communicator& world, const std::vector<double>& own) {
  std::vector<std::vector<double>> all;
  for (const std::string& text : comm::gather_texts(world, nlohmann::json(own).dump(), comm::kPatience))
    all.push_back(nlohmann::json::parse(text).get<std::vector<double>>());
  return all;
}

/// Of those that have a part in it.
double mean_of(const std::vector<std::vector<double>>& by_rank, size_t number) {
  double sum = 0;
  int ranks = 0;
  for (const auto& numbers : by_rank) {
    sum += numbers[number];
    ranks += numbers[number] > 0 ? 1 : 0;
  }
  return ranks == 0 ? 0 : sum / ranks;
}

}  // namespace

Profiler::Profiler(const Worker& worker, int64_t warm_up_steps)
    : worker_(worker), steps_to_skip_(warm_up_steps), nodes_(worker.compiled().graph().nodes.size()) {}

void Profiler::observe(const run::KernelObservation& observation) {
  if (steps_to_skip_ > 0) return;
  kernels_ += observation.seconds;
  if (observation.call == nullptr) {
    update_ += observation.seconds;
    return;
  }
  const program::Instruction& instruction = worker_.programs().step.instruction(observation.instruction);
  if (instruction.kind == program::InstructionKind::recompute ||
      instruction.leaves < worker_.compiled().division().leaves_at_once)
    return;
  Samples& samples = nth(nodes_, observation.call->node);
  switch (observation.call->phase) {
    case ops::KernelPhase::forward:
      samples.forward.push_back(observation.seconds);
      break;
    case ops::KernelPhase::backward_input:
      samples.backward_input.push_back(observation.seconds);
      break;
    case ops::KernelPhase::backward_weight:
      samples.backward_weight.push_back(observation.seconds);
      break;
  }
}

void Profiler::end_step(bool skipped, std::optional<double> busy_ms) {
  if (steps_to_skip_ > 0) {
    --steps_to_skip_;
    return;
  }
  if (!skipped) updates_.push_back(update_);
  if (busy_ms) rests_.push_back(std::max(1e-3 * *busy_ms - kernels_, 0.0));
  update_ = kernels_ = 0;
}

model::Profile Profiler::result(comm::Communicator& world) const {
  const int64_t updated = worker_.compiled().ownership().owned_bytes(worker_.rank()) / int64_t{sizeof(float)};
  std::vector<model::NodeTime> own;
  for (const Samples& samples : nodes_)
    own.push_back({median(samples.forward), median(samples.backward_input), median(samples.backward_weight)});
  return gather_profile(worker_, world, updated == 0 ? 0 : median(updates_) / static_cast<double>(updated),
                        own);
}

model::Profile gather_profile(const Worker& worker, comm::Communicator& world, double update_seconds,
                              const std::vector<model::NodeTime>& own) {
  const compile::CompiledRun& compiled = worker.compiled();
  std::vector<double> numbers{update_seconds};
  for (const model::NodeTime& time : own)
    numbers.insert(numbers.end(), {time.forward, time.backward_input, time.backward_weight});
  const auto by_rank = gather_numbers(world, numbers);

  model::Profile profile{.source = "",
                         .model = to_hex(model::hash_of(compiled.graph())),
                         .device = std::string(device::name_of(compiled.device())),
                         .storage = compiled.graph().compute,
                         .intra_op_threads = worker.config().parallel.intra_op_threads,
                         .micro_batch = compiled.division().micro_batch,
                         .nodes = {},
                         .update_seconds = mean_of(by_rank, 0)};
  size_t number = 1;
  for (const auto& node : compiled.graph().nodes) {
    const double forward = mean_of(by_rank, number++);
    const double backward_input = mean_of(by_rank, number++);
    const double backward_weight = mean_of(by_rank, number++);
    profile.nodes.push_back({node.name, {forward, backward_input, backward_weight}});
  }
  return profile;
}

}  // namespace lockstep::train
