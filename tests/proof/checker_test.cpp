#include "proof/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/error.h"
#include "mentions.h"
#include "program/golden_programs.h"
#include "proof/mutations.h"

namespace lockstep::proof {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Property = CheckFinding::Property;

/// A golden with `from` replaced by `to` in the text of rank `rank`'s program.
std::vector<program::Program> edited_program(const std::string& golden, size_t rank, const std::string& from,
                                             const std::string& to) {
  auto programs = program::load_golden(golden);
  std::string text = program::to_text(programs[rank]);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  programs[rank] = program::program_from_text(text);
  return programs;
}

std::string findings_in(const std::vector<program::Program>& programs) {
  return program::text_of(check_programs(programs));
}

TEST(Checker, NamesTheTreeThatArrivesAndTheOneThatShould) {
  // Rank 0 adds its received half before its own leaves are added.
  auto programs = edited_program(
      "dp2_tree", 0, "24 add @compute updates destination:grad.0.slot0 reads source:grad.0.slot1",
      "24 add @compute updates destination:grad.0.slot1 reads source:grad.0.slot0");
  EXPECT_THAT(
      findings_in(programs),
      AllOf(Mentions("mathematics: rank 0, step instruction 29 (norm"),
            Mentions(
                "the gradient of 'embed.weight' should be "
                "((u0:l0+u0:l1)+(u0:l2+u0:l3))+((u1:l0+u1:l1)+(u1:l2+u1:l3)) ... (u0:l0+(u0:l2+u0:l3))+")));
}

TEST(Checker, NamesTheLeafThatIsMissingFromAFastSum) {
  auto programs = program::load_golden("dp2_fast");
  for (program::Program& program : programs)
    for (program::Instruction& i : program.instructions)
      if (i.kind == program::InstructionKind::backward && i.segment == 1 && i.micro_batch == 1) {
        i.accumulate = false;
        for (program::Operand& o : i.operands)
          if (o.role == program::Role::gradients) o.access = program::Access::write;
      }
  EXPECT_THAT(findings_in(programs),
              Mentions("mathematics: ... 'fc.weight' ... l0[m0], l1[m0] ... sum(l0[m1],l1[m1])"));
}

TEST(Checker, NamesBothRanksOfADeadlock) {
  auto programs = program::load_golden("pp2_1f1b");
  // Stage 1 sends its first gradient before it takes the second activation, stage 0 likewise the other way
  // round.
  for (size_t r = 0; r < 2; ++r) {
    program::Program& p = programs[r];
    for (size_t i = 0; i < p.instructions.size(); ++i) {
      program::Instruction& both = p.instructions[i];
      if (both.kind != program::InstructionKind::exchange || both.operands.size() != 2) continue;
      program::Instruction receive = both;
      std::erase_if(receive.operands,
                    [](const program::Operand& o) { return o.role == program::Role::send; });
      std::erase_if(both.operands,
                    [](const program::Operand& o) { return o.role == program::Role::receive; });
      receive.after.clear();
      p.instructions.insert(p.instructions.begin() + static_cast<std::ptrdiff_t>(i) + 1, receive);
      ++i;
    }
    for (program::Instruction& i : p.instructions) i.after.clear();
    program::derive_dependencies(p);
  }
  EXPECT_THAT(findings_in(programs),
              Mentions("deadlock: rank 0, step instruction 8 (exchange to rank 1, lane pipe) ... rank 1 ... "
                       "step instruction 5 (exchange to rank 0, lane pipe) ... iteration 0"));
}

TEST(Checker, FindsADeadlockBetweenLanes) {
  // Rank 0 reduces before it agrees, rank 1 agrees before it reduces: one communication at a time, neither
  // goes on.
  auto programs = program::load_golden("dp2_fast");
  auto& list = programs[0].instructions;
  ASSERT_EQ(list[12].kind, program::InstructionKind::agree);
  ASSERT_EQ(list[14].kind, program::InstructionKind::all_reduce);
  program::Instruction agree = list[12];
  list.erase(list.begin() + 12);
  list.insert(list.begin() + 14, agree);
  for (program::Instruction& i : list) i.after.clear();
  program::derive_dependencies(programs[0]);
  EXPECT_THAT(findings_in(programs),
              AllOf(Mentions("deadlock: ... (all_reduce, lane reduce, segment 2) ... rank 1"),
                    Mentions("(agree, lane agree) ... rank 0")));
}

TEST(Checker, NamesTheMessageWhoseSizeDiffers) {
  auto programs = edited_program("pp2_interleaved", 0, "send:act.0.mb1@1", "send:act.0.mb1[0+32]@1");
  EXPECT_THAT(findings_in(programs), Mentions("matching: rank 0 ... rank 1 ... 32 bytes of float32 "
                                              "(act.0.mb1[0+32]) ... 64 bytes of float32 (act.0.mb1)"));
}

TEST(Checker, NamesTheMicroBatchThatArrivesInAnothersPlace) {
  auto programs = edited_program("pp2_interleaved", 0, "send:act.0.mb1@1", "send:act.0.mb0@1");
  EXPECT_THAT(findings_in(programs), Mentions("its input act.0.mb1 should be of leaf 0, micro-batch 1 ... "
                                              "output 0 of segment 0 of leaf 0, micro-batch 0 within it"));
}

TEST(Checker, NamesTheReplicaThatIsNotUpdated) {
  auto programs = program::load_golden("dp2_fast");
  auto& list = programs[1].instructions;
  ASSERT_EQ(list.back().kind, program::InstructionKind::update);
  list.pop_back();
  for (program::Instruction& i : list) i.after.clear();
  program::derive_dependencies(programs[1]);
  EXPECT_THAT(findings_in(programs),
              AllOf(Mentions("rank 1, step instruction 2 (forward"),
                    Mentions("'embed.weight' after 1 updates ... a parameter after 0 updates")));
}

TEST(Checker, NamesTheSecondServerOfTheSameBytes) {
  const auto mutants = with_a_second_server(program::load_golden("ps_sync"));
  ASSERT_EQ(mutants.size(), 1);
  const auto found = check_programs(mutants[0].programs);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].rank, 3);
  EXPECT_EQ(found[0].property, CheckFinding::Property::mathematics);
  EXPECT_THAT(found[0].message, Mentions("0 to 31 of 'fc.weight' ... ranks 2, 3"));
}

