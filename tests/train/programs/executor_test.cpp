#include "run/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/index.h"
#include "comm/forwarding_communicator.h"
#include "lockstep/error.h"
#include "program/memory/memory_plan.h"
#include "train/programs/program_rank.h"
#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kExecutorConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 } }
trainer { steps: 5 global_batch: 8 virtual_replicas: 4 }
optimizer { learning_rate: 0.1 sgd {} }
parallel { reduction: REPRODUCIBLE }
)";

config::RunConfig config() { return config::parse_run_config(kExecutorConfig, "test", {}); }

class BrokenBatches : public run::BatchSource {
 public:
  void load(uint64_t, int64_t, std::span<const Tensor>) override {
    throw DataError("images.gz is cut short");
  }
};

class EmptyBatches : public run::BatchSource {
 public:
  void load(uint64_t, int64_t, std::span<const Tensor>) override {}
};

TEST(InlineExecutor, ASilentPeerEndsTheStepNamingWhatWaits) {
  std::string message;
  ExitCode code = ExitCode::done;
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    EmptyBatches batches;
    ProgramRank self(config(), rank, batches, world);
    if (rank == 1) return;  // never steps
    auto executor = run::make_inline_executor(self.programs.step, self.context,
                                              {.communication_timeout = std::chrono::milliseconds(100)});
    try {
      executor->run({});
    } catch (const Error& error) {
      message = error.what();
      code = error.code();
    }
  });
  EXPECT_THAT(message,
              AllOf(HasSubstr("rank 0 has waited"), HasSubstr("step instruction"), HasSubstr("lane agree")));
  EXPECT_EQ(code, ExitCode::hang);
}

TEST(InlineExecutor, ErrorsCarryTheInstructionAndKeepTheirExitCode) {
  run_ranks(1, [&](int, comm::Communicator& world) {
    BrokenBatches batches;
    ProgramRank self(config(), 0, batches, world);
    auto executor = run::make_inline_executor(self.programs.step, self.context, {});
    try {
      executor->run({});
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("images.gz"), HasSubstr("rank 0"), HasSubstr("(load"),
                                      HasSubstr("micro-batch 0")));
      EXPECT_EQ(error.code(), ExitCode::data);
    }
  });
}

TEST(InlineExecutor, RunsManyIterationsWithoutAllocatingOnTheDevice) {
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    EmptyBatches batches;
    ProgramRank self(config(), rank, batches, world);
    auto executor = run::make_inline_executor(self.programs.step, self.context, {});
    const int64_t before = self.device->memory_use().allocations;
    for (int i = 0; i < 20; ++i) executor->run({});
    executor->finish();
    EXPECT_EQ(self.device->memory_use().allocations, before);
    EXPECT_EQ(self.device->memory_use().peak_bytes, self.programs.step_plan.total_bytes);
  });
}

/// Runs a hand-written program on threads. `fill` sets up each rank's buffers by index, `read` looks at them
/// afterwards.
void run_by_hand(
    const std::vector<std::string>& texts,
    const std::function<void(int rank, const std::vector<float*>&)>& fill,
    const std::function<void(int rank, const std::vector<float*>&)>& read, bool streams,
    const std::function<run::ExecutorOptions(int rank)>& options = [](int) {
      return run::ExecutorOptions{};
    }) {
  run_ranks(static_cast<int>(texts.size()), [&](int rank, comm::Communicator& world) {
    EmptyBatches batches;
    ProgramRank self(config(), 0, batches, *comm::make_solo_communicator());  // for what every context holds
    program::Program program = program::program_from_text(texts[static_cast<size_t>(rank)]);
    const program::MemoryPlan plan = program::plan_memory(program);
    const auto device = device::make_cpu_device();
    const run::ProgramMemory memory(*device, std::span(&plan, 1));
    run::ExecutionContext context{.graph = self.run.graph(),
                                  .code = self.run.training_code(),
                                  .memory = memory,
                                  .device = *device,
                                  .optimizer = {}};
    std::vector<std::unique_ptr<comm::Communicator>> channels;
    for (size_t group = 0; group < program.groups.size(); ++group) {
      channels.push_back(world.split(0, rank));
      context.communicators.push_back(channels.back().get());
    }
    std::vector<float*> buffers;
    for (size_t b = 0; b < program.buffers.size(); ++b)
      buffers.push_back(reinterpret_cast<float*>(memory.at(program, program.whole(static_cast<int>(b)))));
    fill(rank, buffers);
    const auto lanes = device::make_async_cpu_device({});
    const auto executor = streams ? run::make_stream_executor(program, context, options(rank), *lanes)
                                  : run::make_inline_executor(program, context, options(rank));
    executor->run({});
    executor->finish();
    read(rank, buffers);
  });
}

