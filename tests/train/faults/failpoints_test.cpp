#include "train/faults/failpoints.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "base/index.h"
#include "base/text.h"
#include "checkpoint/checkpoint_writer.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "train/worker/compile_options.h"
#include "train/worker/worker.h"

namespace lockstep::train {
namespace {

using test::TemporaryDirectory;
using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    parse_failpoint(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Failpoint, ReadsEveryKindAndPhase) {
  EXPECT_EQ(parse_failpoint("kill@1,40"), (Failpoint{.kind = FaultKind::kill, .rank = 1, .step = 40}));
  EXPECT_EQ(parse_failpoint("stop@0,3,evaluate"),
            (Failpoint{.kind = FaultKind::stop, .rank = 0, .step = 3, .place = FaultPlace::evaluate}));
  EXPECT_EQ(parse_failpoint("delay:250@2,7,all_reduce"),
            (Failpoint{.kind = FaultKind::delay,
                       .rank = 2,
                       .step = 7,
                       .place = FaultPlace::instruction,
                       .instruction = program::InstructionKind::all_reduce,
                       .delay_ms = 250}));
  EXPECT_EQ(
      parse_failpoint("hang@1,9,write:12"),
      (Failpoint{.kind = FaultKind::hang, .rank = 1, .step = 9, .place = FaultPlace::write, .number = 12}));
  EXPECT_EQ(parse_failpoint("error@0,0,start"),
            (Failpoint{.kind = FaultKind::error, .rank = 0, .step = 0, .place = FaultPlace::start}));
  EXPECT_EQ(parse_failpoint(" nan@0 , 5 , backward "), parse_failpoint("nan@0,5,backward"));
  // Without a phase, what fails files fails the first operation.
  EXPECT_EQ(parse_failpoint("enospc@0,20"), parse_failpoint("enospc@0,20,write:1"));
  EXPECT_EQ(parse_failpoint("eio@0,20"), parse_failpoint("eio@0,20,write:1"));
}

TEST(Failpoint, TextReadsBackAsTheSame) {
  for (const char* text :
       {"kill@1,40", "kill@1,40,forward:3", "hang@0,2,backward_weight", "stop@0,3,evaluate",
        "delay:250@2,7,all_reduce", "hang@1,9,write:12", "error@0,0,start", "nan@0,5,forward",
        "flip@1,6,update", "enospc@0,20,write:3", "eio@0,4,write:1", "kill@0,2,save"})
    EXPECT_EQ(to_text(parse_failpoint(text)), text);
}

TEST(Failpoint, EveryMistakeIsNamedWithAnExample) {
  EXPECT_THAT(refusal("kill"), Mentions("--failpoint kill: ... '@' ... kill@1,40,backward"));
  EXPECT_THAT(refusal("kil@1,2"), AllOf(Mentions("'kil' ... did you mean 'kill'?"), HasSubstr("delay:MS")));
  EXPECT_THAT(refusal("@1,2"), Mentions("kind '' ... kill, stop"));
  EXPECT_THAT(refusal("kill@1"), HasSubstr("after the '@', found 1"));
  EXPECT_THAT(refusal("kill@"), HasSubstr("after the '@', found 0"));
  EXPECT_THAT(refusal("kill@1,2,load,3"), HasSubstr("after the '@', found 4"));
  EXPECT_THAT(refusal("kill@one,2"), Mentions("rank ... 'one'"));
  EXPECT_THAT(refusal("kill@-1,2"), Mentions("rank ... '-1'"));
  EXPECT_THAT(refusal("kill@1,2.5"), Mentions("step ... '2.5'"));
  EXPECT_THAT(refusal("kill@1,0"), Mentions("from 1 ... step 0"));
  EXPECT_THAT(refusal("kill@1,1,start"), Mentions("step is 0 ... 1"));
  EXPECT_THAT(refusal("kill@1,2,bakward"), Mentions("phase 'bakward' ... 'backward'"));
  EXPECT_THAT(refusal("kill@1,2,write"), HasSubstr("write:3"));
  EXPECT_THAT(refusal("kill@1,2,write:0"), HasSubstr("'0'"));
  EXPECT_THAT(refusal("kill@1,2,save:3"), Mentions("phase save ... '3'"));
  EXPECT_THAT(refusal("kill:9@1,2"), Mentions("kill ... '9'"));
  EXPECT_THAT(refusal("delay@1,2"), HasSubstr("delay:500"));
  EXPECT_THAT(refusal("delay:soon@1,2"), HasSubstr("'soon'"));
  EXPECT_THAT(refusal("nan@1,2,update"), HasSubstr("forward or backward"));
  EXPECT_THAT(refusal("flip@1,2,write:3"), Mentions("flip ... within a step"));
  EXPECT_THAT(refusal("flip@1,2,evaluate"), Mentions("flip ... within a step"));
  EXPECT_THAT(refusal("enospc@1,2,load"), HasSubstr("write:K"));
}

/// Names the failpoint log while it lives.
class LogVariable {
 public:
  explicit LogVariable(const std::string& path) { ::setenv("LOCKSTEP_FAILPOINT_LOG", path.c_str(), 1); }
  ~LogVariable() { ::unsetenv("LOCKSTEP_FAILPOINT_LOG"); }
};

/// A rank of two: its programs and their memory.
struct Rank {
  explicit Rank(const std::string& bucket_bytes = "1048576", const std::string& layout = "dp=2", int rank = 0)
      : run(compile_run(config::parse_run_config(R"(
model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 } }
trainer { steps: 5 global_batch: 8 virtual_replicas: 2 }
optimizer { learning_rate: 0.1 sgd {} }
parallel { reduction: REPRODUCIBLE algorithm: TREE }
)",
                                                 "test", {"parallel.bucket_bytes=" + bucket_bytes}, layout),
                        {.world_size = 2})),
        programs(run.compile(rank)),
        device(device::make_cpu_device()),
        memory(*device, std::array{programs.step_plan, programs.evaluate_plan, programs.boundary_plan}) {}

  int first(program::InstructionKind kind) const {
    for (size_t i = 0; i < programs.step.instructions.size(); ++i)
      if (programs.step.instructions[i].kind == kind) return static_cast<int>(i);
    return -1;
  }
  template <class T>
  T* buffer(const std::string& name) {
    for (size_t b = 0; b < programs.step.buffers.size(); ++b)
      if (programs.step.buffers[b].name == name)
        return reinterpret_cast<T*>(memory.at(programs.step, programs.step.whole(static_cast<int>(b))));
    return nullptr;
  }
  /// Where the failpoint throws in one pass through `step`: "step 2, before step instruction 3 (...)", or
  /// "nowhere".
  std::string pass(Failpoints& failpoints, const program::Program& program, int64_t step) {
    try {
      for (size_t i = 0; i < program.instructions.size(); ++i)
        failpoints.before_instruction(program, static_cast<int>(i), step, memory);
    } catch (const Error& error) {
      const std::string text = error.what();
      return text.substr(text.find("step"));
    }
    return "nowhere";
  }

  compile::CompiledRun run;
  compile::CompiledRun::RankPrograms programs;
  std::unique_ptr<device::Device> device;
  run::ProgramMemory memory;
};