TEST(Checker, NamesTheReplicaThatGetsWhatTheOthersUpdate) {
  // Ranks 0 and 1 update, and rank 2 gets what they have: equal bits, from two owners.
  auto programs = program::load_golden("dp3_ordered");
  for (program::Program& program : programs) {
    for (const int segment : {1, 0}) {
      if (program.rank == 1) continue;
      const bool sends = program.rank == 0;
      program::Instruction spread{
          .kind = program::InstructionKind::exchange, .lane = 3, .segment = segment, .group = 1};
      spread.operands.push_back({.role = sends ? program::Role::send : program::Role::receive,
                                 .access = sends ? program::Access::read : program::Access::write,
                                 .range = program.whole(program.parameter(segment).buffer),
                                 .peer = sends ? 2 : 0});
      spread.deadline = program::DeadlineClass::communication;
      program.instructions.push_back(spread);
    }
    if (program.rank == 2) {
      std::erase_if(program.instructions,
                    [](const program::Instruction& i) { return i.kind == program::InstructionKind::update; });
      for (program::ParameterPlace& place : program.parameters) {
        place.owned = {};
        place.states.clear();
      }
    }
    for (program::Instruction& i : program.instructions) i.after.clear();
    program::derive_dependencies(program);
  }
  EXPECT_THAT(findings_in(programs),
              Mentions("mathematics: rank 2: ... 0 to 31 of 'embed.weight' ... ranks 0, 1"));
}