struct Stamped {
  std::vector<run::Stamp> stamps;
  std::chrono::duration<double, std::milli> error;
};
/// What a recorder has of the second of three steps of two ranks, by rank.
std::vector<Stamped> stamps_of_second_step(bool streams, program::Program& program) {
  std::vector<Stamped> stamped(2);
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    EmptyBatches batches;
    ProgramRank self(config(), rank, batches, world);
    run::StampRecorder recorder;
    recorder.open(1, 1, 10000);
    const auto lanes = device::make_async_cpu_device({});
    const run::ExecutorOptions options{.recorder = &recorder};
    const auto executor = streams
                              ? run::make_stream_executor(self.programs.step, self.context, options, *lanes)
                              : run::make_inline_executor(self.programs.step, self.context, options);
    for (const uint64_t iteration : {0, 1, 2}) executor->run({.iteration = iteration});
    executor->finish();
    EXPECT_EQ(recorder.dropped(), 0U);
    EXPECT_EQ(recorder.device_error_ms() > 0, streams);
    stamped[static_cast<size_t>(rank)] = {
        recorder.stamps(), std::chrono::duration<double, std::milli>(recorder.device_error_ms())};
    if (rank == 0) program = self.programs.step;
  });
  return stamped;
}

TEST(Executors, StampEachInstructionOfAStepOnceAndInItsOrder) {
  for (const bool streams : {false, true}) {
    program::Program program;
    const Stamped first = stamps_of_second_step(streams, program)[0];
    std::vector<const run::Stamp*> instructions(program.instructions.size());
    for (const run::Stamp& stamp : first.stamps) {
      EXPECT_EQ(stamp.iteration, 1U);
      EXPECT_LE(stamp.begin, stamp.end);
      if (stamp.kind != run::StampKind::instruction) continue;
      EXPECT_EQ(nth(instructions, stamp.instruction), nullptr) << "once";
      nth(instructions, stamp.instruction) = &stamp;
    }
    for (size_t i = 0; i < instructions.size(); ++i) {
      ASSERT_NE(instructions[i], nullptr) << program::describe(program, static_cast<int>(i));
      for (const auto& dependency : program.instructions[i].after)
        if (dependency.distance == 0)
          EXPECT_GE(instructions[i]->begin + 2 * first.error, nth(instructions, dependency.instruction)->end);
    }
  }
}

TEST(InlineExecutor, StampsKernelsWithinTheirInstruction) {
  program::Program program;
  const std::vector<run::Stamp> stamps = stamps_of_second_step(false, program)[1].stamps;
  int kernels = 0;
  for (const run::Stamp& kernel : stamps) {
    if (kernel.kind != run::StampKind::kernel) continue;
    ++kernels;
    EXPECT_GE(kernel.node, 0);
    for (const run::Stamp& stamp : stamps) {
      if (stamp.kind != run::StampKind::instruction || stamp.instruction != kernel.instruction) continue;
      EXPECT_GE(kernel.begin, stamp.begin);
      EXPECT_LE(kernel.end, stamp.end);
    }
  }
  EXPECT_GT(kernels, 0);
}

