#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "lockstep/error.h"
#include "mentions.h"
#include "train/programs/modelled_link.h"
#include "train/programs/program_rank.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Gt;
using testing::HasSubstr;

// Three layers, a bucket each.
constexpr const char* kOverlapConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 hidden: 8 classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 } }
trainer { steps: 5 global_batch: 12 virtual_replicas: 6 }
optimizer { learning_rate: 0.1 sgd {} }
parallel { bucket_bytes: 1 }
)";

constexpr uint64_t kIterations = 3;

enum class Lanes { inline_executor, streams };

struct Arrangement {
  int ranks;
  bool shared_memory;
  std::vector<std::string> overrides;
};

/// What three steps of a layout leave: the ticks at which rank 0's instructions started in the last, and its
/// parameters.
struct Outcome {
  program::Program program;
  std::vector<int64_t> times;
  std::vector<std::vector<float>> parameters;
  std::string complaint;

  std::vector<int64_t> times_of(program::InstructionKind kind) const {
    std::vector<int64_t> found;
    for (size_t i = 0; i < times.size(); ++i)
      if (program.instructions[i].kind == kind) found.push_back(times[i]);
    return found;
  }
};

std::unique_ptr<run::Executor> make_executor(ProgramRank& self, Lanes lanes, device::Device& streams,
                                             const run::ExecutorOptions& options) {
  return lanes == Lanes::streams
             ? run::make_stream_executor(self.programs.step, self.context, options, streams)
             : run::make_inline_executor(self.programs.step, self.context, options);
}

/// `believed`: changes what the link takes the programs for.
Outcome run_over_link(const Arrangement& layout, Lanes lanes, const LinkSpeed& speed,
                      const device::AsyncCpuOptions& streams = {},
                      const std::function<void(program::Program&)>& believed = {}) {
  const config::RunConfig config = config::parse_run_config(kOverlapConfig, "test", layout.overrides);
  const compile::CompiledRun compiled =
      compile_run(config, {.world_size = layout.ranks, .shared_memory = layout.shared_memory});
  std::vector<program::Program> programs;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    programs.push_back(compiled.compile(rank).step);
    if (believed) believed(programs.back());
  }
  Outcome outcome{programs[0], {}, {}, {}};
  ModelledLink link(std::move(programs), static_cast<int>(kIterations), speed,
                    lanes == Lanes::inline_executor);
  std::thread carrier([&] { link.carry(); });
  std::string error;
  try {
    run_ranks(layout.ranks, [&](int rank, comm::Communicator& world) {
      try {
        NumberedBatches batches;
        ProgramRank self(config, rank, batches, world, layout.shared_memory,
                         [&](int group, auto inner) { return link.attach(group, std::move(inner)); });
        const auto device = device::make_async_cpu_device(streams);
        const auto executor = make_executor(self, lanes, *device, {.before = [&, rank](uint64_t k, int i) {
                                              link.started(rank, static_cast<int64_t>(k), i);
                                            }});
        for (uint64_t k = 0; k < kIterations; ++k) {
          link.begin_iteration(rank);
          executor->run(
              {.constants = {.kernels = {.step = k}, .update = {.learning_rate = 0.125}}, .iteration = k});
        }
        executor->finish();
        if (rank == 0) outcome.parameters = self.parameters();
      } catch (...) {
        link.give_up();
        throw;
      }
    });
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  carrier.join();
  EXPECT_EQ(error, "");
  outcome.complaint = link.complaint();
  outcome.times = link.start_times(0);
  return outcome;
}

const Lanes kBoth[] = {Lanes::inline_executor, Lanes::streams};
const Arrangement kLibrary{2, false, {"parallel.algorithm=LIBRARY"}};
const std::string kSharded = "parallel.shard=OPTIMIZER";

