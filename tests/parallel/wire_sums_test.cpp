// Gradients that are summed as bfloat16: programs of every layout are proven, send half the bytes of
// gradients and as many of everything else.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compile/compiled_run.h"
#include "model/presets.h"
#include "model/shared_graph.h"
#include "proof/checker.h"

namespace lockstep::compile {
namespace {

constexpr auto kFast = layout::Reduction::fast, kExact = layout::Reduction::reproducible;

CompileOptions options_of(const std::string& layout, layout::Reduction reduction, DType wire,
                          bool as_it_lands = false) {
  CompileOptions options{
      .graph = model::share_graph(model::make_gpt(
          {.vocabulary = 70, .context = 8, .layers = 2, .heads = 2, .width = 32, .tied_head = true})),
      .global_batch = 48,
      .micro_batch = 3,
      .virtual_replicas = 8,
      .parallel = {.reduction = reduction, .wire = wire, .bucket_bytes = 20'000},
      .state_slots = 1};
  options.parallel.layout = layout::parse_layout(layout);
  options.skips_nonfinite = !as_it_lands;
  return options;
}

/// By all ranks in a step: bytes of gradients, in elements of two bytes and of four, and of parameters.
struct Sent {
  int64_t narrow = 0, wide = 0, parameters = 0;
};
Sent sent_by_all(const CompileOptions& options, const CompileFacts& facts) {
  const CompiledRun run(options, facts);
  run.check();
  Sent sent;
  for (int rank = 0; rank < facts.world_size; ++rank) {
    const program::Program step = run.compile(rank).step;
    for (const program::Instruction& i : step.instructions) {
      if (!program::communicates(i.kind) || i.segment < 0) continue;
      const program::ProgramTraffic traffic = program::traffic_of(step, i);
      const program::Operand& first = i.operands.front();
      const bool is_parameter = step.buffer(first.range.buffer).category == program::Category::parameters;
      (is_parameter                     ? sent.parameters
       : first.dtype == DType::bfloat16 ? sent.narrow
                                        : sent.wide) += traffic.sent_bytes + traffic.shared_memory_bytes;
    }
  }
  return sent;
}

void expect_half(const std::string& layout, layout::Reduction reduction, CompileFacts facts = {},
                 bool as_it_lands = false) {
  facts.world_size = layout::parse_layout(layout).world_size();
  const Sent exact = sent_by_all(options_of(layout, reduction, DType::float32, as_it_lands), facts),
             rounded = sent_by_all(options_of(layout, reduction, DType::bfloat16, as_it_lands), facts);
  const std::string name = layout + (reduction == kFast ? ", FAST" : ", REPRODUCIBLE");
  EXPECT_EQ(exact.narrow, 0) << name;
  EXPECT_GT(rounded.narrow, 0) << name;
  EXPECT_EQ(2 * rounded.narrow, exact.wide) << name;
  EXPECT_EQ(rounded.wide, 0) << name;
  EXPECT_EQ(rounded.parameters, exact.parameters) << name;
}

const std::vector<std::string> kLayouts = {"dp=2",
                                           "dp=4",
                                           "dp=6",
                                           "dp=8",
                                           "dp=2,recompute=full",
                                           "dp=2,pp=2",
                                           "dp=2,pp=2,schedule=zero_bubble",
                                           "dp=2,pp=2,schedule=interleaved",
                                           "dp=2,shard=optimizer",
                                           "dp=3,shard=optimizer",
                                           "dp=2,pp=2,shard=optimizer",
                                           "dp=1,sync=ps,servers=1",
                                           "dp=2,sync=ps,servers=1",
                                           "dp=3,sync=ps,servers=2",
                                           "dp=2,sync=ps,servers=2,assign=whole",
                                           "dp=2,sync=ps,servers=2,placement=colocated",
                                           "dp=3,sync=ps,servers=1,placement=colocated",
                                           "dp=2,pp=2,sync=ps,servers=2"};

TEST(WireSums, SendHalfTheBytes) {
  for (const std::string& layout : kLayouts)
    for (const auto reduction : {kFast, kExact}) expect_half(layout, reduction);
}

TEST(WireSums, SendHalfTheBytesWhereUpdatesReturnAsTheyLand) {
  for (const char* layout : {"dp=2", "dp=3,sync=ps,servers=2", "dp=2,sync=ps,servers=2,placement=colocated"})
    for (const auto reduction : {kFast, kExact}) expect_half(layout, reduction, {}, true);
}

TEST(WireSums, SendHalfTheBytesWithinHosts) {
  for (const auto reduction : {kFast, kExact}) {
    for (const char* layout : {"dp=2", "dp=4", "dp=8", "dp=2,pp=2"})
      expect_half(layout, reduction, {.shared_memory = true});
    expect_half("dp=4,aggregate=host", reduction, {.hosts = {0, 0, 1, 1}});
    expect_half("dp=4,sync=ps,servers=2,placement=colocated,aggregate=host", reduction,
                {.hosts = {0, 0, 1, 1}});
    expect_half("dp=4,sync=ps,servers=1,aggregate=host", reduction, {.hosts = {0, 0, 1, 1, 2}});
  }
}

/// Residuals of all ranks together, in bytes of one leaf, and what they send in a step. Programs are proven.
std::pair<int64_t, int64_t> residuals_and_sent(const CompileOptions& options, const CompileFacts& facts) {
  const CompiledRun run(options, facts);
  run.check();
  int64_t residuals = 0, sent = 0;
  for (int rank = 0; rank < facts.world_size; ++rank) {
    const auto programs = run.compile(rank);
    int64_t saved = 0;
    for (const program::ResidualPlace& place : programs.step.residuals)
      residuals += programs.step.buffer(place.buffer).size_bytes;
    for (const layout::SavedPart& part : run.checkpoint_shares()[static_cast<size_t>(rank)])
      saved += part.is_residual() ? 4 * part.part.count() : 0;
    for (const program::Program* program : programs.all())
      EXPECT_EQ(program->residuals, programs.step.residuals) << program->name;
    EXPECT_EQ(saved > 0, !programs.step.residuals.empty()) << "what a rank keeps it saves";
    sent += programs.traffic().sent_bytes;
  }
  return {residuals, sent};
}

void expect_residuals(const std::string& layout, layout::Reduction reduction, CompileFacts facts = {},
                      bool as_it_lands = false) {
  facts.world_size = layout::parse_layout(layout).world_size();
  CompileOptions options = options_of(layout, reduction, DType::bfloat16, as_it_lands);
  const auto [none, without] = residuals_and_sent(options, facts);
  options.parallel.error_feedback = true;
  const auto [residuals, with] = residuals_and_sent(options, facts);
  const std::string name = layout + (reduction == kFast ? ", FAST" : ", REPRODUCIBLE");
  const CompiledRun run(options, facts);
  int64_t expected = 0;
  for (int s = 0; s < static_cast<int>(run.partition().segments.size()); ++s)
    expected += run.ownership().summed_bytes(s);
  EXPECT_EQ(none, 0) << name;
  EXPECT_EQ(residuals, expected * run.division().leaves) << name;
  EXPECT_EQ(with, without) << name;
}

TEST(ErrorFeedback, HasAResidualOfEveryLeafOnOneRank) {
  for (const std::string& layout : kLayouts)
    for (const auto reduction : {kFast, kExact}) expect_residuals(layout, reduction);
  for (const auto reduction : {kFast, kExact}) {
    for (const char* layout :
         {"dp=2", "dp=3,sync=ps,servers=2", "dp=2,sync=ps,servers=2,placement=colocated"})
      expect_residuals(layout, reduction, {}, true);
    for (const char* layout : {"dp=2", "dp=4", "dp=2,pp=2"})
      expect_residuals(layout, reduction, {.shared_memory = true});
    expect_residuals("dp=4,aggregate=host", reduction, {.hosts = {0, 0, 1, 1}});
    expect_residuals("dp=4,sync=ps,servers=1,aggregate=host", reduction, {.hosts = {0, 0, 1, 1, 2}});
  }
}

TEST(ErrorFeedback, NeedsNoResidualsWhereNothingIsRounded) {
  CompileOptions options = options_of("dp=1", kFast, DType::bfloat16);
  options.parallel.error_feedback = true;
  const CompiledRun run(options, {.world_size = 1});
  run.check();
  EXPECT_FALSE(run.keeps_residuals());
  EXPECT_TRUE(run.compile(0).step.residuals.empty());
  EXPECT_FALSE(run.compile(0).step.error_feedback);
}

/// By any rank, in the program that saves.
TEST(ErrorFeedback, IsSavedWhole) {
  CompileOptions options = options_of("dp=2", kExact, DType::bfloat16);
  options.parallel.error_feedback = true;
  const CompiledRun run(options, {.world_size = 2});
  const auto findings_if = [&](const std::function<void(std::vector<program::Operand>&)>& change) {
    std::vector<program::Program> boundaries{run.compile(0).boundary, run.compile(1).boundary};
    for (program::Instruction& i : boundaries[1].instructions)
      if (i.kind == program::InstructionKind::snapshot) change(i.operands);
    std::string text;
    for (const proof::CheckFinding& finding : proof::check_programs(boundaries))
      text += finding.message + "\n";
    return text;
  };
  EXPECT_EQ(findings_if([](auto&) {}), "");
  const auto is_residual = [](const program::Operand& o) { return o.role == program::Role::residual; };
  EXPECT_THAT(findings_if([&](auto& operands) {
                const auto first = std::ranges::find_if(operands, is_residual);
                for (program::Operand& o : operands)
                  if (o.role == program::Role::destination) o.range.size_bytes -= first->range.size_bytes;
                operands.erase(first);
              }),
              testing::HasSubstr("does not save the residual of leaf"));
  EXPECT_THAT(findings_if([&](auto& operands) {
                const auto first = std::ranges::find_if(operands, is_residual);
                std::find_if(first + 1, operands.end(), [&](const program::Operand& o) {
                  return is_residual(o) && o.range.size_bytes == first->range.size_bytes;
                })->range = first->range;
              }),
              testing::HasSubstr("twice"));
}

/// Ranks with other options would wait for each other in vain, or sum what does not belong together.
TEST(ErrorFeedback, IsAgreedOnByRanks) {
  CompileOptions options = options_of("dp=2", kExact, DType::bfloat16);
  const uint64_t without = CompiledRun(options, {.world_size = 2}).program_hash();
  options.parallel.error_feedback = true;
  EXPECT_NE(CompiledRun(options, {.world_size = 2}).program_hash(), without);
}

TEST(WireSums, TravelNowhereInFastModeOnOneRank) {
  const CompiledRun run(options_of("dp=1", kFast, DType::bfloat16), {.world_size = 1});
  run.check();
  for (const program::Instruction& i : run.compile(0).step.instructions)
    EXPECT_NE(i.kind, program::InstructionKind::cast);
}

/// A float32 buffer for the leaf that is computed, and two bytes for each node that waits.
TEST(WireSums, NeedLessMemoryThanExactOnesOfSeveralLeaves) {
  const auto gradient_bytes = [](DType wire) {
    CompileOptions options = options_of("dp=1", kExact, wire);
    options.micro_batch = 1;  // one leaf at once with either wire
    const program::Program step = CompiledRun(options, {.world_size = 1}).compile(0).step;
    int64_t bytes = 0;
    for (const program::ProgramBuffer& buffer : step.buffers)
      if (buffer.category == program::Category::gradients) bytes += buffer.size_bytes;
    return bytes;
  };
  // Eight leaves fold in four slots.
  EXPECT_EQ(gradient_bytes(DType::bfloat16) * (4 * 4), gradient_bytes(DType::float32) * (4 + 4 * 2));
}

}  // namespace
}  // namespace lockstep::compile
