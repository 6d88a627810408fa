#include "train/loop/run_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <variant>

#include "base/text.h"
#include "layout/layout.h"
#include "observe/process_memory.h"
#include "train/start/agreement.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

/// By the time of the report all ranks have just finished the same step, or the same checkpoint.
constexpr std::chrono::seconds kReportTimeout{300};

/// COLLECTIVE: the largest of the ranks' values, one by one.
template <size_t N>
std::array<double, N> largest(comm::Communicator& world, const std::array<double, N>& own) {
  std::string text;
  for (const double value : own) text += exact(value) + " ";
  std::array<double, N> most = own;
  for (const auto& line : comm::gather_texts(world, text, kReportTimeout)) {
    const auto values = split(trim(line), ' ');
    for (size_t i = 0; i < N; ++i) most[i] = std::max(most[i], std::strtod(values.at(i).c_str(), nullptr));
  }
  return most;
}

bool predicts_classes(const model::Graph& graph) {
  return std::holds_alternative<SoftmaxCrossEntropy>(graph.node(graph.loss).op);
}

}  // namespace

bool is_classifier(const model::Graph& graph) {
  return predicts_classes(graph) && graph.loss_positions() == 1;
}

std::optional<int64_t> tokens_per_sample(const model::Graph& graph) {
  if (!predicts_classes(graph) || graph.loss_positions() == 1) return std::nullopt;
  return graph.loss_positions();
}

void RunRecorder::add(const StepRecord& record) {
  times_.add(record.step_ms);
  exposed_communication_ms_ += record.exposed_communication_ms;
  data_wait_ms_ += record.data_wait_ms;
}

observe::RunReport RunRecorder::report(comm::Communicator& world, const TrainingOutcome& outcome) const {
  const auto& compiled = worker_.compiled();
  const auto& graph = compiled.graph();
  const double steps = static_cast<double>(std::max<int64_t>(times_.steps(), 1));
  const auto most = largest<5>(world, {exposed_communication_ms_ / steps, data_wait_ms_ / steps,
                                       static_cast<double>(worker_.device().memory_use().peak_bytes),
                                       static_cast<double>(worker_.peak_host_bytes()),
                                       static_cast<double>(observe::process_peak_memory_bytes())});
  const auto samples = static_cast<double>(compiled.division().global_batch);
  observe::RunReport report;
  report.steps = outcome.steps;
  report.epochs = outcome.epochs;
  report.skipped_steps = outcome.skipped_steps;
  report.loss_scale = outcome.loss_scale;
  if (times_.steps() > 0) report.train_loss = outcome.train_loss;
  if (outcome.evaluation) {
    report.eval_loss = outcome.evaluation->loss;
    if (is_classifier(graph)) report.eval_accuracy = outcome.evaluation->accuracy;
  }
  report.samples_per_second = times_.per_second(samples);
  if (const auto tokens = tokens_per_sample(graph))
    report.tokens_per_second = times_.per_second(samples * static_cast<double>(*tokens));
  report.step_ms = times_.summary();
  report.exposed_comm_ms = most[0];
  report.data_wait_ms = most[1];
  report.startup_ms =
      startup_.milliseconds().total() - startup_.milliseconds()[observe::StartupPart::first_step];
  if (startup_.complete()) report.first_step = startup_.milliseconds();
  report.peak_memory_bytes = static_cast<int64_t>(most[2]);
  report.host_memory_bytes = static_cast<int64_t>(most[3]);
  report.process_memory_bytes = static_cast<int64_t>(most[4]);
  if (worker_.has_replica()) report.params_hash = parameters_hash_of(worker_);
  report.state_hash = state_hash_of(worker_, world);
  report.math_hash = worker_.config().math_hash;
  report.config_hash = worker_.config().config_hash;
  report.world_size = world.size();
  report.layout = layout::to_string(compiled.layout());
  return report;
}

}  // namespace lockstep::train
