#include "train/loop/step_timeline.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "base/file_system.h"
#include "base/hash.h"
#include "base/index.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "comm/gather_texts.h"
#include "layout/layout.h"
#include "lockstep/error.h"
#include "observe/step_times.h"
#include "observe/timeline/chrome_trace.h"

namespace lockstep::train {
namespace {

/// Without --timeline-steps.
constexpr int64_t kDefaultSteps = 5;
/// Of a write to the file.
constexpr size_t kPieceBytes = 1 << 18;

/// Stamps of an instruction in an iteration: its own, and waits for it, which others interrupt.
constexpr size_t kStampsOfInstruction = 8;
/// Of a layer in a micro-batch: forward, twice if it is repeated, and both halves of backward.
constexpr size_t kStampsOfLayer = 4;

std::optional<int64_t> step_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 1) return {};
  return number;
}

/// In microseconds.
double on_own_clock(Clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

std::string unfinished(const std::string& path) { return path + ".unfinished"; }

}  // namespace

StepRange parse_step_range(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    const auto first = step_number(text.substr(0, colon)), last = step_number(text.substr(colon + 1));
    if (first && last && *first <= *last) return {*first, *last};
  }
  throw ConfigError(
      fmt::format("--timeline-steps {}: is no range of steps; write FIRST:LAST, counted from 1 and both "
                  "included, such as "
                  "100:105",
                  text));
}

StepRange steps_to_record(std::optional<StepRange> asked, int64_t done, int64_t total) {
  if (done >= total)
    throw comm::CollectiveError(
        fmt::format("--timeline: there is no step to record; the run has made all of its {}", total),
        ExitCode::usage);
  if (!asked) {
    const int64_t last = std::min(done + observe::StepTimes::kWarmUpSteps + kDefaultSteps, total);
    return {std::max(last - kDefaultSteps + 1, done + 1), last};
  }
  if (asked->first <= done || asked->last > total)
    throw comm::CollectiveError(
        fmt::format("--timeline-steps {}:{}: this run makes the steps {} to {}; name some of these",
                    asked->first, asked->last, done + 1, total),
        ExitCode::usage);
  return *asked;
}

StepTimeline::StepTimeline(std::string path, const std::string& host, Worker& worker,
                           run::StampRecorder& recorder, comm::Communicator& world)
    : path_(std::move(path)),
      host_(host),
      worker_(worker),
      recorder_(recorder),
      world_(world),
      slices_(worker.compiled(), worker.programs().step) {
  if (world_.rank() != 0) return;
  if (path_exists(path_))
    throw ConfigError(fmt::format("--timeline {}: is there already; remove it, or name another file", path_));
  posix_file_system().create(unfinished(path_))->close();
}

StepTimeline::~StepTimeline() {
  if (world_.rank() == 0) ::unlink(unfinished(path_).c_str());
}

void StepTimeline::begin(StepRange steps, int64_t done) {
  steps_ = steps;
  last_made_ = done;
  size_t stamps = kStampsOfInstruction * worker_.programs().step.instructions.size();
  const auto& nodes = worker_.compiled().graph().nodes;
  stamps +=
      kStampsOfLayer * nodes.size() * static_cast<size_t>(worker_.compiled().division().most_micro_batches());
  constexpr size_t kMostStamps = 8'000'000;  // 400 MB
  if (stamps * static_cast<size_t>(steps.count()) > kMostStamps)
    throw comm::CollectiveError(
        fmt::format(
            "--timeline-steps {}:{}: {} steps of this program are too many to record; name at most {}",
            steps.first, steps.last, steps.count(), std::max<size_t>(1, kMostStamps / stamps)),
        ExitCode::usage);
  recorder_.open(static_cast<uint64_t>(steps.first - 1), static_cast<uint64_t>(steps.count()),
                 stamps * static_cast<size_t>(steps.count()));
  phases_.reserve(4 * static_cast<size_t>(steps.count()) + 16);
  after_step(done);
}

void StepTimeline::after_step(int64_t step) {
  if (step > steps_.last || (step + 1 < steps_.first)) return;
  if (recording_) {
    phase(fmt::format("step {}", step), step_began_, Clock::now());
    last_made_ = step;
  }
  if (step + 1 == steps_.first) {
    clock_ = comm::measure_clock_offset(world_, comm::clock_identity(), comm::kPatience);
    recording_ = true;
  }
  if (step == steps_.last) collect({});
  step_began_ = Clock::now();
}

void StepTimeline::phase(std::string_view name, Clock::time_point begin, Clock::time_point end) {
  std::lock_guard lock(mutex_);
  if (recording_ && !written_) phases_.push_back({std::string(name), begin, end});
}