TEST(Checker, NamesTheParameterThatNobodyUpdates) {
  auto programs = program::load_golden("dp2_fast");
  for (program::Program& program : programs) {
    program.instructions.pop_back();
    for (program::Instruction& i : program.instructions) i.after.clear();
    program::derive_dependencies(program);
  }
  EXPECT_THAT(findings_in(programs), Mentions("mathematics: ... updates not 'embed.weight' from byte 0"));
}

TEST(Checker, NamesAReadThatNothingOrders) {
  auto programs = program::load_golden("dp2_fast");
  programs[0].instructions[2].after.clear();
  EXPECT_THAT(findings_in(programs),
              Mentions("data: rank 0, step instruction 2 (forward, lane compute, segment 0, micro-batch 0, "
                       "leaf 0): it reads 64 bytes of x.0 ... step instruction 1 (load, lane copy, "
                       "micro-batch 0, leaf 0) ... at distance 0"));
}

TEST(Checker, NamesANormThatSkipsAParameter) {
  auto programs = program::load_golden("dp2_fast");
  for (program::Program& program : programs)
    for (program::Instruction& i : program.instructions)
      if (i.kind == program::InstructionKind::norm)
        std::erase_if(i.operands, [](const program::Operand& o) {
          return o.role == program::Role::gradients && o.index == 1;
        });
  EXPECT_THAT(findings_in(programs),
              Mentions("mathematics: ... every gradient once ... seen not 'fc.weight' from byte 0"));
}

TEST(Checker, NamesANormThatCountsATiedParameterTwice) {
  auto programs = edited_program("pp2_1f1b", 1, "norm @compute reads gradients.2:grad.2[0+64]",
                                 "norm @compute reads gradients.2:grad.2");
  EXPECT_THAT(findings_in(programs),
              Mentions("mathematics: ... every gradient once ... seen 'embed.weight' twice from byte 0"));
}

TEST(Checker, NamesASumOfSquaresInAnothersPlace) {
  auto programs = edited_program("dp2_sharded", 1, "gradients.1:grad.1[262144+262144]^262144 writes",
                                 "gradients.1:grad.1[262144+262144] writes");
  EXPECT_THAT(findings_in(programs),
              Mentions("byte 262144 of 'head.weight' ... byte 0 of segment 1 ... byte 262144 of segment 1"));
}

TEST(Checker, NamesASumOfSquaresOfWhatIsNotComplete) {
  auto programs = edited_program("dp2_sharded", 1, "gradients.1:grad.1[262144+262144]^262144 writes",
                                 "gradients.1:grad.1 writes");
  EXPECT_THAT(findings_in(programs),
              Mentions("gradients ... part of a sum ... a ring leaves in other ranks' blocks"));
}

TEST(Checker, NamesAnUpdateOfWhatTheRankDoesNotOwn) {
  EXPECT_THAT(findings_in(edited_program("dp2_sharded", 0, "state=state.1@262144 owns=0+65536",
                                         "state=state.1@262144 owns=0+65535")),
              Mentions("it updates elements 0 to 65535 of 'head.weight' ... owns elements 0 to 65534"));
  EXPECT_THAT(findings_in(edited_program("dp2_sharded", 1, "state=state.0@262144 owns=65536+65024",
                                         "state=state.0@262144 owns=65535+65025")),
              Mentions("rank 1: it updates 131072 elements in a step, but owns 131073"));
}

TEST(Checker, NamesStateThatBelongsToOtherElements) {
  EXPECT_THAT(
      findings_in(edited_program("dp2_sharded", 1, "state=state.1@0 state=state.1@262144",
                                 "state=state.1@262144 state=state.1@0")),
      Mentions("state 0 of element 65536 of 'head.weight' ... byte 0 of state.1 ... byte 262144 of state.1"));
}