TEST(Failpoints, AreThereForTheirRankAlone) {
  EXPECT_EQ(Failpoints::parse({}, 0, 2), nullptr);
  EXPECT_EQ(Failpoints::parse({"kill@1,3"}, 0, 2), nullptr);
  EXPECT_NE(Failpoints::parse({"kill@1,3"}, 1, 2), nullptr);
  const auto refused = [](const std::vector<std::string>& texts) {
    try {
      Failpoints::parse(texts, 0, 2);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused({"kill@2,3"}), Mentions("rank 2 ... 0 ... 1"));
  EXPECT_THAT(refused({"eio@1,3", "eio@1,3,write:1"}), HasSubstr("given twice"));
}

TEST(Failpoints, FireOnceAtTheFirstInstructionOfTheirPhase) {
  Rank rank;
  const program::Program &step = rank.programs.step, &evaluate = rank.programs.evaluate,
                         &boundary = rank.programs.boundary;
  const auto where = [&](program::InstructionKind kind) {
    return "step 2, before " + program::describe(step, rank.first(kind));
  };
  for (const auto& [phase, expected] :
       {std::pair(std::string(",backward"), where(program::InstructionKind::backward)),
        std::pair(std::string(",exchange"), where(program::InstructionKind::exchange)),
        std::pair(std::string(",update"), where(program::InstructionKind::update)),
        std::pair(std::string(""),
                  std::string("step 2, before step instruction 0 (constants, lane copy)"))}) {
    const auto failpoints = Failpoints::parse({"error@0,2" + phase}, 0, 2);
    EXPECT_EQ(rank.pass(*failpoints, step, 1), "nowhere") << phase;
    EXPECT_EQ(rank.pass(*failpoints, evaluate, 2), "nowhere") << phase;
    EXPECT_EQ(rank.pass(*failpoints, boundary, 2), "nowhere") << phase;
    EXPECT_EQ(rank.pass(*failpoints, step, 2), expected) << phase;
    EXPECT_EQ(rank.pass(*failpoints, step, 2), "nowhere") << phase;
  }
}

TEST(Failpoints, EvaluateSaveAndStartAreNotPartsOfAStep) {
  Rank rank;
  const auto failpoints =
      Failpoints::parse({"error@0,2,evaluate", "error@0,3,save", "error@0,0,start"}, 0, 2);
  EXPECT_EQ(rank.pass(*failpoints, rank.programs.step, 2), "nowhere");
  EXPECT_EQ(rank.pass(*failpoints, rank.programs.boundary, 2), "nowhere");
  EXPECT_THAT(rank.pass(*failpoints, rank.programs.evaluate, 2), HasSubstr("evaluate instruction 0"));
  EXPECT_THAT(rank.pass(*failpoints, rank.programs.boundary, 3), HasSubstr("boundary instruction 0"));
  EXPECT_THROW(failpoints->at_start(), Error);
  EXPECT_NO_THROW(failpoints->at_start());
}

TEST(Failpoints, OneThatWaitsForWhatNoStepHasIsRefused) {
  const Rank rank;
  EXPECT_NO_THROW(
      Failpoints::parse({"kill@0,2,norm", "nan@0,1,forward", "nan@0,1"}, 0, 2)->check(rank.programs.step));
  try {
    Failpoints::parse({"kill@0,2,all_reduce"}, 0, 2)->check(rank.programs.step);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), Mentions("rank 0 ... 'all_reduce' ... constants, load, forward"));
  }
}

