#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

#include "lockstep/error.h"
#include "step/executor.h"

namespace lockstep {
namespace {

class InlineExecutor : public Executor {
 public:
  InlineExecutor(const Program& program, const ExecutionContext& context, const ExecutorOptions& options,
                 const KernelObserver* observer)
      : program_(program),
        options_(options),
        device_(make_cpu_device()),
        stream_(device_->create_stream("inline")),
        actions_(make_actions(program, context, observer)),
        lanes_(program.lanes.size()),
        done_(program.instructions.size()) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const auto& instruction = program.instructions[i];
      lanes_[static_cast<size_t>(instruction.lane)].instructions.push_back(static_cast<int>(i));
      if (communicates(instruction.kind)) issue_order_.push_back(static_cast<int>(i));
    }
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      lanes_[lane].is_comm = program.lanes[lane].kind == LaneKind::comm;
    }
  }

  void run(const StepInputs& inputs) override {
    times_.exposed_communication_ms = 0;
    inputs_ = &inputs;
    std::fill(done_.begin(), done_.end(), false);
    next_issue_ = 0;
    remaining_ = program_.instructions.size();
    for (auto& lane : lanes_) lane.next = 0, lane.in_flight = false;
    const std::function<void()> between = [this] { advance_communication(); };
    while (remaining_ > 0) {
      advance_communication();
      if (const int next = next_local(); next >= 0) {
        report(activity_of(program_.instructions[static_cast<size_t>(next)].deadline), next);
        guarded(next, [&] {
          if (options_.before) options_.before(next);
          actions_[static_cast<size_t>(next)].start(*stream_, inputs, between);
        });
        complete(next);
      } else if (remaining_ > 0) {
        wait_for_communication();
      }
    }
  }

  IterationTimes last_times() const override { return times_; }

 private:
  struct LaneState {
    std::vector<int> instructions;   // in program order
    size_t next = 0;
    bool in_flight = false;
    bool is_comm = false;
    Ticket ticket;                   // of what is in flight
    Clock::time_point started;
    bool finished() const { return next == instructions.size(); }
    int current() const { return instructions[next]; }
  };

  /// Dependencies on the iteration before are satisfied: it was complete when run() returned.
  bool ready(int index) const {
    for (const auto& dependency : program_.instructions[static_cast<size_t>(index)].after)
      if (dependency.distance == 0 && !done_[static_cast<size_t>(dependency.instruction)]) return false;
    return true;
  }

  void complete(int index) {
    done_[static_cast<size_t>(index)] = true;
    auto& lane = lanes_[static_cast<size_t>(program_.instructions[static_cast<size_t>(index)].lane)];
    lane.in_flight = false;
    ++lane.next;
    --remaining_;
  }

  /// The earliest instruction of a compute or copy lane that may run now, or -1.
  int next_local() const {
    int best = -1;
    for (const auto& lane : lanes_)
      if (!lane.is_comm && !lane.finished() && (best < 0 || lane.current() < best) && ready(lane.current()))
        best = lane.current();
    return best;
  }

  /// Takes every communication lane as far as it goes without waiting.
  void advance_communication() {
    if (advancing_) return;
    advancing_ = true;
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& lane : lanes_)
        while (lane.is_comm && !lane.finished() && advance(lane)) moved = true;
    }
    advancing_ = false;
  }

  /// Moves the lane's current instruction one state on; false where it has to wait.
  bool advance(LaneState& lane) {
    const int index = lane.current();
    auto& action = actions_[static_cast<size_t>(index)];
    if (!lane.in_flight) {
      if (!ready(index)) return false;
      if (action.communicator != nullptr) {
        if (issue_order_[next_issue_] != index) return false;
        ++next_issue_;
      }
      guarded(index, [&] {
        if (options_.before) options_.before(index);
        if (action.communicator == nullptr) return action.start(*stream_, *inputs_, [] {});
        lane.ticket = action.communicate(*stream_, *inputs_);
      });
      lane.in_flight = true;
      lane.started = Clock::now();
    }
    bool complete_now = true;
    if (action.communicator != nullptr) guarded(index, [&] { complete_now = action.communicator->poll(lane.ticket); });
    if (!complete_now) return false;
    if (action.finish) action.finish(*stream_);
    complete(index);
    return true;
  }

  void wait_for_communication() {
    const auto begin = Clock::now();
    const size_t before = remaining_;
    report(Activity::waiting, waited_for());
    while (remaining_ == before && next_local() < 0) {
      advance_communication();
      if (remaining_ != before) break;
      ensure_in_time();
      sched_yield();
    }
    *times_.exposed_communication_ms += milliseconds_between(begin, Clock::now());
  }

  void report(Activity activity, int instruction) const {
    if (options_.progress != nullptr)
      options_.progress->enter(Progress::kMainSlot, activity, options_.program_number, instruction);
  }

  /// The first of the communications under way, in program order; without any, what comes next in some lane.
  int waited_for() const {
    int under_way = -1, next = -1;
    for (const auto& lane : lanes_) {
      if (lane.finished()) continue;
      int& first = lane.in_flight ? under_way : next;
      if (first < 0 || lane.current() < first) first = lane.current();
    }
    return under_way >= 0 ? under_way : next;
  }

  void ensure_in_time() const {
    bool in_flight = false;
    for (const auto& lane : lanes_) {
      if (!lane.in_flight) continue;
      in_flight = true;
      const auto waited = Clock::now() - lane.started;
      if (options_.communication_timeout && waited > *options_.communication_timeout)
        throw CommError(fmt::format("rank {} has waited {:.1f} s for its peers in {}; look at the other ranks' messages for "
                                    "the one that stopped", program_.rank,
                                    std::chrono::duration<double>(waited).count(), describe(program_, lane.current())),
                        ExitCode::hang);
    }
    ensure(in_flight, "a program came to a stand with nothing under way");
  }

  /// Runs `work`; an error leaves with the instruction's name added, its exit code kept.
  template <class Work>
  void guarded(int index, Work&& work) const {
    try {
      work();
    } catch (const Error& error) {
      throw Error(fmt::format("{} (rank {}, {})", error.what(), program_.rank, describe(program_, index)), error.code());
    }
  }

  const Program& program_;
  ExecutorOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Action> actions_;
  std::vector<LaneState> lanes_;
  std::vector<bool> done_;
  std::vector<int> issue_order_;
  size_t next_issue_ = 0, remaining_ = 0;
  bool advancing_ = false;
  const StepInputs* inputs_ = nullptr;
  IterationTimes times_;
};

}  // namespace

Activity activity_of(DeadlineClass deadline) {
  switch (deadline) {
    case DeadlineClass::compute:
      return Activity::compute;
    case DeadlineClass::input:
      return Activity::input;
    case DeadlineClass::storage:
      return Activity::storage;
    case DeadlineClass::communication:
      return Activity::waiting;
  }
  return Activity::idle;
}

std::unique_ptr<Executor> make_inline_executor(const Program& program, const ExecutionContext& context,
                                               const ExecutorOptions& options, const KernelObserver* observer) {
  return std::make_unique<InlineExecutor>(program, context, options, observer);
}

}  // namespace lockstep
