// Programs of models that store in two bytes: what is cast where, and that the checker misses none of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "mentions.h"
#include "proof/checker.h"
#include "train/worker/compile_options.h"
#include "train/worker/worker.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Blocks are alike, and so are buckets of theirs; the head is tied to the first segment.
constexpr const char* kConfig = R"(
format_version: 1
model { gpt { vocabulary: 11 context: 6 layers: 4 heads: 2 width: 8 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 11 context: 6 } }
trainer { steps: 6 global_batch: 8 virtual_replicas: 2 seed: 7 }
optimizer { learning_rate: 0.01 adamw {} }
precision { compute: FLOAT16 }
parallel { reduction: REPRODUCIBLE bucket_bytes: 2048 }
)";

using Programs = std::vector<program::Program>;

Programs step_programs(const std::vector<std::string>& overrides = {}) {
  const compile::CompiledRun run =
      compile_run(config::parse_run_config(kConfig, "test", overrides), {.world_size = 2});
  return {run.compile(0).step, run.compile(1).step};
}

std::vector<size_t> casts_of(const program::Program& program) {
  std::vector<size_t> found;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (program.instructions[i].kind == program::InstructionKind::cast) found.push_back(i);
  return found;
}

program::Operand& operand_of(program::Instruction& instruction, program::Role role) {
  return *std::find_if(instruction.operands.begin(), instruction.operands.end(),
                       [&](const program::Operand& o) { return o.role == role; });
}

std::string findings_of(const Programs& programs) {
  std::string text;
  for (const auto& finding : proof::check_programs(programs)) text += finding.message + "\n";
  return text;
}

TEST(NarrowPrograms, CastParametersOnceBeforeAnythingReadsThem) {
  const compile::CompiledRun run =
      compile_run(config::parse_run_config(kConfig, "test", {}), {.world_size = 2});
  const auto programs = run.compile(0);
  for (const program::Program* program : {&programs.step, &programs.evaluate}) {
    const auto casts = casts_of(*program);
    size_t with_narrow_parameters = 0;
    for (const auto& buffer : program->buffers)
      with_narrow_parameters += buffer.name.ends_with(".float16") ? 1 : 0;
    EXPECT_GE(casts.size(), 3u);
    EXPECT_EQ(casts.size(), with_narrow_parameters);
    for (size_t n = 0; n < casts.size(); ++n)
      EXPECT_EQ(casts[n], n + 1) << program->name << " begins with the constants and its casts";
  }
  EXPECT_TRUE(casts_of(programs.boundary).empty());
}

/// By segment: whether its copy is made anew alone, and updates write it. In every layout both or none.
std::map<int, bool> kept_copies_of(const program::Program& program) {
  std::map<int, bool> kept;
  for (const size_t cast : casts_of(program))
    kept[program.instructions[cast].segment] = program.instructions[cast].anew;
  for (const program::Instruction& instruction : program.instructions) {
    if (instruction.kind != program::InstructionKind::update) continue;
    const bool writes_copy =
        std::ranges::count(instruction.operands, program::Role::destination, &program::Operand::role) == 1;
    const auto cast = kept.find(instruction.segment);
    EXPECT_EQ(writes_copy, cast != kept.end() && cast->second) << "segment " << instruction.segment;
  }
  return kept;
}

TEST(NarrowPrograms, CopiesAreMadeByUpdatesOfAllThatARankHolds) {
  struct Case {
    const char* layout;
    int world_size;
    bool kept;
  };
  for (const auto& [layout, world_size, kept] :
       {Case{"dp=1", 1, true}, Case{"dp=2", 2, true}, Case{"dp=2,shard=optimizer", 2, false},
        Case{"dp=1,shard=optimizer", 1, true}, Case{"dp=2,sync=ps,servers=1,placement=colocated", 2, false},
        Case{"dp=1,sync=ps,servers=1,placement=dedicated", 2, false}}) {
    config::RunConfig config = config::parse_run_config(kConfig, "test", {});
    config.parallel.layout = layout::parse_layout(layout);
    const compile::CompiledRun run = compile_run(config, {.world_size = world_size});
    const int last = run.layout().workers() - 1;  // a worker that owns nothing if there is one server
    const auto copies = kept_copies_of(run.compile(last).step);
    EXPECT_GE(copies.size(), 3u) << layout;
    for (const auto& [segment, is_kept] : copies) EXPECT_EQ(is_kept, kept) << layout << ", " << segment;
    for (const auto& [segment, is_kept] : kept_copies_of(run.compile(last).evaluate))
      EXPECT_TRUE(is_kept) << layout << ", evaluation, " << segment;
    EXPECT_NO_THROW(run.check()) << layout;
  }
}

/// The head's copy of the first stage's weights comes from there in every step.
TEST(NarrowPrograms, AStageThatReceivesTiedWeightsCastsThemInEveryStep) {
  config::RunConfig config = config::parse_run_config(kConfig, "test", {});
  config.parallel.layout = layout::parse_layout("dp=1,pp=2");
  const compile::CompiledRun run = compile_run(config, {.world_size = 2});
  for (const auto& [segment, is_kept] : kept_copies_of(run.compile(0).step)) EXPECT_TRUE(is_kept) << segment;
  for (const auto& [segment, is_kept] : kept_copies_of(run.compile(1).step))
    EXPECT_EQ(is_kept, segment != 0) << segment;
  EXPECT_NO_THROW(run.check());
}

