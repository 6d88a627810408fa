#include "train/start/faster_layout.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "comm/gather_texts.h"
#include "layout/layout.h"
#include "lockstep/error.h"
#include "plan/other_layouts.h"
#include "plan/step_prediction.h"
#include "train/loop/profiler.h"
#include "train/start/machine_figures.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

/// A layout is faster if its step takes at most so much of the run's own.
constexpr double kFaster = 0.95;
/// A prediction of the run's own step that is off by a larger factor says nothing about others.
constexpr double kTrusted = 2;
/// How long all of it may take, while the job waits to end; and a size from which programs' replays
/// would take longer, in instructions of all ranks.
constexpr std::chrono::seconds kPredictionTime{10};
constexpr size_t kMostInstructions = 200'000;
/// Shorter runs are over before a prediction would be.
constexpr double kWorthSeconds = 5;
/// About so long is a message that is measured, and each figure.
constexpr double kMessageSeconds = 0.1;

struct OutOfTime : std::exception {
  const char* what() const noexcept override { return "it took too long"; }
};
using GetsOn = std::function<void()>;

/// Advice is no reason to fail.
void tell_of_no_prediction(const std::exception& error) {
  if (dynamic_cast<const OutOfTime*>(&error) == nullptr)
    log_warning(std::string("no other layout is predicted: ") + error.what());
}

/// What this rank knows to be in the way of a prediction.
bool can_be_predicted(const World& world, const Worker& worker) {
  const LaunchFacts facts = world.launch();
  const config::RunConfig& config = worker.config();
  const layout::Layout& layout = worker.compiled().layout();
  const bool has_cores =
      std::max(config.parallel.intra_op_threads, 1) * facts.ranks_on_host <=
      std::min(facts.host_cores, facts.quota_cores > 0 ? facts.quota_cores : facts.host_cores);
  // Of what is computed again, times of kernels do not tell.
  const bool has_times = config.parallel.profile || layout.recompute == layout::Recompute::none;
  return worker.compiled().device() == device::DeviceKind::cpu && !layout.has_sessions() && has_cores &&
         has_times && worker.work_times() != nullptr &&
         worker.programs().step.instructions.size() * static_cast<size_t>(world.size()) <= kMostInstructions;
}

/// Other layouts for the same processes. None if they cannot be found.
std::vector<layout::Layout> candidates(const Worker& worker, const GetsOn& gets_on) try {
  std::vector<layout::Layout> layouts = plan::other_layouts(
      worker.compiled(), compile_options(worker.config()), worker.compile_facts(), gets_on);
  std::erase_if(layouts, [&](layout::Layout layout) {
    layout.dp = worker.compiled().layout().workers() / layout.pp;
    return layout.world_size() != worker.compiled().layout().world_size();
  });
  return layouts;
} catch (const std::exception& error) {
  tell_of_no_prediction(error);
  return {};
}

/// What is known without others.
bool may_be_worth_it(const World& world, const Worker& worker, const observe::RunReport& report,
                     int64_t steps) {
  const double seconds = report.step_ms ? 1e-3 * report.step_ms->mean * static_cast<double>(steps) : 0;
  return world.size() > 1 && seconds >= kWorthSeconds && can_be_predicted(world, worker) &&
         observe::waits_for_communication(report);
}

/// COLLECTIVE: whether it is `own` to all.
bool is_so_on_all(World& world, bool own) {
  const auto all = comm::gather_texts(world.communicator(), own ? "1" : "0", comm::kPatience);
  return std::ranges::all_of(all, [](const std::string& one) { return one == "1"; });
}

/// So long that the run's own links are busy with it for a moment, as far as the run knows them.
int64_t message_bytes(const observe::RunReport& report) {
  constexpr double kLeast = 4096, kMost = 4 << 20;
  double bytes_per_second = kMost / kMessageSeconds;
  for (const observe::RankReport& rank : report.ranks)
    if (rank.waited_ms > 0 && rank.sent_bytes > 0)
      bytes_per_second = std::min(bytes_per_second, 1e3 * rank.sent_bytes / rank.waited_ms);
  return static_cast<int64_t>(std::clamp(bytes_per_second * kMessageSeconds, kLeast, kMost)) / 4 * 4;
}

/// COLLECTIVE. `sums`: ranks share memory.
plan::MachineFigures measure_machine(World& world, int64_t long_message_bytes, bool sums) {
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("measure");
  const comm::MeasureOptions options{.long_message_bytes = long_message_bytes, .seconds = kMessageSeconds};
  comm::Communicator& all = world.communicator();
  const auto pairs = comm::measure_pairs(all, *stream, typical_peers(world.hosts()), options);
  std::vector<comm::SumTime> shared_sums;
  if (sums)
    shared_sums = comm::measure_sums(*comm::make_shared_memory_communicator(all), *stream,
                                     {8, long_message_bytes}, options);
  return machine_figures(world.hosts(), pairs, shared_sums, comm::measure_addition());
}

