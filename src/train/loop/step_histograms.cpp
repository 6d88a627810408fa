#include "train/loop/step_histograms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/index.h"
#include "base/log.h"

namespace lockstep::train {
namespace {

constexpr const char* kHistogramTopic = "histogram";
constexpr std::string_view kGradients = "gradients/";
/// Steps whose parts rank 0 keeps, if some are missing.
constexpr size_t kMostSteps = 8;

/// Whether this rank's updates are those that count: without owners all replicas make the same ones.
bool is_first_to_update(const Worker& worker) {
  const layout::Ownership& ownership = worker.compiled().ownership();
  return ownership.has_owners() || ownership.replica_of(worker.rank()) == 0;
}

bool is_statistic(const model::Graph& graph, int parameter) {
  return graph.parameter(parameter).spec.role == ops::ParameterRole::statistic;
}

}  // namespace

StepHistograms::StepHistograms(const Worker& worker, StepHistogramsOptions options)
    : worker_(worker), options_(std::move(options)) {
  const model::Graph& graph = worker.compiled().graph();
  static_count_ = static_cast<double>(worker.compiled().division().global_batch) *
                  static_cast<double>(graph.loss_positions());
  for (size_t p = 0; p < graph.parameters.size(); ++p)
    if (!graph.parameters[p].frozen)
      elements_ +=
          graph.parameters[p].spec.shape.count() * (is_statistic(graph, static_cast<int>(p)) ? 1 : 2);
}

void StepHistograms::observe(const run::KernelObservation& observation) {
  if (observation.call != nullptr || !is_first_to_update(worker_)) return;
  const auto began = Clock::now();
  count(observation);
  counting_ms_ += milliseconds_between(began, Clock::now());
}

void StepHistograms::count(const run::KernelObservation& observation) {
  const program::Program& program = worker_.programs().step;
  if (program.instruction(observation.instruction).kind != program::InstructionKind::update) return;
  const auto& operands = program.instruction(observation.instruction).operands;
  const auto updated = std::ranges::find(operands, program::Role::parameters, &program::Operand::role);
  const auto used = std::ranges::find(operands, program::Role::gradients, &program::Operand::role);
  if (updated == operands.end() || used == operands.end()) return;
  const std::byte* values = worker_.memory().at(program, updated->range);
  const std::byte* gradients = worker_.memory().at(program, used->range);
  const int64_t begin = updated->range.offset, end = begin + updated->range.size_bytes;
  for (size_t p = 0; p < program.parameters.size(); ++p) {
    const auto& place = program.parameters[p];
    const int64_t from = std::max(begin, place.offset),
                  to = std::min(end, place.offset + place.held_range().size_bytes);
    if (place.buffer != updated->range.buffer || from >= to) continue;
    const int64_t count = (to - from) / static_cast<int64_t>(sizeof(float));
    count_part("parameters/" + place.name, values + (from - begin), count);
    // The buffer of a statistic's gradient has the statistic of this step.
    if (!is_statistic(worker_.compiled().graph(), static_cast<int>(p)))
      count_part(std::string(kGradients) + place.name, gradients + (from - begin), count);
  }
}

void StepHistograms::count_part(const std::string& name, const std::byte* data, int64_t count) {
  const auto size = static_cast<size_t>(count);
  const auto* values = reinterpret_cast<const float*>(data);
  if (!worker_.device().shares_host_memory()) {
    copy_.resize(size);
    worker_.device().copy_now(copy_.data(), data, count * static_cast<int64_t>(sizeof(float)));
    values = copy_.data();
  }
  observed_[name].add(std::span(values, size));
}

void StepHistograms::end_step(int64_t step, const program::Verdict& verdict,
                              const run::StepScalars& constants, bool skipped) {
  const Histograms observed = std::exchange(observed_, {});
  if (skipped) return;
  if (options_.mailbox->rank() != 0) {
    // A message each, since a mailbox takes a megabyte at most.
    for (const auto& [name, histogram] : observed)
      options_.mailbox->send(0, kHistogramTopic, fmt::format("{}\n{}\n{}", step, name, histogram.text()));
    return;
  }
  Gathered& gathered = gathered_[step];
  gathered.gradient_scale = program::update_scale(verdict, constants.kernels, static_count_, true);
  for (const auto& [name, histogram] : observed) {
    gathered.histograms[name].add(histogram);
    gathered.elements += histogram.count();
  }
}

void StepHistograms::receive(const std::string& text) {
  const size_t first = text.find('\n'), second = text.find('\n', first + 1);
  if (first == std::string::npos || second == std::string::npos) return;
  const observe::Histogram histogram = observe::Histogram::parse(std::string_view(text).substr(second + 1));
  Gathered& gathered = gathered_[std::strtoll(text.c_str(), nullptr, 10)];
  gathered.histograms[text.substr(first + 1, second - first - 1)].add(histogram);
  gathered.elements += histogram.count();
}

void StepHistograms::collect(Deadline deadline) {
  if (options_.mailbox->rank() != 0) return;
  while (!gathered_.empty()) {
    const auto& [step, oldest] = *gathered_.begin();
    if (oldest.elements == elements_ && oldest.gradient_scale) {
      write(step, oldest);
      gathered_.erase(gathered_.begin());
      continue;
    }
    const auto message = options_.mailbox->receive(kHistogramTopic, deadline);
    if (!message) break;
    receive(message->text);
  }
  if (gathered_.size() <= kMostSteps) return;
  log_warning(
      fmt::format("step {}: parts of its histograms are missing; it has none", gathered_.begin()->first));
  gathered_.erase(gathered_.begin());
}

void StepHistograms::write(int64_t step, const Gathered& gathered) {
  observe::MetricsRecord record{.step = step, .metrics = {}};
  const double scale = *gathered.gradient_scale;
  for (const auto& [name, histogram] : gathered.histograms) {
    const bool is_gradient = name.starts_with(kGradients);
    if (is_gradient && !(scale > 0 && std::isfinite(scale))) continue;
    auto buckets = histogram.buckets(is_gradient ? scale : 1);
    if (!buckets.empty()) record.histograms.emplace_back(name, std::move(buckets));
  }
  options_.write(std::move(record));
}

}  // namespace lockstep::train
