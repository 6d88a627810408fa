// Workers that are lost in sessions without a bound: the others go on.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <thread>

#include "control/section_roll.h"
#include "train/loop/divided_models.h"
#include "train/loop/resumed_layouts.h"
#include "train/thread_ranks.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

struct Ended {
  TrainingOutcome outcome;
  std::vector<StepRecord> records;
  uint64_t parameters_hash = 0, state_hash = 0;
  std::vector<double> pushed;          ///< the sum of each push's gradients, of steps before it was lost
  double first_sum = 0, last_sum = 0;  ///< of parameters
};

double sum_of(const float* values, int64_t count) { return std::accumulate(values, values + count, 0.0); }

double sum_of_parameters(const Worker& worker) {
  double sum = 0;
  for (const HeldParameter& held : worker.held_parameters()) sum += sum_of(held.data, held.part.count());
  return sum;
}

double sum_of_gradients(const Worker& worker, const program::Program& program, int instruction) {
  double sum = 0;
  for (const program::Operand& operand : program.instruction(instruction).operands)
    if (operand.role == program::Role::gradients)
      sum += sum_of(reinterpret_cast<const float*>(worker.memory().at(program, operand.range)),
                    operand.range.size_bytes / 4);
  return sum;
}

/// Whether no later instruction of the program is of its kind.
bool is_last_of_its_kind(const program::Program& program, int instruction) {
  for (int later = instruction + 1; later < static_cast<int>(program.instructions.size()); ++later)
    if (program.instruction(later).kind == program.instruction(instruction).kind) return false;
  return true;
}

/// A muster of threads, of which the test loses some.
class Roll {
 public:
  explicit Roll(int ranks) : section_(ranks), members_(static_cast<size_t>(ranks)) {}

  class Place : public control::Muster {
   public:
    Place(Roll& roll, int rank) : roll_(roll), rank_(rank) {}
    void enter(std::vector<bool> expendable) override {
      const std::lock_guard lock(roll_.mutex_);
      if (rank_ == 0) roll_.section_.expect(std::move(expendable));
      roll_.section_.enter(rank_);
    }
    std::vector<int> lost() const override {
      const std::lock_guard lock(roll_.mutex_);
      return roll_.section_.lost();
    }
    int lost_count() const override { return static_cast<int>(lost().size()); }
    void leave() override {
      const std::lock_guard lock(roll_.mutex_);
      roll_.section_.leave(rank_);
    }
    std::optional<std::vector<int>> members() override {
      const std::lock_guard lock(roll_.mutex_);
      if (const auto left = roll_.section_.conclude())
        for (const int rank : *left) nth(roll_.members_, rank) = left;
      return std::exchange(nth(roll_.members_, rank_), {});
    }

   private:
    Roll& roll_;
    int rank_;
  };

