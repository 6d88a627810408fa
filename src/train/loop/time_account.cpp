#include "train/loop/time_account.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/index.h"
#include "comm/gather_texts.h"
#include "lockstep/ops.h"

namespace lockstep::train {
namespace {

/// Of everything that a rank computes on. GPUs' figures are of 16-bit products.
std::optional<plan::MachineSpeed> speed_of(const Worker& worker) {
  const DType compute = worker.compiled().graph().compute;
  if (worker.device().kind() == device::DeviceKind::cuda)
    return compute == DType::float32 ? std::nullopt : plan::speed_of_gpu(worker.device().description());
  // A core's arithmetic was measured in float32.
  auto speed = plan::kept_speed(plan::kept_speed_path());
  if (!speed || compute != DType::float32) return {};
  const auto cores = static_cast<double>(std::max(worker.config().parallel.intra_op_threads, 1));
  return plan::MachineSpeed{cores * speed->flops_per_second, cores * speed->bytes_per_second,
                            cores * speed->cached_bytes_per_second};
}

}  // namespace

TimeAccount::TimeAccount(Worker& worker, const observe::PhaseClock& phases)
    : worker_(&worker), phases_(phases) {
  follow(worker);
}

void TimeAccount::follow(Worker& worker) {
  worker_ = &worker;
  speed_ = worker.is_worker() && worker.serving() == nullptr ? speed_of(worker) : std::nullopt;
  if (speed_) work_ = plan::work_of_step(worker.compiled(), worker.programs().step, *speed_);
}

std::optional<double> TimeAccount::speed_of_light(const StepRecord& record) const {
  if (!speed_ || record.step_ms <= 0) return {};
  return 1e3 * work_.least_seconds / record.step_ms;
}

void TimeAccount::part() { former_ = totals(); }

void TimeAccount::add(const StepRecord& record) {
  step_ = record.step;
  ++steps_;
  data_wait_ms_ += record.data_wait_ms;
  exposed_ms_ += record.exposed_communication_ms;
  histogram_ms_ += record.histogram_ms;
  times_.add(record.step_ms);
}

/// Whether it communicates with another stage of a pipeline.
bool TimeAccount::is_between_stages(const program::Instruction& instruction) const {
  const layout::Ownership& ownership = worker_->compiled().ownership();
  const int own = worker_->rank();
  if (instruction.group < 0 || ownership.stages() < 2 || !ownership.is_worker(own)) return false;
  const program::Members& members = worker_->programs().step.group(instruction.group).members;
  for (size_t i = 0; i < members.size(); ++i)
    if (ownership.is_worker(members[i]) && ownership.stage_of(members[i]) != ownership.stage_of(own))
      return true;
  return false;
}

TimeAccount::Former TimeAccount::totals() const {
  Former totals = former_;
  const data::StageTimes stages = worker_->data_stage_times();
  for (size_t stage = 0; stage < stages.size(); ++stage) totals.preparing_ms[stage] += stages[stage];
  for (const run::WorkTimes* work : {worker_->work_times(), worker_->observed_work_times()})
    if (work != nullptr) add(*work, totals);
  if (const run::SampledTimes* sampled = worker_->sampled_times()) add(*sampled, totals);
  return totals;
}

void TimeAccount::add(const run::SampledTimes& sampled, Former& totals) const {
  const auto& nodes = worker_->compiled().graph().nodes;
  for (size_t node = 0; node < nodes.size(); ++node)
    totals.sampled_ms[std::string(lockstep::name_of(nodes[node].op))] += sampled.nodes_ms[node];
  for (int kind = 0; kind < program::kInstructionKindCount; ++kind)
    totals.sampled_ms[std::string(program::name_of(static_cast<program::InstructionKind>(kind)))] +=
        nth(sampled.kinds_ms, kind);
  totals.sampled_steps += sampled.iterations;
}

/// As if all steps were like those of the sample.
void TimeAccount::tell_sample(const Former& totals, observe::RankTime& time) const {
  time.sampled_steps = totals.sampled_steps;
  if (totals.sampled_steps == 0) return;
  const double scale = static_cast<double>(steps_) / static_cast<double>(totals.sampled_steps);
  for (const auto& [name, ms] : totals.sampled_ms)
    if (ms > 0) time.computing_ms.emplace_back(name, scale * ms);
}

void TimeAccount::add(const run::WorkTimes& work, Former& totals) const {
  const auto& nodes = worker_->compiled().graph().nodes;
  for (size_t node = 0; node < nodes.size(); ++node)
    totals.computing_ms[std::string(lockstep::name_of(nodes[node].op))] += work.nodes_ms[node].all();
  for (int kind = 0; kind < program::kInstructionKindCount; ++kind) {
    const auto of = static_cast<program::InstructionKind>(kind);
    if (of == program::InstructionKind::load)
      totals.load_ms += work.kind_ms(of);
    else
      totals.computing_ms[std::string(program::name_of(of))] += work.kind_ms(of);
  }
  totals.handling_ms += work.handling_ms;
  const program::Program& program = worker_->programs().step;
  for (size_t i = 0; i < work.waited_ms.size(); ++i)
    (is_between_stages(program.instructions[i]) ? totals.stage_wait_ms : totals.waited_ms) +=
        work.waited_ms[i];
}

observe::RankTime TimeAccount::own() const {
  const Former totals = this->totals();
  const layout::Ownership& ownership = worker_->compiled().ownership();
  observe::RankTime time{.rank = worker_->rank(),
                         .stage = worker_->is_worker() ? ownership.stage_of(worker_->rank()) : -1,
                         .tells_computing = worker_->work_times() != nullptr,
                         .computing_ms = {},
                         .preparing_ms = {}};
  if (const auto steps = times_.summary(); steps && speed_ && steps->mean > 0) {
    time.speed_of_light = 1e3 * work_.least_seconds / steps->mean;
    if (worker_->device().kind() == device::DeviceKind::cuda)
      time.flops_utilization = 1e3 * work_.flops / speed_->flops_per_second / steps->mean;
  }
  for (int stage = 0; stage < data::kDataStages; ++stage)
    if (const double ms = nth(totals.preparing_ms, stage); ms > 0)
      time.preparing_ms.emplace_back(data::name_of(static_cast<data::DataStage>(stage)), ms);
  const auto now = Clock::now();
  for (int phase = 0; phase < observe::kRunPhases; ++phase)
    nth(time.phases_ms, phase) = phases_.milliseconds(static_cast<observe::RunPhase>(phase), now);
  if (!time.tells_computing) {
    time.data_wait_ms = data_wait_ms_;
    (ownership.stages() > 1 ? time.stage_wait_ms : time.waited_ms) = exposed_ms_;
    tell_sample(totals, time);
    return time;
  }
  // Values are counted within the updates that use them.
  for (const auto& [name, ms] : totals.computing_ms)
    if (const double own =
            ms - (name == program::name_of(program::InstructionKind::update) ? histogram_ms_ : 0);
        own > 0)
      time.computing_ms.emplace_back(name, own);
  if (histogram_ms_ > 0) time.computing_ms.emplace_back("histograms", histogram_ms_);
  // The rest of loading moves samples into place.
  time.data_wait_ms = std::min(data_wait_ms_, totals.load_ms);
  if (totals.load_ms > time.data_wait_ms)
    time.computing_ms.emplace_back("load", totals.load_ms - time.data_wait_ms);
  // What a process alone spends on looking for messages is the work of its loop.
  if (ownership.ranks() == 1) return time;
  time.waited_ms = totals.waited_ms;
  time.stage_wait_ms = totals.stage_wait_ms;
  time.handling_ms = totals.handling_ms;
  return time;
}

observe::Explanation TimeAccount::so_far() const {
  const observe::RankTime time = own();
  return observe::explain({&time, 1}, step_, true);
}

observe::Explanation TimeAccount::explain(comm::Communicator& world) const {
  std::vector<observe::RankTime> ranks;
  for (const std::string& text : comm::gather_texts(world, observe::to_text(own()), comm::kPatience))
    ranks.push_back(observe::rank_time_from_text(text));
  return observe::explain(ranks, step_, false);
}

}  // namespace lockstep::train