// Latency 10, 100 bytes a tick. The agreement (2 records of 40 bytes) is on the link from 0 to 11; buckets of
// (8 x 3 + 3), (8 x 8 + 8) and (16 x 8 + 8) floats, each entry rounded up to 64 bytes (192, 320 and 576),
// follow until 23, 37 and 53.
//
//     tick      0                          11      23      37      53
//     compute   F0 F1 F2 F3 B3 B2 B1                               N U3 U2 U1
//     agree     [---------- A -----------]
//     reduce                             [-- R3 --][- R2 -][- R1 -]
TEST(Overlap, TheBackwardPassGoesOnWhileBucketsAreUnderWay) {
  for (const Lanes lanes : kBoth) {
    const Outcome outcome = run_over_link(kLibrary, lanes, {.latency = 10, .bytes_per_tick = 100});
    EXPECT_EQ(outcome.complaint, "");
    EXPECT_THAT(outcome.times_of(program::InstructionKind::load), ElementsAre(0));
    EXPECT_THAT(outcome.times_of(program::InstructionKind::forward), ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(outcome.times_of(program::InstructionKind::agree), ElementsAre(0));
    EXPECT_THAT(outcome.times_of(program::InstructionKind::backward), ElementsAre(0, 0, 0));
    EXPECT_THAT(outcome.times_of(program::InstructionKind::all_reduce), ElementsAre(0, 23, 37));
    EXPECT_THAT(outcome.times_of(program::InstructionKind::norm), ElementsAre(53));
    EXPECT_THAT(outcome.times_of(program::InstructionKind::update), ElementsAre(53, 53, 53));
  }
}

TEST(Overlap, BucketsAreUpdatedAsTheyLand) {
  Arrangement layout = kLibrary;
  layout.overrides.push_back("trainer.nonfinite=IGNORE");
  for (const Lanes lanes : kBoth) {
    const Outcome outcome = run_over_link(layout, lanes, {.latency = 10, .bytes_per_tick = 100});
    EXPECT_EQ(outcome.complaint, "");
    EXPECT_THAT(outcome.times_of(program::InstructionKind::all_reduce), ElementsAre(0, 23, 37));
    EXPECT_THAT(outcome.times_of(program::InstructionKind::update), ElementsAre(23, 37, 53));
    EXPECT_THAT(outcome.times_of(program::InstructionKind::norm), ElementsAre(53));
  }
}

// The report is complete with the norm, at which the next step begins. The updates follow at once; each
// parameter is on its way for 10 ticks and one for every 100 bytes, unless its owner is the other worker.
//
//     tick      0                                ...
//     compute   U1 U2 U3 | F0          F1       F2       F3 ...
//     reduce             [---- G1 ----][-- G2 --][-- G3 --]
TEST(Overlap, AForwardPassWaitsForItsOwnParametersAlone) {
  for (const char* reduction : {"parallel.reduction=FAST", "parallel.reduction=REPRODUCIBLE"})
    for (const char* nonfinite : {"trainer.nonfinite=LOCATE", "trainer.nonfinite=IGNORE"})
      for (const Lanes lanes : kBoth) {
        const Outcome outcome =
            run_over_link({2, false, {kSharded, reduction, nonfinite, "trainer.micro_batch=6"}}, lanes,
                          {.latency = 10, .bytes_per_tick = 100});
        EXPECT_EQ(outcome.complaint, "");
        EXPECT_EQ(outcome.times_of(program::InstructionKind::load)[0], 0);
        const std::vector<int64_t> forwards = outcome.times_of(program::InstructionKind::forward);
        // The first segment has no parameters.
        ASSERT_GE(forwards.size(), 4u);
        EXPECT_EQ(forwards[0], 0);
        for (int s = 1; s < 4; ++s)
          EXPECT_GE(forwards[static_cast<size_t>(s)], forwards[static_cast<size_t>(s) - 1] + 10) << s;
      }
}

/// Every way of summing gradients, on 2 and 3 workers, but for trees folded in blocks: the link wants the
/// n-th operations of all ranks to meet, and there some ranks have fewer. So 3 workers have 4 leaves here,
/// not 3.
std::vector<Arrangement> layouts() {
  std::vector<Arrangement> list;
  for (const int ranks : {2, 3}) {
    for (const char* algorithm : {"LIBRARY", "RING", "SHARED_MEMORY"})
      list.push_back(
          {ranks, true, {"parallel.reduction=FAST", std::string("parallel.algorithm=") + algorithm}});
    list.push_back(
        {ranks,
         false,
         {"parallel.reduction=REPRODUCIBLE", "trainer.micro_batch=1", "trainer.virtual_replicas=4"}});
    list.push_back(
        {ranks,
         true,
         {"parallel.reduction=REPRODUCIBLE", "trainer.virtual_replicas=" + std::to_string(2 * ranks)}});
    list.push_back(
        {ranks,
         false,
         {"parallel.reduction=REPRODUCIBLE", "trainer.nonfinite=IGNORE", "trainer.virtual_replicas=4"}});
  }
  // Of more workers, some have no part of a small bucket: the link would not know what meets what.
  list.push_back({2, false, {kSharded, "parallel.reduction=FAST"}});
  list.push_back({2, true, {kSharded, "parallel.reduction=REPRODUCIBLE", "trainer.nonfinite=IGNORE"}});
  return list;
}

TEST(Overlap, NoComputationBeforeTheUpdatesWaitsForTheLink) {
  for (const Arrangement& layout : layouts())
    for (const Lanes lanes : kBoth) {
      const Outcome outcome = run_over_link(layout, lanes, {.latency = 1000, .bytes_per_tick = 1});
      EXPECT_EQ(outcome.complaint, "") << testing::PrintToString(layout.overrides);
      EXPECT_EQ(outcome.times_of(program::InstructionKind::load)[0], 0);
      if (layout.overrides[0] != kSharded) {  // whose parameters are on the link then
        EXPECT_THAT(outcome.times_of(program::InstructionKind::load), Each(0));
        EXPECT_THAT(outcome.times_of(program::InstructionKind::forward), Each(0));
        EXPECT_THAT(outcome.times_of(program::InstructionKind::backward), Each(0));
      }
      EXPECT_THAT(outcome.times_of(program::InstructionKind::update), Each(Gt(1000)));
    }
}

TEST(Overlap, NeitherTheLinkNorDelaysChangeABit) {
  for (const Arrangement& layout : layouts()) {
    const Outcome plain =
        run_over_link(layout, Lanes::inline_executor, {.latency = 0, .bytes_per_tick = 1 << 30});
    EXPECT_NE(plain.parameters, std::vector<std::vector<float>>());
    for (const uint64_t seed : {1, 2, 3}) {
      const device::AsyncCpuOptions delays{.jitter_seed = seed, .max_jitter_us = 100};
      const Outcome delayed = run_over_link(
          layout, Lanes::streams, {.latency = 7, .bytes_per_tick = static_cast<int64_t>(seed)}, delays);
      EXPECT_EQ(delayed.complaint, "") << testing::PrintToString(layout.overrides);
      EXPECT_EQ(delayed.parameters, plain.parameters)
          << testing::PrintToString(layout.overrides) << ", seed " << seed;
    }
  }
}

/// The steps on lanes that share nothing but events: no link between them, and no hook that would take a
/// lock.
std::vector<std::vector<float>> run_on_streams(const Arrangement& layout,
                                               const device::AsyncCpuOptions& delays) {
  const config::RunConfig config = config::parse_run_config(kOverlapConfig, "test", layout.overrides);
  std::vector<std::vector<float>> parameters;
  run_ranks(layout.ranks, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    ProgramRank self(config, rank, batches, world, layout.shared_memory);
    const auto device = device::make_async_cpu_device(delays);
    const auto executor = run::make_stream_executor(self.programs.step, self.context, {}, *device);
    for (uint64_t k = 0; k < kIterations; ++k)
      executor->run(
          {.constants = {.kernels = {.step = k}, .update = {.learning_rate = 0.125}}, .iteration = k});
    executor->finish();
    if (rank == 0) parameters = self.parameters();
  });
  return parameters;
}