TEST(Checker, RefusesALibrarysSumInReproducibleMode) {
  auto programs = program::load_golden("dp2_fast");
  for (program::Program& program : programs) program.reduction = layout::Reduction::reproducible;
  EXPECT_THAT(findings_in(programs), Mentions("should be l0+l1 ... sum(l0,l1)"));
}

TEST(Checker, RefusesMicroBatchesOutOfOrderInReproducibleMode) {
  auto programs = program::load_golden("pp2_zero_bubble");
  for (program::Program& program : programs) program.reduction = layout::Reduction::reproducible;
  EXPECT_EQ(findings_in(programs), "");
  // Stage 1 fills its bubble with the second micro-batch's weights first.
  auto& list = programs[1].instructions;
  std::vector<size_t> weights;
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i].kind == program::InstructionKind::backward_weight) weights.push_back(i);
  ASSERT_EQ(weights.size(), 2u);
  std::swap(list[weights[0]], list[weights[1]]);
  for (const size_t w : weights) {
    list[w].accumulate = w == weights[1];
    for (program::Operand& o : list[w].operands)
      if (o.role == program::Role::gradients)
        o.access = w == weights[1] ? program::Access::read_write : program::Access::write;
  }
  for (program::Instruction& i : list) i.after.clear();
  program::derive_dependencies(programs[1]);
  EXPECT_THAT(findings_in(programs), Mentions("should be l0 ... l0[m1,m0]"));
  for (program::Program& program : programs) program.reduction = layout::Reduction::fast;
  EXPECT_EQ(findings_in(programs), "");
}

TEST(Checker, NamesTheByteThatMeetsAnothersGradient) {
  auto programs = program::load_golden("dp2_sharded");
  for (program::Program& program : programs)
    for (program::Instruction& i : program.instructions)
      if (i.kind == program::InstructionKind::update && i.segment == 0)
        for (program::Operand& o : i.operands)
          if (o.role == program::Role::gradients)
            o.range.buffer += 1;  // the other segment's bucket, of the same size
  EXPECT_THAT(findings_in(programs), Mentions("byte 0 of 'fc.weight' ... byte 0 of 'head.weight'"));
}

TEST(Checker, NamesWhatARingLeavesInOtherRanksBlocks) {
  auto programs = program::load_golden("dp2_sharded");
  for (program::Instruction& i : programs[0].instructions)
    if (i.kind == program::InstructionKind::norm)
      for (program::Operand& o : i.operands)
        if (o.role == program::Role::gradients) o.range = programs[0].whole(o.range.buffer);
  EXPECT_THAT(findings_in(programs), Mentions("ring leaves ... other ranks' blocks"));
}

TEST(Checker, FindsAPullThatWaitsForItself) {
  // Both workers pull a segment between their two pushes of it and the other one, crosswise, with no
  // staleness allowed.
  auto programs = program::load_golden("ps_stale");
  for (program::Instruction& i : programs[2].instructions) {
    i.bound = 0;  // and one place for each push
    std::erase_if(i.operands, [](const program::Operand& operand) {
      return operand.role == program::Role::gradients && operand.index >= 2;
    });
  }
  EXPECT_EQ(findings_in(programs), "");
  const auto move_pulls = [](program::Program& p, int pull_segment, int push_segment) {
    auto& list = p.instructions;
    const auto is = [](program::InstructionKind kind, int segment) {
      return [=](const program::Instruction& i) { return i.kind == kind && i.segment == segment; };
    };
    const auto pull =
        std::find_if(list.begin(), list.end(), is(program::InstructionKind::pull, pull_segment));
    const program::Instruction moved = *pull;
    list.erase(pull);
    const auto push =
        std::find_if(list.begin(), list.end(), is(program::InstructionKind::push, push_segment));
    list.insert(push + 1, moved);
  };
  // Worker 0 pushes 1, then pulls it, then pushes 0; worker 1 does it with 0 and 1 the other way round.
  move_pulls(programs[0], 1, 1);
  auto& other = programs[1].instructions;
  std::vector<size_t> pushes;
  for (size_t i = 0; i < other.size(); ++i)
    if (other[i].kind == program::InstructionKind::push) pushes.push_back(i);
  const program::Instruction early = other[pushes[0]];
  other.erase(other.begin() + static_cast<std::ptrdiff_t>(pushes[0]));
  other.push_back(early);
  move_pulls(programs[1], 0, 0);
  for (size_t r = 0; r < 2; ++r) {
    for (program::Instruction& i : programs[r].instructions) i.after.clear();
    program::derive_dependencies(programs[r]);
  }
  EXPECT_THAT(findings_in(programs), AllOf(Mentions("deadlock: ... (pull, lane wire, segment 1) ... rank 1"),
                                           Mentions("(pull, lane wire, segment 0) ... rank 0")));
}

