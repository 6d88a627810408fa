// What all ranks' programs agree on, and what the model's graph says otherwise.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "mentions.h"
#include "program/instruction_rules.h"
#include "program/regions.h"
#include "proof/checker.h"
#include "proof/compiled_models.h"
#include "proof/model_flow.h"

namespace lockstep::proof {
namespace {

using testing::HasSubstr;
using Programs = std::vector<program::Program>;

std::string findings_of(const Programs& programs, const ModelFlow* flow) {
  std::string text;
  for (const CheckFinding& finding : check_programs(programs, {.flow = flow})) text += finding.message + "\n";
  return text;
}

std::vector<int> sorted(std::vector<int> list) {
  std::ranges::sort(list);
  return list;
}

/// Segments as their code lays them out have the ends that the graph alone says.
TEST(ModelFlow, IsWhatSegmentsTakeAndHandOn) {
  for (const ModelSpec& model : {sum_model(), gpt_model(), gpt_model(0.1f), lenet_model()})
    for (const std::string& layout : layouts_of_calls()) {
      const auto options = options_of(model, layout);
      const compile::CompiledRun run(options, facts_of(options));
      const ModelFlow flow = flow_of(run.graph(), run.partition());
      for (int s = 0; s < run.training_code().segment_count(); ++s) {
        const auto& face = run.training_code().segment(s);
        const SegmentFlow& of = nth(flow.segments, s);
        EXPECT_EQ(of, (SegmentFlow{sorted(face.reads), sorted(face.writes), sorted(face.output_gradients),
                                   sorted(face.input_gradients), sorted(face.weight_output_gradients)}))
            << layout << ", segment " << s;
      }
    }
}

/// All ranks leave out the gradient of one value: where it is computed, where it is sent, and where it is
/// used.
Programs without_gradient(Programs programs, int storage) {
  for (program::Program& program : programs) {
    std::set<int> buffers;
    const auto is_of_it = [&](const program::Operand& operand) {
      return operand.index == storage && (operand.role == program::Role::input_gradient ||
                                          operand.role == program::Role::output_gradient);
    };
    for (const program::Instruction& instruction : program.instructions)
      for (const program::Operand& operand : instruction.operands)
        if (is_of_it(operand)) buffers.insert(operand.range.buffer);
    for (program::Instruction& instruction : program.instructions)
      std::erase_if(instruction.operands, [&](const program::Operand& operand) {
        return is_of_it(operand) ||
               (program::communicates(instruction.kind) && buffers.contains(operand.range.buffer));
      });
  }
  return programs;
}

/// With replicas whose optimizer is sharded, with servers, and where a stage has several pieces.
const std::vector<const char*> kLayoutsOfFlow = {"dp=1",
                                                 "dp=1,pp=3",
                                                 "dp=1,pp=2,schedule=zero_bubble",
                                                 "dp=2,pp=2",
                                                 "dp=2,pp=2,shard=optimizer",
                                                 "dp=2,pp=2,sync=ps,servers=2",
                                                 "dp=1,pp=2,schedule=interleaved",
                                                 "dp=1,pp=3,schedule=zero_bubble,recompute=full"};

TEST(FlowProof, MissesABranchThatAllRanksForget) {
  int missed_by_programs_alone = 0;
  for (const char* layout : kLayoutsOfFlow) {
    const auto options = options_of(gpt_model(), layout);
    const compile::CompiledRun run(options, facts_of(options));
    const ModelFlow flow = flow_of(run.graph(), run.partition());
    const Programs programs = steps_of(run);
    ASSERT_EQ(findings_of(programs, &flow), "") << layout;
    std::set<int> crossing;
    for (const SegmentFlow& segment : flow.segments)
      crossing.insert(segment.input_gradients.begin(), segment.input_gradients.end());
    for (const int storage : crossing) {
      const Programs changed = without_gradient(programs, storage);
      EXPECT_THAT(findings_of(changed, &flow), Mentions("model's graph ... operands"))
          << layout << ", " << nth(flow.names, storage);
      missed_by_programs_alone += findings_of(changed, nullptr).empty() ? 1 : 0;
    }
  }
  EXPECT_GT(missed_by_programs_alone, 0) << "programs alone say all of it";
}

/// On every rank two values are taken for each other.
class ExchangedOperands : public testing::TestWithParam<const char*> {};

TEST_P(ExchangedOperands, OfAllRanksAreFound) {
  const auto options = options_of(gpt_model(), GetParam());
  const compile::CompiledRun run(options, facts_of(options));
  const ModelFlow flow = flow_of(run.graph(), run.partition());
  const Programs programs = steps_of(run);
  int count = 0;
  for (const program::Role role : {program::Role::input, program::Role::output_gradient,
                                   program::Role::input_gradient, program::Role::output})
    for (int segment = 0; segment < static_cast<int>(flow.segments.size()); ++segment) {
      Programs changed = programs;
      bool has_two = false;
      for (program::Program& program : changed)
        for (program::Instruction& instruction : program.instructions) {
          if (!program::runs_segment(instruction.kind) || instruction.segment != segment) continue;
          std::vector<program::Operand*> found;
          for (program::Operand& operand : instruction.operands)
            if (operand.role == role && operand.dtype == DType::float32) found.push_back(&operand);
          if (found.size() < 2 || found[0]->range.size_bytes != found[1]->range.size_bytes) continue;
          std::swap(found[0]->index, found[1]->index);
          has_two = true;
        }
      if (!has_two) continue;
      ++count;
      EXPECT_THAT(findings_of(changed, &flow), Mentions("model's graph ... should read")) << segment;
    }
  EXPECT_GT(count, 5);
}

/// Of all ranks and micro-batches one takes two values for each other: what it writes, others read by its
/// place.
TEST_P(ExchangedOperands, OfOneInstructionAreFound) {
  const auto options = options_of(gpt_model(), GetParam());
  const compile::CompiledRun run(options, facts_of(options));
  const ModelFlow flow = flow_of(run.graph(), run.partition());
  const Programs programs = steps_of(run);
  int count = 0;
  for (size_t rank = 0; rank < programs.size(); ++rank)
    for (size_t i = 0; i < programs[rank].instructions.size(); ++i)
      for (const program::Role role : {program::Role::output, program::Role::input_gradient}) {
        Programs changed = programs;
        std::vector<program::Operand*> found;
        for (program::Operand& operand : changed[rank].instructions[i].operands)
          if (operand.role == role && program::writes(operand.access)) found.push_back(&operand);
        if (found.size() < 2 || found[0]->range.size_bytes != found[1]->range.size_bytes) continue;
        std::swap(found[0]->index, found[1]->index);
        ++count;
        EXPECT_NE(findings_of(changed, &flow), "") << rank << " " << i;
      }
  EXPECT_GT(count, 5);
}

INSTANTIATE_TEST_SUITE_P(All, ExchangedOperands,
                         testing::Values("dp=1,pp=2,schedule=zero_bubble", "dp=2,pp=2",
                                         "dp=2,pp=2,shard=optimizer", "dp=1,pp=2,sync=ps,servers=2",
                                         "dp=1,pp=2,schedule=interleaved"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == ',' || c == '=' || c == '_'; });
                           return name;
                         });

