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
      layout_(layout::to_string(worker.compiled().layout())),
      config_hash_(to_hex(worker.config().config_hash)),
      first_rank_(world.rank() == 0),
      worker_(&worker),
      recorder_(recorder),
      world_(&world),
      names_(worker) {
  if (!first_rank_) return;
  if (path_exists(path_))
    throw ConfigError(fmt::format("--timeline {}: is there already; remove it, or name another file", path_));
  posix_file_system().create(unfinished(path_))->close();
}

StepTimeline::~StepTimeline() {
  if (first_rank_) ::unlink(unfinished(path_).c_str());
}

/// The most that an iteration of this rank's programs makes.
size_t StepTimeline::stamps_of_iteration() const {
  const compile::CompiledRun& run = worker_->compiled();
  const auto instructions = [](const program::Program& program) { return program.instructions.size(); };
  const auto micro_batches = static_cast<size_t>(run.division().most_micro_batches());
  // A server gets pushes of every range, each of which it applies and answers.
  const size_t served =
      3 * static_cast<size_t>(plan::pushes_per_iteration(run)) * instructions(worker_->programs().serve);
  return kStampsOfInstruction * instructions(worker_->programs().step) +
         kStampsOfLayer * run.graph().nodes.size() * micro_batches + served;
}

void StepTimeline::prepare(StepRange steps) {
  steps_ = steps;
  const auto each = static_cast<uint64_t>(plan::iterations_per_step(worker_->compiled()));
  const size_t stamps = each * stamps_of_iteration();
  constexpr size_t kMostStamps = 8'000'000;  // 400 MB
  if (stamps * static_cast<size_t>(steps.count()) > kMostStamps)
    throw ConfigError(fmt::format(
        "--timeline-steps {}:{}: {} steps of this program are too many to record; name at most {}",
        steps.first, steps.last, steps.count(), std::max<size_t>(1, kMostStamps / stamps)));
  recorder_.open(each * static_cast<uint64_t>(steps.first - 1), each * static_cast<uint64_t>(steps.count()),
                 stamps * static_cast<size_t>(steps.count()));
  phases_.reserve(4 * each * static_cast<size_t>(steps.count()) + 16);
}

void StepTimeline::begin(int64_t done) {
  last_made_ = done;
  after_step(done);
}

void StepTimeline::begin_recording() {
  clock_ = comm::measure_clock_offset(*world_, comm::clock_identity(), comm::kPatience);
  recording_ = true;
}

void StepTimeline::after_step(int64_t step) {
  if (has_sessions()) {
    if (recording_) last_made_ = std::min(step, steps_.last);
    return;
  }
  if (step > steps_.last || (step + 1 < steps_.first)) return;
  if (recording_) {
    phase(fmt::format("step {}", step), step_began_, Clock::now());
    last_made_ = step;
  }
  if (step + 1 == steps_.first) begin_recording();
  if (step == steps_.last) collect({});
  step_began_ = Clock::now();
}

void StepTimeline::session_begins(int64_t done, int64_t last) {
  if (!recording_ && done < steps_.last && last >= steps_.first) begin_recording();
}

void StepTimeline::session_ends(int64_t done) {
  {
    std::lock_guard lock(mutex_);
    if (written_ || !recording_) return;
  }
  last_made_ = std::min(done, steps_.last);
  if (kept_)
    collect({"ranks were lost: their parts are missing, and nothing is recorded of what followed"});
  else if (done >= steps_.last)
    collect({});
}

void StepTimeline::granted_step(uint64_t iteration, Clock::time_point asked, Clock::time_point granted,
                                Clock::time_point ended) {
  if (!recording_ || !recorder_.wants(iteration)) return;
  const auto each = static_cast<uint64_t>(plan::iterations_per_step(worker_->compiled()));
  std::string name = fmt::format("step {}", iteration / each + 1);
  if (each > 1) name += fmt::format(", push {}", iteration % each + 1);
  phase("", asked, granted);
  phase(name, granted, ended);
}

void StepTimeline::part() {
  const bool keeps = recording_ && !kept_;
  std::optional<observe::RankTimeline> own;
  if (keeps) own = own_part();
  std::lock_guard lock(mutex_);
  if (keeps) kept_ = std::move(own);
  names_.reset();
}

void StepTimeline::follow(Worker& worker, comm::Communicator& world) {
  std::lock_guard lock(mutex_);
  worker_ = &worker;
  world_ = &world;
  names_.emplace(worker);
}

