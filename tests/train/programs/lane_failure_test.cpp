#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/error.h"
#include "mentions.h"
#include "train/programs/program_rank.h"
#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kLaneFailureConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 hidden: 8 classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 } }
trainer { steps: 5 global_batch: 12 virtual_replicas: 4 }
optimizer { learning_rate: 0.1 sgd {} }
parallel { reduction: REPRODUCIBLE bucket_bytes: 1 }
)";

int last_on(const program::Program& program, program::InstructionKind kind, const std::string& lane) {
  for (size_t i = program.instructions.size(); i-- > 0;)
    if (program.instructions[i].kind == kind &&
        program.lanes[static_cast<size_t>(program.instructions[i].lane)].name == lane)
      return static_cast<int>(i);
  ADD_FAILURE() << "no " << program::name_of(kind) << " on lane " << lane;
  return 0;
}
int first_exchange(const program::Program& program) {
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (program.instructions[i].kind == program::InstructionKind::exchange) return static_cast<int>(i);
  ADD_FAILURE() << "no exchange";
  return 0;
}

struct Failure {
  std::string message;
  ExitCode code = ExitCode::done;
};

Failure failure_of(run::Executor& executor) {
  try {
    executor.run({});
  } catch (const Error& error) {
    return {error.what(), error.code()};
  } catch (const std::exception& error) {
    return {error.what(), ExitCode::done};
  }
  return {};
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

/// An instruction of a program.
using Choice = std::function<int(const program::Program&)>;

/// Rank 0's `culprit` throws once another of its lanes has reached `waiting`, for which it needs rank 1; rank
/// 1 does not begin before rank 0 has ended. Nobody has a time-out: where that lane is not released, this
/// never returns.
template <class Exception>
std::vector<Failure> fail_while_another_lane_waits(const Choice& culprit, const Choice& waiting,
                                                   const Exception& exception) {
  const config::RunConfig config = config::parse_run_config(kLaneFailureConfig, "test", {});
  std::vector<Failure> failures(2);
  std::promise<void> ended;
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    ProgramRank self(config, rank, batches, world);
    const program::Program& step = self.programs.step;
    const auto device = device::make_async_cpu_device({});
    run::ExecutorOptions options{.communication_timeout = std::nullopt};
    std::promise<void> waits;
    std::vector<std::string> told;
    options.failed = [&](const std::exception_ptr& error) { told.push_back(message_of(error)); };
    if (rank == 0) {
      options.before = [&, fails_at = culprit(step), waits_at = waiting(step)](uint64_t, int i) {
        if (i == waits_at) waits.set_value();
        if (i != fails_at) return;
        waits.get_future().wait();
        throw exception;
      };
    } else {
      ended.get_future().wait();
    }
    const auto executor = run::make_stream_executor(step, self.context, options, *device);
    failures[static_cast<size_t>(rank)] = failure_of(*executor);
    EXPECT_THAT(told, ElementsAre(failures[static_cast<size_t>(rank)].message)) << "rank " << rank;
    if (rank == 0) ended.set_value();
  });
  return failures;
}

int agree(const program::Program& program) {
  return last_on(program, program::InstructionKind::agree, "agree");
}
int last_backward(const program::Program& program) {
  return last_on(program, program::InstructionKind::backward, "compute");
}

TEST(StreamExecutor, AKernelThatFailsReleasesTheLanesThatWaitForPeers) {
  for (const Choice& waiting : {Choice(agree), Choice(first_exchange)}) {
    const auto failures =
        fail_while_another_lane_waits(last_backward, waiting, DataError("the batch is torn"));
    EXPECT_THAT(failures[0].message, AllOf(StartsWith("the batch is torn (rank 0, step instruction"),
                                           HasSubstr("(backward, lane compute")));
    EXPECT_EQ(failures[0].code, ExitCode::data);
    // The peer learns why, too.
    EXPECT_THAT(failures[1].message, Mentions("the batch is torn ... rank 0, step instruction"));
    EXPECT_EQ(failures[1].code, ExitCode::peer_lost);
  }
}

