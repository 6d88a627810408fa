#include "train/loop/run_recorder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>
#include <utility>
#include <variant>

#include "base/index.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "layout/layout.h"
#include "layout/pipeline_timeline.h"
#include "observe/process_memory.h"
#include "program/program_traffic.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

/// By the time of the report all ranks have just finished the same step, or the same checkpoint.
constexpr std::chrono::seconds kReportTimeout{300};

/// Reading counters takes tens of microseconds.
constexpr std::chrono::milliseconds kNetworkInterval{20};

/// What a rank tells the others.
std::vector<double> numbers_of(const observe::RankReport& rank) {
  return {rank.waited_ms,
          rank.data_wait_ms,
          rank.busy_share.value_or(-1),
          rank.sent_bytes,
          rank.received_bytes,
          static_cast<double>(rank.sent_bytes_theory),
          static_cast<double>(rank.received_bytes_theory),
          static_cast<double>(rank.peak_memory_bytes)};
}

/// COLLECTIVE: every rank's numbers, by rank.
std::vector<std::vector<double>> gather(comm::Communicator& world, const std::vector<double>& own) {
  std::string text;
  for (const double value : own) text += exact(value) + " ";
  std::vector<std::vector<double>> all;
  for (const auto& line : comm::gather_texts(world, text, kReportTimeout)) {
    all.emplace_back();
    for (const auto& value : split(trim(line), ' '))
      all.back().push_back(std::strtod(std::string(value).c_str(), nullptr));
  }
  return all;
}

/// COLLECTIVE: damaged samples of a data set, of which each rank has met others.
data::Damage gather_damage(comm::Communicator& world, const data::Dataset* dataset) {
  data::Damage all = dataset != nullptr ? dataset->damage() : data::Damage{};
  std::set<int64_t> replaced;
  for (const auto& line :
       comm::gather_texts(world, fmt::format("{}", fmt::join(all.replaced, " ")), kReportTimeout))
    for (const auto& sample : split(trim(line), ' ')) replaced.insert(std::stoll(sample));
  all.replaced.assign(replaced.begin(), replaced.end());
  return all;
}

/// COLLECTIVE: which host each rank is on, and what of its interfaces has moved.
struct HostReport {
  std::string host;
  observe::NetworkBytes interfaces;
};
std::vector<HostReport> gather(comm::Communicator& world, const HostReport& own) {
  std::string text = own.host;
  for (const auto& [name, bytes] : own.interfaces)
    text += fmt::format("\n{}\n{}\n{}", name, exact(bytes.sent), exact(bytes.received));
  std::vector<HostReport> all;
  for (const auto& told : comm::gather_texts(world, text, kReportTimeout)) {
    const std::vector<std::string> lines = split(told, '\n');
    HostReport& report =
        all.emplace_back(HostReport{.host = lines.empty() ? "" : lines[0], .interfaces = {}});
    for (size_t i = 1; i + 2 < lines.size(); i += 3)
      report.interfaces[lines[i]] = {.sent = std::strtod(lines[i + 1].c_str(), nullptr),
                                     .received = std::strtod(lines[i + 2].c_str(), nullptr)};
  }
  return all;
}

/// COLLECTIVE: those of all ranks: hosts, processes and GPUs, each once, in the order of ranks.
std::vector<observe::MachineReport> gather(comm::Communicator& world,
                                           const std::vector<observe::MachineReport>& own) {
  std::string text;
  for (const auto& report : own) text += observe::to_json(report) + "\n";
  std::vector<observe::MachineReport> all;
  for (const auto& told : comm::gather_texts(world, text, kReportTimeout))
    for (const auto& line : split(told, '\n')) {
      if (line.empty()) continue;
      observe::MachineReport report = observe::parse_machine_report(line);
      // Ranks may share a GPU, and another rank samples a host once the first is lost.
      const bool known = std::ranges::any_of(all, [&](const auto& other) {
        return other.subject.host == report.subject.host &&
               observe::group_of(other.subject, false) == observe::group_of(report.subject, false);
      });
      if (!known) all.push_back(std::move(report));
    }
  std::ranges::stable_sort(all, {}, [](const auto& report) { return report.subject.kind; });
  return all;
}

observe::StalenessReport staleness_report(const run::Staleness& staleness, std::optional<int> bound) {
  observe::StalenessReport report{
      .bound = bound, .max = staleness.max, .mean = staleness.mean(), .histogram = {}};
  const auto last = std::min(staleness.max, run::Staleness::kCap);
  report.histogram.assign(staleness.pushes.begin(), staleness.pushes.begin() + last + 1);
  return report;
}

bool predicts_classes(const model::Graph& graph) {
  return std::holds_alternative<SoftmaxCrossEntropy>(graph.node(graph.loss).op);
}

/// The part of workers' steps in which they computed nothing; none if that is not known.
std::optional<double> idle_fraction(const std::vector<observe::RankReport>& ranks) {
  double idle = 0;
  int workers = 0;
  for (const auto& rank : ranks) {
    if (!rank.is_worker()) continue;
    if (!rank.busy_share) return std::nullopt;
    idle += 1 - *rank.busy_share;
    ++workers;
  }
  return idle / workers;
}