  /// Once everybody is where it can be lost. Returns when the others are done.
  void lose(int rank) {
    std::unique_lock lock(mutex_);
    while (!section_.can_spare(rank)) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    section_.lose(rank);
    done_.wait(lock, [this] { return is_done_; });
  }
  size_t lost_count() {
    const std::lock_guard lock(mutex_);
    return section_.lost().size();
  }
  void others_are_done() {
    const std::lock_guard lock(mutex_);
    is_done_ = true;
    done_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards all below
  control::SectionRoll section_;
  std::vector<std::optional<std::vector<int>>> members_;  // by rank, until it asks
  std::condition_variable done_;
  bool is_done_ = false;
};

struct Lost : std::exception {};

/// What of a run is lost where.
struct Loss {
  int rank;
  uint64_t iteration;
  program::InstructionKind kind;  ///< the step's last of this kind
  size_t pushed = 0;              ///< not before it has pushed so many, in steps before
};

/// Trains on threads, one of which is lost with each of `losses`; what the others end with.
std::vector<Ended> train_with_losses(const config::RunConfig& config, const std::string& layout,
                                     const std::vector<Loss>& losses, const std::string& folder = {}) {
  const int ranks = processes_of(layout);
  Roll roll(ranks);
  std::vector<int> first_numbers(static_cast<size_t>(ranks));
  std::iota(first_numbers.begin(), first_numbers.end(), 0);
  std::vector<Ended> ended(static_cast<size_t>(ranks));
  std::atomic<int> left = ranks - static_cast<int>(losses.size());
  run_ranks(ranks, [&](int rank, comm::Communicator& first_world) {
    Roll::Place place(roll, rank);
    Ended& own = nth(ended, rank);
    std::vector<int> members = first_numbers;
    std::unique_ptr<comm::Communicator> fewer;
    comm::Communicator* world = &first_world;
    std::unique_ptr<Worker> worker;
    uint64_t step = 0;  // that its instructions are of
    size_t pushed_before_step = 0;
    const auto make = [&](const layout::Layout& now) {
      WorkerOptions options{.rank = world->rank(), .world_size = world->size(), .asynchronous = {}};
      options.company = {&place, members};
      options.before_instruction = [&](const Worker& its, const program::Program& program, uint64_t iteration,
                                       int instruction) {
        // So that nobody is done before those that are to be lost have had their turns.
        if (program.name == "step" && roll.lost_count() < losses.size() &&
            std::ranges::find(losses, rank, &Loss::rank) == losses.end())
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (program.name != "step") return;
        const program::InstructionKind kind = program.instruction(instruction).kind;
        if (iteration != step) pushed_before_step = own.pushed.size();
        step = iteration;
        for (const Loss& loss : losses)
          if (loss.rank == rank && iteration >= loss.iteration && kind == loss.kind &&
              is_last_of_its_kind(program, instruction) && pushed_before_step >= loss.pushed) {
            // What it has pushed of this step waits for the last push of the step, and is dropped with it.
            own.pushed.resize(pushed_before_step);
            if (kind == program::InstructionKind::norm)  // servers have it by then
              std::this_thread::sleep_for(std::chrono::milliseconds(20));
            roll.lose(rank);
            throw Lost();
          }
        if (kind == program::InstructionKind::push)
          own.pushed.push_back(sum_of_gradients(its, program, instruction));
      };
      config::RunConfig its = config;
      its.parallel.layout = now;
      worker = std::make_unique<Worker>(its, options);
      worker->connect(*world);
    };
    try {
      make(layout::parse_layout(layout));
      TrainerRunOptions run{.output_directory = folder, .stop_requested = {}};
      run.regroup = [&](const std::vector<int>& those) {
        const auto now = layout::without_workers(worker->compiled().layout(),
                                                 world->size() - static_cast<int>(those.size()));
        worker.reset();
        auto next = world->regroup(those);
        std::vector<int> still;
        for (const int member : those) still.push_back(nth(members, member));
        members = still;
        fewer = std::move(next);
        world = fewer.get();
        make(now);
        return Regrouped{*worker, *world, nullptr};
      };
      TrainerEvents events;
      events.on_step = [&](const StepRecord& record) { own.records.push_back(record); };
      Trainer trainer(*worker, *world, events, run);
      trainer.prepare();
      own.first_sum = sum_of_parameters(*worker);
      own.outcome = trainer.run();
      own.last_sum = sum_of_parameters(*worker);
      if (worker->is_worker()) own.parameters_hash = parameters_hash_of(*worker);
      own.state_hash = state_hash_of(*worker, *world);
      worker.reset();
    } catch (const Lost&) {
      return;
    }
    if (--left == 0) roll.others_are_done();
  });
  return ended;
}

TEST(LostWorkers, AreNotWaitedFor) {
  using Kind = program::InstructionKind;
  const std::vector<std::pair<std::string, std::vector<Loss>>> cases = {
      {"dp=3,sync=ps,mode=async", {{2, 5, Kind::forward}}},
      {"dp=3,sync=ps,servers=2,mode=async", {{1, 5, Kind::push}}},
      {"dp=4,sync=ps,servers=2,assign=whole,mode=async", {{1, 3, Kind::backward}, {3, 17, Kind::pull}}},
      {"dp=3,sync=ps,placement=colocated,mode=async", {{2, 7, Kind::norm}}},
      {"dp=3,sync=ps,mode=async", {{1, 5, Kind::push}, {2, 5, Kind::forward}}},
  };
  for (const char* model : {kMlp, kLenet}) {
    const auto config = config_of(model, {"parallel.reduction=FAST", "trainer.global_batch=12",
                                          "trainer.steps=16", "trainer.eval_every_steps=4"});
    for (const auto& [layout, losses] : cases) {
      const auto ended = train_with_losses(config, layout, losses);
      const Ended& first = ended[0];
      EXPECT_EQ(first.outcome.steps, 16) << layout;
      EXPECT_EQ(first.outcome.lost_workers, static_cast<int64_t>(losses.size())) << layout;
      ASSERT_TRUE(first.outcome.evaluation) << layout;
      EXPECT_EQ(first.outcome.evaluation->step, 16) << layout;
      for (const Ended& one : ended) {
        if (one.state_hash == 0) continue;  // a lost one
        EXPECT_EQ(one.state_hash, first.state_hash) << layout;
        EXPECT_TRUE(one.parameters_hash == 0 || one.parameters_hash == first.parameters_hash) << layout;
        for (size_t i = 0; i < one.records.size(); ++i)
          EXPECT_EQ(one.records[i].step, static_cast<int64_t>(i) + 1) << "each step is told of once";
      }
      EXPECT_LT(first.records.back().loss, first.records.front().loss) << layout;
    }
  }
}

TEST(LostWorkers, LeaveAllPushesThatWereAcknowledgedInTheCheckpointThatFollows) {
  // Who has all parameters of a step has heard from every server that the pushes of the one before have
  // arrived. (The first forward waits for its own parameters alone.) With SGD, parameters move by the sum of
  // all gradients.
  const auto config =
      config_of(kMlp, {"parallel.reduction=FAST", "trainer.steps=8", "trainer.eval_every_steps=0",
                       "optimizer.sgd={}", "optimizer.learning_rate=0.3", "optimizer.weight_decay=0",
                       "trainer.clip_norm=0", "checkpoint.background=false",
                       "parallel.bucket_bytes=50000"});  // some pushes leave while backward computes
  for (const char* layout : {"dp=3,sync=ps,mode=async", "dp=3,sync=ps,servers=2,mode=async",
                             "dp=3,sync=ps,servers=2,placement=colocated,mode=async"})
    for (const auto where : {program::InstructionKind::forward, program::InstructionKind::norm}) {
      const std::string what = fmt::format("{}, lost at its {}", layout, program::name_of(where));
      const auto folder = std::filesystem::path(testing::TempDir()) / (std::string("lost-") + layout);
      std::filesystem::remove_all(folder);
      const int lost = 2;
      const auto ended = train_with_losses(config, layout, {{lost, 3, where, 1}}, folder.string());
      EXPECT_EQ(ended[0].outcome.lost_workers, 1) << what;
      // Gradients are a share's part of the batch's mean: three times that is the share's own mean, by a
      // third of the rate.
      const double rate = 0.3;
      double expected = ended[0].first_sum;
      for (const Ended& one : ended)
        for (const double sum : one.pushed) expected -= rate * sum;
      EXPECT_NEAR(ended[0].last_sum, expected, 1e-3) << what;
      ASSERT_FALSE(ended[lost].pushed.empty());
      EXPECT_TRUE(
          std::ranges::any_of(ended[lost].pushed, [&](double sum) { return std::abs(rate * sum) > 0.02; }))
          << what << ": it would not be missed";
      EXPECT_EQ(train_until(config, "dp=1", 0, folder.string()).second, ended[0].state_hash) << what;
    }
}

}  // namespace
}  // namespace lockstep::train