observe::RankTimeline StepTimeline::own_part() const {
  observe::RankTimeline part{.rank = worker_.rank(), .host = host_, .rows = slices_.rows(), .slices = {}};
  part.device_error = 1e3 * recorder_.device_error_ms();
  part.dropped_slices = static_cast<int64_t>(recorder_.dropped());
  bool has_waits = false;
  std::map<uint64_t, std::vector<plan::TimelineSlices::Times>> iterations;
  const size_t instructions = worker_.programs().step.instructions.size();
  for (const run::Stamp& stamp : recorder_.stamps()) {
    const double begin = on_own_clock(stamp.begin), end = on_own_clock(stamp.end);
    switch (stamp.kind) {
      case run::StampKind::instruction: {
        auto& times = iterations.try_emplace(stamp.iteration, instructions).first->second;
        nth(times, stamp.instruction) = {begin, end};
        part.slices.push_back(slices_.of_instruction(stamp.instruction, stamp.iteration, begin, end));
        break;
      }
      case run::StampKind::kernel:
        part.slices.push_back(slices_.of_kernel(stamp.instruction, stamp.node, stamp.phase, begin, end));
        break;
      case run::StampKind::wait:
        has_waits = true;
        part.slices.push_back(slices_.of_wait(stamp.instruction, begin, end));
        break;
    }
  }
  // One thread tells what it waits for; streams do not.
  if (!has_waits && worker_.work_times() == nullptr)
    for (const auto& [iteration, times] : iterations)
      for (auto& wait : slices_.waits_between(times)) part.slices.push_back(std::move(wait));
  std::lock_guard lock(mutex_);
  for (const Phase& phase : phases_)
    part.slices.push_back(
        plan::TimelineSlices::of_phase(phase.name, on_own_clock(phase.begin), on_own_clock(phase.end)));
  return part;
}

void StepTimeline::collect(std::vector<std::string> notes) {
  worker_.finish_step();
  const comm::ClockOffset then = clock_;
  const comm::ClockOffset now = comm::measure_clock_offset(world_, comm::clock_identity(), comm::kPatience);
  observe::RankTimeline own = own_part();
  // Clocks drift meanwhile.
  observe::shift(own, (then.offset_us + now.offset_us) / 2,
                 std::max(then.error_us, now.error_us) + std::abs(then.offset_us - now.offset_us) / 2);
  const double own_first = observe::first_begin(own);
  std::string text = observe::to_text(own);
  own.slices = {};
  std::vector<observe::RankTimeline> ranks;
  double first = std::numeric_limits<double>::infinity();
  for (const std::string& told : comm::gather_texts(
           world_, fmt::format("{}\n{}", exact(own_first), observe::to_text(own)), comm::kPatience)) {
    first = std::min(first, std::strtod(told.c_str(), nullptr));
    ranks.push_back(observe::rank_timeline_from_text(std::string_view(told).substr(told.find('\n') + 1)));
  }
  write(std::move(ranks), first, std::move(notes),
        [&](const Take& take) { comm::collect_texts(world_, std::move(text), comm::kPatience, take); });
}

void StepTimeline::write(std::vector<observe::RankTimeline> ranks, double first,
                         std::vector<std::string> notes,
                         const std::function<void(const Take& take)>& hand_over) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(written_, true)) return;
  }
  if (world_.rank() != 0) return hand_over({});
  for (const observe::RankTimeline& rank : ranks)
    if (rank.dropped_slices > 0)
      notes.push_back(fmt::format("rank {} had no room for {} of its times", rank.rank, rank.dropped_slices));
  // A picture of the training is no reason to end it, nor to let others wait with what they send.
  std::string problem;
  const auto attempt = [&problem](const auto& action) {
    if (!problem.empty()) return;
    try {
      action();
    } catch (const std::exception& error) {
      problem = error.what();
    }
  };
  FileSystem& files = posix_file_system();
  std::unique_ptr<WritableFile> file;
  std::string waiting;  // for a piece that is worth a write
  const auto flush = [&] {
    file->write(waiting.data(), waiting.size());
    waiting.clear();
  };
  std::optional<observe::ChromeTraceWriter> writer;
  attempt([&] {
    file = files.create(unfinished(path_));
    writer.emplace(observe::Timeline{.source = "measured",
                                     .layout = layout::to_string(worker_.compiled().layout()),
                                     .config_hash = to_hex(worker_.config().config_hash),
                                     .first_step = steps_.first,
                                     .last_step = last_made_.load(),
                                     .notes = std::move(notes),
                                     .ranks = std::move(ranks)},
                   first, [&](std::string_view piece) {
                     waiting += piece;
                     if (waiting.size() >= kPieceBytes) flush();
                   });
  });
  hand_over([&](const std::string& text) {
    attempt([&] { writer->add(observe::rank_timeline_from_text(text)); });
  });
  attempt([&] {
    writer->finish();
    flush();
    file->sync();
    file->close();
    files.rename(unfinished(path_), path_);
  });
  if (!problem.empty()) log_warning(fmt::format("--timeline {}: is not written: {}", path_, problem));
}

void StepTimeline::finish() {
  {
    std::lock_guard lock(mutex_);
    if (written_) return;
  }
  if (recording_)
    collect({fmt::format("the run ended after step {}, before the last step to record, {}", last_made_.load(),
                         steps_.last)});
  else if (world_.rank() == 0)
    log_warning(fmt::format("--timeline {}: nothing is written, because the run ended before step {}", path_,
                            steps_.first));
}

void StepTimeline::abandon(std::string_view why) noexcept try {
  {
    std::lock_guard lock(mutex_);
    if (written_ || !recording_ || world_.rank() != 0) return;
  }
  observe::RankTimeline own = own_part();
  const double first = observe::first_begin(own);
  const std::string text = observe::to_text(own);
  own.slices = {};
  write({std::move(own)}, first, {fmt::format("only rank 0: {}", why)},
        [&](const Take& take) { take(text); });
} catch (const std::exception& error) {
  log_warning(fmt::format("--timeline {}: is not written: {}", path_, error.what()));
}

}  // namespace lockstep::train
