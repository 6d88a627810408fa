// What executors report as exposed communication. Time is the test's own and passes only where the test says
// so, at places that are proven by order; with one thread, whose clock is the system's, figures are 0 or
// bounded by what the test waited.

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "base/clock.h"
#include "comm/forwarding_communicator.h"
#include "lockstep/error.h"
#include "train/programs/program_rank.h"
#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

// Three layers, a bucket each: load, forward 0 to 3, agree, backward and all_reduce 3 to 1, norm, update 3
// to 1.
constexpr const char* kExposedConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 hidden: 8 classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 } }
trainer { steps: 5 global_batch: 12 }
optimizer { learning_rate: 0.1 sgd {} }
parallel { bucket_bytes: 1 algorithm: LIBRARY }
)";

/// Events that lanes of one rank reach and await, and the time that passes meanwhile.
class Script {
 public:
  void reach(const std::string& event) {
    std::lock_guard lock(mutex_);
    reached_.insert(event);
    changed_.notify_all();
  }
  void await(const std::string& event) {
    std::unique_lock lock(mutex_);
    // A bound for what has gone wrong: nothing that works comes near it.
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return reached_.contains(event); }))
      throw InternalError("nobody came to " + event);
  }
  void pass(int64_t ticks) {
    std::lock_guard lock(mutex_);
    now_ += ticks;
  }
  /// The lane's clock is read for the n-th time; reaches "LANE n".
  int64_t read_clock(const std::string& lane) {
    std::lock_guard lock(mutex_);
    reached_.insert(lane + " " + std::to_string(++readings_[lane]));
    changed_.notify_all();
    return now_;
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::set<std::string> reached_;
  std::map<std::string, int> readings_;
  int64_t now_ = 0;
};

/// Keeps the script's time of its last record.
struct ScriptedEvent : device::Event {
  std::unique_ptr<device::Event> inner;
  bool timed = false;
  int64_t recorded_at = 0;  // written by the stream that records, read when it is ready

  bool ready() const override { return inner->ready(); }
  void synchronize() override { inner->synchronize(); }
  double milliseconds_since(const device::Event& earlier) const override {
    return static_cast<double>(recorded_at - dynamic_cast<const ScriptedEvent&>(earlier).recorded_at);
  }
};

class ScriptedStream : public device::Stream {
 public:
  ScriptedStream(std::unique_ptr<device::Stream> inner, Script& script)
      : inner_(std::move(inner)), script_(script) {}
  const std::string& name() const override { return inner_->name(); }
  void launch(std::function<void()> work) override { inner_->launch(std::move(work)); }
  void record(device::Event& event) override {
    auto& own = dynamic_cast<ScriptedEvent&>(event);
    if (own.timed) inner_->launch([this, &own] { own.recorded_at = script_.read_clock(name()); });
    inner_->record(*own.inner);
  }
  void wait(const device::Event& event) override {
    inner_->wait(*dynamic_cast<const ScriptedEvent&>(event).inner);
  }
  void synchronize() override { inner_->synchronize(); }

 private:
  std::unique_ptr<device::Stream> inner_;
  Script& script_;
};

/// Asynchronous lanes whose timed events tell the script's time.
class ScriptedDevice : public device::Device {
 public:
  explicit ScriptedDevice(Script& script) : script_(script) {}
  device::DeviceKind kind() const override { return inner_->kind(); }
  std::string description() const override { return inner_->description(); }
  std::unique_ptr<device::Stream> create_stream(const std::string& name) override {
    return std::make_unique<ScriptedStream>(inner_->create_stream(name), script_);
  }
  std::unique_ptr<device::Event> create_event(bool timed) override {
    auto event = std::make_unique<ScriptedEvent>();
    event->inner = inner_->create_event(timed);
    event->timed = timed;
    return event;
  }

 protected:
  void* allocate_bytes(int64_t) override { throw InternalError("an executor allocates nothing"); }
  void free_bytes(void*, int64_t) noexcept override {}

 private:
  std::unique_ptr<device::Device> inner_ = device::make_async_cpu_device({});
  Script& script_;
};

/// "all_reduce 3".
std::string name_of(const program::Instruction& instruction) {
  return std::string(lockstep::program::name_of(instruction.kind)) + " " +
         std::to_string(instruction.segment);
}

using Scene = std::function<void(const std::string& instruction, Script&)>;

/// What rank 0 of two reports of a step in which `scene` is called before each of its instructions.
double exposed_on_streams(const std::vector<std::string>& overrides, const Scene& scene,
                          const std::function<void(program::Program&)>& edit = {}) {
  const config::RunConfig config = config::parse_run_config(kExposedConfig, "test", overrides);
  std::optional<double> exposed;
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    ProgramRank self(config, rank, batches, world);
    program::Program& step = self.programs.step;
    if (edit) edit(step);
    Script script;
    ScriptedDevice device(script);
    run::ExecutorOptions options;
    if (rank == 0)
      options.before = [&](uint64_t, int i) {
        scene(name_of(step.instructions[static_cast<size_t>(i)]), script);
      };
    const auto executor = run::make_stream_executor(step, self.context, options, device);
    executor->run({});
    executor->finish();
    if (rank == 0) exposed = executor->last_times().exposed_communication_ms;
  });
  return exposed.value();
}