TEST(InlineExecutor, AccountsForItsTimeWithoutOverlap) {
  run_ranks(1, [&](int rank, comm::Communicator& world) {
    EmptyBatches batches;
    ProgramRank self(config(), rank, batches, world);
    const auto executor = run::make_inline_executor(self.programs.step, self.context, {});
    const auto begin = Clock::now();
    for (const uint64_t iteration : {0, 1, 2}) executor->run({.iteration = iteration});
    executor->finish();
    const double wall_ms = milliseconds_between(begin, Clock::now());
    const run::WorkTimes& work = *executor->work_times();
    double sum = work.handling_ms;
    for (const model::NodeTime& part : work.nodes_ms) sum += part.all();
    for (const double part : work.waited_ms) sum += part;
    for (const double part : work.kinds_ms) sum += part;
    EXPECT_GT(work.kind_ms(program::InstructionKind::update), 0);
    EXPECT_GT(work.nodes_ms.back().forward, 0) << "the loss";
    EXPECT_GT(work.nodes_ms.back().backward(), 0);
    EXPECT_LE(sum, wall_ms);
  });
}

TEST(InlineExecutor, CountsWhatUpdatesProposeAsUpdates) {
  run_ranks(1, [&](int rank, comm::Communicator& world) {
    EmptyBatches batches;
    const config::RunConfig lamb =
        config::parse_run_config(kExecutorConfig, "test", {"optimizer.lamb={adapt_without_decay: true}"});
    ProgramRank self(lamb, rank, batches, world);
    const auto executor = run::make_inline_executor(self.programs.step, self.context, {});
    executor->run({});
    executor->finish();
    const run::WorkTimes& work = *executor->work_times();
    const double updates = work.kind_ms(program::InstructionKind::update),
                 proposed = work.kind_ms(program::InstructionKind::propose);
    EXPECT_GT(updates, 0);
    EXPECT_GT(proposed, 0);
    EXPECT_EQ(work.updates_ms(), updates + proposed);
  });
}

/// Three ranks with blocks of 2, 1 and 2 elements, the last in two pieces, and an element that is nobody's.
std::vector<std::string> ring_texts(const std::string& instructions) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < 3; ++rank)
    texts.push_back("program step rank=" + std::to_string(rank) +
                    " world_size=3 reduction=fast leaves=3 micro_batches_per_leaf=1\n"
                    "lane comm comm\n"
                    "group all 0 1 2\n"
                    "buffer sums space=gradients category=gradients size=24\n"
                    "buffer received space=arena category=workspace size=8\n" +
                    instructions);
  return texts;
}
constexpr const char* kScatter =
    "0 ring_reduce_scatter @comm group=all blocks=0+4@2,4+8@0,12+4@1,20+4@2 updates data:sums writes "
    "temporary:received\n";
constexpr const char* kGather =
    "1 ring_all_gather @comm group=all blocks=0+4@2,4+8@0,12+4@1,20+4@2 updates data:sums\n";

TEST(Executors, RingsAddAroundFromTheRankAfterABlocksOwner) {
  for (const bool streams : {false, true})
    run_by_hand(
        ring_texts(std::string(kScatter) + kGather),
        [](int rank, const std::vector<float*>& buffers) {
          // Sums that do not associate: (1e8 + -1e8) + 1 is 1, and (1 + 1e8) + -1e8 is 0.
          const float values[] = {1e8f, -1e8f, 1};
          for (int i = 0; i < 6; ++i) buffers[0][i] = values[rank];
        },
        [](int rank, const std::vector<float*>& buffers) {
          // Of rank 2: (0 + 1) + 2; of rank 0: (1 + 2) + 0, which rounds -1e8 + 1 to -1e8; of rank 1: (2 + 0)
          // + 1.
          EXPECT_THAT(std::vector<float>(buffers[0], buffers[0] + 4), ElementsAre(1, 0, 0, 0)) << rank;
          EXPECT_EQ(buffers[0][4], rank == 0 ? 1e8f : rank == 1 ? -1e8f : 1) << "nobody's";
          EXPECT_EQ(buffers[0][5], 1) << rank;
        },
        streams);
}

