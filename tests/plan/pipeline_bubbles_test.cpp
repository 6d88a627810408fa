// The programs of pipelines have the bubbles that their schedules promise: replays of the compiled programs
// of all ranks, beside replays of the schedules, for stages that take equally long.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "layout/pipeline_timeline.h"
#include "plan/program_timeline.h"
#include "train/loop/divided_models.h"
#include "train/worker/compile_options.h"

namespace lockstep::plan {
namespace {

using layout::PipelineSchedule;
using layout::PipelineUnit;
using program::InstructionKind;

// A segment each layer: with the last one 48 with parameters, so that none of 16 pieces is without.
constexpr int kHiddenLayers = 47;
constexpr const char* kModel = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 HIDDEN classes: 16 } }
data { synthetic { samples: 128 eval_samples: 16 classes: 16 shape: 4 shape: 4 shape: 1 } }
trainer { steps: 1 micro_batch: 1 }
optimizer { learning_rate: 0.1 sgd {} }
parallel { bucket_bytes: 1 }
)";

config::RunConfig config_of(int batch) {
  std::string hidden, text = kModel;
  for (int layer = 0; layer < kHiddenLayers; ++layer) hidden += "hidden: 16 ";
  text.replace(text.find("HIDDEN"), 6, hidden);
  return config::parse_run_config(text, "test", {fmt::format("trainer.global_batch={}", batch)});
}

struct Job {
  std::string layout;
  int micro_batches;
};

/// A job's programs, and what of them decides their times.
struct CompiledJob {
  std::vector<program::Program> programs;
  std::vector<int> pieces;  ///< by segment
  layout::PipelineShape shape;
  std::vector<int64_t> activation_bytes;  ///< by rank, of the plan of a step
};

CompiledJob compile(const Job& job) {
  const int processes = train::processes_of(job.layout);
  const layout::Layout asked = layout::parse_layout(job.layout);
  const auto run = train::compile_run(train::with(config_of(job.micro_batches * asked.dp), job.layout),
                                      {.world_size = processes});
  CompiledJob compiled{.shape = layout::pipeline_shape(run.layout(), job.micro_batches)};
  for (int rank = 0; rank < processes; ++rank) {
    auto programs = run.compile(rank);
    compiled.programs.push_back(std::move(programs.step));
    compiled.activation_bytes.push_back(
        nth(programs.step_plan.category_bytes, program::Category::activations));
  }
  for (int s = 0; s < static_cast<int>(run.partition().segments.size()); ++s)
    compiled.pieces.push_back(run.partition().piece_of(s));
  return compiled;
}

double time_of(InstructionKind kind, const layout::UnitTimes& times) {
  switch (kind) {
    case InstructionKind::forward:
      return times.forward;
    case InstructionKind::recompute:
      return times.recompute;
    case InstructionKind::backward:
      return times.backward_input + times.backward_weight;
    case InstructionKind::backward_input:
      return times.backward_input;
    case InstructionKind::backward_weight:
      return times.backward_weight;
    default:
      return 0;
  }
}

/// Times by which each piece takes as long as the schedule's unit: every segment of it that has an
/// instruction of the kind an equal part. Whole numbers, so that sums are exact.
InstructionTimes equal_pieces(const CompiledJob& job, const layout::UnitTimes& times) {
  std::map<std::pair<int, InstructionKind>, std::set<int>> segments;
  for (const auto& program : job.programs)
    for (const auto& instruction : program.instructions)
      if (time_of(instruction.kind, times) > 0)
        segments[{nth(job.pieces, instruction.segment), instruction.kind}].insert(instruction.segment);
  return {.compute =
              [&job, segments, times](int, const program::Instruction& instruction) {
                const double time = time_of(instruction.kind, times);
                if (time == 0) return 0.0;
                const auto& sharing = segments.at({nth(job.pieces, instruction.segment), instruction.kind});
                return time / static_cast<double>(sharing.size());
              },
          .communication = {.latency = times.transfer}};
}

