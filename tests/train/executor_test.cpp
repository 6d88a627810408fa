#include "step/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/program_rank.h"
#include "train/thread_ranks.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 } }
trainer { steps: 5 global_batch: 8 virtual_replicas: 4 }
optimizer { learning_rate: 0.1 sgd {} }
parallel { reduction: REPRODUCIBLE }
)";

RunConfig config() { return parse_run_config(kConfig, "test", {}); }

class BrokenBatches : public BatchSource {
 public:
  void load(uint64_t, int64_t, std::span<const Tensor>) override { throw DataError("images.gz is cut short"); }
};

class EmptyBatches : public BatchSource {
 public:
  void load(uint64_t, int64_t, std::span<const Tensor>) override {}
};

TEST(InlineExecutor, ASilentPeerEndsTheStepNamingWhatWaits) {
  std::string message;
  ExitCode code = ExitCode::done;
  run_ranks(2, [&](int rank, Communicator& world) {
    EmptyBatches batches;
    ProgramRank self(config(), rank, batches, world);
    if (rank == 1) return;   // never steps
    auto executor = make_inline_executor(self.programs.step, self.context, {.communication_timeout = std::chrono::milliseconds(100)});
    try {
      executor->run({});
    } catch (const Error& error) {
      message = error.what();
      code = error.code();
    }
  });
  EXPECT_THAT(message, AllOf(HasSubstr("rank 0 has waited"), HasSubstr("step instruction"), HasSubstr("lane agree")));
  EXPECT_EQ(code, ExitCode::hang);
}

TEST(InlineExecutor, ErrorsCarryTheInstructionAndKeepTheirExitCode) {
  run_ranks(1, [&](int, Communicator& world) {
    BrokenBatches batches;
    ProgramRank self(config(), 0, batches, world);
    auto executor = make_inline_executor(self.programs.step, self.context, {});
    try {
      executor->run({});
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("images.gz is cut short"), HasSubstr("rank 0"), HasSubstr("(load"), HasSubstr("micro-batch 0")));
      EXPECT_EQ(error.code(), ExitCode::data);
    }
  });
}

TEST(InlineExecutor, RunsManyIterationsWithoutAllocatingOnTheDevice) {
  run_ranks(2, [&](int rank, Communicator& world) {
    EmptyBatches batches;
    ProgramRank self(config(), rank, batches, world);
    auto executor = make_inline_executor(self.programs.step, self.context, {});
    const int64_t before = self.device->memory_use().allocations;
    for (int i = 0; i < 20; ++i) executor->run({});
    EXPECT_EQ(self.device->memory_use().allocations, before);
    EXPECT_EQ(self.device->memory_use().peak_bytes, self.programs.step_plan.total_bytes);
  });
}

}  // namespace
}  // namespace lockstep