/// The part of a step that a pipeline's schedule alone leaves idle; nothing without stages.
std::optional<double> bubble_of_schedule(const compile::CompiledRun& run) {
  if (run.ownership().stages() < 2) return std::nullopt;
  const int micro_batches = run.division().micro_batches_of(0);
  return layout::replay(layout::pipeline_shape(run.layout(), micro_batches), {}).bubble_fraction();
}

}  // namespace

bool tells_perplexity(const model::Graph& graph) {
  const auto* loss = std::get_if<SoftmaxCrossEntropy>(&graph.node(graph.loss).op);
  return tokens_per_sample(graph) && loss != nullptr && loss->label_smoothing == 0;
}

bool tells_accuracy(const model::Graph& graph) { return predicts_classes(graph); }

std::optional<int64_t> tokens_per_sample(const model::Graph& graph) {
  if (!predicts_classes(graph) || graph.loss_positions() == 1) return std::nullopt;
  return graph.loss_positions();
}

void RunRecorder::add(const StepRecord& record) {
  times_.add(record.step_ms);
  // What the first steps waited for counts no longer than what they took.
  if (times_.steps() == observe::StepTimes::kWarmUpSteps + 1)
    exposed_communication_ms_ = busy_ms_ = step_ms_ = data_wait_ms_ = 0;
  exposed_communication_ms_ += record.exposed_communication_ms;
  knows_busy_ = record.busy_ms.has_value();
  busy_ms_ += record.busy_ms.value_or(0);
  step_ms_ += record.step_ms;
  data_wait_ms_ += record.data_wait_ms;
  look_at_network();
}

void RunRecorder::look_at_network() {
  const bool begins = times_.steps() == observe::StepTimes::kWarmUpSteps;
  if (times_.steps() < observe::StepTimes::kWarmUpSteps ||
      (!begins && Clock::now() - network_looked_ < kNetworkInterval))
    return;
  network_now_ = observe::network_bytes();
  network_now_step_ = times_.steps();
  network_looked_ = Clock::now();
  if (!begins) return;
  network_then_ = network_now_;
  network_then_step_ = network_now_step_;
}

void RunRecorder::part() {
  transferred_before_ = transferred();
  peak_memory_before_ = std::max(worker_->device().memory_use().peak_bytes, peak_memory_before_);
}

comm::TransferredBytes RunRecorder::transferred() const {
  comm::TransferredBytes bytes = worker_->transferred();
  bytes.sent += transferred_before_.sent;
  bytes.received += transferred_before_.received;
  return bytes;
}

observe::RankReport RunRecorder::own_report() const {
  const double steps = static_cast<double>(std::max<int64_t>(times_.steps(), 1));
  const double measured = static_cast<double>(std::max<int64_t>(times_.measured(), 1));
  const comm::TransferredBytes bytes = transferred();
  const program::ProgramTraffic theory = worker_->programs().traffic();
  // Programs are of one push of each worker.
  const layout::Layout& layout = worker_->compiled().layout();
  const auto of_a_step = [&](int64_t bytes) { return bytes * layout.pushes_per_step() / layout.workers(); };
  return {.rank = worker_->rank(),
          .role = {},
          .waited_ms = exposed_communication_ms_ / measured,
          .data_wait_ms = data_wait_ms_ / measured,
          .busy_share =
              knows_busy_ && step_ms_ > 0 ? std::optional(std::min(busy_ms_ / step_ms_, 1.0)) : std::nullopt,
          .sent_bytes = static_cast<double>(bytes.sent) / steps,
          .received_bytes = static_cast<double>(bytes.received) / steps,
          .sent_bytes_theory = of_a_step(theory.exchanged_sent_bytes),
          .received_bytes_theory = of_a_step(theory.exchanged_received_bytes),
          .peak_memory_bytes = std::max(worker_->device().memory_use().peak_bytes, peak_memory_before_)};
}