/// On every rank a parameter that two layers share has fewer uses than the graph says, or more.
TEST(FlowProof, KnowsHowOftenAParameterIsUsed) {
  using Uses = std::vector<program::ParameterPlace::Use>;
  const std::vector<std::function<void(Uses&)>> changes{
      [](Uses& uses) { uses.pop_back(); }, [](Uses& uses) { uses.erase(uses.begin()); },
      [](Uses& uses) { uses.push_back(uses.front()); }, [](Uses& uses) { uses.back() = uses.front(); }};
  for (const char* layout : {"dp=1,pp=2", "dp=2,pp=2,shard=optimizer", "dp=1,pp=2,sync=ps"}) {
    const auto options = options_of(gpt_model(), layout);
    const compile::CompiledRun run(options, facts_of(options));
    const ModelFlow flow = flow_of(run.graph(), run.partition());
    for (size_t change = 0; change < changes.size(); ++change) {
      Programs programs = steps_of(run);
      for (program::Program& program : programs)
        for (program::ParameterPlace& place : program.parameters)
          if (place.uses.size() > 1) changes[change](place.uses);
      EXPECT_THAT(findings_of(programs, &flow), HasSubstr("'wte.weight'")) << layout << ", change " << change;
    }
  }
}

TEST(FlowProof, KnowsWhichSegmentsThereAre) {
  const auto options = options_of(sum_model(), "dp=1");
  const compile::CompiledRun run(options, facts_of(options));
  ModelFlow flow = flow_of(run.graph(), run.partition());
  ASSERT_GT(flow.segments.size(), 1u);
  flow.segments.pop_back();
  EXPECT_THAT(findings_of(steps_of(run), &flow), HasSubstr("model has"));
}

}  // namespace
}  // namespace lockstep::proof
