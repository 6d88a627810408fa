#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/ensure.h"
#include "base/index.h"
#include "lockstep/error.h"
#include "program/lane_schedule.h"
#include "run/deliveries.h"
#include "run/device_stamps.h"
#include "run/executor.h"
#include "run/host_waits.h"
#include "run/run_ahead.h"
#include "run/timed_stands.h"

namespace lockstep::run {
namespace {

/// What RunAhead takes for a piece, about.
constexpr size_t kCommandsOfAPiece = 8;

/// Issues the whole iteration at once: for each instruction, its stream waits for the events of what it
/// depends on, does the work and records an event.
///
/// What is left of an iteration after its report goes on by itself. Where the host shares the device's memory
/// (the asynchronous CPU device), the work runs on the lane's thread, which waits for communication itself.
/// Elsewhere an instruction is work that is enqueued: kernels, copies, collectives that follow the stream,
/// and two words of progress, which the device writes when it gets there. The host issues only as far ahead
/// of the device as the driver takes without blocking (RunAhead), and looks after communicators wherever it
/// waits for the device. Messages that no communicator carries are the host's own: it waits for what they
/// bring (Action::arrived) before it issues the copy to the device, and sends what the device has made once
/// that is in the host's memory (Deliveries).
///
/// The first lane that fails aborts the program's communicators, so that no other lane waits for peers that
/// will not come; what those lanes then throw follows from it, and only the first error leaves.
class StreamExecutor : public Executor {
 public:
  StreamExecutor(const program::Program& program, const ExecutionContext& context,
                 const ExecutorOptions& options, device::Device& device, const KernelObserver* observer)
      : program_(program),
        options_(options),
        enqueues_(!device.shares_host_memory()),
        immediate_device_(device::make_cpu_device()),
        immediate_(immediate_device_->create_stream("lane")),
        actions_(make_actions(program, context, observer)),
        communicators_(context.communicators),
        rests_after_(program.instructions.size(), true),
        reports_(program::report_instructions(program)),
        stands_(program, reports_, device),
        waits_(program_, options_, communicators_, enqueues_ && !options.device_tells,
               {.after_the_host = [this] { look_after_the_host(); },
                .is_done = [this](int instruction) { return nth(events_[parity_], instruction)->ready(); },
                .was_done =
                    [this](int instruction) { return nth(events_[1 - parity_], instruction)->ready(); }}) {
    ensure(
        enqueues_ || (!options.alongside && context.session == nullptr),
        "lanes with threads of their own take no part in sessions with servers, which one thread talks to");
    ensure(program.lanes.size() < static_cast<size_t>(control::Progress::kWriterSlot),
           "a program has as many lanes as progress has slots");
    // What other ranks wait for goes first: communication, and the sums between its parts.
    for (const auto& lane : program.lanes)
      streams_.push_back(lane.kind == program::LaneKind::comm ? device.create_urgent_stream(lane.name)
                                                              : device.create_stream(lane.name));
    for (auto& set : events_)
      for (size_t i = 0; i < program.instructions.size(); ++i) set.push_back(device.create_event());
    for (const auto& instructions : program::instructions_by_lane(program)) {
      if (instructions.empty()) continue;
      for (size_t i = 0; i + 1 < instructions.size(); ++i)
        nth(rests_after_, instructions[i]) = !program.instruction(instructions[i + 1]).after.empty();
      last_of_lanes_.push_back(instructions.back());
    }
    if (options.recorder != nullptr || options.samples_kernels)
      stamps_ = std::make_unique<DeviceStamps>(device, program_, actions_,
                                               DeviceStamps::Options{.recorder = options.recorder,
                                                                     .samples = options.samples_kernels,
                                                                     .nodes = context.graph.nodes.size()});
    if (!enqueues_) return;
    for (const auto& stream : streams_) ahead_.emplace_back(device, *stream, options.most_ahead);
    for (size_t i = 0; i < actions_.size(); ++i)
      if (actions_[i].communicator != nullptr && actions_[i].communicator->needs_host()) {
        host_exchanges_ = true;
        last_exchange_ = static_cast<int>(i);
      }
    for (const auto& action : actions_)
      ensure(action.communicator == nullptr || action.communicator->size() == 1 ||
                 action.communicator->follows_stream(),
             "memory of a device is communicated by a communicator that follows its streams");
  }

  ~StreamExecutor() override {
    // An error elsewhere has ended the run: no lane is to wait for peers that will not come.
    if (communication_is_under_way())
      comm::abort_all(communicators_, "the program was left in the middle of an iteration");
    if (enqueues_ && (left_[0] || left_[1]))
      for (auto& stream : streams_) {
        try {
          stream->synchronize();  // what is enqueued uses events and actions
        } catch (...) {
          // The error that is known has ended the run, or what has failed since follows from it.
        }
      }
    // Streams go first: their queues refer to events and actions.
    streams_.clear();
  }

