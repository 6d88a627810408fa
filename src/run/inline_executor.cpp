#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <utility>

#include "base/ensure.h"
#include "base/index.h"
#include "lockstep/error.h"
#include "program/lane_overlap.h"
#include "program/lane_schedule.h"
#include "run/executor.h"
#include "run/patience.h"

namespace lockstep::run {
namespace {

double& part_of(model::NodeTime& time, ops::KernelPhase phase) {
  switch (phase) {
    case ops::KernelPhase::backward_input:
      return time.backward_input;
    case ops::KernelPhase::backward_weight:
      return time.backward_weight;
    case ops::KernelPhase::forward:
      break;
  }
  return time.forward;
}

class InlineExecutor : public Executor {
 public:
  InlineExecutor(const program::Program& program, const ExecutionContext& context,
                 const ExecutorOptions& options, const KernelObserver* observer)
      : program_(program),
        options_(options),
        device_(device::make_cpu_device()),
        stream_(device_->create_stream("inline")),
        actions_(make_actions(program, context, observer)),
        schedule_(program, {}),
        lanes_(program.lanes.size()),
        patience_(options_.longest_nap) {
    work_.nodes_ms.resize(context.graph.nodes.size());
    work_.waited_ms.resize(program.instructions.size());
  }

  void run(const StepInputs& inputs) override {
    times_ = {.exposed_communication_ms = 0, .busy_ms = 0};
    // How long a communication waited while nobody looked at it says nothing about its peers.
    for (auto& lane : lanes_) lane.waiting_since = Clock::now();
    drive([&] { return schedule_.may_begin(); });
    StepInputs& own = nth(inputs_, schedule_.begun() % 2);
    own = inputs;
    own.begins_anew = std::exchange(anew_, false);
    schedule_.begin();
    running_ = true;
    drive([&] { return schedule_.is_reported(); });
    running_ = false;
  }

  void finish() override {
    anew_ = true;
    if (schedule_.is_complete()) return;
    control::Progress* const progress = options_.progress;
    const control::Progress::Entry before =
        progress == nullptr ? control::Progress::Entry{} : progress->at(control::Progress::kMainSlot);
    for (auto& lane : lanes_) lane.waiting_since = Clock::now();
    drive([&] { return schedule_.is_complete(); });
    if (progress != nullptr)
      progress->enter(control::Progress::kMainSlot, before.activity, before.program, before.instruction);
  }

  IterationTimes last_times() const override { return times_; }
  const WorkTimes* work_times() const override { return &work_; }

 private:
  /// What is under way of a communication lane.
  struct Flight {
    comm::Ticket ticket;
    Clock::time_point posted;  // when it started, with all of its rounds
  };
  struct LaneState {
    std::array<Flight, program::kMostExchangesUnderWay> flights;  // the current one first, around
    size_t first = 0;
    // Begin of the wait for the current one, or of the run() or finish() in which it is waited for.
    Clock::time_point waiting_since;
  };
  Flight& flight(int lane, int behind = 0) {
    LaneState& state = nth(lanes_, lane);
    return nth(state.flights, (state.first + static_cast<size_t>(behind)) % state.flights.size());
  }

  bool is_comm(int lane) const { return schedule_.kind(lane) == program::LaneKind::comm; }
  const StepInputs& inputs_of(const program::Step& step) const { return nth(inputs_, step.iteration % 2); }

  /// Runs what can be run until `enough` says so.
  void drive(const std::function<bool()>& enough) {
    const std::function<void()> between = [this] { between_kernels(); };
    try {
      while (!enough()) {
        handle_communication(schedule_.first_on_thread() < 0 ? waited_for() : std::nullopt);
        if (enough()) return;
        const int lane = schedule_.first_on_thread();
        if (lane < 0) {
          wait_for_communication();
          continue;
        }
        const program::Step step = schedule_.start(lane);
        report(activity_of(program_.instruction(step.instruction).deadline), step.instruction);
        guarded(step, [&] {
          if (options_.before) options_.before(inputs_of(step).iteration, step.instruction);
          compute(step.instruction, inputs_of(step), between);
        });
        schedule_.complete(lane);
        ++moves_;
      }
    } catch (...) {
      forget();
      throw;
    }
  }

  /// Runs an instruction of a compute or copy lane, and accounts for its time.
  void compute(int index, const StepInputs& inputs, const std::function<void()>& between) {
    const Action& action = nth(actions_, index);
    running_one_ = {.instruction = index, .iteration = inputs.iteration};
    const auto begin = running_one_.kernel_begin = Clock::now();
    action.start(*stream_, inputs, between);
    if (options_.slowdown > 1) std::this_thread::sleep_for((Clock::now() - begin) * (options_.slowdown - 1));
    const auto end = Clock::now();
    const double busy = milliseconds_between(begin, end);
    *times_.busy_ms += busy;
    if (action.parts.empty()) nth(work_.kinds_ms, static_cast<int>(program_.instruction(index).kind)) += busy;
    if (runs(program_.instruction(index), inputs))
      stamp({.instruction = index, .iteration = inputs.iteration, .begin = begin, .end = end});
  }