TEST(Failpoints, ANaNOverwritesAGradientThatWasJustWrittenAndDoesSoAgainInTheReplay) {
  Rank rank;
  const auto failpoints = Failpoints::parse({"nan@0,2"}, 0, 2);
  auto* gradient = rank.buffer<float>("grad.0.slot0");
  const int backward = rank.first(program::InstructionKind::backward);
  for (int pass = 0; pass < 2; ++pass) {
    gradient[0] = 1;
    for (int i = 0; i <= backward; ++i) failpoints->before_instruction(rank.programs.step, i, 2, rank.memory);
    EXPECT_EQ(gradient[0], 1);  // backward would overwrite it
    const int reader = rank.first(program::InstructionKind::exchange);
    ASSERT_GT(reader, backward);
    for (int i = backward + 1; i <= reader; ++i)
      failpoints->before_instruction(rank.programs.step, i, 2, rank.memory);
    EXPECT_TRUE(std::isnan(gradient[0]));
    EXPECT_EQ(gradient[1], 0);
  }
}

TEST(Failpoints, ANaNOfForwardIsAnActivationOrTheLossOfASingleSegment) {
  Rank single;
  auto* metrics = single.buffer<double>("metrics");
  metrics[0] = 1;
  EXPECT_EQ(single.pass(*Failpoints::parse({"nan@0,2,forward"}, 0, 2), single.programs.step, 2), "nowhere");
  EXPECT_TRUE(std::isnan(metrics[0]));

  Rank several("4");  // a segment for each layer
  auto* activation = several.buffer<float>("act.fc1.mb0");
  if (activation == nullptr) activation = several.buffer<float>("act.relu1.mb0");
  ASSERT_NE(activation, nullptr) << program::to_text(several.programs.step);
  activation[0] = 1;
  EXPECT_EQ(several.pass(*Failpoints::parse({"nan@0,2,forward"}, 0, 2), several.programs.step, 2), "nowhere");
  EXPECT_TRUE(std::isnan(activation[0]));
  EXPECT_FALSE(std::isnan(several.buffer<double>("metrics")[0]));
}

TEST(Failpoints, OfStagesMeetWhatTheyMakeAndHold) {
  // The first stage's one segment makes what it sends, and nothing that it reads forward.
  Rank first("1048576", "dp=1,pp=2"), second("1048576", "dp=1,pp=2", 1);
  const auto nan = Failpoints::parse({"nan@0,2,forward"}, 0, 2);
  EXPECT_NO_THROW(nan->check(first.programs.step, first.programs.serve));
  const int send = first.first(program::InstructionKind::exchange);
  ASSERT_GE(send, 0);
  const auto& sent = first.programs.step.instruction(send).operands[0];
  auto* activation = reinterpret_cast<float*>(first.memory.at(first.programs.step, sent.range));
  activation[0] = 1;
  first.pass(*nan, first.programs.step, 2);
  EXPECT_TRUE(std::isnan(activation[0]));
  // The second one holds its own parameters, which are not the model's first.
  ASSERT_LT(second.programs.step.parameters[0].buffer, 0);
  const auto flip = Failpoints::parse({"flip@1,2"}, 1, 2);
  EXPECT_NO_THROW(flip->check(second.programs.step, second.programs.serve));
  auto* parameter = second.buffer<float>("param.1");
  parameter[0] = 1.0F;
  second.pass(*flip, second.programs.step, 2);
  EXPECT_EQ(parameter[0], 1.5F);
}