// A quarter of it is a multiple of all numbers of segments up to 26.
constexpr double kUnit = 4.0 * 26771144400;
const std::vector<layout::UnitTimes> kTimes = {
    {.forward = kUnit, .backward_input = kUnit, .backward_weight = kUnit, .recompute = kUnit},
    {.forward = 2 * kUnit, .backward_input = 3 * kUnit, .backward_weight = kUnit, .recompute = 2 * kUnit},
};

std::vector<Job> jobs_of(const std::string& schedule) {
  std::vector<Job> jobs;
  for (const int stages : {2, 4, 8})
    for (const int micro_batches : {4, 8, 16, 32})
      if (schedule != "interleaved" || micro_batches % stages == 0)
        jobs.push_back({fmt::format("dp=1,pp={},schedule={}", stages, schedule), micro_batches});
  if (schedule == "1f1b") jobs.push_back({"dp=2,pp=4", 8});
  return jobs;
}

class PipelineBubbles : public testing::TestWithParam<const char*> {};

TEST_P(PipelineBubbles, OfProgramsAreThoseOfTheirSchedules) {
  double worst = 0;
  for (const Job& job : jobs_of(GetParam())) {
    const CompiledJob compiled = compile(job);
    for (layout::UnitTimes times : kTimes)
      for (const double transfer : {0.0, 0.25})
        for (const bool in_order : {true, false}) {
          times.transfer = transfer * times.forward;
          InstructionTimes costs = equal_pieces(compiled, times);
          costs.communicates_in_order = in_order;
          const auto steps = replay(compiled.programs, costs, 2);
          const auto expected = layout::replay(compiled.shape, times);
          const std::string name =
              fmt::format("{}, {} micro-batches, transfer {}, {}", job.layout, job.micro_batches, transfer,
                          in_order ? "in order" : "by lane");
          const int replicas = static_cast<int>(compiled.programs.size()) / compiled.shape.stages;
          for (const ProgramTimeline& step : steps) {
            EXPECT_EQ(step.duration(), expected.step) << name;
            worst = std::max(worst, step.duration() / expected.step);
            for (size_t rank = 0; rank < step.busy.size(); ++rank) {
              const double busy = nth(expected.stages, static_cast<int>(rank) / replicas).busy;
              EXPECT_EQ(step.busy[rank], busy) << name << ", rank " << rank;
              if (transfer == 0) {
                EXPECT_EQ(step.duration() - busy, layout::theoretical_bubble(compiled.shape, times)) << name;
              }
            }
          }
        }
  }
  fmt::print("{}: steps of programs take at most {:.6f} of what the schedule takes\n", GetParam(), worst);
}

INSTANTIATE_TEST_SUITE_P(All, PipelineBubbles, testing::Values("gpipe", "1f1b", "interleaved", "zero_bubble"),
                         [](const auto& info) { return std::string("of_") + info.param; });

/// With recompute=full a stage computes segment by segment again, as backward comes to it: what the schedule
/// fills waiting with, the program does in between. Kept is what one segment of a micro-batch needs.
TEST(RecomputedPipelines, TakeALittleLongerThanTheirSchedules) {
  double worst = 0;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble"})
    for (Job job : jobs_of(schedule)) {
      job.layout += ",recompute=full";
      const CompiledJob compiled = compile(job);
      const double step = replay(compiled.programs, equal_pieces(compiled, kTimes[0]), 1)[0].duration();
      const double expected = layout::replay(compiled.shape, kTimes[0]).step;
      EXPECT_GE(step, 0.999 * expected) << job.layout;
      EXPECT_LE(step, 1.25 * expected) << job.layout << ", " << job.micro_batches << " micro-batches";
      worst = std::max(worst, step / expected);
    }
  fmt::print("steps of programs that recompute take at most {:.6f} of what the schedule takes\n", worst);
}