  /// One of a segment's kernels has ended.
  void between_kernels() {
    const auto end = Clock::now();
    const auto& parts = nth(actions_, running_one_.instruction).parts;
    if (running_one_.kernel < parts.size()) {
      const ActionPart& part = parts[running_one_.kernel++];
      // What slows it down comes at the end of the instruction.
      part_of(nth(work_.nodes_ms, part.node), part.phase) +=
          options_.slowdown * milliseconds_between(running_one_.kernel_begin, end);
      stamp({.kind = StampKind::kernel,
             .phase = part.phase,
             .instruction = running_one_.instruction,
             .node = part.node,
             .iteration = running_one_.iteration,
             .begin = running_one_.kernel_begin,
             .end = end});
    }
    running_one_.kernel_begin = handle_communication({}, end);
  }

  /// Beside instructions that can run, if nothing is awaited. Otherwise its time is a wait, too: a poll may
  /// take long, because libraries yield the core in it.
  Clock::time_point handle_communication(const std::optional<program::Step>& awaited,
                                         Clock::time_point begin = Clock::now()) {
    advance_communication();
    const auto end = Clock::now();
    if (awaited)
      add_wait(*awaited, begin, end);
    else
      work_.handling_ms += milliseconds_between(begin, end);
    return end;
  }

  double add_wait(const program::Step& awaited, Clock::time_point begin, Clock::time_point end) {
    const double waited = milliseconds_between(begin, end);
    nth(work_.waited_ms, awaited.instruction) += waited;
    stamp({.kind = StampKind::wait,
           .instruction = awaited.instruction,
           .iteration = inputs_of(awaited).iteration,
           .begin = begin,
           .end = end});
    return waited;
  }

  void stamp(const Stamp& stamp) const {
    if (options_.recorder != nullptr && options_.recorder->wants(stamp.iteration))
      options_.recorder->add(stamp);
  }

  /// After an error nothing is left to do.
  void forget() {
    schedule_.pass_all(schedule_.begun());
    running_ = advancing_ = false;
    anew_ = true;
  }

  /// Takes every communication lane as far as it goes without waiting. True if what goes on beside the
  /// program has more to do.
  bool advance_communication() {
    if (advancing_) return false;
    advancing_ = true;
    const bool more = options_.alongside && options_.alongside();
    for (bool moved = true; moved;) {
      moved = false;
      for (int lane = 0; lane < schedule_.lane_count(); ++lane)
        while (is_comm(lane) && !schedule_.at_end(lane) && advance(lane)) moved = true;
    }
    advancing_ = false;
    return more;
  }

  /// Starts the lane's next instruction, which may be an exchange behind those that are under way: what it
  /// takes before its first byte passes meanwhile. False if it has to wait.
  bool start(int lane) {
    if (!schedule_.may_start(lane)) return false;
    const int behind = schedule_.under_way(lane);
    const program::Step step = schedule_.start(lane);
    const Action& action = nth(actions_, step.instruction);
    const StepInputs& inputs = inputs_of(step);
    Flight& own = flight(lane, behind);
    guarded(step, [&] {
      if (options_.before) options_.before(inputs.iteration, step.instruction);
      if (action.communicator != nullptr)
        own.ticket = action.communicate(*stream_, inputs);
      else if (action.start)
        action.start(*stream_, inputs, [] {});
    });
    own.posted = Clock::now();
    if (behind == 0) nth(lanes_, lane).waiting_since = own.posted;
    return true;
  }

  /// Moves the lane's current instruction one state on; false if it has to wait.
  bool advance(int lane) {
    if (schedule_.under_way(lane) == 0 && !start(lane)) return false;
    const program::Step step = schedule_.current(lane);
    const Action& action = nth(actions_, step.instruction);
    Flight& own = flight(lane);
    bool complete_now = true;
    guarded(step, [&] {
      if (action.communicator != nullptr)
        complete_now = action.communicator->poll(own.ticket);
      else if (action.arrived)
        complete_now = action.arrived();
    });
    if (!complete_now) return start(lane);
    ++moves_;
    if (action.proceed) {
      std::optional<comm::Ticket> round;
      guarded(step, [&] { round = action.proceed(*stream_); });
      if (round) {
        own.ticket = *round;
        nth(lanes_, lane).waiting_since = Clock::now();
        return true;
      }
    }
    if (action.finish) action.finish(*stream_);
    LaneState& state = nth(lanes_, lane);
    state.first = (state.first + 1) % state.flights.size();
    state.waiting_since = Clock::now();
    stamp({.instruction = step.instruction,
           .iteration = inputs_of(step).iteration,
           .begin = own.posted,
           .end = state.waiting_since});
    schedule_.complete(lane);
    return true;
  }