// What ThreadSanitizer watches.
TEST(Overlap, LanesThatShareNothingButEventsChangeNoBit) {
  for (const Arrangement& layout : layouts()) {
    const Outcome plain =
        run_over_link(layout, Lanes::inline_executor, {.latency = 0, .bytes_per_tick = 1 << 30});
    for (const uint64_t seed : {1, 2, 3, 4})
      EXPECT_EQ(run_on_streams(layout, {.jitter_seed = seed, .max_jitter_us = 100}), plain.parameters)
          << testing::PrintToString(layout.overrides) << ", seed " << seed;
  }
}

int index_of(const program::Program& program, program::InstructionKind kind, int segment) {
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (program.instructions[i].kind == kind && program.instructions[i].segment == segment)
      return static_cast<int>(i);
  ADD_FAILURE() << "no " << program::name_of(kind) << " of segment " << segment;
  return 0;
}

TEST(Overlap, TheLinkNoticesWhatStartsTooEarly) {
  for (const Lanes lanes : kBoth) {
    const Outcome outcome = run_over_link(
        kLibrary, lanes, {.latency = 10, .bytes_per_tick = 100}, {}, [](program::Program& program) {
          const int reduction = index_of(program, program::InstructionKind::all_reduce, 3);
          program.instructions[static_cast<size_t>(index_of(program, program::InstructionKind::backward, 2))]
              .after.push_back({reduction, 0});
        });
    EXPECT_THAT(outcome.complaint, Mentions("(backward, lane compute, segment 2, ... started before"));
  }
}