/// Of all activations that the forwards of a micro-batch read or write on a rank, in one piece of the model
/// after the other.
std::vector<int64_t> bytes_of_a_micro_batch(const CompiledJob& job, int rank) {
  const program::Program& program = nth(job.programs, rank);
  std::map<int, std::set<int>> buffers;  // by piece
  for (const auto& instruction : program.instructions)
    if (instruction.kind == InstructionKind::forward && instruction.micro_batch == 0)
      for (const auto& operand : instruction.operands)
        if (program.buffer(operand.range.buffer).category == program::Category::activations)
          buffers[nth(job.pieces, instruction.segment)].insert(operand.range.buffer);
  std::vector<int64_t> bytes;
  for (const auto& [piece, of_piece] : buffers) {
    bytes.push_back(0);
    for (const int buffer : of_piece)
      bytes.back() += program::placed_bytes(program.buffer(buffer).size_bytes);
  }
  return bytes;
}

/// Of the gradients that second halves of backward wait with, of a micro-batch in one piece of the model.
int64_t bytes_between_halves(const CompiledJob& job, int rank) {
  const program::Program& program = nth(job.programs, rank);
  std::set<int> buffers;
  for (const auto& instruction : program.instructions)
    if (instruction.kind == InstructionKind::backward_weight && instruction.micro_batch == 0)
      for (const auto& operand : instruction.operands) {
        const auto& buffer = program.buffer(operand.range.buffer);
        const bool waits =
            operand.role == program::Role::output_gradient || operand.role == program::Role::stash;
        if (waits && buffer.category == program::Category::activations) buffers.insert(operand.range.buffer);
      }
  int64_t bytes = 0;
  for (const int buffer : buffers) bytes += program::placed_bytes(program.buffer(buffer).size_bytes);
  return bytes;
}

/// What a stage holds while its schedule runs.
struct Held {
  int pairs = 0;     ///< of a micro-batch and a piece, from forward to the last of backward
  int halves = 0;    ///< of these, with one half of backward behind them
  int messages = 0;  ///< at most, that neighbours have sent and the stage has not come to
};

Held most_held(const layout::PipelineShape& shape, int stage) {
  const layout::PipelineTimeline timeline = layout::replay(shape, kTimes[0]);
  using Kind = PipelineUnit::Kind;
  const auto is_forward = [](const PipelineUnit& unit) { return unit.kind == Kind::forward; };
  const auto begins_backward = [](const PipelineUnit& unit) {
    return unit.kind == Kind::backward || unit.kind == Kind::backward_input;
  };
  // When each piece is done with a micro-batch, forward and back.
  std::map<std::pair<int, int>, double> forwards, backwards;
  for (int s = 0; s < shape.stages; ++s)
    for (const layout::TimedUnit& timed : nth(timeline.stages, s).units) {
      const std::pair key{timed.unit.chunk * shape.stages + s, timed.unit.micro_batch};
      if (is_forward(timed.unit)) forwards[key] = timed.end;
      if (begins_backward(timed.unit)) backwards[key] = timed.end;
    }
  std::multimap<double, int> changes;  // of messages: used before others come at the same time
  Held most, now;
  for (const layout::TimedUnit& timed : nth(timeline.stages, stage).units) {
    const int piece = timed.unit.chunk * shape.stages + stage;
    const auto& sent = is_forward(timed.unit) ? forwards : backwards;
    const auto found = sent.find({piece + (is_forward(timed.unit) ? -1 : 1), timed.unit.micro_batch});
    if (found != sent.end() && (is_forward(timed.unit) || begins_backward(timed.unit))) {
      changes.insert({found->second, 1});
      changes.insert({timed.end, -1});
    }
    now.pairs += is_forward(timed.unit) ? 1 : 0;
    now.halves += timed.unit.kind == Kind::backward_input ? 1 : 0;
    most.pairs = std::max(most.pairs, now.pairs);
    most.halves = std::max(most.halves, now.halves);
    now.pairs -= timed.unit.kind == Kind::backward || timed.unit.kind == Kind::backward_weight ? 1 : 0;
    now.halves -= timed.unit.kind == Kind::backward_weight ? 1 : 0;
  }
  for (const auto& [when, change] : changes) {
    now.messages += change;
    most.messages = std::max(most.messages, now.messages);
  }
  return most;
}