TEST(Checker, RefusesAPushWithoutAServe) {
  auto programs = program::load_golden("ps_async");
  programs[2].instructions.pop_back();
  for (program::Instruction& i : programs[2].instructions) i.after.clear();
  program::derive_dependencies(programs[2]);
  EXPECT_THAT(findings_in(programs),
              Mentions("matching: rank 0, step instruction 1 (pull, lane wire, segment "
                       "1) ... rank 2 ... segment 1, shard 0"));
}

TEST(Checker, RefusesOutboxesThatAreNotEachWorkersOwn) {
  const std::string last = "gradients.1:grad.1.w1@1 ",
                    right = last + "temporary:answer.w0@0 temporary.1:answer.w1@1";
  const auto found = [&](const std::string& outboxes) {
    const auto all = check_programs(edited_program("ps_async", 2, right, last + outboxes));
    EXPECT_FALSE(all.empty()) << outboxes;
    for (const CheckFinding& one : all) {
      EXPECT_EQ(one.rank, 2) << one.message;
      EXPECT_TRUE(one.property == Property::matching || one.property == Property::structure) << one.message;
    }
    return program::text_of(all);
  };
  // The other serve's, and so of the other worker.
  EXPECT_THAT(found("temporary:answer.w1@0 temporary.1:answer.w0@1"),
              Mentions("matching: ... temporary (answer.w0) ... answers to member 1"));
  EXPECT_THAT(found("temporary:answer.w0[0+512]@0 temporary.1:answer.w0[512+512]@1"),
              Mentions("matching: ... temporary (answer.w0[512+512]) ... answers to member 0"));
  EXPECT_THAT(found("temporary:grad.0.w0@0 temporary.1:answer.w1@1"),
              Mentions("matching: ... gradients (grad.0.w0) ... answers to member 0"));
  EXPECT_THAT(found("temporary:answer.w0@0"), Mentions("0 places for answers to member 1"));
  EXPECT_THAT(found("temporary:answer.w0[0+512]@0 temporary.1:answer.w0[512+512]@0 temporary.2:answer.w1@1"),
              Mentions("2 places for answers to member 0"));
  EXPECT_THAT(found("temporary:answer.w0 temporary.1:answer.w1@1"), Mentions("structure: ... peer -1"));
  EXPECT_THAT(found("temporary:answer.w0@0 temporary.1:answer.w1@2"), Mentions("structure: ... peer 2"));
}

/// The server's parameters lie in `param.*`, and it serves them from memory of the host.
std::vector<program::Program> served_apart() {
  auto programs = program::load_golden("ps_async");
  program::Program& server = programs[2];
  for (program::Instruction& serve : server.instructions) {
    program::Operand& parameters = serve.operands[0];
    const program::ByteRange replica = parameters.range;
    const int served = server.add_buffer("served." + server.buffer(replica.buffer).name, program::Space::host,
                                         program::Category::staging, replica.size_bytes);
    parameters.access = program::Access::write;
    parameters.range = server.whole(served);
    serve.operands.push_back({program::Role::destination, 0, program::Access::read_write, replica});
  }
  return programs;
}