observe::RunReport RunRecorder::report(comm::Communicator& world, const TrainingOutcome& outcome,
                                       const std::vector<observe::MachineReport>& machines) const {
  const auto& compiled = worker_->compiled();
  const auto& graph = compiled.graph();
  std::vector<double> own = numbers_of(own_report());
  own.push_back(static_cast<double>(worker_->peak_host_bytes()));
  own.push_back(static_cast<double>(observe::process_peak_memory_bytes()));
  own.push_back(static_cast<double>(observe::process_private_bytes() - worker_->private_bytes_before_plan()));
  const auto samples = static_cast<double>(compiled.division().global_batch);
  observe::RunReport report;
  report.steps = outcome.steps;
  report.epochs = outcome.epochs;
  report.skipped_steps = outcome.skipped_steps;
  if (worker_->config().data.on_damage == data::DamagePolicy::skip)
    for (const auto* dataset : worker_->datasets()) {
      const data::Damage damage = gather_damage(world, dataset);
      report.left_out_samples += damage.left_out;
      report.replaced_samples += static_cast<int64_t>(damage.replaced.size());
    }
  report.loss_scale = outcome.loss_scale;
  if (times_.steps() > 0) report.train_loss = outcome.train_loss;
  if (outcome.evaluation && outcome.evaluation->has_loss()) {
    report.eval_loss = outcome.evaluation->loss;
    if (tells_accuracy(graph)) report.eval_accuracy = outcome.evaluation->accuracy;
    if (tells_perplexity(graph)) report.perplexity = std::exp(outcome.evaluation->loss);
  }
  if (outcome.evaluations.best_step >= 0) {
    report.best_step = outcome.evaluations.best_step;
    report.best_eval_loss = outcome.evaluations.best_loss;
  }
  report.ended_early = outcome.ended_early;
  report.samples_per_second = times_.per_second(samples);
  if (const auto tokens = tokens_per_sample(graph))
    report.tokens_per_second = times_.per_second(samples * static_cast<double>(*tokens));
  report.step_ms = times_.summary();
  const double network_steps = static_cast<double>(network_now_step_ - network_then_step_);
  const std::vector<HostReport> hosts = gather(
      world, {.host = host_,
              .interfaces = network_steps > 0 ? observe::per_step(network_then_, network_now_, network_steps)
                                              : observe::NetworkBytes{}});
  for (const auto& numbers : gather(world, own)) {
    observe::RankReport rank{.rank = static_cast<int>(report.ranks.size()), .role = {}};
    rank.role = compiled.role_of(rank.rank);
    rank.host = nth(hosts, rank.rank).host;
    if (std::ranges::none_of(report.ranks, [&](const auto& other) { return other.host == rank.host; }))
      rank.interfaces = nth(hosts, rank.rank).interfaces;
    if (compiled.ownership().stages() > 1 && compiled.ownership().is_worker(rank.rank)) {
      rank.stage = compiled.ownership().stage_of(rank.rank);
      rank.replica = compiled.ownership().replica_of(rank.rank);
    }
    rank.waited_ms = numbers.at(0);
    rank.data_wait_ms = numbers.at(1);
    if (numbers.at(2) >= 0) rank.busy_share = numbers.at(2);
    rank.sent_bytes = numbers.at(3);
    rank.received_bytes = numbers.at(4);
    rank.sent_bytes_theory = static_cast<int64_t>(numbers.at(5));
    rank.received_bytes_theory = static_cast<int64_t>(numbers.at(6));
    rank.peak_memory_bytes = static_cast<int64_t>(numbers.at(7));
    if (rank.is_worker()) {
      report.exposed_comm_ms = std::max(report.exposed_comm_ms, rank.waited_ms);
      report.data_wait_ms = std::max(report.data_wait_ms, rank.data_wait_ms);
    }
    report.peak_memory_bytes = std::max(report.peak_memory_bytes, rank.peak_memory_bytes);
    report.host_memory_bytes = std::max(report.host_memory_bytes, static_cast<int64_t>(numbers.at(8)));
    report.process_memory_bytes = std::max(report.process_memory_bytes, static_cast<int64_t>(numbers.at(9)));
    report.process_memory_growth_bytes =
        std::max(report.process_memory_growth_bytes, static_cast<int64_t>(numbers.at(10)));
    report.ranks.push_back(std::move(rank));
  }
  report.bubble_fraction_theory = bubble_of_schedule(compiled);
  if (report.bubble_fraction_theory) report.bubble_fraction = idle_fraction(report.ranks);
  report.startup_ms =
      startup_.milliseconds().total() - startup_.milliseconds()[observe::StartupPart::first_step];
  if (startup_.complete()) report.first_step = startup_.milliseconds();
  report.params_hash = parameters_hash_of(*worker_, world);
  report.state_hash = state_hash_of(*worker_, world);
  report.math_hash = worker_->config().math_hash;
  report.config_hash = worker_->config().config_hash;
  if (compiled.layout().has_sessions()) {
    report.sessions = outcome.sessions;
    report.lost_workers = outcome.lost_workers;
    report.staleness = staleness_report(outcome.staleness, compiled.session_terms().bound);
  }
  report.machines = gather(world, machines);
  report.world_size = world.size();
  report.layout = layout::to_string(compiled.layout());
  return report;
}

observe::RunReport RunRecorder::so_far(const std::vector<int>& hosts,
                                       std::vector<observe::MachineReport> machines) const {
  observe::RunReport report;
  report.steps = times_.measured();
  report.bubble_fraction_theory = bubble_of_schedule(worker_->compiled());
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    observe::RankReport& known = report.ranks.emplace_back();
    known.rank = static_cast<int>(rank);
    known.role = worker_->compiled().role_of(known.rank);
    if (hosts[rank] == nth(hosts, worker_->rank())) known.host = host_;
  }
  report.machines = std::move(machines);
  return report;
}

}  // namespace lockstep::train