/// What stages keep for their backwards, and in the same category, at most: of what passes from stage to
/// stage, one more of each kind for a message on its way and one for what has come before its turn; gradients
/// of activations, two of each kind that passes and two within the stage. All of these have a buffer of the
/// same size here. The plan lays some of them where an activation was that is needed no longer.
TEST(PipelineActivations, OfEqualStagesAreThoseOfTheMicroBatchesThatTheScheduleKeeps) {
  constexpr int64_t kMostBeside = (2 * 2 + 2 * 2 + 2) * program::kBufferAlignment;
  for (const int micro_batches : {8, 16, 32}) {
    const CompiledJob job = compile({"dp=1,pp=8", micro_batches});
    for (int stage = 1; stage < 7; ++stage) {  // the first and the last one have other layers, too
      const int64_t kept = most_held(job.shape, stage).pairs * bytes_of_a_micro_batch(job, stage)[0];
      EXPECT_GT(nth(job.activation_bytes, stage), kept) << "stage " << stage;
      EXPECT_LE(nth(job.activation_bytes, stage), kept + kMostBeside) << "stage " << stage;
    }
  }
}

/// Likewise with several pieces on a stage, where more comes before its turn, and with halves of backward,
/// whose second ones wait with gradients. What lies beside varies more here: which message comes when is not
/// ordered against all that a stage computes, so that it does not take the place of all that is gone by then.
TEST(PipelineActivations, OfPiecesAndHalvesAreThoseThatTheScheduleKeepsAndAThirdAtMost) {
  double most = 0;
  for (const char* schedule : {"interleaved", "zero_bubble"})
    for (const int micro_batches : {8, 16, 32}) {
      const CompiledJob job = compile({fmt::format("dp=1,pp=8,schedule={}", schedule), micro_batches});
      for (int stage = 1; stage < 7; ++stage) {
        const Held held = most_held(job.shape, stage);
        const std::vector<int64_t> bytes = bytes_of_a_micro_batch(job, stage);
        ASSERT_EQ(bytes.front(), bytes.back()) << "equal pieces";
        const int64_t kept = held.pairs * bytes[0];
        const int64_t beside = held.halves * bytes_between_halves(job, stage) +
                               (held.messages + 2 * job.shape.chunks + 2 + 2) * program::kBufferAlignment;
        const std::string name =
            fmt::format("{}, {} micro-batches, stage {}", schedule, micro_batches, stage);
        EXPECT_EQ(held.pairs, layout::activation_peak(layout::pipeline_schedule(job.shape, stage)).pairs)
            << name;
        EXPECT_GT(nth(job.activation_bytes, stage), kept) << name;
        const double share =
            static_cast<double>(nth(job.activation_bytes, stage)) / static_cast<double>(kept + beside);
        EXPECT_LE(share, 4.0 / 3) << name;
        most = std::max(most, share);
      }
    }
  fmt::print("activations of interleaved and zero_bubble are at most {:.3f} of what their schedules keep\n",
             most);
}

/// All micro-batches are kept, and as much lies beside them for any number.
TEST(PipelineActivations, OfGpipeGrowByThoseOfEachMicroBatch) {
  const CompiledJob some = compile({"dp=1,pp=8,schedule=gpipe", 16}),
                    more = compile({"dp=1,pp=8,schedule=gpipe", 32});
  for (int stage = 0; stage < 8; ++stage)
    EXPECT_EQ(nth(more.activation_bytes, stage) - nth(some.activation_bytes, stage),
              16 * bytes_of_a_micro_batch(more, stage)[0])
        << "stage " << stage;
}

}  // namespace
}  // namespace lockstep::plan
