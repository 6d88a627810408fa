// Kernel calls of compiled programs, broken in the ways in which a layout of a segment may be wrong.

#include "proof/call_proof.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/text.h"
#include "mentions.h"
#include "program/instruction_rules.h"
#include "proof/call_accesses.h"
#include "proof/compiled_models.h"

namespace lockstep::proof {
namespace {

using testing::HasSubstr;
using Calls = std::vector<program::KernelCall>;

constexpr auto kProvenDevice = LOCKSTEP_CALLS_OF_GPU ? device::DeviceKind::cuda : device::DeviceKind::cpu;

std::vector<Tensor*> tensors_of(program::KernelCall& call) {
  std::vector<Tensor*> list;
  for (auto* tensors : {&call.inputs, &call.outputs, &call.parameters, &call.auxiliary,
                        &call.output_gradients, &call.input_gradients, &call.parameter_gradients})
    for (Tensor& tensor : *tensors) list.push_back(&tensor);
  return list;
}

struct Case {
  std::string name;
  compile::CompileOptions options;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const std::string& layout : layouts_of_calls()) {
    list.push_back({"sum", options_of(sum_model(), layout)});
    list.push_back({"gpt", options_of(gpt_model(), layout)});
    list.push_back({"gpt with dropout", options_of(gpt_model(0.1f), layout)});
    list.push_back({"lenet", options_of(lenet_model(), layout)});
    list.push_back({"gpt in bfloat16", options_of(gpt_model(), layout)});
    list.back().options.storage = DType::bfloat16;
    list.push_back({"gpt with a fused GELU", options_of(gpt_model(), layout)});
    list.back().options.fused_gelu = true;
  }
  for (Case& one : list) one.name += ", " + layout::to_string(one.options.parallel.layout);
  return list;
}

/// An instruction that runs a segment, and a proof that knows what those before it have left.
struct Bound {
  const std::string& name;
  const program::ModelCode& code;
  const CallProof& proof;
  const program::Program& program;
  int index;
  bool evaluates = false;

  Calls calls() const { return proof.calls_of(program, index); }
  /// What is wrong with other calls; later instructions know nothing of them.
  std::vector<std::string> faults_of(const Calls& changed) const {
    return CallProof(proof).check(program, index, changed);
  }
  CallAccesses accesses(const program::KernelCall& call) const {
    return accesses_of(GraphSymbols(code.graph()), code, call);
  }
  std::string text() const { return name + ", " + program::describe(program, index); }
};

/// Of a program, the instructions of some micro-batches, in its order.
void for_each_instruction(const std::string& name, const program::ModelCode& code, CallProof& proof,
                          const program::Program& program, int micro_batches, bool evaluates,
                          const std::function<void(const Bound&)>& visit) {
  for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
    const program::Instruction& instruction = program.instruction(i);
    if (!program::runs_segment(instruction.kind) || instruction.micro_batch >= micro_batches) continue;
    ASSERT_EQ(proof.check(program, i, proof.calls_of(program, i)), std::vector<std::string>{}) << name;
    visit({name, code, proof, program, i, evaluates});
  }
}

/// Of all cases' programs for a step, those of the first micro-batch; of some also those of the second, which
/// add to what the first has left, and the program of an evaluation.
void for_each_instruction(const std::function<void(const Bound&)>& visit) {
  for (const Case& one : cases()) {
    const compile::CompiledRun run(one.options, facts_of(one.options, kProvenDevice));
    CallProof proof(run.training_code());
    const bool has_more = one.name.starts_with("sum") || one.name.starts_with("lenet");
    for (const program::Program& program : steps_of(run))
      for_each_instruction(one.name, run.training_code(), proof, program, has_more ? 2 : 1, false, visit);
    if (!has_more) continue;
    CallProof evaluation(run.evaluation_code());
    for (int rank = 0; rank < run.ownership().ranks(); ++rank)
      for_each_instruction("evaluation of " + one.name, run.evaluation_code(), evaluation,
                           run.compile(rank).evaluate, 2, true, visit);
  }
}

