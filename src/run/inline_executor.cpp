#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "base/ensure.h"
#include "base/index.h"
#include "lockstep/error.h"
#include "program/lane_overlap.h"
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
        lanes_(program.lanes.size()),
        done_(program.instructions.size()),
        reports_(program.instructions.size()),
        independent_(program::independent_predecessors(program)),
        patience_(options_.longest_nap) {
    work_.nodes_ms.resize(context.graph.nodes.size());
    work_.waited_ms.resize(program.instructions.size());
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const auto& instruction = program.instructions[i];
      nth(lanes_, instruction.lane).instructions.push_back(static_cast<int>(i));
      if (actions_[i].communicator != nullptr) issue_order_.push_back(static_cast<int>(i));
    }
    for (size_t lane = 0; lane < lanes_.size(); ++lane)
      lanes_[lane].is_comm = program.lanes[lane].kind == program::LaneKind::comm;
    for (const int i : program::report_instructions(program)) nth(reports_, i) = true, ++reports_each_;
  }

  void run(const StepInputs& inputs) override {
    times_ = {.exposed_communication_ms = 0, .busy_ms = 0};
    // How long a communication waited while nobody looked at it says nothing about its peers.
    for (auto& lane : lanes_) lane.started = Clock::now();
    const auto place = static_cast<size_t>(begun_ % 2);
    drive([&] { return left_[place] == 0; });  // of the iteration before the last
    inputs_[place] = inputs;
    inputs_[place].begins_anew = std::exchange(anew_, false);
    left_[place] = static_cast<int64_t>(program_.instructions.size());
    reports_left_ = reports_each_;
    ++begun_;
    running_ = true;
    drive([&] { return reports_left_ == 0; });
    running_ = false;
  }

  void finish() override {
    anew_ = true;
    if (left_[0] + left_[1] == 0) return;
    control::Progress* const progress = options_.progress;
    const control::Progress::Entry before =
        progress == nullptr ? control::Progress::Entry{} : progress->at(control::Progress::kMainSlot);
    for (auto& lane : lanes_) lane.started = Clock::now();
    drive([&] { return left_[0] + left_[1] == 0; });
    if (progress != nullptr)
      progress->enter(control::Progress::kMainSlot, before.activity, before.program, before.instruction);
  }

  IterationTimes last_times() const override { return times_; }
  const WorkTimes* work_times() const override { return &work_; }

 private:
  struct LaneState {
    std::vector<int> instructions;  // in program order
    int64_t position = 0;           // instructions complete, over all iterations
    bool in_flight = false;
    bool is_comm = false;
    comm::Ticket ticket;        // of what is in flight
    Clock::time_point started;  // that, or the run() or finish() in which it is waited for
    Clock::time_point posted;   // when what is in flight started, with all of its rounds
    struct Ahead {
      comm::Ticket ticket;
      Clock::time_point posted;
    };
    std::deque<Ahead> ahead;  // the next instructions that have started, too
    int at(int64_t place) const { return instructions[static_cast<size_t>(place) % instructions.size()]; }
    int current() const { return at(position); }
    int64_t iteration_at(int64_t place) const { return place / static_cast<int64_t>(instructions.size()); }
    int64_t iteration() const { return iteration_at(position); }
    int64_t end(int64_t iterations) const { return iterations * static_cast<int64_t>(instructions.size()); }
  };

  bool finished(const LaneState& lane) const { return lane.position == lane.end(begun_); }
  /// Earlier in program order, iteration after iteration.
  static bool precedes(const LaneState& a, const LaneState& b) {
    return std::pair(a.iteration(), a.current()) < std::pair(b.iteration(), b.current());
  }
  const StepInputs& inputs_of(int64_t iteration) const { return nth(inputs_, iteration % 2); }

  /// Runs what can be run until `enough` says so.
  void drive(const std::function<bool()>& enough) {
    const std::function<void()> between = [this] { between_kernels(); };
    try {
      while (!enough()) {
        handle_communication(next_local() == nullptr ? waited_for() : nullptr);
        if (enough()) return;
        if (LaneState* lane = next_local()) {
          const int next = lane->current();
          report(activity_of(program_.instruction(next).deadline), next);
          guarded(*lane, [&] {
            if (options_.before) options_.before(inputs_of(lane->iteration()).iteration, next);
            compute(next, inputs_of(lane->iteration()), between);
          });
          complete(*lane);
        } else {
          wait_for_communication();
        }
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
    running_one_.kernel_begin = handle_communication(nullptr, end);
  }

  /// Beside instructions that can run, if nothing is awaited. Otherwise its time is a wait, too: a poll may
  /// take long, because libraries yield the core in it.
  Clock::time_point handle_communication(const LaneState* awaited, Clock::time_point begin = Clock::now()) {
    const int index = awaited == nullptr ? 0 : awaited->current();
    const uint64_t iteration = awaited == nullptr ? 0 : inputs_of(awaited->iteration()).iteration;
    advance_communication();
    const auto end = Clock::now();
    (awaited == nullptr ? work_.handling_ms : nth(work_.waited_ms, index)) +=
        milliseconds_between(begin, end);
    if (awaited != nullptr)
      stamp({.kind = StampKind::wait,
             .instruction = index,
             .iteration = iteration,
             .begin = begin,
             .end = end});
    return end;
  }

  void stamp(const Stamp& stamp) const {
    if (options_.recorder != nullptr && options_.recorder->wants(stamp.iteration))
      options_.recorder->add(stamp);
  }

  /// After an error nothing is left to do.
  void forget() {
    for (auto& lane : lanes_) {
      lane.position = lane.end(begun_);
      lane.in_flight = false;
      lane.ahead.clear();
    }
    std::fill(done_.begin(), done_.end(), begun_);
    issued_ = begun_ * static_cast<int64_t>(issue_order_.size());
    left_ = {};
    running_ = advancing_ = false;
    anew_ = true;
  }

  /// Whether what the lane's instruction at a position depends on is complete.
  bool ready(const LaneState& lane, int64_t position) const {
    for (const auto& dependency : program_.instruction(lane.at(position)).after)
      if (nth(done_, dependency.instruction) + dependency.distance <= lane.iteration_at(position))
        return false;
    return true;
  }
  bool ready(const LaneState& lane) const { return ready(lane, lane.position); }
  /// Whether it is the turn of a communication among those of all lanes.
  bool is_issued_next(int instruction) const {
    return issue_order_[static_cast<size_t>(issued_) % issue_order_.size()] == instruction;
  }

  void complete(LaneState& lane) {
    const auto index = static_cast<size_t>(lane.current());
    if (reports_[index] && lane.iteration() + 1 == begun_) --reports_left_;
    --nth(left_, lane.iteration() % 2);
    ++done_[index];
    ++moves_;
    ++lane.position;
    lane.in_flight = !lane.ahead.empty();
    if (lane.in_flight) {
      lane.ticket = lane.ahead.front().ticket;
      lane.posted = lane.ahead.front().posted;
      lane.ahead.pop_front();
      lane.started = Clock::now();
    }
  }

  /// The compute or copy lane whose current instruction is the earliest that may run now, or null.
  LaneState* next_local() {
    LaneState* best = nullptr;
    for (auto& lane : lanes_)
      if (!lane.is_comm && !finished(lane) && (best == nullptr || precedes(lane, *best)) && ready(lane))
        best = &lane;
    return best;
  }

  /// Takes every communication lane as far as it goes without waiting. True if what goes on beside the
  /// program has more to do.
  bool advance_communication() {
    if (advancing_) return false;
    advancing_ = true;
    const bool more = options_.alongside && options_.alongside();
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& lane : lanes_)
        while (lane.is_comm && !finished(lane) && advance(lane)) moved = true;
    }
    advancing_ = false;
    return more;
  }

  /// Moves the lane's current instruction one state on; false where it has to wait.
  bool advance(LaneState& lane) {
    const int index = lane.current();
    auto& action = nth(actions_, index);
    if (!lane.in_flight) {
      if (!ready(lane)) return false;
      if (action.communicator != nullptr) {
        if (!is_issued_next(index)) return false;
        ++issued_;
      }
      const StepInputs& inputs = inputs_of(lane.iteration());
      guarded(lane, [&] {
        if (options_.before) options_.before(inputs.iteration, index);
        if (action.communicator != nullptr)
          lane.ticket = action.communicate(*stream_, inputs);
        else if (action.start)
          action.start(*stream_, inputs, [] {});
      });
      lane.in_flight = true;
      lane.started = lane.posted = Clock::now();
    }
    bool complete_now = true;
    if (action.communicator != nullptr)
      guarded(lane, [&] { complete_now = action.communicator->poll(lane.ticket); });
    else if (action.arrived)
      guarded(lane, [&] { complete_now = action.arrived(); });
    if (!complete_now) return start_ahead(lane);
    if (action.proceed) {
      std::optional<comm::Ticket> round;
      guarded(lane, [&] { round = action.proceed(*stream_); });
      if (round) {
        lane.ticket = *round;
        lane.started = Clock::now();
        ++moves_;
        return true;
      }
    }
    if (action.finish) action.finish(*stream_);
    if (options_.recorder != nullptr)
      stamp({.instruction = index,
             .iteration = inputs_of(lane.iteration()).iteration,
             .begin = lane.posted,
             .end = Clock::now()});
    complete(lane);
    return true;
  }

  /// Starts the exchange behind those that are under way, so that what it takes before its first byte passes
  /// meanwhile; false where it has to wait.
  bool start_ahead(LaneState& lane) {
    const int under_way = 1 + static_cast<int>(lane.ahead.size());
    const int64_t next = lane.position + under_way;
    const int index = lane.at(next);
    if (next == lane.end(begun_) || nth(independent_, index) < under_way || !is_issued_next(index) ||
        !ready(lane, next))
      return false;
    ++issued_;
    const StepInputs& inputs = inputs_of(lane.iteration_at(next));
    guarded(lane, next, [&] {
      if (options_.before) options_.before(inputs.iteration, index);
      const comm::Ticket ticket = nth(actions_, index).communicate(*stream_, inputs);
      lane.ahead.push_back({ticket, options_.recorder == nullptr ? Clock::time_point{} : Clock::now()});
    });
    return true;
  }

  void wait_for_communication() {
    const auto begin = Clock::now();
    const int64_t before = moves_;
    patience_.begin();
    const LaneState* lane = waited_for();
    const int index = lane == nullptr ? 0 : lane->current();
    const uint64_t iteration = lane == nullptr ? 0 : inputs_of(lane->iteration()).iteration;
    report(control::Activity::waiting, index);
    while (moves_ == before && next_local() == nullptr) {
      const bool more = advance_communication();
      if (moves_ != before) break;
      ensure_in_time();
      if (!more) patience_.rest();
    }
    const auto end = Clock::now();
    const double waited = milliseconds_between(begin, end);
    *times_.exposed_communication_ms += waited;
    nth(work_.waited_ms, index) += waited;
    stamp(
        {.kind = StampKind::wait, .instruction = index, .iteration = iteration, .begin = begin, .end = end});
  }

  void report(control::Activity activity, int instruction) const {
    if (options_.progress != nullptr)
      options_.progress->enter(control::Progress::kMainSlot, activity, options_.program_number, instruction);
  }

  /// The first of the communications under way, in program order; without any, what comes next in some lane.
  const LaneState* waited_for() const {
    const LaneState* first = nullptr;
    for (const auto& lane : lanes_) {
      if (finished(lane)) continue;
      if (first == nullptr || (lane.in_flight && !first->in_flight) ||
          (lane.in_flight == first->in_flight && precedes(lane, *first)))
        first = &lane;
    }
    return first;
  }

  /// For errors: an instruction, and whether it is of the iteration that run() began last.
  std::string where(const LaneState& lane, int64_t position) const {
    return program::describe(program_, lane.at(position)) +
           (running_ && lane.iteration_at(position) + 1 == begun_ ? "" : left_over_text(program_));
  }

  void ensure_in_time() const {
    bool in_flight = false;
    for (const auto& lane : lanes_) {
      if (!lane.in_flight) continue;
      in_flight = true;
      const auto waited = Clock::now() - lane.started;
      if (options_.communication_timeout && waited > *options_.communication_timeout)
        throw CommError(
            fmt::format(
                "rank {} has waited {:.1f} s for its peers in {}; look at the other ranks' messages for "
                "the one that stopped",
                program_.rank, std::chrono::duration<double>(waited).count(), where(lane, lane.position)),
            ExitCode::hang);
    }
    ensure(in_flight, "a program came to a stand with nothing under way");
  }

  /// Runs `work`; an error leaves with the instruction's name added, its exit code kept.
  template <class Work>
  void guarded(const LaneState& lane, int64_t position, Work&& work) const {
    try {
      work();
    } catch (const Error& error) {
      throw Error(fmt::format("{} (rank {}, {})", error.what(), program_.rank, where(lane, position)),
                  error.code());
    }
  }
  template <class Work>
  void guarded(const LaneState& lane, Work&& work) const {
    guarded(lane, lane.position, std::forward<Work>(work));
  }

  const program::Program& program_;
  ExecutorOptions options_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<Action> actions_;
  std::vector<LaneState> lanes_;
  std::vector<int64_t> done_;  // by instruction: in so many iterations
  std::vector<int> issue_order_;
  std::vector<bool> reports_;     // by instruction
  int64_t reports_each_ = 0;      // of an iteration
  std::vector<int> independent_;  // by instruction: of so many before it in its lane
  Patience patience_;
  // Two iterations at most are under way: the last, and what is left of the one before.
  int64_t begun_ = 0, issued_ = 0;    // iterations; communications over all of them
  int64_t moves_ = 0;                 // instructions complete, and rounds of those that have several
  int64_t reports_left_ = 0;          // of the last iteration
  std::array<int64_t, 2> left_{};     // instructions not complete, by the iteration's parity
  std::array<StepInputs, 2> inputs_;  // likewise
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