TEST(Overlap, AReductionStartsBeforeTheNextBackwardPass) {
  // On streams the backward pass of bucket 2 does not begin until the reduction of bucket 3 has: it needs no
  // more than the bucket itself.
  const config::RunConfig config = config::parse_run_config(kOverlapConfig, "test", kLibrary.overrides);
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    ProgramRank self(config, rank, batches, world);
    const program::Program& step = self.programs.step;
    const int reduction = index_of(step, program::InstructionKind::all_reduce, 3),
              backward = index_of(step, program::InstructionKind::backward, 2);
    std::promise<void> reducing;
    const auto device = device::make_async_cpu_device({});
    const auto executor = run::make_stream_executor(step, self.context,
                                                    {.before =
                                                         [&](uint64_t, int i) {
                                                           if (i == reduction) reducing.set_value();
                                                           if (i == backward) reducing.get_future().wait();
                                                         }},
                                                    *device);
    executor->run({});
    executor->finish();
  });
  // On one thread it is in the order of starts.
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    ProgramRank self(config, rank, batches, world);
    const program::Program& step = self.programs.step;
    std::vector<int> order;
    const auto executor = run::make_inline_executor(step, self.context,
                                                    {.before = [&](uint64_t, int i) { order.push_back(i); }});
    executor->run({});
    executor->finish();
    const auto place = [&](int i) { return std::find(order.begin(), order.end(), i) - order.begin(); };
    EXPECT_LT(place(index_of(step, program::InstructionKind::all_reduce, 3)),
              place(index_of(step, program::InstructionKind::backward, 2)));
  });
}

/// A lane may not go on before another one has: proven by order, and bounded only for what has gone wrong.
class Signal {
 public:
  void set() { promise_.set_value(); }
  void wait() {
    if (future_.wait_for(std::chrono::seconds(60)) != std::future_status::ready)
      throw InternalError("nobody came");
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

// The last parameters of a step are sent only when the next step's forward pass has begun.
TEST(Overlap, OnLanesAStepBeginsWhileParametersOfTheOneBeforeAreStillToBeSent) {
  const config::RunConfig config = config::parse_run_config(kOverlapConfig, "test", {kSharded});
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    ProgramRank self(config, rank, batches, world);
    const program::Program& step = self.programs.step;
    const int first = index_of(step, program::InstructionKind::forward, 1);
    int gather = -1;
    for (size_t i = 0; i < step.instructions.size(); ++i)
      if (step.instructions[i].kind == program::InstructionKind::ring_all_gather)
        gather = static_cast<int>(i);
    ASSERT_EQ(step.instructions[static_cast<size_t>(gather)].segment, 3);
    Signal begun;
    const auto device = device::make_async_cpu_device({.jitter_seed = 1, .max_jitter_us = 100});
    const auto executor = run::make_stream_executor(step, self.context,
                                                    {.before =
                                                         [&](uint64_t iteration, int i) {
                                                           if (iteration == 1 && i == first) begun.set();
                                                           if (iteration == 0 && i == gather) begun.wait();
                                                         }},
                                                    *device);
    for (uint64_t k = 0; k < 3; ++k)
      executor->run(
          {.constants = {.kernels = {.step = k}, .update = {.learning_rate = 0.125}}, .iteration = k});
    executor->finish();
  });
}