TEST(CallProof, AcceptsWhatIsCompiled) {
  for (const Case& one : cases())
    EXPECT_NO_THROW(compile::CompiledRun(one.options, facts_of(one.options, kProvenDevice)).check())
        << one.name;
}

/// Whether an instruction behind finds what calls have left in a stash to be wrong.
bool is_found_later(const Bound& bound, const Calls& changed) {
  CallProof proof = bound.proof;
  proof.check(bound.program, bound.index, changed);
  for (int i = bound.index + 1; i < static_cast<int>(bound.program.instructions.size()); ++i) {
    const program::Instruction& later = bound.program.instruction(i);
    const program::Instruction& own = bound.program.instruction(bound.index);
    if (program::runs_segment(later.kind) && later.segment == own.segment &&
        later.micro_batch == own.micro_batch &&
        !proof.check(bound.program, i, proof.calls_of(bound.program, i)).empty())
      return true;
  }
  return false;
}

TEST(CallProof, MissesEveryCallThatIsLeftOut) {
  int count = 0;
  for_each_instruction([&](const Bound& bound) {
    const Calls calls = bound.calls();
    for (size_t c = 0; c < calls.size(); ++c, ++count) {
      Calls fewer = calls;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(c));
      EXPECT_TRUE(!bound.faults_of(fewer).empty() || is_found_later(bound, fewer))
          << bound.text() << ", call " << c;
    }
  });
  EXPECT_GT(count, 500);
}

/// Whether a forward's stash is nobody's behind it: with recomputation another one is made.
bool is_made_again(const Bound& bound, int stash) {
  const program::Instruction& own = bound.program.instruction(bound.index);
  if (own.kind != program::InstructionKind::forward) return false;
  return std::ranges::any_of(bound.program.instructions, [&](const program::Instruction& other) {
    return other.kind == program::InstructionKind::recompute && other.segment == own.segment &&
           std::ranges::any_of(other.operands, [&](const program::Operand& operand) {
             return operand.role == program::Role::stash && operand.index == stash &&
                    operand.access == program::Access::write;
           });
  });
}

bool is_thrown_away(const Bound& bound, const void* data) {
  const auto operands = bound.proof.operands_of(bound.program, bound.index);
  const program::Operand* stash = operands.find(program::Role::stash, 0);
  if (stash == nullptr || !is_made_again(bound, 0)) return false;
  const std::byte* begin = operands.at(*stash);
  return data >= begin && data < begin + stash->range.size_bytes;
}

/// What an op computes for its backward, in an evaluation.
bool is_for_no_backward(const Bound& bound, program::KernelCall& call, const Tensor* tensor) {
  const auto is_it = [tensor](const Tensor& other) { return &other == tensor; };
  return bound.evaluates && std::ranges::any_of(call.auxiliary, is_it);
}

TEST(CallProof, FindsEveryTensorThatIsExchangedWithAnother) {
  int count = 0;
  for_each_instruction([&](const Bound& bound) {
    Calls calls = bound.calls();
    for (size_t c = 0; c < calls.size(); ++c) {
      const CallAccesses accesses = bound.accesses(calls[c]);
      // The halves of an op share a call; what one of them does not touch may lie anywhere.
      const auto is_touched = [&](const Tensor& tensor) {
        const auto is_it = [&](const CallAccess& access) { return access.data == tensor.data; };
        return std::ranges::any_of(accesses.reads, is_it) || std::ranges::any_of(accesses.writes, is_it);
      };
      std::vector<Tensor*> tensors = tensors_of(calls[c]);
      std::erase_if(tensors, [&](const Tensor* tensor) { return !is_touched(*tensor); });
      for (size_t a = 0; a < tensors.size(); ++a)
        for (size_t b = 0; b < a; ++b) {
          if (tensors[a]->data == tensors[b]->data) continue;
          if (is_thrown_away(bound, tensors[a]->data) && is_thrown_away(bound, tensors[b]->data)) continue;
          if (is_for_no_backward(bound, calls[c], tensors[a]) &&
              is_for_no_backward(bound, calls[c], tensors[b]))
            continue;
          std::swap(tensors[a]->data, tensors[b]->data);
          EXPECT_TRUE(!bound.faults_of(calls).empty() || is_found_later(bound, calls))
              << bound.text() << ", call " << c << ", tensors " << a << " and " << b;
          std::swap(tensors[a]->data, tensors[b]->data);
          ++count;
        }
    }
  });
  EXPECT_GT(count, 3000);
}

