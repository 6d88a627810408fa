#include "observe/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "base/text.h"
#include "observe/run_report.h"

namespace lockstep::observe {
namespace {

using Kind = MachineSubject::Kind;
using Advices = std::vector<Advice>;

/// Of a rank: how long its steps took together.
double steps_ms(const RankExplanation& rank) {
  double ms = rank.wall_ms;
  for (const TimePart part : {TimePart::start, TimePart::evaluation, TimePart::checkpoints, TimePart::end})
    ms -= rank.part_ms(part);
  return std::max(ms, 0.0);
}
/// Of a rank's steps. Servers have none.
double share_of_steps(const RankExplanation& rank, TimePart part) {
  if (rank.only_serves) return 0;
  const double all = steps_ms(rank);
  return all > 0 ? rank.part_ms(part) / all : 0;
}

/// The rank with the largest share of a part.
const RankExplanation& worst(const RunReport& report, TimePart part) {
  return *std::ranges::max_element(report.explanation->ranks, {},
                                   [&](const RankExplanation& rank) { return share_of_steps(rank, part); });
}

int percent(double share) { return static_cast<int>(100 * share + 0.5); }

std::string name_of(const MachineSubject& subject) {
  return subject.kind == Kind::gpu ? fmt::format("GPU {} of {}", subject.gpu, subject.host)
                                   : fmt::format("host {}", subject.host);
}

template <class Look>
void for_each(const RunReport& report, Kind kind, const Look& look) {
  for (const MachineReport& machine : report.machines)
    if (machine.subject.kind == kind) look(machine);
}

int processes_on(const RunReport& report, const std::string& host) {
  return static_cast<int>(std::ranges::count(report.ranks, host, &RankReport::host));
}

/// What helps if the threads that prepare data spend most of their time on a stage.
std::string help_with_stage(std::string_view stage) {
  if (stage == "decode")
    return "pack images smaller, or as pixels, which need no decoding: lockstep data pack --longest-side, "
           "--pixels";
  if (stage == "transform") return "leave out or make cheaper the slowest of data.transforms";
  return "pack files into few large ones (lockstep data pack), or keep images on a disk of the host "
         "(data.cache_directory)";
}

/// The stage that takes longest, and its share of the threads' time; nothing if no thread has prepared data.
std::optional<std::pair<std::string, double>> slowest_stage(const RankExplanation& rank) {
  double all = 0;
  for (const auto& [stage, ms] : rank.preparing_ms) all += ms;
  if (all <= 0) return {};
  const auto& [stage, ms] = *std::ranges::max_element(rank.preparing_ms, {}, &NamedTimes::value_type::second);
  return std::pair(stage, ms / all);
}

void look_for_data(const RunReport& report, const RunTraits& traits, Advices& advice) {
  const RankExplanation& rank = worst(report, TimePart::data);
  const double share = share_of_steps(rank, TimePart::data);
  if (share <= 0.05) return;
  std::string saw = fmt::format("rank {} waits {} % of its steps for data", rank.rank, percent(share));
  std::string act =
      traits.reading_adapts
          ? std::string("the host's processors prepare no more data")
          : fmt::format(
                "read ahead by more threads: --set data.prefetch_threads={}, or as many as it takes: "
                "--set data.threads=AUTOMATIC",
                std::max(2, 2 * traits.prefetch_threads));
  if (const auto slowest = slowest_stage(rank)) {
    saw += fmt::format("; its threads that prepare them spend {} % of their time on the stage '{}'",
                       percent(slowest->second), slowest->first);
    act += fmt::format("; if the processors are busy already, {}", help_with_stage(slowest->first));
  }
  advice.push_back({.rule = "data_loading", .saw = std::move(saw), .cost = share, .act = std::move(act)});
}

constexpr double kCommunicationShare = 0.10;

std::string help_with_communication(const std::optional<FasterLayout>& faster,
                                    const std::string& compare_command) {
  std::string act = "a larger trainer.global_batch";
  if (faster)
    act = fmt::format("--layout {}, whose steps are predicted to take {} % less time; or {}", faster->layout,
                      percent(1 - faster->share), act);
  if (compare_command.empty()) return act;
  return fmt::format("{}{}; this predicts and measures {}: {}", act, faster ? "" : ", or another layout",
                     faster ? "others, too" : "them", compare_command);
}

void look_for_communication(const RunReport& report, const RunTraits& traits, Advices& advice) {
  const RankExplanation& rank = worst(report, TimePart::communication);
  const double share = share_of_steps(rank, TimePart::communication);
  if (share <= kCommunicationShare) return;
  const std::string command = traits.compare_command ? traits.compare_command() : "";
  const char* or_what =
      report.explanation->goes_on ? ", or for slower ranks, which the end of the run tells apart" : "";
  advice.push_back(
      {.rule = "communication",
       .saw = fmt::format("rank {} waits {} % of its steps for communication that nothing hides{}", rank.rank,
                          percent(share), or_what),
       .cost = share,
       .act = help_with_communication(traits.faster_layout, command)});
}

void look_for_slow_ranks(const RunReport& report, const RunTraits&, Advices& advice) {
  const RankExplanation& waits = worst(report, TimePart::slower_ranks);
  const double share = share_of_steps(waits, TimePart::slower_ranks);
  if (share <= 0.05) return;
  const RankExplanation& slow = report.explanation->slowest();
  const auto found = std::ranges::find(report.ranks, slow.rank, &RankReport::rank);
  const std::string host = found == report.ranks.end() || found->host.empty() ? "" : " on " + found->host;
  advice.push_back(
      {.rule = "slow_rank",
       .saw = fmt::format("rank {} waits {} % of its steps for slower ranks; the slowest is rank {}{}",
                          waits.rank, percent(share), slow.rank, host),
       .cost = share,
       .act = fmt::format("look at what else runs{}: lockstep doctor there; or leave that host out",
                          host.empty() ? std::string(" beside it") : host)});
}

void look_for_bubbles(const RunReport& report, const RunTraits& traits, Advices& advice) {
  if (!report.bubble_fraction_theory) return;
  const double theory = *report.bubble_fraction_theory, measured = report.bubble_fraction.value_or(0);
  if (theory > 0.15)
    advice.push_back(
        {.rule = "few_micro_batches",
         .saw = fmt::format("the pipeline's schedule alone leaves {} % of a step idle", percent(theory)),
         .cost = theory,
         .act = fmt::format("more micro-batches: --set trainer.micro_batch={}",
                            std::max<int64_t>(1, traits.micro_batch / 2))});
  if (measured > theory + 0.10)
    advice.push_back(
        {.rule = "uneven_stages",
         .saw = fmt::format("stages are idle {} % of a step, {} % by the schedule", percent(measured),
                            percent(theory)),
         .cost = measured - theory,
         .act = "divide the model by measured times: lockstep profile CONFIG --out FILE, then --set "
                "parallel.profile=FILE"});
}

void look_for_host_time(const RunReport& report, const RunTraits&, Advices& advice) {
  const RankExplanation& rank = worst(report, TimePart::host);
  const double share = share_of_steps(rank, TimePart::host);
  if (share <= 0.15) return;
  advice.push_back({.rule = "launches",
                    .saw = fmt::format("rank {} spends {} % of its steps in launches and its loop", rank.rank,
                                       percent(share)),
                    .cost = share,
                    .act = "larger micro-batches or layers do more with each launch (trainer.micro_batch)"});
}

void look_for_time_outside(const RunReport& report, const RunTraits& traits, Advices& advice) {
  const RankExplanation mean = report.explanation->mean();
  if (const double share = mean.share(TimePart::evaluation); share > 0.10)
    advice.push_back({.rule = "evaluation",
                      .saw = fmt::format("evaluations take {} % of the time", percent(share)),
                      .cost = share,
                      .act = "evaluate less often: trainer.eval_every_steps"});
  // The one save at the end of a short run is not too often.
  if (const double share = mean.share(TimePart::checkpoints); share > 0.05 && traits.saves > 1)
    advice.push_back({.rule = "checkpoints",
                      .saw = fmt::format("checkpoints take {} % of the time", percent(share)),
                      .cost = share,
                      .act = traits.saves_in_background ? "save less often: checkpoint.every_steps"
                                                        : "--set checkpoint.background=true"});
}

void look_for_heat(const RunReport& report, Advices& advice) {
  for_each(report, Kind::gpu, [&](const MachineReport& gpu) {
    const FigureReport *heat = gpu.find("temperature_celsius"), *clock = gpu.find("sm_clock_megahertz"),
                       *limit = gpu.find("sm_clock_limit_megahertz");
    if (heat == nullptr || clock == nullptr || limit == nullptr || limit->last <= 0) return;
    const double down = 1 - clock->mean / limit->last;
    if (heat->max < 82 || down < 0.15) return;
    advice.push_back(
        {.rule = "hot_gpu",
         .saw = fmt::format("{} reaches {:.0f} degrees, and its clock is {} % below its highest",
                            name_of(gpu.subject), heat->max, percent(down)),
         .cost = down,
         .act = "see to its cooling, or to its power limit (nvidia-smi -q -d PERFORMANCE,POWER)"});
  });
}

/// What a plan may take of the fullest GPU: its memory, but for what the driver, libraries and others use.
int64_t memory_for_plans(const RunReport& report) {
  constexpr double kLeftFree = 0.02;  // libraries take more for larger products
  double least_free = -1;
  for_each(report, Kind::gpu, [&](const MachineReport& gpu) {
    const FigureReport *used = gpu.find("memory_used_bytes"), *size = gpu.find("memory_size_bytes");
    if (used == nullptr || size == nullptr) return;
    const double free = (1 - kLeftFree) * size->last - used->max;
    if (least_free < 0 || free < least_free) least_free = std::max(free, 0.0);
  });
  int64_t planned = 0;  // servers may have their hosts' memory
  for (const RankReport& rank : report.ranks)
    if (rank.is_worker()) planned = std::max(planned, rank.peak_memory_bytes);
  return least_free < 0 ? 0 : planned + static_cast<int64_t>(least_free);
}

std::string larger_batch(const RunReport& report, const RunTraits& traits) {
  const auto largest =
      traits.largest_batch ? traits.largest_batch(memory_for_plans(report)) : std::optional<LargerBatch>{};
  if (!largest) return "larger batches give it more to do: trainer.global_batch, trainer.micro_batch";
  return fmt::format(
      "larger batches give it more to do; the largest that fits: --set trainer.global_batch={} --set "
      "trainer.micro_batch={}{} ({})",
      largest->global_batch, largest->micro_batch,
      largest->virtual_replicas > 0
          ? fmt::format(" --set trainer.virtual_replicas={}", largest->virtual_replicas)
          : "",
      human_bytes(largest->bytes));
}

void look_for_small_batches(const RunReport& report, const RunTraits& traits, Advices& advice) {
  std::optional<std::string> act;  // the same for all
  for_each(report, Kind::gpu, [&](const MachineReport& gpu) {
    const FigureReport *use = gpu.find("utilization_percent"), *memory = gpu.find("memory_used_bytes"),
                       *size = gpu.find("memory_size_bytes");
    if (use == nullptr || memory == nullptr || size == nullptr || size->last <= 0) return;
    if (use->p95 >= 70 || memory->max >= 0.7 * size->last) return;
    if (!act) act = larger_batch(report, traits);
    advice.push_back({.rule = "small_batch",
                      .saw = fmt::format("{} is used {:.0f} % of the time at most, and {} % of its memory",
                                         name_of(gpu.subject), use->p95, percent(memory->max / size->last)),
                      .cost = 1 - use->p95 / 100,
                      .act = *act});
  });
}

void look_at_gpus(const RunReport& report, const RunTraits& traits, Advices& advice) {
  look_for_heat(report, advice);
  look_for_small_batches(report, traits, advice);
}

void look_at_precision(const RunReport& report, const RunTraits& traits, Advices& advice) {
  if (!traits.on_gpus || !traits.float32 || report.steps == 0) return;
  advice.push_back({.rule = "precision",
                    .saw = "products are computed in float32, which leaves tensor cores idle",
                    .cost = 0,
                    .act = "--set precision.compute=BFLOAT16, or TF32"});
}

void look_at_hosts(const RunReport& report, const RunTraits& traits, Advices& advice) {
  for_each(report, Kind::host, [&](const MachineReport& host) {
    const FigureReport *swap = host.find("swapped_bytes_per_second"),
                       *pressure = host.find("pressure_memory_some_share");
    const bool swaps = swap != nullptr && swap->mean > 1e6,
               waits = pressure != nullptr && pressure->mean > 0.05;
    if (swaps || waits)
      advice.push_back(
          {.rule = "swap",
           .saw = swaps ? fmt::format("{} swaps {:.1f} MB/s", name_of(host.subject), swap->mean / 1e6)
                        : fmt::format("{} waits for memory {} % of the time", name_of(host.subject),
                                      percent(pressure->mean)),
           .cost = pressure == nullptr ? 0 : pressure->mean,
           .act = "use less memory: fewer processes there, a smaller trainer.micro_batch, or "
                  "shard=optimizer"});
    const FigureReport* cores = host.find("processor_cores");
    const int processes = processes_on(report, host.subject.host);
    if (cores == nullptr || traits.on_gpus || cores->last <= 0) return;
    const double wanted = static_cast<double>(processes) * traits.intra_op_threads;
    if (wanted > cores->last)
      advice.push_back(
          {.rule = "few_cores",
           .saw = fmt::format("{} processes of {} threads share {:.0f} cores of {}", processes,
                              traits.intra_op_threads, cores->last, name_of(host.subject)),
           .cost = 1 - cores->last / wanted,
           .act = "start at most one process for each core, or lower parallel.intra_op_threads"});
  });
}

constexpr std::array<AdviceRule, 9> kRules = {{
    {"data_loading", "more than 5 % of a step", "PyTorch's TensorBoard profiler", look_for_data},
    {"communication", "more than 10 % of a step", "PyTorch's TensorBoard profiler", look_for_communication},
    {"slow_rank", "more than 5 % of a step", "xprof's lower bound for collectives", look_for_slow_ranks},
    {"few_micro_batches, uneven_stages", "15 % by the schedule; 10 % more than the schedule",
     "own measurements", look_for_bubbles},
    {"launches", "more than 15 % of a step", "xprof", look_for_host_time},
    {"evaluation, checkpoints", "more than 10 % and 5 % of the wall clock", "own choice",
     look_for_time_outside},
    {"hot_gpu, small_batch",
     "82 degrees and a clock 15 % down; use below 70 % in 95 % of samples and 70 % of memory",
     "gpuprof; SageMaker Debugger", look_at_gpus},
    {"precision", "float32 on a GPU", "PyTorch's TensorBoard profiler (tensor cores idle)",
     look_at_precision},
    {"swap, few_cores", "1 MB/s or 5 % of the time; more threads than cores", "own choice", look_at_hosts},
}};

}  // namespace

std::span<const AdviceRule> advice_rules() { return kRules; }

bool waits_for_communication(const RunReport& report) {
  if (!report.explanation || report.explanation->ranks.empty()) return false;
  const RankExplanation& rank = worst(report, TimePart::communication);
  return share_of_steps(rank, TimePart::communication) > kCommunicationShare;
}

std::vector<Advice> advise(const RunReport& report, const RunTraits& traits) {
  std::vector<Advice> advice;
  if (!report.explanation || report.explanation->ranks.empty() || report.steps == 0) return advice;
  for (const AdviceRule& rule : kRules) rule.look(report, traits, advice);
  std::ranges::stable_sort(advice, std::greater{}, &Advice::cost);
  return advice;
}

}  // namespace lockstep::observe