TEST(StreamExecutor, ACommunicationThatFailsReleasesTheOtherLanes) {
  const auto exchanging = fail_while_another_lane_waits(first_exchange, agree, CommError("the cable is out"));
  EXPECT_THAT(exchanging[0].message,
              AllOf(StartsWith("the cable is out (rank 0"), HasSubstr("(exchange, lane reduce")));
  const auto agreeing =
      fail_while_another_lane_waits(agree, first_exchange, CommError("the cable is out", ExitCode::hang));
  EXPECT_THAT(agreeing[0].message,
              AllOf(StartsWith("the cable is out (rank 0"), HasSubstr("(agree, lane agree")));
  EXPECT_EQ(agreeing[0].code, ExitCode::hang);
}

TEST(StreamExecutor, ErrorsOfOthersReleaseTheLanesToo) {
  const auto failures =
      fail_while_another_lane_waits(last_backward, agree, std::length_error("a vector is too long"));
  EXPECT_EQ(failures[0].message, "a vector is too long");
  EXPECT_THAT(failures[1].message, HasSubstr("a vector is too long"));
}

/// Fails in the last update of the first step, when run() has returned.
Failure fail_after_the_report(bool streams, const std::function<void(run::Executor&)>& go_on) {
  Failure failure;
  run_ranks(1, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    ProgramRank self(config::parse_run_config(kLaneFailureConfig, "test", {}), rank, batches, world);
    const program::Program& step = self.programs.step;
    const int update = last_on(step, program::InstructionKind::update, "compute");
    std::promise<void> returned;
    const run::ExecutorOptions options{.before = [&](uint64_t iteration, int i) {
      if (iteration != 0 || i != update) return;
      returned.get_future().wait();
      throw DataError("the optimizer is torn");
    }};
    const auto device = device::make_async_cpu_device({});
    const auto executor = streams ? run::make_stream_executor(step, self.context, options, *device)
                                  : run::make_inline_executor(step, self.context, options);
    executor->run({.iteration = 0});
    returned.set_value();
    try {
      go_on(*executor);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      failure = {error.what(), error.code()};
    }
    EXPECT_NO_THROW(executor->finish()) << "nothing is left";
  });
  return failure;
}

TEST(Executors, AnErrorInWhatIsLeftOfAStepSaysSo) {
  for (const bool streams : {false, true})
    for (const bool next_step : {false, true}) {
      const Failure failure = fail_after_the_report(streams, [&](run::Executor& executor) {
        if (next_step) executor.run({.iteration = 1});
        executor.finish();
      });
      EXPECT_THAT(failure.message, AllOf(StartsWith("the optimizer is torn (rank 0, step instruction"),
                                         HasSubstr("(update, lane")));
      EXPECT_EQ(failure.code, ExitCode::data);
      // On lanes it may be thrown while the next step runs or before.
      EXPECT_THAT(failure.message, HasSubstr("step before"));
    }
}

TEST(StreamExecutor, AfterAFailureEveryRunThrowsIt) {
  run_ranks(1, [&](int rank, comm::Communicator& world) {
    NumberedBatches batches;
    ProgramRank self(config::parse_run_config(kLaneFailureConfig, "test", {}), rank, batches, world);
    const auto device = device::make_async_cpu_device({});
    bool broken = true;
    const auto executor = run::make_stream_executor(self.programs.step, self.context,
                                                    {.before =
                                                         [&](uint64_t, int i) {
                                                           if (broken && i == 0)
                                                             throw DataError("the first batch is torn");
                                                         }},
                                                    *device);
    EXPECT_THAT(failure_of(*executor).message, HasSubstr("the first batch is torn"));
    broken = false;
    EXPECT_THAT(failure_of(*executor).message, HasSubstr("the first batch is torn"));
  });
}

}  // namespace
}  // namespace lockstep::train