// An iteration is complete before the one after the next begins.
TEST(Overlap, NoMoreThanTwoIterationsAreUnderWay) {
  const config::RunConfig config = config::parse_run_config(kOverlapConfig, "test", {});
  run_ranks(1, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    ProgramRank self(config, rank, batches, world);
    const program::Program& step = self.programs.step;
    // Nothing orders the iterations of a lane of its own but the executor.
    program::Program odd = step;
    const int last = static_cast<int>(odd.instructions.size()) - 1;
    ASSERT_EQ(odd.instructions.back().kind, program::InstructionKind::update);
    odd.instructions.back().lane = odd.add_lane("odd", program::LaneKind::compute);
    for (auto& instruction : odd.instructions)
      std::erase_if(instruction.after, [&](const program::Dependency& d) { return d.instruction == last; });
    constexpr uint64_t kSteps = 10;
    std::atomic<uint64_t> loaded{0}, updated{0};
    const auto device = device::make_async_cpu_device({.jitter_seed = 1, .max_jitter_us = 100});
    const auto executor =
        run::make_stream_executor(odd, self.context,
                                  {.before =
                                       [&](uint64_t iteration, int i) {
                                         if (i == 0) {
                                           EXPECT_GE(updated + 1, iteration);
                                           ++loaded;
                                         }
                                         if (i != last) return;
                                         // Not before the next step has begun.
                                         const uint64_t wanted = std::min(iteration + 2, kSteps);
                                         const Deadline deadline = deadline_in(std::chrono::seconds(60));
                                         while (loaded < wanted && Clock::now() < deadline)
                                           std::this_thread::yield();
                                         EXPECT_GE(loaded, wanted);
                                         ++updated;
                                       }},
                                  *device);
    for (uint64_t k = 0; k < kSteps; ++k) executor->run({.iteration = k, .suppress_updates = true});
    executor->finish();
    EXPECT_EQ(updated, kSteps);
  });
}

/// Makes the streams of a CPU device, and writes down which were asked to be urgent.
class UrgencyRecorder : public device::Device {
 public:
  std::vector<std::string> urgent, others;

  device::DeviceKind kind() const override { return cpu_->kind(); }
  std::string description() const override { return cpu_->description(); }
  std::unique_ptr<device::Stream> create_stream(const std::string& name) override {
    others.push_back(name);
    return cpu_->create_stream(name);
  }
  std::unique_ptr<device::Stream> create_urgent_stream(const std::string& name) override {
    urgent.push_back(name);
    return cpu_->create_stream(name);
  }
  std::unique_ptr<device::Event> create_event(bool timed) override { return cpu_->create_event(timed); }

 protected:
  void* allocate_bytes(int64_t) override { throw InternalError("an executor allocates nothing"); }
  void free_bytes(void*, int64_t) noexcept override {}

 private:
  std::unique_ptr<device::Device> cpu_ = device::make_cpu_device();
};

TEST(Overlap, CommunicationLanesAreUrgent) {
  const config::RunConfig config = config::parse_run_config(kOverlapConfig, "test", kLibrary.overrides);
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    ProgramRank self(config, rank, batches, world);
    UrgencyRecorder device;
    const auto executor = run::make_stream_executor(self.programs.step, self.context, {}, device);
    EXPECT_THAT(device.urgent, ElementsAre("agree", "reduce"));
    EXPECT_THAT(device.others, ElementsAre("copy", "compute"));
  });
}

}  // namespace
}  // namespace lockstep::train
