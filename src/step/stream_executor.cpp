#include <fmt/format.h>

#include <exception>
#include <mutex>

#include "lockstep/error.h"
#include "step/executor.h"

namespace lockstep {
namespace {

/// Stands for "no deadline of its own".
constexpr std::chrono::hours kForever{24 * 365};

/// Issues the whole iteration at once: for each instruction, its stream waits for the events of what it depends on,
/// does the work and records an event. On the asynchronous CPU device the work itself runs on the lane's thread.
///
/// The first lane that fails aborts the program's communicators, so that no other lane waits for peers that will not
/// come; what those lanes then throw follows from it, and only the first error leaves.
class StreamExecutor : public Executor {
 public:
  StreamExecutor(const Program& program, const ExecutionContext& context, const ExecutorOptions& options, Device& device,
                 const KernelObserver* observer)
      : program_(program),
        options_(options),
        immediate_device_(make_cpu_device()),
        immediate_(immediate_device_->create_stream("lane")),
        actions_(make_actions(program, context, observer)),
        communicators_(context.communicators) {
    for (const auto& lane : program.lanes) streams_.push_back(device.create_stream(lane.name));
    for (size_t i = 0; i < program.instructions.size(); ++i)
      for (auto& set : events_) set.push_back(device.create_event());
  }

  ~StreamExecutor() override {
    // Streams go first: their queues refer to events and actions.
    streams_.clear();
  }

  void run(const StepInputs& inputs) override {
    // The lanes tell where they are; this thread only issues.
    if (options_.progress != nullptr) options_.progress->enter(Progress::kMainSlot, Activity::idle, options_.program_number, 0);
    inputs_[parity_] = inputs;
    const auto& events = events_[parity_];
    const auto& events_before = events_[1 - parity_];
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const auto& instruction = program_.instructions[i];
      auto& stream = *streams_[static_cast<size_t>(instruction.lane)];
      for (const auto& dependency : instruction.after)
        stream.wait(*(dependency.distance == 0 ? events : events_before)[static_cast<size_t>(dependency.instruction)]);
      stream.launch([this, i, inputs = &inputs_[parity_]] { execute(static_cast<int>(i), *inputs); });
      stream.record(*events[i]);
    }
    std::exception_ptr error;
    for (auto& stream : streams_) {
      try {
        stream->synchronize();
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    parity_ = 1 - parity_;
    if (first_error_) error = first_error_;   // every lane is idle: nobody writes it now
    if (error) std::rethrow_exception(error);
  }

  IterationTimes last_times() const override { return {}; }

 private:
  void execute(int index, const StepInputs& inputs) {
    auto& action = actions_[static_cast<size_t>(index)];
    const auto& instruction = program_.instructions[static_cast<size_t>(index)];
    const auto report = [&](Activity activity) {
      if (options_.progress != nullptr) options_.progress->enter(1 + instruction.lane, activity, options_.program_number, index);
    };
    report(activity_of(instruction.deadline));
    try {
      if (options_.before) options_.before(index);
      action.start(*immediate_, inputs, [] {});
      if (action.communicator != nullptr)
        action.communicator->synchronize(*immediate_, deadline_in(options_.communication_timeout.value_or(kForever)));
      if (action.finish) action.finish();
      report(Activity::idle);
    } catch (const Error& error) {
      const Error named(fmt::format("{} (rank {}, {})", error.what(), program_.rank, describe(program_, index)), error.code());
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
    for (Communicator* communicator : communicators_)
      if (communicator != nullptr) communicator->abort(reason);
  }

  const Program& program_;
  ExecutorOptions options_;
  std::unique_ptr<Device> immediate_device_;
  std::unique_ptr<Stream> immediate_;
  std::vector<Action> actions_;
  std::vector<Communicator*> communicators_;
  std::mutex mutex_;                   // guards first_error_
  std::exception_ptr first_error_;
  std::vector<std::unique_ptr<Event>> events_[2];   // by parity of the iteration
  StepInputs inputs_[2];
  int parity_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace

std::unique_ptr<Executor> make_stream_executor(const Program& program, const ExecutionContext& context,
                                               const ExecutorOptions& options, Device& device,
                                               const KernelObserver* observer) {
  return std::make_unique<StreamExecutor>(program, context, options, device, observer);
}

}  // namespace lockstep