//     compute   ... B3 B2 [--- B1 ---] | waits for the sums        | N U3 U2 U1
//     reduce             [---- R3 ---]   [-- R2 --][----- R1 -----]
//     passes                   1000          10          100
TEST(ExposedCommunication, IsWhatTheComputeLaneWaitsForAndNotWhatItsWorkHides) {
  const double exposed = exposed_on_streams({}, [](const std::string& instruction, Script& script) {
    if (instruction == "backward 1") {
      script.reach("backward 1");
      script.await("all_reduce 3 is over");
    }
    if (instruction == "all_reduce 3") {
      script.await("backward 1");
      script.pass(1000);
    }
    if (instruction == "all_reduce 2") {
      script.reach("all_reduce 3 is over");
      script.await("compute 1");  // norm begins to wait
      script.pass(10);
    }
    if (instruction == "all_reduce 1") script.pass(100);
  });
  EXPECT_EQ(exposed, 110);
}

//     compute   ... B3 B2 [--- B1 ---] | waits for the sums                  | N
//     reduce             [---- R3 ---]   [-- R2 --][--------- R1 -----------]
//     update    |  waits for the sums  | U3 | waits |  [-- U2 --] | waits    | U1
//     passes                   1000          10          100         10000
TEST(ExposedCommunication, IsNoneWhereOneOfTwoComputeLanesWorks) {
  const double exposed =
      exposed_on_streams({"trainer.nonfinite=IGNORE"}, [](const std::string& instruction, Script& script) {
        if (instruction == "backward 1") {
          script.reach("backward 1");
          script.await("all_reduce 3 is over");
        }
        if (instruction == "all_reduce 3") {
          script.await("backward 1");
          script.await("update 1");  // it begins to wait
          script.pass(1000);
        }
        if (instruction == "all_reduce 2") {
          script.reach("all_reduce 3 is over");
          script.await("compute 3");  // norm begins to wait, after two readings around the wait for the batch
          script.await("update 3");   // update 2 begins to wait
          script.pass(10);
        }
        if (instruction == "update 2") {
          script.reach("update 2 runs");
          script.await("time has passed beside update 2");
        }
        if (instruction == "all_reduce 1") {
          script.await("update 2 runs");
          script.pass(100);
          script.reach("time has passed beside update 2");
          script.await("update 5");  // update 1 begins to wait
          script.pass(10000);
        }
      });
  EXPECT_EQ(exposed, 10010);
}

/// Gives the norm a lane of its own, whose end the first update awaits, besides the sums.
void move_norm(program::Program& step) {
  auto& list = step.instructions;
  const auto norm = std::find_if(list.begin(), list.end(), [](const program::Instruction& i) {
    return i.kind == program::InstructionKind::norm;
  });
  norm->lane = static_cast<int>(step.lanes.size());
  step.lanes.push_back({"norm", program::LaneKind::compute});
  auto& update = *(norm + 1);
  ASSERT_EQ(update.kind, program::InstructionKind::update);
  update.after = norm->after;
  update.after.push_back({static_cast<int>(norm - list.begin()), 0});
}

//     compute   ... B2 B1 | waits for sums and norm | U3 U2 U1
//     reduce    ...       [-- R1 --]
//     norm      | waits for the sums | [--- N ---]
//     passes                   5             7
TEST(ExposedCommunication, IsNotTheTimeInWhichMoreThanCommunicationIsWaitedFor) {
  const double exposed = exposed_on_streams(
      {},
      [](const std::string& instruction, Script& script) {
        if (instruction == "all_reduce 1") {
          script.await("norm 1");     // it begins to wait
          script.await("compute 3");  // so does the update, after two readings around the wait for the batch
          script.pass(5);
        }
        if (instruction.starts_with("norm ")) script.pass(7);
      },
      move_norm);
  EXPECT_EQ(exposed, 5);
}

/// Its operations end, as far as it lies with this rank, where `may_end` says so to who asks; he waits for
/// the peer.
class Asked : public comm::ForwardingCommunicator {
 public:
  Asked(std::unique_ptr<comm::Communicator> inner, std::function<bool()> may_end)
      : comm::ForwardingCommunicator(std::move(inner)), may_end_(std::move(may_end)) {}
  bool poll(comm::Ticket operation) override {
    if (!may_end_()) return false;
    while (!inner_->poll(operation)) sched_yield();
    return true;
  }

 private:
  std::function<bool()> may_end_;
};

/// What rank 0 of two reports of a step on one thread.
double exposed_on_one_thread(const std::function<bool(const control::Progress&)>& may_end) {
  const config::RunConfig config = config::parse_run_config(kExposedConfig, "test", {});
  std::optional<double> exposed;
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    control::Progress progress;
    ProgramRank self(config, rank, batches, world, false,
                     [&](int, std::unique_ptr<comm::Communicator> inner) {
                       return std::make_unique<Asked>(std::move(inner),
                                                      [&, rank] { return rank != 0 || may_end(progress); });
                     });
    const auto executor =
        run::make_inline_executor(self.programs.step, self.context, {.progress = &progress});
    executor->run({});
    executor->finish();
    if (rank == 0) exposed = executor->last_times().exposed_communication_ms;
  });
  return exposed.value();
}

TEST(ExposedCommunication, OnOneThreadIsNoneWhereCommunicationEndsBetweenComputations) {
  EXPECT_EQ(exposed_on_one_thread([](const control::Progress&) { return true; }), 0);
}

TEST(ExposedCommunication, OnOneThreadIsAtLeastHowLongItIsHeldWhileNothingElseCanGoOn) {
  constexpr std::chrono::milliseconds kHeld{5};
  std::optional<Clock::time_point> since;
  const double exposed = exposed_on_one_thread([&](const control::Progress& progress) {
    if (progress.at(control::Progress::kMainSlot).activity != control::Activity::waiting) return false;
    if (!since) since = Clock::now();
    return Clock::now() - *since >= kHeld;
  });
  EXPECT_GE(exposed, 5);
}

}  // namespace
}  // namespace lockstep::train