  void wait_for_communication() {
    const auto begin = Clock::now();
    const int64_t before = moves_;
    patience_.begin();
    const program::Step awaited = waited_for().value_or(program::Step{});
    report(control::Activity::waiting, awaited.instruction);
    while (moves_ == before && schedule_.first_on_thread() < 0) {
      const bool more = advance_communication();
      if (moves_ != before) break;
      ensure_in_time();
      if (!more) patience_.rest();
    }
    *times_.exposed_communication_ms += add_wait(awaited, begin, Clock::now());
  }

  void report(control::Activity activity, int instruction) const {
    if (options_.progress != nullptr)
      options_.progress->enter(control::Progress::kMainSlot, activity, options_.program_number, instruction);
  }

  /// The first of the communications under way, in program order; without any, what comes next in some lane.
  std::optional<program::Step> waited_for() const {
    std::optional<program::Step> first;
    bool first_is_under_way = false;
    for (int lane = 0; lane < schedule_.lane_count(); ++lane) {
      if (schedule_.at_end(lane)) continue;
      const bool is_under_way = schedule_.under_way(lane) > 0;
      const program::Step step = schedule_.current(lane);
      if (first && (is_under_way == first_is_under_way ? *first < step : first_is_under_way)) continue;
      first = step;
      first_is_under_way = is_under_way;
    }
    return first;
  }

  /// For errors: an instruction, and whether it is of the iteration that run() began last.
  std::string where(const program::Step& step) const {
    return program::describe(program_, step.instruction) +
           (running_ && step.iteration + 1 == schedule_.begun() ? "" : left_over_text(program_));
  }

  void ensure_in_time() const {
    bool in_flight = false;
    for (int lane = 0; lane < schedule_.lane_count(); ++lane) {
      if (schedule_.under_way(lane) == 0) continue;
      in_flight = true;
      const auto waited = Clock::now() - nth(lanes_, lane).waiting_since;
      if (options_.communication_timeout && waited > *options_.communication_timeout)
        throw CommError(
            fmt::format(
                "rank {} has waited {:.1f} s for its peers in {}; look at the other ranks' messages for "
                "the one that stopped",
                program_.rank, std::chrono::duration<double>(waited).count(), where(schedule_.current(lane))),
            ExitCode::hang);
    }
    ensure(in_flight, "a program came to a stand with nothing under way");
  }

  /// Runs `work`; an error leaves with the instruction's name added, its exit code kept.
  template <class Work>
  void guarded(const program::Step& step, Work&& work) const {
    try {
      work();
    } catch (const Error& error) {
      throw Error(fmt::format("{} (rank {}, {})", error.what(), program_.rank, where(step)), error.code());
    }
  }

  const program::Program& program_;
  ExecutorOptions options_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<Action> actions_;
  program::LaneSchedule schedule_;
  std::vector<LaneState> lanes_;
  Patience patience_;
  int64_t moves_ = 0;                 // instructions complete, and rounds of those that have several
  std::array<StepInputs, 2> inputs_;  // by the iteration's parity
  bool running_ = false, advancing_ = false;
  bool anew_ = true;  // what comes next is an iteration after finish(), or the first
  struct RunningOne {
    int instruction = 0;
    uint64_t iteration = 0;
    size_t kernel = 0;  // of its parts
    Clock::time_point kernel_begin;
  };
  RunningOne running_one_;  // the instruction of a compute or copy lane that runs
  WorkTimes work_;
  IterationTimes times_{.exposed_communication_ms = 0, .busy_ms = 0};
};

}  // namespace

control::Activity activity_of(program::DeadlineClass deadline) {
  switch (deadline) {
    case program::DeadlineClass::compute:
      return control::Activity::compute;
    case program::DeadlineClass::input:
      return control::Activity::input;
    case program::DeadlineClass::storage:
      return control::Activity::storage;
    case program::DeadlineClass::communication:
      return control::Activity::waiting;
  }
  return control::Activity::idle;
}

std::string left_over_text(const program::Program& program) {
  return fmt::format(", left from the {} before", program.name);
}

std::unique_ptr<Executor> make_inline_executor(const program::Program& program,
                                               const ExecutionContext& context,
                                               const ExecutorOptions& options,
                                               const KernelObserver* observer) {
  return std::make_unique<InlineExecutor>(program, context, options, observer);
}

}  // namespace lockstep::run