TEST(Failpoints, MeetTheInstructionOfThatNumber) {
  Rank rank("1048576", "dp=1,pp=2");
  const auto& instructions = rank.programs.step.instructions;
  std::vector<int> forwards;
  for (int i = 0; i < static_cast<int>(instructions.size()); ++i)
    if (nth(instructions, i).kind == program::InstructionKind::forward) forwards.push_back(i);
  ASSERT_GE(forwards.size(), 2u);
  for (size_t k = 0; k < forwards.size(); ++k) {
    const auto failpoints = Failpoints::parse({fmt::format("error@0,2,forward:{}", k + 1)}, 0, 2);
    EXPECT_NO_THROW(failpoints->check(rank.programs.step, rank.programs.serve));
    EXPECT_THAT(rank.pass(*failpoints, rank.programs.step, 2),
                HasSubstr(fmt::format("step instruction {} (forward", forwards[k])));
  }
  try {
    Failpoints::parse({"error@0,2,forward:999"}, 0, 2)->check(rank.programs.step, rank.programs.serve);
    FAIL() << "there are no 999 forwards";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(),
              fmt::format("--failpoint error@0,2,forward:999: rank 0's steps have {} instructions "
                          "'forward'",
                          forwards.size()));
  }
}

TEST(Failpoints, OfHalvesOfBackwardSpoilAGradient) {
  const Rank rank("1048576", "dp=1,pp=2,schedule=zero_bubble", 1);
  EXPECT_NO_THROW(Failpoints::parse({"nan@1,2"}, 1, 2)->check(rank.programs.step, rank.programs.serve));
}

TEST(Failpoints, AFlipChangesOneBitOfOneParameterOnce) {
  Rank rank;
  const auto failpoints = Failpoints::parse({"flip@0,2"}, 0, 2);
  auto* parameter = rank.buffer<float>("param.0");
  parameter[0] = 1.0F;
  rank.pass(*failpoints, rank.programs.step, 1);
  EXPECT_EQ(parameter[0], 1.0F);
  rank.pass(*failpoints, rank.programs.step, 2);
  EXPECT_EQ(parameter[0], 1.5F);  // the fraction's highest bit is worth a half
  rank.pass(*failpoints, rank.programs.step, 2);
  EXPECT_EQ(parameter[0], 1.5F);
  EXPECT_EQ(parameter[1], 0);
  parameter[0] = 0;
  rank.pass(*Failpoints::parse({"flip@0,2"}, 0, 2), rank.programs.step, 2);
  EXPECT_EQ(parameter[0], 2.0F);
}