void StepTimeline::phase(std::string_view name, Clock::time_point begin, Clock::time_point end) {
  std::lock_guard lock(mutex_);
  if (recording_ && !written_) phases_.push_back({std::string(name), begin, end});
}

std::vector<observe::TimelineRow> StepTimeline::Names::rows() const {
  std::vector<observe::TimelineRow> rows = step.rows();
  for (observe::TimelineRow& row : serving.rows()) rows.push_back(std::move(row));
  return rows;
}

void StepTimeline::add_stamps(observe::RankTimeline& part) const {
  bool has_waits = false;
  std::map<uint64_t, std::vector<plan::TimelineSlices::Times>> iterations;
  const size_t instructions = worker_->programs().step.instructions.size();
  const auto& [step, serving] = *names_;
  for (const run::Stamp& stamp : recorder_.stamps()) {
    const double begin = on_own_clock(stamp.begin), end = on_own_clock(stamp.end);
    const int index = stamp.instruction;
    switch (stamp.kind) {
      case run::StampKind::instruction: {
        auto& times = iterations.try_emplace(stamp.iteration, instructions).first->second;
        nth(times, index) = {begin, end};
        part.slices.push_back(step.of_instruction(index, stamp.iteration, begin, end));
        break;
      }
      case run::StampKind::kernel:
        part.slices.push_back(step.of_kernel(index, stamp.node, stamp.phase, begin, end));
        break;
      case run::StampKind::wait:
        has_waits = true;
        part.slices.push_back(step.of_wait(index, begin, end));
        break;
      case run::StampKind::landing:
        part.slices.push_back(serving.of_landing(index, stamp.worker, stamp.iteration, begin, end));
        break;
      case run::StampKind::update:
        part.slices.push_back(serving.of_update(index, stamp.worker, stamp.iteration, begin, end));
        break;
      case run::StampKind::answer:
        part.slices.push_back(serving.of_answer(index, stamp.worker, stamp.iteration, begin, end));
        break;
    }
  }
  // One thread tells what it waits for; streams do not.
  if (!has_waits && worker_->work_times() == nullptr)
    for (const auto& [iteration, times] : iterations)
      for (auto& wait : step.waits_between(times)) part.slices.push_back(std::move(wait));
}

observe::RankTimeline StepTimeline::own_part() const {
  std::lock_guard lock(mutex_);
  if (kept_) return *kept_;
  observe::RankTimeline part{.rank = worker_->rank(), .host = host_, .rows = names_->rows(), .slices = {}};
  part.device_error = 1e3 * recorder_.device_error_ms();
  part.dropped_slices = static_cast<int64_t>(recorder_.dropped());
  add_stamps(part);
  for (const Phase& phase : phases_) {
    const double begin = on_own_clock(phase.begin), end = on_own_clock(phase.end);
    part.slices.push_back(phase.name.empty() ? names_->step.of_wait_for_grant(begin, end)
                                             : plan::TimelineSlices::of_phase(phase.name, begin, end));
  }
  return part;
}

void StepTimeline::collect(std::vector<std::string> notes) {
  worker_->finish_step();
  const comm::ClockOffset then = clock_;
  const comm::ClockOffset now = comm::measure_clock_offset(*world_, comm::clock_identity(), comm::kPatience);
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
           *world_, fmt::format("{}\n{}", exact(own_first), observe::to_text(own)), comm::kPatience)) {
    first = std::min(first, std::strtod(told.c_str(), nullptr));
    ranks.push_back(observe::rank_timeline_from_text(std::string_view(told).substr(told.find('\n') + 1)));
  }
  write(std::move(ranks), first, std::move(notes),
        [&](const Take& take) { comm::collect_texts(*world_, std::move(text), comm::kPatience, take); });
}

void StepTimeline::write(std::vector<observe::RankTimeline> ranks, double first,
                         std::vector<std::string> notes,
                         const std::function<void(const Take& take)>& hand_over) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(written_, true)) return;
  }
  if (!first_rank_) return hand_over({});
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
                                     .layout = layout_,
                                     .config_hash = config_hash_,
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
  else if (first_rank_)
    log_warning(fmt::format("--timeline {}: nothing is written, because the run ended before step {}", path_,
                            steps_.first));
}

void StepTimeline::abandon(std::string_view why) noexcept try {
  {
    std::lock_guard lock(mutex_);
    if (written_ || !recording_ || !first_rank_) return;
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