/// From the first call that touches a value in memory of a segment's own to the last.
struct Life {
  void* data = nullptr;
  int64_t size_bytes = 0;
  size_t first = 0, last = 0;
  bool is_kept = false;  ///< in a stash, for a later instruction

  bool meets(const Life& other) const { return first <= other.last && other.first <= last; }
  bool overlaps(const Life& other) const {
    const auto *begin = static_cast<const std::byte*>(data),
               *theirs = static_cast<const std::byte*>(other.data);
    return begin < theirs + other.size_bytes && theirs < begin + size_bytes;
  }
};

/// In an operand's memory.
void add_lives(const Bound& bound, const Calls& calls, const std::byte* begin, int64_t size_bytes,
               bool is_kept, std::vector<Life>& lives) {
  const size_t before = lives.size();
  const std::byte* end = begin + size_bytes;
  for (size_t c = 0; c < calls.size(); ++c) {
    const CallAccesses accesses = bound.accesses(calls[c]);
    for (const CallAccess& write : accesses.writes)
      if (write.data >= begin && write.data < end)
        lives.push_back({const_cast<void*>(write.data), write.size_bytes, c, c, is_kept});
    for (const CallAccess& read : accesses.reads) {
      // Of several values that lie there one after the other, the last that began before.
      const auto life = std::find_if(lives.rbegin(), lives.rend() - static_cast<std::ptrdiff_t>(before),
                                     [&](const Life& one) { return one.data == read.data && one.first < c; });
      if (life != lives.rend() - static_cast<std::ptrdiff_t>(before)) life->last = c;
    }
  }
  for (size_t life = before; life < lives.size() && is_kept; ++life) lives[life].last = calls.size() - 1;
}

/// In temporary memory and in the stashes that the instruction writes.
std::vector<Life> lives_of(const Bound& bound, const Calls& calls) {
  const auto operands = bound.proof.operands_of(bound.program, bound.index);
  std::vector<Life> lives;
  for (const program::Operand& operand : bound.program.instruction(bound.index).operands) {
    const bool is_stash = operand.role == program::Role::stash && operand.access == program::Access::write;
    if (operand.role != program::Role::temporary && !is_stash) continue;
    add_lives(bound, calls, operands.at(operand), operand.range.size_bytes,
              is_stash && !is_made_again(bound, operand.index), lives);
  }
  return lives;
}

/// The calls with a value somewhere else.
Calls with_moved(Calls calls, const Life& moved, void* to) {
  for (size_t c = moved.first; c <= moved.last; ++c)
    for (Tensor* tensor : tensors_of(calls[c]))
      if (tensor->data == moved.data) tensor->data = to;
  return calls;
}

/// Where a value overlaps with another: at its begin, behind it, or in front of it.
std::vector<std::byte*> places_on(const Life& moved, const Life& other) {
  auto* begin = static_cast<std::byte*>(other.data);
  std::vector<std::byte*> places{begin};
  const int64_t behind = other.size_bytes / 8 * 4, before = moved.size_bytes / 8 * 4;
  if (behind > 0) places.push_back(begin + behind);
  if (before > 0) places.push_back(begin - before);
  return places;
}

TEST(CallProof, FindsEveryTwoLivesThatOverlap) {
  int count = 0, kept = 0, partly = 0;
  for_each_instruction([&](const Bound& bound) {
    const Calls calls = bound.calls();
    const std::vector<Life> lives = lives_of(bound, calls);
    for (const Life& moved : lives)
      for (const Life& other : lives) {
        if (moved.overlaps(other) || !moved.meets(other)) continue;
        for (std::byte* place : places_on(moved, other)) {
          const Calls changed = with_moved(calls, moved, place);
          EXPECT_TRUE(!bound.faults_of(changed).empty() || is_found_later(bound, changed))
              << bound.text() << ", " << moved.data << " onto " << other.data << " at "
              << static_cast<void*>(place);
          ++count;
          kept += moved.is_kept || other.is_kept ? 1 : 0;
          partly += place == other.data ? 0 : 1;
        }
      }
  });
  EXPECT_GT(count, 150);
  EXPECT_GT(kept, 50);
  EXPECT_GT(partly, 100);
}