  void run(const StepInputs& inputs) override {
    // The lanes tell where they are; this thread only issues.
    waits_.report(control::Activity::idle);
    times_.exposed_communication_ms = 0;
    attempt([&] {
      const auto place = static_cast<int>(begun_ % 2);
      complete(place);  // the iteration before the last
      parity_ = place;
      inputs_[parity_] = inputs;
      inputs_[parity_].begins_anew = std::exchange(anew_, false);
      const bool goes_on = nth(left_, 1 - parity_);
      if (!goes_on) begin_anew();
      waits_.begin(goes_on);
      nth(left_, parity_) = true;
      messages_left_ = host_exchanges_;
      running_ = begun_;
      issue(begun_++);
      for (const int report : reports_) await(parity_, report);
      running_ = kNone;
      for (const int place : {1 - parity_, parity_})
        if (nth(left_, place) && is_complete(place)) complete(place);
    });
    waits_.hush();
  }

  void finish() override {
    anew_ = true;
    if (!left_[0] && !left_[1] && !messages_left_) {
      if (stamps_) stamps_->settle();
      return;
    }
    control::Progress* const progress = options_.progress;
    const control::Progress::Entry before =
        progress == nullptr ? control::Progress::Entry{} : progress->at(control::Progress::kMainSlot);
    waits_.report(control::Activity::idle);
    attempt([&] {
      for (const int place : {1 - parity_, parity_}) complete(place);
      send_messages();
      if (stamps_) stamps_->settle();
    });
    waits_.hush();
    if (progress != nullptr)
      progress->enter(control::Progress::kMainSlot, before.activity, before.program, before.instruction);
  }

  IterationTimes last_times() const override { return times_; }
  const SampledTimes* sampled_times() const override {
    return options_.samples_kernels ? &stamps_->sampled() : nullptr;
  }

 private:
  program::LaneKind lane_kind(int instruction) const {
    return program_.lane(program_.instruction(instruction).lane).kind;
  }

  /// What throws leaves nothing under way: every lane is idle when the first error leaves.
  template <class Work>
  void attempt(Work&& work) {
    std::exception_ptr error;
    try {
      if (const auto first = first_error()) std::rethrow_exception(first);
      return work();
    } catch (const std::exception& failure) {
      error = with_place(std::current_exception(),
                         enqueues_ ? waits_.under_way() : "");  // before the abort, which ends it
      // A lane that fails tells by itself.
      if (!first_error()) {
        if (options_.failed) options_.failed(error);
        // What is under way would wait for peers that will not come, and memory be freed under it.
        comm::abort_all(communicators_, failure.what());
      }
    }
    for (auto& stream : streams_) {
      try {
        stream->synchronize();
      } catch (...) {
        // It follows from the error that is known.
      }
    }
    waits_.hush();
    left_ = {};
    anew_ = true;
    messages_left_ = false;
    deliveries_.forget();
    running_ = kNone;
    if (const auto first = first_error()) error = first;
    std::rethrow_exception(error);
  }

  std::exception_ptr first_error() {
    std::lock_guard lock(mutex_);
    return first_error_;
  }

  /// Nothing is left of any iteration of this program, and others may have run since.
  void begin_anew() {
    if (options_.progress != nullptr)
      for (size_t lane = 0; lane < program_.lanes.size(); ++lane)
        words_[lane] = options_.progress->word(control::Progress::lane_slot(static_cast<int>(lane)));
    for (auto& ahead : ahead_) ahead.begin();
  }

  /// Waits for an instruction of the last iteration of this parity.
  void await(int place, int instruction) {
    device::Event& event = *nth(events_[place], instruction);
    if (!enqueues_) return event.synchronize();
    waits_.hold(*nth(streams_, program_.instruction(instruction).lane), event);
  }

  /// Waits for all of the last iteration of this parity; throws what failed in it.
  void complete(int place) {
    if (!nth(left_, place)) return;
    for (const int last : last_of_lanes_) await(place, last);
    look_after_the_host();
    ensure(!deliveries_.any(place), "what the device is done with is delivered");
    stands_.synchronize(place);  // next to nothing comes after the last instruction
    if (stamps_) stamps_->collect(place);
    nth(left_, place) = false;
    times_.exposed_communication_ms =
        times_.exposed_communication_ms.value_or(0) + stands_.exposed_communication_ms(place);
  }

  /// Waits for messages between hosts that their streams have passed: a rank that goes on to something else
  /// would not look after them.
  void send_messages() {
    if (!messages_left_) return;
    exchange(last_exchange_, [this] {
      return std::ranges::all_of(communicators_, [](comm::Communicator* communicator) {
        return communicator == nullptr || !communicator->needs_host() || communicator->test();
      });
    });
    messages_left_ = false;
  }