TEST(Checker, KnowsWhereServedParametersLieBetweenSessions) {
  EXPECT_EQ(findings_in(served_apart()), "");
  auto programs = served_apart();
  programs[2].instructions[0].operands.back().range.size_bytes = 64;
  EXPECT_THAT(findings_in(programs), Mentions("32 elements ... destination has 16"));
}

TEST(Checker, RefusesAServeThatStartsFromWhatNobodyHasWritten) {
  auto programs = served_apart();
  programs[2].instructions[0].operands[0].access = program::Access::read_write;
  EXPECT_THAT(findings_in(programs), Mentions("parameters come from ... destination"));
  programs = program::load_golden("ps_async");
  programs[2].instructions[0].operands[0].access = program::Access::write;
  EXPECT_THAT(findings_in(programs), Mentions("reads its parameters ... lie"));
}

TEST(Checker, RefusesAServeOfOtherParametersThanArePulled) {
  auto programs = served_apart();
  // Both destinations are the larger parameter's.
  program::Operand& second = programs[2].instructions[1].operands.back();
  second.range.buffer = programs[2].instructions[0].operands.back().range.buffer;
  EXPECT_THAT(findings_in(programs), Mentions("byte 0 of 'fc.weight' on rank 2 ... byte 0 of 'head.weight'"));
}

TEST(Checker, RefusesWorkersThatPushTheSameLeaf) {
  auto programs = program::load_golden("ps_async");
  for (program::Instruction& i : programs[1].instructions)
    if (i.leaf >= 0) i.leaf = 0;
  EXPECT_THAT(findings_in(programs), Mentions("'fc.weight' ... l1[m0], l1[m1] ... l0[m0], l0[m1]"));
}

TEST(Checker, RefusesAStepWhoseLastPushSaysNothingOfIt) {
  const auto without_verdict = [](int last_push) {
    auto programs = program::load_golden("ps_async");
    int push = 0;
    for (program::Instruction& i : programs[1].instructions)
      if (i.kind == program::InstructionKind::push && ++push == last_push)
        std::erase_if(i.operands, [](const auto& o) { return o.role == program::Role::verdict; });
    return programs;
  };
  EXPECT_EQ(findings_in(without_verdict(1)), "");
  EXPECT_THAT(findings_in(without_verdict(2)), Mentions("last push to rank 2 ... verdict"));
}

TEST(Checker, RefusesAFlagThatHasNotSeenAllGradients) {
  auto programs = program::load_golden("dp2_fp16");
  for (program::Program& program : programs)
    for (program::Instruction& i : program.instructions)
      if (i.kind == program::InstructionKind::norm)
        std::erase_if(i.operands, [](const program::Operand& o) {
          return o.role == program::Role::gradients && o.index == 1;
        });
  EXPECT_THAT(findings_in(programs), Mentions("verdict ... 'head.weight' ... byte 0"));
}

TEST(Checker, StopsAtTheLimitOfFindings) {
  auto programs = program::load_golden("dp2_fast");
  for (program::Instruction& i : programs[0].instructions) i.after.clear();
  EXPECT_EQ(check_programs(programs, {.max_findings = 3}).size(), 3u);
}

TEST(Checker, ThrowsWithAllFindings) {
  EXPECT_NO_THROW(ensure_checked(program::load_golden("dp2_tree")));
  auto programs = program::load_golden("dp2_tree");
  programs[0].instructions[2].after.clear();
  try {
    ensure_checked(programs);
    FAIL() << "nothing was thrown";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), Mentions("data: rank 0, step instruction 2 (forward"));
  }
}

TEST(Checker, RefusesNoProgramsAndWrongRanks) {
  EXPECT_THAT(findings_in({}), HasSubstr("no programs"));
  auto programs = program::load_golden("dp2_tree");
  std::swap(programs[0], programs[1]);
  EXPECT_THAT(findings_in(programs), Mentions("rank 1 of 2 ... 0 of 2"));
}

}  // namespace
}  // namespace lockstep::proof
