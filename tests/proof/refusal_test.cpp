#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "mentions.h"
#include "program/golden_programs.h"
#include "proof/mutations.h"

namespace lockstep::proof {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string findings(const Programs& programs) { return program::text_of(check_programs(programs)); }

/// A golden with every `from` in the text of rank `rank`'s program replaced by `to`.
Programs edited(const std::string& golden, size_t rank, const std::string& from, const std::string& to) {
  auto programs = program::load_golden(golden);
  std::string text = program::to_text(programs[rank]);
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  for (; at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  programs[rank] = program::program_from_text(text);
  return programs;
}

void derive_anew(Programs& programs) {
  for (program::Program& program : programs) {
    for (program::Instruction& i : program.instructions) i.after.clear();
    program::derive_dependencies(program);
  }
}

void erase_role(program::Instruction& i, program::Role role) {
  std::erase_if(i.operands, [&](const program::Operand& o) { return o.role == role; });
}

/// Breaks a golden by changing every instruction that `change` picks, and returns what the checker finds.
std::string findings_after(const std::string& golden,
                           const std::function<void(program::Program&, program::Instruction&)>& change) {
  auto programs = program::load_golden(golden);
  for (program::Program& program : programs)
    for (program::Instruction& i : program.instructions) change(program, i);
  derive_anew(programs);
  return findings(programs);
}

TEST(Obedience, OfOneRankAloneIsRefused) {
  EXPECT_THAT(findings(edited("dp2_fp16", 1, " predicate:verdict[48+8]", "")),
              AllOf(Mentions("verdict.0 (bytes 0+32 of an agreement)"), Mentions("predicate.0 (bytes")));
}

TEST(Obedience, IsNotToAFlagOfNoNorm) {
  EXPECT_THAT(findings(edited("dp2_fp16", 0, " predicate:verdict[48+8]", " predicate:verdict[24+8]")),
              Mentions("its predicate ... every gradient"));
}

TEST(Obedience, MayBeToTheScaleOfANormAlone) {
  EXPECT_EQ(findings_after("dp2_tree",
                           [](program::Program&, program::Instruction& i) {
                             if (i.kind == program::InstructionKind::update)
                               erase_role(i, program::Role::predicate);
                           }),
            "");
}

TEST(Obedience, OfHalfTheUpdatesIsRefused) {
  for (const program::Role role : {program::Role::predicate, program::Role::verdict})
    EXPECT_THAT(findings_after("dp2_tree",
                               [&](program::Program&, program::Instruction& i) {
                                 if (i.kind == program::InstructionKind::update && i.segment == 0)
                                   erase_role(i, role);
                               }),
                Mentions("updates ... obey the same"));
}

TEST(Obedience, ToAnotherWordOfTheVerdictIsRefused) {
  EXPECT_THAT(findings(edited("dp2_tree", 1, "predicate:verdict[48+8]", "predicate:verdict[40+8]")),
              AllOf(Mentions("predicate.0 (bytes 8+8 of a norm's verdict)"),
                    Mentions("predicate.0 (bytes 16+8 of a norm's verdict)")));
}

TEST(Obedience, ToAVerdictThatCountedNothingIsRefused) {
  EXPECT_THAT(findings_after("dp2_fast",
                             [](program::Program&, program::Instruction& i) {
                               if (i.kind == program::InstructionKind::agree)
                                 erase_role(i, program::Role::metrics);
                             }),
              Mentions("verdict ... metrics of every leaf ... none"));
}

TEST(Updates, MayNotAllBeMissing) {
  for (const std::string& golden : program::golden_names()) {
    auto programs = program::load_golden(golden);
    size_t removed = 0;
    for (program::Program& program : programs)
      removed += std::erase_if(program.instructions, [](const program::Instruction& i) {
        return i.kind == program::InstructionKind::update;
      });
    if (removed == 0) continue;
    derive_anew(programs);
    EXPECT_THAT(findings(programs), HasSubstr("every parameter")) << golden;
  }
}

TEST(Updates, NeedTheConstants) {
  EXPECT_THAT(findings_after("dp1_tree",
                             [](program::Program&, program::Instruction& i) {
                               if (i.kind == program::InstructionKind::update)
                                 erase_role(i, program::Role::constants);
                             }),
              Mentions("structure: rank 0, step instruction 10 (update ... 0 operands constants ... 1"));
}

TEST(Updates, NameOneSegmentInAllTheirOperands) {
  EXPECT_THAT(findings(edited("dp2_tree", 0, "gradients.1:grad.1.slot0 verdict:verdict[0+32] verdict.1",
                              "gradients.0:grad.1.slot0 verdict:verdict[0+32] verdict.1")),
              Mentions("structure: rank 0 ... (update ... operand gradients has index 0; expected 1,"));
  EXPECT_THAT(findings(edited("dp1_tree", 0, "parameters:param.0", "parameters.3:param.0")),
              Mentions("structure: rank 0 ... (update ... operand parameters has index 3; expected 0,"));
}

TEST(Updates, HaveAsManyBytesOfEachSlotOfState) {
  EXPECT_THAT(findings(edited("dp1_tree", 0, "state.1:state.0[128+128]", "state.1:state.0[128+64]")),
              Mentions("state 1 has 64 bytes ... 128"));
  EXPECT_THAT(findings(edited("dp1_tree", 0, "state.1:state.0[128+128]", "state.2:state.0[128+128]")),
              Mentions("2 slots of state ... 0, 2 ... 0 to 1"));
  EXPECT_THAT(findings(edited("dp1_tree", 0, "state.1:state.0[128+128]", "state:state.0[128+128]")),
              Mentions("structure: rank 0 ... (update ... two operands state.0"));
}

TEST(Operands, OfOneRoleHaveDifferentIndices) {
  EXPECT_THAT(findings(edited("dp1_tree", 0, "input.1:labels.0", "input:labels.0")),
              Mentions("(forward, lane compute, segment 0, micro-batch 0, leaf 0) ... two operands input.0"));
  // To different peers one index may be used twice, to one peer not.
  EXPECT_EQ(findings(edited("ps_sync", 2, "receive.1:grad.0.w1@1", "receive:grad.0.w1@1")), "");
  auto programs = program::load_golden("pp2_1f1b");
  for (program::Instruction& i : programs[0].instructions)
    if (i.kind == program::InstructionKind::exchange && i.operands.size() == 1)
      i.operands.push_back(i.operands[0]);
  EXPECT_THAT(findings(programs), Mentions("two operands send.0@1"));
}

TEST(Metrics, StandInTheOrderOfLeaves) {
  const auto swap_slots = [](program::Program&, program::Instruction& i) {
    for (program::Operand& o : i.operands)
      if (i.kind == program::InstructionKind::forward && o.role == program::Role::metrics)
        o.range.offset = 32 - o.range.offset;
  };
  EXPECT_THAT(findings_after("dp2_tree", swap_slots),
              Mentions("mathematics: rank 0, step instruction 12 (agree ... metrics of leaf 0 ... leaf 1"));
  EXPECT_THAT(findings_after("dp1_tree", swap_slots),
              Mentions("mathematics: rank 0 ... metrics of leaf 0 ... leaf 1"));
  // Nobody promises an order in FAST: sums differ by rounding there anyway.
  EXPECT_EQ(findings_after("dp2_tree",
                           [&](program::Program& p, program::Instruction& i) {
                             p.reduction = layout::Reduction::fast;
                             swap_slots(p, i);
                           }),
            "");
}

TEST(Metrics, StandInTheOrderOfLeavesOverRanks) {
  auto programs = program::load_golden("dp2_tree");
  for (program::Program& program : programs)
    for (program::Group& group : program.groups)
      if (group.name == "world") group.members = {1, 0};
  EXPECT_THAT(findings(programs), Mentions("mathematics: ... metrics of leaf 0 ... leaf 3"));
}

TEST(Parameters, OfAnotherSegmentAreRefused) {
  EXPECT_THAT(findings(edited("dp2_tree", 0, "parameters:param.1 constants", "parameters:param.0 constants")),
              AllOf(Mentions("segment 1 ... param.0"), Mentions("segment 1 ... 'fc.weight' ... byte 0")));
}

TEST(Parameters, ThatAreMissingOrCutOffAreRefused) {
  using Kind = program::InstructionKind;
  for (const std::string& golden : program::golden_names())
    for (const Kind kind : {Kind::forward, Kind::backward, Kind::backward_input, Kind::recompute}) {
      int count = 0;
      const auto without = [&](program::Program&, program::Instruction& i) {
        if (i.kind != kind) return;
        ++count;
        erase_role(i, program::Role::parameters);
      };
      const auto half = [&](program::Program&, program::Instruction& i) {
        for (program::Operand& o : i.operands)
          if (i.kind == kind && o.role == program::Role::parameters) o.range.size_bytes /= 2;
      };
      const std::string missing = findings_after(golden, without), cut = findings_after(golden, half);
      if (count == 0) continue;
      EXPECT_THAT(missing, Mentions("operands ... from byte 0")) << golden;
      EXPECT_THAT(cut, Mentions("operands ... from byte ")) << golden;
    }
}

TEST(Activations, AreReadWhole) {
  for (const std::string& golden : program::golden_names())
    for (const program::Role role :
         {program::Role::input, program::Role::stash, program::Role::output_gradient}) {
      int count = 0;
      const auto shorter = [&](int64_t divisor) {
        return [&, divisor](program::Program&, program::Instruction& i) {
          if (program::communicates(i.kind)) return;
          for (program::Operand& o : i.operands)
            if (o.role == role && o.access == program::Access::read) {
              ++count;
              o.range.size_bytes = divisor == 0 ? 0 : o.range.size_bytes / divisor;
            }
        };
      };
      const std::string half = findings_after(golden, shorter(2)), none = findings_after(golden, shorter(0));
      if (count == 0) continue;
      EXPECT_THAT(half, HasSubstr("bytes; expected all")) << golden << ", " << program::name_of(role);
      EXPECT_THAT(none, HasSubstr(fmt::format("it reads nothing of its {}", program::name_of(role))))
          << golden;
    }
}

TEST(Gradients, ThatAllRanksLeaveOutAlikeAreMissed) {
  int goldens = 0;
  for (const std::string& golden : program::golden_names()) {
    int count = 0;
    const std::string found = findings_after(golden, [&](program::Program&, program::Instruction& i) {
      count +=
          static_cast<int>(std::count_if(i.operands.begin(), i.operands.end(), [](const program::Operand& o) {
            return o.role == program::Role::output_gradient;
          }));
      erase_role(i, program::Role::output_gradient);
    });
    if (count == 0) continue;
    ++goldens;
    EXPECT_THAT(found, AllOf(Mentions("no loss ... gradient of an output"),
                             Mentions("no backward ... gradient ... input")))
        << golden;
  }
  EXPECT_GE(goldens, 8);
}

/// x goes into segment 1 and past it into segment 2: its gradient is the sum of two.
constexpr const char* kFanOut = R"(
program step rank=0 world_size=1 reduction=fast leaves=1 micro_batches_per_leaf=1
lane compute compute
buffer param.0 space=parameters category=parameters size=64
buffer grad.0 space=gradients category=gradients size=64
buffer constants space=scalars category=staging size=64
buffer batch space=staging category=staging size=64
buffer metrics space=scalars category=staging size=32
buffer x space=arena category=activations size=64
buffer y space=arena category=activations size=64
buffer dx.1 space=arena category=activations size=64
buffer dx.2 space=arena category=activations size=64
buffer dy space=arena category=activations size=64
parameter w buffer=param.0 offset=0 size=64 owns=all uses 0+0
0 constants @compute writes constants:constants
1 load @compute micro_batch=0 leaf=0 writes batch:batch
2 forward @compute segment=0 micro_batch=0 leaf=0 reads input:batch parameters:param.0 writes output:x
3 forward @compute segment=1 micro_batch=0 leaf=0 reads input:x writes output:y
4 forward @compute segment=2 micro_batch=0 leaf=0 reads input:y input.1:x writes metrics:metrics
5 backward @compute segment=2 micro_batch=0 leaf=0 reads input:y input.1:x writes input_gradient:dy input_gradient.1:dx.2
6 backward @compute segment=1 micro_batch=0 leaf=0 reads input:x output_gradient:dy writes input_gradient:dx.1
7 add @compute updates destination:dx.1 reads source:dx.2
8 backward @compute segment=0 micro_batch=0 leaf=0 reads input:batch parameters:param.0 output_gradient:dx.1 writes gradients:grad.0
9 update @compute segment=0 reads gradients:grad.0 constants:constants updates parameters:param.0
)";

TEST(Gradients, OfEveryUseOfAnActivationGoOn) {
  const program::Program whole = program::program_from_text(kFanOut);
  EXPECT_EQ(findings({whole}), "");
  program::Program broken = whole;
  broken.instructions.erase(broken.instructions.begin() + 6);
  EXPECT_THAT(findings({broken}), Mentions("step instruction 5 (backward, lane compute, segment 2, "
                                           "micro-batch 0, leaf 0) ... gradient ... (dx.2)"));
}

TEST(Activations, AreReadInTheTypeInWhichTheyWereWritten) {
  EXPECT_THAT(findings(edited("dp2_fp16", 0, "reads input:act.0~float16", "reads input:act.0")),
              Mentions("output 0 of segment 0 of leaf 0, micro-batch 0 ... float16 ... float32"));
}

TEST(Activations, AreAsManyForEveryMicroBatch) {
  auto programs = program::load_golden("pp2_1f1b");
  program::Instruction& forward = programs[1].instructions[7];
  ASSERT_EQ(forward.kind, program::InstructionKind::forward);
  std::erase_if(forward.operands,
                [](const program::Operand& o) { return o.role == program::Role::input && o.index == 1; });
  EXPECT_THAT(findings(programs), Mentions("segment 2, micro-batch 1, leaf 0) ... 1 operands input ... 2"));
}

TEST(OrderedSums, AddAlongTheTreeOverTheGroupAndNoOther) {
  // The tree over the workers (1 0 2) is (w1+w0)+w2, which is the same sum; over (0 2 1) it is another.
  const auto with_members = [](const std::vector<int>& members) {
    auto programs = program::load_golden("dp3_ordered");
    for (program::Program& program : programs) program.groups[1].members = members;
    return findings(programs);
  };
  EXPECT_EQ(with_members({1, 0, 2}), "");
  EXPECT_THAT(
      with_members({0, 2, 1}),
      Mentions("the gradient of 'fc.weight' should be ((l0+l1)+(l2+l3))+l4 ... ((l0+l1)+l4)+(l2+l3)"));
}

TEST(OrderedSums, AreWhatReproducibleProgramsNeed) {
  const auto unordered = [](program::Program&, program::Instruction& i) { i.ordered = false; };
  EXPECT_THAT(findings_after("dp3_ordered", unordered),
              Mentions("the gradient of 'fc.weight' should be ((l0+l1)+(l2+l3))+l4 ... sum(l0+l1,l2+l3,l4)"));
  EXPECT_EQ(findings_after("dp3_ordered",
                           [&](program::Program& p, program::Instruction& i) {
                             p.reduction = layout::Reduction::fast;
                             unordered(p, i);
                           }),
            "");
}

TEST(Stages, HaveAsManyReplicasOnAllRanks) {
  for (const int replicas : {-1, 1, 2}) {
    auto staged = program::load_golden("dp2_tree");
    staged[1].replicas = replicas;
    EXPECT_THAT(findings(staged), Mentions(fmt::format("{} of 2 ranks ... 0 on rank 0", replicas)));
  }
  auto staged = program::load_golden("dp2_tree");
  for (program::Program& program : staged) program.replicas = 3;
  EXPECT_THAT(findings(staged), Mentions("3 of 2 ranks"));
}

TEST(Groups, AreListedAlikeOnAllRanks) {
  auto programs = program::load_golden("dp2_tree");
  std::swap(programs[1].groups[0], programs[1].groups[1]);
  for (program::Instruction& i : programs[1].instructions)
    if (i.group >= 0) i.group = 1 - i.group;
  EXPECT_EQ(findings(programs),
            "structure: rank 1: group 0 is 'reducers', but 'world' on rank 0; all ranks must list the same "
            "groups in the same order\n");
  programs = program::load_golden("dp2_tree");
  programs[1].groups.push_back({"alone", {1}});
  EXPECT_EQ(findings(programs),
            "structure: rank 1: it has 3 groups, but rank 0 has 2; every rank must list all groups\n");
  programs = program::load_golden("dp2_tree");
  programs[1].groups[0].members = {1, 0};
  EXPECT_EQ(findings(programs), "structure: rank 1: group 'world' has members 1 0 here and 0 1 on rank 0\n");
  programs = program::load_golden("dp3_ordered");
  programs[2].groups[1].transport = program::Transport::device;
  EXPECT_EQ(findings(programs),
            "structure: rank 2: the transport of group 'reducers' is 'device' here and 'shared_memory' on "
            "rank 0\n");
}

TEST(Numbers, ThatDoNotFitAreRefusedBeforeAnythingIsComputedFromThem) {
  const auto refused = [](const std::string& from, const std::string& to) {
    return findings(edited("dp1_tree", 0, from, to));
  };
  EXPECT_THAT(refused("metrics:metrics[32+32]", "metrics:metrics[9223372036854775807+32]"),
              Mentions("metrics ... 9223372036854775807+32 ... 'metrics' ... 64"));
  EXPECT_THAT(refused("metrics:metrics[32+32]", "metrics:metrics[32+9223372036854775807]"),
              Mentions("metrics ... 32+9223372036854775807 ... 'metrics' ... 64"));
  EXPECT_THAT(refused("metrics:metrics[32+32]", "metrics:metrics[-9223372036854775808+32]"),
              Mentions("-9223372036854775808+32 ... 'metrics' ... 64"));
  EXPECT_THAT(
      refused("gradients:grad.0.slot1 temporary", "gradients:grad.0.slot1^9223372036854775807 temporary"),
      Mentions("operand gradients ... position 9223372036854775807"));
  EXPECT_THAT(refused("category=gradients size=128", "category=gradients size=9223372036854775807"),
              Mentions("'grad.0.slot0' ... 9223372036854775807"));
  for (const auto& [from, to] : {std::pair("offset=96 size=32", "offset=9223372036854775807 size=32"),
                                 std::pair("uses 0+96", "uses 0+9223372036854775807")})
    EXPECT_THAT(refused(from, to), Mentions("structure: ... 'fc.bias' has an offset, size or place")) << to;
}

TEST(OptimizerState, ThatSomethingElseOverwritesIsRefused) {
  auto programs = program::load_golden("dp2_sharded");
  program::Program& program = programs[0];
  const auto update = std::find_if(program.instructions.begin(), program.instructions.end(),
                                   [](const auto& i) { return i.kind == program::InstructionKind::update; });
  program::Instruction cast{.kind = program::InstructionKind::cast, .lane = update->lane};
  for (const program::Operand& operand : update->operands) {
    if (operand.role == program::Role::gradients)
      cast.operands.push_back({program::Role::source, 0, program::Access::read, operand.range});
    if (operand.role == program::Role::state && operand.index == 0)
      cast.operands.push_back({program::Role::destination, 0, program::Access::write, operand.range});
  }
  program.instructions.insert(update, cast);
  derive_anew(programs);
  EXPECT_THAT(findings(programs), Mentions("expected optimizer state in state.1[0+262144]"));
}

TEST(OptimizerState, ThatIsSavedIsOptimizerState) {
  auto programs = program::load_golden("dp2_boundary");
  program::Instruction& snapshot = programs[1].instructions[0];
  ASSERT_EQ(snapshot.operands[1].role, program::Role::state);
  snapshot.operands[1].range = snapshot.operands[0].range;  // the parameters, twice
  derive_anew(programs);
  EXPECT_THAT(findings(programs), Mentions("expected optimizer state in param.0[96+32]"));
}

}  // namespace
}  // namespace lockstep::proof