  bool is_complete(int place) const {
    return std::all_of(last_of_lanes_.begin(), last_of_lanes_.end(),
                       [&](int last) { return nth(events_[place], last)->ready(); }) &&
           stands_.ready(place);
  }

  /// True, too, if a device that has failed does not tell.
  bool communication_is_under_way() const noexcept try {
    for (const int place : {0, 1})
      for (const int last : last_of_lanes_)
        if (nth(left_, place) && lane_kind(last) == program::LaneKind::comm &&
            !nth(events_[place], last)->ready())
          return true;
    return false;
  } catch (const std::exception&) {
    return true;
  }

  void issue(int64_t iteration) {
    const StepInputs& inputs = inputs_[parity_];
    const auto& events = events_[parity_];
    const auto& events_before = events_[1 - parity_];
    stands_.begin(parity_);
    if (stamps_) stamps_->begin_iteration(parity_, inputs);
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const auto& instruction = program_.instructions[i];
      auto& stream = *nth(streams_, instruction.lane);
      // Communication last, so that nothing else is waited for with it.
      for (const bool for_communication : {false, true}) {
        stands_.before_waits(parity_, static_cast<int>(i), for_communication, stream);
        for (const auto& dependency : instruction.after)
          if (stands_.is_communication(dependency) == for_communication)
            stream.wait(*nth((dependency.distance == 0 ? events : events_before), dependency.instruction));
        stands_.after_waits(stream);
      }
      if (stamps_) stamps_->before(parity_, static_cast<int>(i), stream);
      if (enqueues_) {
        enqueue(static_cast<int>(i), stream, inputs);
      } else {
        stream.launch([this, i, iteration, place = parity_, &inputs] {
          execute(static_cast<int>(i), iteration, place, inputs);
        });
      }
      if (stamps_) stamps_->after(parity_, static_cast<int>(i), stream);
      stream.record(*events[i]);
      waits_.issued();
      if (!enqueues_) continue;
      nth(ahead_, instruction.lane).given([&](device::Stream& of, const device::Event& event) {
        waits_.hold(of, event);
      });
      if (actions_[i].deliver) deliveries_.add(parity_, static_cast<int>(i), stream, *events[i]);
      look_after_the_host();
      if (host_exchanges_) waits_.check_communicators();
    }
    stands_.end(parity_, streams_);
  }

  void enqueue(int index, device::Stream& stream, const StepInputs& inputs) {
    auto& action = nth(actions_, index);
    const auto& instruction = program_.instruction(index);
    const auto report = [&](control::Activity activity) {
      if (options_.progress == nullptr || !options_.device_tells) return;
      uint64_t& word = nth(words_, instruction.lane);
      word = control::Progress::encode(word, activity, options_.program_number, index);
      stream.write_word(options_.progress->word(control::Progress::lane_slot(instruction.lane)), word);
    };
    waits_.report_issuing(index);
    report(activity_of(instruction.deadline));
    try {
      if (options_.before) {
        // It may look at what was made so far, and change it.
        for (auto& each : streams_) waits_.drain(*each);
        waits_.report_issuing(index);
        options_.before(inputs.iteration, index);
      }
      auto& ahead = nth(ahead_, instruction.lane);
      const RunAhead::Wait wait = [&](device::Stream& of, const device::Event& event) {
        waits_.hold(of, event);
        waits_.report_issuing(index);
      };
      if (action.staged != nullptr && !action.staged->ready()) wait(stream, *action.staged);
      if (action.delivered) exchange(index, [&] { return !deliveries_.has(index) && action.delivered(); });
      if (action.arrived) exchange(index, action.arrived);
      if (action.communicator != nullptr) {
        action.communicate(stream, inputs);
        // Copies and waits, some for each transfer: as many commands as several kernels.
        if (action.communicator->needs_host())
          for (size_t part = 0; part <= instruction.operands.size(); part += kCommandsOfAPiece / 2)
            ahead.given(wait);
        while (action.proceed && action.proceed(stream)) {
          report(activity_of(instruction.deadline));
          ahead.given(wait);
        }
      } else if (action.start) {
        start_timed(stamps_.get(), parity_, index, action, stream, inputs, [&] { ahead.given(wait); });
      }
      if (action.finish) action.finish(stream);
    } catch (const Error& error) {
      throw Error(
          fmt::format("{} (rank {}, {})", error.what(), program_.rank, program::describe(program_, index)),
          error.code());
    }
    if (nth(rests_after_, index)) report(control::Activity::idle);
  }

  /// What is the host's own: messages, and what goes on beside the program.
  void look_after_the_host() {
    deliveries_.advance([this](int place, int instruction) {
      try {
        nth(actions_, instruction).deliver();
      } catch (const Error& error) {
        throw Error(fmt::format("{} (rank {}, {}{})", error.what(), program_.rank,
                                program::describe(program_, instruction),
                                running_ != kNone && place == parity_ ? "" : left_over_text(program_)),
                    error.code());
      }
    });
    if (options_.alongside) options_.alongside();
  }