/// COLLECTIVE: what a micro-batch takes, by the times of the run's kernels.
model::Profile profile_of_run(World& world, const Worker& worker, int64_t steps) {
  const compile::CompiledRun& run = worker.compiled();
  const bool computes = run.ownership().is_worker(worker.rank());
  const int micro_batches =
      computes ? run.division().micro_batches_of(run.ownership().replica_of(worker.rank())) : 1;
  const double each = 1e-3 / static_cast<double>(steps);
  std::vector<model::NodeTime> nodes(run.graph().nodes.size());
  double updates = 0;
  for (const run::WorkTimes* work : {worker.work_times(), worker.observed_work_times()}) {
    if (work == nullptr) continue;
    for (size_t node = 0; node < nodes.size(); ++node) nodes[node] += work->nodes_ms[node];
    updates += each * work->updates_ms();
  }
  for (model::NodeTime& node : nodes) node *= each / micro_batches;
  const int64_t updated = run.ownership().owned_bytes(worker.rank()) / int64_t{sizeof(float)};
  return gather_profile(worker, world.communicator(),
                        updated == 0 ? 0 : updates / static_cast<double>(updated), nodes);
}

/// Of a step of this rank, in seconds: what it computes besides layers, sums and updates.
double overhead_of_run(const Worker& worker, const plan::StepCosts& costs, int64_t steps) {
  double rest = 0;
  for (const double ms : worker.work_times()->kinds_ms) rest += ms;
  rest -= worker.work_times()->updates_ms();
  return std::max(1e-3 * rest / static_cast<double>(steps) - plan::other_seconds(worker.compiled(), costs),
                  0.0);
}

double predict(const Worker& worker, layout::Layout layout, const std::vector<int>& hosts,
               const plan::StepCosts& costs, const GetsOn& gets_on) {
  config::RunConfig config = worker.config();
  config.parallel.layout = std::move(layout);
  const compile::CompileFacts facts = worker.compile_facts();
  gets_on();
  const compile::CompiledRun run(fitted_options(config, facts), facts);
  return plan::predict_step(run, hosts, costs, gets_on);
}

/// On rank 0.
std::optional<observe::FasterLayout> fastest(const Worker& worker, const std::vector<layout::Layout>& layouts,
                                             const std::vector<int>& hosts, const plan::StepCosts& costs,
                                             double measured_seconds, const GetsOn& gets_on) {
  const double own = plan::predict_step(worker.compiled(), hosts, costs, gets_on);
  if (std::max(own / measured_seconds, measured_seconds / own) > kTrusted) return {};
  std::optional<observe::FasterLayout> best;
  for (const layout::Layout& layout : layouts) {
    const double share = predict(worker, layout, hosts, costs, gets_on) / own;
    if (share <= (best ? best->share : kFaster)) best = {layout::to_string(layout), share};
  }
  return best;
}

}  // namespace

std::optional<observe::FasterLayout> predict_faster_layout(World& world, const Worker& worker,
                                                           const observe::RunReport& report,
                                                           int64_t steps) try {
  const GetsOn gets_on = [deadline = Clock::now() + kPredictionTime] {
    if (Clock::now() > deadline) throw OutOfTime();
  };
  bool own = may_be_worth_it(world, worker, report, steps);
  std::vector<layout::Layout> layouts;
  if (own && world.rank() == 0) {
    layouts = candidates(worker, gets_on);
    own = !layouts.empty();
  }
  if (!is_so_on_all(world, own)) return {};
  const plan::MachineFigures figures =
      measure_machine(world, message_bytes(report), worker.compile_facts().shared_memory);
  model::Profile measured = profile_of_run(world, worker, steps);
  if (world.rank() != 0) return {};
  plan::StepCosts costs{.profile = worker.config().parallel.profile.value_or(std::move(measured)),
                        .communication = plan::communication_times(figures),
                        .addition_per_byte = figures.addition_per_byte};
  costs.overhead = overhead_of_run(worker, costs, steps);
  return fastest(worker, layouts, world.hosts(), costs, 1e-3 * report.step_ms->mean, gets_on);
} catch (const std::exception& error) {
  // All have trained to the end, and nothing that follows needs what this may have left on the wire.
  tell_of_no_prediction(error);
  return {};
}

}  // namespace lockstep::train