TEST(Failpoints, KillAndStopAreRealSignals) {
  for (const auto& [kind, signal] : {std::pair("kill", SIGKILL), std::pair("stop", SIGSTOP)}) {
    Rank rank;
    const auto failpoints = Failpoints::parse({std::string(kind) + "@0,2,forward"}, 0, 2);
    const pid_t child = ::fork();
    if (child == 0) {
      rank.pass(*failpoints, rank.programs.step, 2);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
    EXPECT_EQ(WIFSTOPPED(status) ? WSTOPSIG(status) : WTERMSIG(status), signal) << kind;
    if (!WIFSTOPPED(status)) continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
}

TEST(Failpoints, TheLogSaysWhenAndWhereAndIsRemembered) {
  const TemporaryDirectory folder;
  const LogVariable log(folder / "log");
  Rank rank;
  const auto failpoints = Failpoints::parse({"error@0,2,norm", "delay:1@0,1"}, 0, 2);
  rank.pass(*failpoints, rank.programs.step, 1);
  EXPECT_NE(rank.pass(*failpoints, rank.programs.step, 2), "nowhere");
  const auto lines = split(read_text_file(folder / "log"), '\n');
  ASSERT_EQ(lines.size(), 3u);  // the last one is empty
  EXPECT_THAT(lines[0], testing::MatchesRegex("[0-9]{16} delay:1@0,1 step 1, before step instruction 0 .*"));
  EXPECT_THAT(lines[1], testing::MatchesRegex("[0-9]{16} error@0,2,norm step 2, before step instruction .*"));

  // The same job, resumed: what happened does not happen again, what did not still may.
  const auto resumed = Failpoints::parse({"error@0,2,norm", "error@0,3,norm"}, 0, 2);
  EXPECT_EQ(rank.pass(*resumed, rank.programs.step, 2), "nowhere");
  EXPECT_NE(rank.pass(*resumed, rank.programs.step, 3), "nowhere");
}

/// What writing the checkpoint of `step` ends with.
std::string write_through(FileSystem& files, const std::string& directory, int64_t step) {
  try {
    checkpoint::CheckpointWriter writer(directory, step, files);
    writer.begin();
    const float value = 1;
    checkpoint::Manifest manifest;
    manifest.step = step;
    for (const checkpoint::FileKind kind : {checkpoint::FileKind::model, checkpoint::FileKind::optimizer})
      manifest.files.push_back(writer.write_shard(
          kind, 1, 1, std::vector<checkpoint::NamedTensor>{{"w", DType::float32, Shape{1}, &value}}));
    writer.commit(manifest);
  } catch (const Error& error) {
    return error.what();
  }
  return "written";
}

std::string write_through(Failpoints& failpoints, const std::string& directory, int64_t step) {
  return write_through(*failpoints.wrap(posix_file_system()), directory, step);
}

TEST(FailingFileSystem, FailsTheOperationThatIsMeantOfTheCheckpointThatIsMeant) {
  const TemporaryDirectory folder;
  const auto failpoints = Failpoints::parse({"enospc@0,2", "eio@0,3,write:3"}, 0, 2);
  EXPECT_EQ(write_through(*failpoints, folder.path(), 1), "written");
  EXPECT_THAT(write_through(*failpoints, folder.path(), 2),
              AllOf(HasSubstr("step-00000002.tmp:"), HasSubstr("failpoint enospc@0,2,write:1")));
  EXPECT_EQ(write_through(*failpoints, folder.path(), 2), "written");  // once
  // Its first operation makes the folder, the second one its first file, into which the third one writes.
  EXPECT_THAT(write_through(*failpoints, folder.path(), 3),
              HasSubstr("Input/output error (failpoint eio@0,3,write:3)"));
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000003"));
  EXPECT_EQ(write_through(*failpoints, folder.path(), 3), "written");
}

TEST(FailingFileSystem, WhatComesBehindACheckpointBelongsToTheNextOne) {
  const TemporaryDirectory scratch;
  int first_beyond = 1;  // the first operation that the checkpoint of a step does not have
  for (;; ++first_beyond) {
    const auto failpoints = Failpoints::parse({"eio@0,5,write:" + std::to_string(first_beyond)}, 0, 2);
    if (write_through(*failpoints, scratch.path(), 5) == "written") break;
  }
  // The next checkpoint makes a folder, takes away a leftover, asks for the space and so on.
  for (int operation = first_beyond; operation < first_beyond + 5; ++operation) {
    const TemporaryDirectory folder;
    const auto failpoints = Failpoints::parse({"eio@0,5,write:" + std::to_string(operation)}, 0, 2);
    const auto files = failpoints->wrap(posix_file_system());
    EXPECT_EQ(write_through(*files, folder.path(), 5), "written");
    std::filesystem::create_directory(folder / "step-00000009.tmp");
    EXPECT_EQ(write_through(*files, folder.path(), 10), "written") << operation;
  }
}

TEST(FailingFileSystem, OtherKindsActAtAnOperationToo) {
  const TemporaryDirectory folder;
  const auto failpoints = Failpoints::parse({"error@0,1,write:2"}, 0, 2);
  EXPECT_THAT(write_through(*failpoints, folder.path(), 1), Mentions("error@0,1,write:2 ... step 1"));
}

TEST(FailingFileSystem, EveryOperationOfACheckpointCanFail) {
  const TemporaryDirectory folder;
  int operation = 1;
  for (; operation < 100; ++operation) {
    const auto failpoints = Failpoints::parse({"eio@0,7,write:" + std::to_string(operation)}, 0, 2);
    const std::string ended = write_through(*failpoints, folder.path(), 7);
    if (ended == "written") break;
    EXPECT_THAT(ended, HasSubstr("write:" + std::to_string(operation)));
  }
  // Making the folder, four files (made, written, synced, closed), the folder synced, renamed, and its parent
  // synced.
  EXPECT_GE(operation - 1, 1 + 4 * 4 + 3);
}

}  // namespace
}  // namespace lockstep::train