  /// Waits for other ranks. Nothing that comes after is issued meanwhile, so that compute has to wait, too.
  void exchange(int index, const std::function<bool()>& done) {
    const double waited =
        waits_.wait_for_peers(index, *nth(streams_, program_.instruction(index).lane), done);
    if (waited > 0) *times_.exposed_communication_ms += waited;
  }

  std::exception_ptr with_place(const std::exception_ptr& error, const std::string& where) const {
    if (where.empty()) return error;
    try {
      std::rethrow_exception(error);
    } catch (const Error& known) {
      return std::make_exception_ptr(Error(
          fmt::format("{} (rank {}; under way: {})", known.what(), program_.rank, where), known.code()));
    } catch (...) {
      return error;
    }
  }

  void execute(int index, int64_t iteration, int place, const StepInputs& inputs) {
    auto& action = nth(actions_, index);
    const auto& instruction = program_.instruction(index);
    const auto report = [&](control::Activity activity) {
      if (options_.progress != nullptr)
        options_.progress->enter(control::Progress::lane_slot(instruction.lane), activity,
                                 options_.program_number, index);
    };
    report(activity_of(instruction.deadline));
    try {
      if (options_.before) options_.before(inputs.iteration, index);
      if (action.communicator == nullptr) {
        start_on_thread(stamps_.get(), place, index, action, *immediate_, inputs);
      } else {
        action.communicate(*immediate_, inputs);
        action.communicator->synchronize(*immediate_, waits_.deadline());
        while (action.proceed && action.proceed(*immediate_)) {
          report(activity_of(instruction.deadline));
          action.communicator->synchronize(*immediate_, waits_.deadline());
        }
      }
      if (action.finish) action.finish(*immediate_);
      report(control::Activity::idle);
    } catch (const Error& error) {
      const Error named(
          fmt::format("{} (rank {}, {}{})", error.what(), program_.rank, program::describe(program_, index),
                      iteration == running_ ? "" : left_over_text(program_)),
          error.code());
      abandon(std::make_exception_ptr(named), named.what());
      throw named;
    } catch (const std::exception& error) {
      abandon(std::current_exception(), error.what());
      throw;
    }
  }

  void abandon(const std::exception_ptr& error, const char* reason) {
    std::lock_guard lock(mutex_);
    if (first_error_) return;
    first_error_ = error;
    if (options_.failed) options_.failed(error);
    comm::abort_all(communicators_, reason);
  }

  const program::Program& program_;
  ExecutorOptions options_;
  bool enqueues_;
  bool host_exchanges_ = false;  // some operations get on only while the host looks after them
  int last_exchange_ = 0;        // of these, an instruction
  bool messages_left_ = false;   // of them may be under way still
  std::unique_ptr<device::Device> immediate_device_;
  std::unique_ptr<device::Stream> immediate_;
  std::vector<Action> actions_;
  std::vector<comm::Communicator*> communicators_;
  std::mutex mutex_;  // guards first_error_
  std::exception_ptr first_error_;
  std::vector<std::unique_ptr<device::Event>> events_[2];  // by parity of the iteration
  std::vector<bool> rests_after_;  // by instruction: its lane may have to wait for another one then
  IterationTimes times_;
  std::array<uint64_t, control::Progress::kSlots> words_{};  // by lane: what was last enqueued to be written
  StepInputs inputs_[2];                                     // by parity
  std::array<bool, 2> left_{};                               // by parity: something may be left of it
  std::vector<int> reports_;                                 // instructions
  TimedStands stands_;
  HostWaits waits_;
  std::unique_ptr<DeviceStamps> stamps_;  // null if nobody wants any
  std::vector<int> last_of_lanes_;        // of each lane that has any, its last instruction
  static constexpr int64_t kNone = -1;
  std::atomic<int64_t> running_{kNone};  // the iteration that run() is in
  int64_t begun_ = 0;                    // iterations
  bool anew_ = true;                     // what comes next is an iteration after finish(), or the first
  int parity_ = 0;                       // of the last one
  std::vector<std::unique_ptr<device::Stream>> streams_;
  std::vector<RunAhead> ahead_;  // by lane, where work is enqueued
  Deliveries deliveries_;        // likewise
};

}  // namespace

std::unique_ptr<Executor> make_stream_executor(const program::Program& program,
                                               const ExecutionContext& context,
                                               const ExecutorOptions& options, device::Device& device,
                                               const KernelObserver* observer) {
  return std::make_unique<StreamExecutor>(program, context, options, device, observer);
}

}  // namespace lockstep::run