TEST(Executors, ARingMayLeaveRanksWithoutABlock) {
  const std::string blocks = "blocks=4+8@1";
  for (const bool streams : {false, true})
    run_by_hand(
        ring_texts("0 ring_reduce_scatter @comm group=all " + blocks +
                   " updates data:sums writes temporary:received\n"
                   "1 ring_all_gather @comm group=all " +
                   blocks + " updates data:sums\n"),
        [](int rank, const std::vector<float*>& buffers) {
          for (int i = 0; i < 6; ++i) buffers[0][i] = static_cast<float>(10 * rank + i);
        },
        [](int rank, const std::vector<float*>& buffers) {
          const float own = static_cast<float>(10 * rank);
          EXPECT_THAT(std::vector<float>(buffers[0], buffers[0] + 6),
                      ElementsAre(own, 33, 36, own + 3, own + 4, own + 5));
        },
        streams);
}

TEST(Executors, RefuseARingWithoutBlocksOrRoom) {
  for (const auto& [instruction, why] :
       {std::pair("0 ring_reduce_scatter @comm group=all updates data:sums writes temporary:received\n",
                  "(ring_reduce_scatter, lane comm): it has no blocks"),
        std::pair("0 ring_reduce_scatter @comm group=all blocks=0+24/12@0 updates data:sums writes "
                  "temporary:received\n",
                  "has 8 bytes of 'temporary' and needs 12"),
        std::pair("0 ring_all_gather @comm group=all blocks=0+28@0 updates data:sums\n",
                  "expected some of the 24 bytes")})
    try {
      run_by_hand(
          ring_texts(instruction), [](int, const auto&) {}, [](int, const auto&) {}, false);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
}

// To a watchdog, a round that ends is a rank that gets on.
TEST(Executors, TellProgressOfEachRoundOfARing) {
  for (const bool streams : {false, true}) {
    control::Progress progress[3];
    run_by_hand(
        ring_texts(std::string(kScatter) + kGather), [](int, const auto&) {}, [](int, const auto&) {},
        streams,
        [&](int rank) { return run::ExecutorOptions{.progress = &progress[rank], .program_number = 1}; });
    if (!streams) continue;  // between rounds it speaks only if it waits
    for (const auto& one : progress)
      EXPECT_EQ(one.at(control::Progress::lane_slot(0)).changes, 2u * 2 + 2)
          << "two rounds of two instructions, and the end of each";
  }
}

/// A backend whose sums have an order of their own.
class Unordered : public comm::ForwardingCommunicator {
 public:
  explicit Unordered(std::unique_ptr<comm::Communicator> inner)
      : comm::ForwardingCommunicator(std::move(inner)) {}
  std::string_view backend() const override { return "unordered"; }
  bool sums_along_tree() const override { return false; }
};

TEST(Executors, AnOrderedSumNeedsACommunicatorThatAddsAlongTheTree) {
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    EmptyBatches batches;
    const auto unordered = [](int, std::unique_ptr<comm::Communicator> inner) {
      return std::make_unique<Unordered>(std::move(inner));
    };
    ProgramRank good(config(), rank, batches, world, /*shared_memory=*/true);
    EXPECT_NO_THROW(run::make_inline_executor(good.programs.step, good.context, {}));
    ProgramRank bad(config(), rank, batches, world, /*shared_memory=*/true, unordered);
    try {
      run::make_inline_executor(bad.programs.step, bad.context, {});
      FAIL() << "nothing was thrown";
    } catch (const InternalError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("(all_reduce, lane reduce"), HasSubstr("(unordered)")));
    }
  });
  // Alone there is nothing to add.
  run_ranks(1, [&](int, comm::Communicator& world) {
    EmptyBatches batches;
    ProgramRank alone(config(), 0, batches, world, true);
    EXPECT_NO_THROW(run::make_inline_executor(alone.programs.step, alone.context, {}));
  });
}

}  // namespace
}  // namespace lockstep::train