/// A kernel's workspace lies in temporary memory, too.
TEST(CallProof, FindsEveryLifeThatAWorkspaceDestroys) {
  int count = 0;
  for_each_instruction([&](const Bound& bound) {
    const Calls calls = bound.calls();
    for (const Life& moved : lives_of(bound, calls))
      for (size_t c = moved.first + 1; c < moved.last; ++c) {
        const CallAccess workspace = bound.accesses(calls[c]).workspace;
        if (workspace.data == nullptr || workspace.size_bytes == 0) continue;
        const Calls changed = with_moved(calls, moved, const_cast<void*>(workspace.data));
        EXPECT_TRUE(!bound.faults_of(changed).empty() || is_found_later(bound, changed))
            << bound.text() << ", " << moved.data << " onto the workspace of call " << c;
        ++count;
      }
  });
  EXPECT_GT(count, 10);
}

/// What the first half of backward computes for another segment lies in the stash that it leaves for the
/// second half: nothing is sent.
TEST(CallProof, FindsAGradientThatIsKeptInsteadOfSent) {
  int count = 0;
  for_each_instruction([&](const Bound& bound) {
    const program::Instruction& instruction = bound.program.instruction(bound.index);
    const auto operands = bound.proof.operands_of(bound.program, bound.index);
    const program::Operand* stash = operands.find(program::Role::stash, program::kWeightStash);
    const program::Operand* sent = operands.find(program::Role::input_gradient);
    if (instruction.kind != program::InstructionKind::backward_input || stash == nullptr || sent == nullptr)
      return;
    Calls calls = bound.calls();
    for (program::KernelCall& call : calls)
      for (Tensor* tensor : tensors_of(call))
        if (tensor->data == operands.at(*sent)) tensor->data = operands.at(*stash);
    EXPECT_THAT(join(bound.faults_of(calls), "\n"),
                HasSubstr(fmt::format("as input_gradient {}, but nothing was written there", sent->index)))
        << bound.text();
    ++count;
  });
  EXPECT_GT(count, 10);
}

/// A fork adds the gradients of both of its ends.
TEST(CallProof, FindsABranchOfAForkThatIsForgotten) {
  int count = 0;
  for_each_instruction([&](const Bound& bound) {
    Calls calls = bound.calls();
    for (program::KernelCall& call : calls) {
      if (call.phase != ops::KernelPhase::backward_input || call.output_gradients.size() < 2) continue;
      void* branch = std::exchange(call.output_gradients[1].data, nullptr);
      EXPECT_THAT(join(bound.faults_of(calls), "\n"), HasSubstr("no memory")) << bound.text();
      call.output_gradients[1].data = call.output_gradients[0].data;
      EXPECT_FALSE(bound.faults_of(calls).empty()) << bound.text();
      call.output_gradients[1].data = branch;
      ++count;
    }
  });
  EXPECT_GT(count, 50);
}

TEST(CallProof, NamesCallValueAndPlace) {
  const auto options = options_of(sum_model(), "dp=1");
  const compile::CompiledRun run(options, facts_of(options, kProvenDevice));
  const program::Program program = steps_of(run)[0];
  CallProof proof(run.training_code());
  for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
    if (!program::runs_segment(program.instruction(i).kind)) continue;
    Calls calls = proof.calls_of(program, i);
    for (program::KernelCall& call : calls)
      if (run.graph().node(call.node).name == "c" && call.phase == ops::KernelPhase::backward_input) {
        call.output_gradients[0].data = nullptr;
        EXPECT_THAT(join(proof.check(program, i, calls), "\n"),
                    Mentions("'c' (the gradients of inputs) ... the gradient of 'c' ... no memory"));
        return;
      }
    EXPECT_EQ(proof.check(program, i, calls), std::vector<std::string>{});
  }
  FAIL() << "no call computes the gradient of what 'c' reads";
}

}  // namespace
}  // namespace lockstep::proof