/// Nothing else would mend a bit of such a copy that flips.
TEST(NarrowPrograms, CopiesOfFrozenSegmentsAreMadeInEveryStep) {
  for (const char* frozen : {"model.frozen=[\"h.1.*\"]", "model.frozen=[\"h.1.mlp.c_fc\"]"}) {
    const compile::CompiledRun run =
        compile_run(config::parse_run_config(kConfig, "test", {frozen}), {.world_size = 2});
    const auto is_frozen = [&](int segment) { return !run.partition().bucket(segment).frozen.empty(); };
    int count = 0;
    for (const auto& [segment, is_kept] : kept_copies_of(run.compile(0).step)) {
      EXPECT_EQ(is_kept, !is_frozen(segment)) << frozen << ", " << segment;
      count += is_frozen(segment);
    }
    EXPECT_GE(count, 1) << frozen;
    EXPECT_NO_THROW(run.check()) << frozen;
  }
}

TEST(NarrowPrograms, OfFloat32HaveNoCasts) {
  EXPECT_TRUE(casts_of(step_programs({"precision.compute=FLOAT32"})[0]).empty());
  EXPECT_TRUE(casts_of(step_programs({"precision.compute=TF32"})[0]).empty());
}

TEST(NarrowPrograms, StoreActivationsNarrowAndGradientsOfParametersInFloat32) {
  for (const program::Program& program : step_programs())
    for (const auto& instruction : program.instructions)
      for (const auto& operand : instruction.operands) {
        const bool is_activation = operand.role == program::Role::output ||
                                   operand.role == program::Role::output_gradient ||
                                   operand.role == program::Role::input_gradient;
        if (is_activation) {
          EXPECT_EQ(operand.dtype, DType::float16);
        }
        if (operand.role == program::Role::gradients || operand.role == program::Role::state ||
            operand.role == program::Role::data) {
          EXPECT_EQ(operand.dtype, DType::float32);
        }
      }
}

TEST(NarrowPrograms, SegmentsReadBothKindsOfParameters) {
  const Programs programs = step_programs();
  // A block has layer norms, which are read as they are, and products.
  const auto& block = *std::find_if(programs[0].instructions.begin(), programs[0].instructions.end(),
                                    [](const program::Instruction& i) {
                                      return i.kind == program::InstructionKind::forward && i.segment == 1;
                                    });
  std::vector<DType> types;
  for (const auto& operand : block.operands)
    if (operand.role == program::Role::parameters && operand.index == 1) types.push_back(operand.dtype);
  EXPECT_EQ(types, (std::vector<DType>{DType::float32, DType::float16}));
}

TEST(NarrowPrograms, AreProven) { EXPECT_EQ(findings_of(step_programs()), ""); }

TEST(NarrowPrograms, WithoutACastAreRefused) {
  const Programs good = step_programs();
  for (const size_t cast : casts_of(good[0])) {
    Programs programs = good;
    // In place, so that dependencies keep their numbers: it reads what it should, and writes nothing.
    auto& instruction = programs[0].instructions[cast];
    operand_of(instruction, program::Role::destination).range.size_bytes = 0;
    operand_of(instruction, program::Role::source).range.size_bytes = 0;
    EXPECT_THAT(findings_of(programs), HasSubstr(".float16")) << cast;
  }
}

TEST(NarrowPrograms, ThatCastTooLateAreRefused) {
  Programs programs = step_programs();
  for (program::Program& program : programs) {
    auto& list = program.instructions;
    const auto update = std::find_if(list.begin(), list.end(), [](const program::Instruction& i) {
      return i.kind == program::InstructionKind::update;
    });
    // The last cast changes places with the first update: forward reads the parameters of a step before.
    std::swap(list[casts_of(program).back()], *update);
    for (auto& instruction : list) instruction.after.clear();
    program::derive_dependencies(program);
  }
  EXPECT_NE(findings_of(programs), "");
}

TEST(NarrowPrograms, ThatCastAnotherSegmentsParametersAreRefused) {
  Programs programs = step_programs();
  for (program::Program& program : programs) {
    program::Instruction *first = nullptr, *second = nullptr;
    for (const size_t cast : casts_of(program))
      for (const size_t other : casts_of(program)) {
        auto &a = program.instructions[cast], &b = program.instructions[other];
        if (cast < other && operand_of(a, program::Role::source).range.size_bytes ==
                                operand_of(b, program::Role::source).range.size_bytes)
          first = &a, second = &b;
      }
    ASSERT_NE(first, nullptr) << "two of the blocks have buckets of one size";
    std::swap(operand_of(*first, program::Role::source).range,
              operand_of(*second, program::Role::source).range);
  }
  EXPECT_THAT(findings_of(programs), HasSubstr("its parameters"));
}

TEST(NarrowPrograms, ThatCastToAnotherPlaceAreRefused) {
  Programs programs = step_programs();
  for (program::Program& program : programs) {
    auto& cast = program.instructions[2];
    // The second half of the block's copy is made of the first half of its parameters.
    auto &source = operand_of(cast, program::Role::source).range,
         &destination = operand_of(cast, program::Role::destination).range;
    source.size_bytes /= 2;
    destination.size_bytes /= 2;
    destination.offset = destination.size_bytes;
  }
  EXPECT_THAT(findings_of(programs), HasSubstr("its parameters"));
}

TEST(NarrowPrograms, ThatCastToAnotherTypeAreRefused) {
  Programs programs = step_programs();
  for (program::Program& program : programs)
    operand_of(program.instructions[1], program::Role::destination).dtype = DType::bfloat16;
  EXPECT_THAT(findings_of(programs), Mentions("bfloat16 ... as float16"));
}

}  // namespace
}  // namespace lockstep::train
