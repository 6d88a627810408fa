#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>

#include "proof/checker.h"
#include "train/worker/compile_options.h"
#include "train/worker/worker.h"

namespace lockstep::train {
namespace {

// The programs that compilers write are broken in one way, the one that no run would show reliably: a
// dependency is left out. Whether that matters is decided here by brute force, without anything of the
// checker's: two accesses to the same bytes, one of them writing, are left with no path of lanes and
// dependencies between them.

constexpr const char* kTrainer = R"(
format_version: 1
trainer { steps: 5 global_batch: 24 virtual_replicas: 6 micro_batch: 3 }
optimizer { learning_rate: 0.1 adamw {} }
parallel { bucket_bytes: 1024 }
)";
constexpr const char* kMlp = R"(
model { mlp { image: 6 image: 6 image: 1 hidden: 17 hidden: 13 classes: 5 dropout: 0.3 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 5 } }
)";
constexpr const char* kLenet = R"(
model { lenet { image: 16 image: 16 image: 1 classes: 4 batch_norm: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 4 } }
)";
constexpr const char* kGpt = R"(
model { gpt { vocabulary: 11 context: 6 layers: 1 heads: 2 width: 8 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 11 context: 6 } }
)";

struct Case {
  std::string name;
  const char* model;
  int workers;
  bool shared_memory;
  std::vector<std::string> overrides;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  const std::string fast = "parallel.reduction=FAST", reproducible = "parallel.reduction=REPRODUCIBLE";
  const auto add = [&](const std::string& name, const char* model, int workers, bool shared,
                       std::vector<std::string> overrides) {
    list.push_back({name + std::to_string(workers), model, workers, shared, std::move(overrides)});
  };
  add("mlp_alone", kMlp, 1, false, {reproducible});
  for (const int workers : {2, 3, 4}) {
    add("mlp_ring", kMlp, workers, false, {fast, "parallel.algorithm=RING"});
    add("mlp_shared", kMlp, workers, true, {fast});
    add("mlp_tree", kMlp, workers, false, {reproducible});
    add("mlp_ordered", kMlp, workers, true, {reproducible, "trainer.virtual_replicas=4"});
    add("mlp_as_it_lands", kMlp, workers, false, {reproducible, "trainer.nonfinite=IGNORE"});
  }
  add("lenet_tree", kLenet, 3, false, {reproducible});
  add("lenet_library", kLenet, 2, false, {fast, "parallel.algorithm=LIBRARY"});
  add("gpt_tree", kGpt, 4, false, {reproducible, "trainer.virtual_replicas=4"});
  add("gpt_ordered", kGpt, 3, true, {reproducible, "trainer.clip_norm=1"});
  add("gpt_ring", kGpt, 3, false, {fast, "trainer.nonfinite=IGNORE"});
  const std::string wire = "parallel.wire=BFLOAT16", feedback = "parallel.error_feedback=true";
  add("mlp_wire", kMlp, 3, false, {reproducible, wire});
  add("gpt_wire_ring", kGpt, 2, false, {fast, wire, "trainer.nonfinite=IGNORE"});
  add("mlp_feedback", kMlp, 3, false, {reproducible, wire, feedback});
  add("gpt_feedback_ring", kGpt, 2, false, {fast, wire, feedback});
  add("gpt_narrow", kGpt, 3, false, {reproducible, "precision.compute=FLOAT16"});
  add("mlp_narrow_as_it_lands", kMlp, 2, false,
      {reproducible, "precision.compute=BFLOAT16", "trainer.nonfinite=IGNORE"});
  return list;
}

using Programs = std::vector<program::Program>;

std::vector<Programs> compiled(const Case& one) {
  const compile::CompiledRun run =
      compile_run(config::parse_run_config(std::string(kTrainer) + one.model, "test", one.overrides),
                  {.world_size = one.workers, .shared_memory = one.shared_memory});
  std::vector<Programs> by_name(3);
  for (int rank = 0; rank < one.workers; ++rank) {
    auto programs = run.compile(rank);
    by_name[0].push_back(std::move(programs.step));
    by_name[1].push_back(std::move(programs.evaluate));
    by_name[2].push_back(std::move(programs.boundary));
  }
  return by_name;
}

/// Three iterations, one more than the checker walks through.
constexpr int kIterations = 3;
constexpr size_t kMostNodes = 2048;
using Nodes = std::bitset<kMostNodes>;

bool conflict(const program::Program& program, const program::Instruction& a, const program::Instruction& b) {
  for (const program::Operand& x : a.operands)
    for (const program::Operand& y : b.operands) {
      if (x.access == program::Access::read && y.access == program::Access::read) continue;
      const auto& of_x = program.buffers[static_cast<size_t>(x.range.buffer)];
      const auto& of_y = program.buffers[static_cast<size_t>(y.range.buffer)];
      const int64_t at_x = of_x.offset + x.range.offset, at_y = of_y.offset + y.range.offset;
      if (of_x.space == of_y.space && at_x < at_y + y.range.size_bytes && at_y < at_x + x.range.size_bytes)
        return true;
    }
  return false;
}

/// By instruction: those that touch what it touches.
std::vector<std::vector<size_t>> conflicts_of(const program::Program& program) {
  const auto& list = program.instructions;
  std::vector<std::vector<size_t>> found(list.size());
  for (size_t a = 0; a < list.size(); ++a)
    for (size_t b = 0; b < list.size(); ++b)
      if (conflict(program, list[a], list[b])) found[a].push_back(b);
  return found;
}

/// Whether all that conflicts is ordered, over the iterations written one behind the other.
bool orders_all(const program::Program& program, const std::vector<std::vector<size_t>>& conflicts) {
  const size_t count = program.instructions.size();
  std::vector<Nodes> before(count * kIterations);  // what a node is behind
  std::vector<int> last(program.lanes.size(), -1);
  for (size_t node = 0; node < before.size(); ++node) {
    const program::Instruction& i = program.instructions[node % count];
    const auto behind = [&](size_t earlier) { before[node] |= before[earlier].set(earlier); };
    int& previous = last[static_cast<size_t>(i.lane)];
    if (previous >= 0) behind(static_cast<size_t>(previous));
    previous = static_cast<int>(node);
    for (const program::Dependency& d : i.after)
      if (node / count >= static_cast<size_t>(d.distance))
        behind((node / count - static_cast<size_t>(d.distance)) * count + static_cast<size_t>(d.instruction));
    for (size_t iteration = 0; iteration <= node / count; ++iteration)
      for (const size_t other : conflicts[node % count]) {
        const size_t earlier = iteration * count + other;
        if (earlier < node && !before[node].test(earlier)) return false;
      }
  }
  return true;
}

bool is_data_finding_of(const std::vector<proof::CheckFinding>& findings, int rank) {
  return std::any_of(findings.begin(), findings.end(), [&](const proof::CheckFinding& finding) {
    return finding.property == proof::CheckFinding::Property::data && finding.rank == rank;
  });
}

struct Count {
  int matter = 0, do_not = 0;
};

/// Leaves out every dependency of some ranks, one at a time, and demands a finding exactly where one matters.
Count leave_out_each_dependency(const Programs& programs, const std::string& what) {
  Count count;
  EXPECT_TRUE(proof::check_programs(programs).empty()) << what;
  const size_t last = programs.size() - 1;
  for (const size_t rank : last == 0 ? std::vector<size_t>{0} : std::vector<size_t>{0, last}) {
    const auto conflicts = conflicts_of(programs[rank]);
    EXPECT_LE(programs[rank].instructions.size() * kIterations, kMostNodes);
    EXPECT_TRUE(orders_all(programs[rank], conflicts)) << what;
    Programs mutant = programs;
    for (size_t i = 0; i < programs[rank].instructions.size(); ++i)
      for (size_t d = 0; d < programs[rank].instructions[i].after.size(); ++d) {
        auto& after = mutant[rank].instructions[i].after;
        after.erase(after.begin() + static_cast<std::ptrdiff_t>(d));
        const bool matters = !orders_all(mutant[rank], conflicts);
        const auto findings = proof::check_programs(mutant);
        EXPECT_EQ(is_data_finding_of(findings, static_cast<int>(rank)), matters)
            << what << ", rank " << rank << ", " << program::describe(programs[rank], static_cast<int>(i))
            << " without its dependency " << d;
        ++(matters ? count.matter : count.do_not);
        after = programs[rank].instructions[i].after;
      }
  }
  return count;
}

/// Dependencies between all that conflicts on different lanes, whether others imply them or not.
void depend_on_everything(program::Program& program) {
  const auto conflicts = conflicts_of(program);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    auto& after = program.instructions[i].after;
    after.clear();
    for (const size_t other : conflicts[i]) {
      if (program.instructions[other].lane == program.instructions[i].lane) continue;
      after.push_back({static_cast<int>(other), other < i ? 0 : 1});
    }
  }
}

TEST(CompiledPrograms, EachDependencyThatMattersIsMissedAndNoOther) {
  Count total;
  for (const Case& one : cases())
    for (const Programs& programs : compiled(one)) {
      const Count count = leave_out_each_dependency(programs, one.name + " " + programs[0].name);
      total.matter += count.matter;
      total.do_not += count.do_not;
    }
  EXPECT_GE(total.matter, 700);
  EXPECT_EQ(total.do_not, 0) << "compilers write no dependency that others imply";
}

TEST(CompiledPrograms, OfDependenciesThatOthersImplyNoneIsMissed) {
  const auto all = cases();
  Count total;
  for (const char* name : {"mlp_alone1", "mlp_as_it_lands2", "lenet_library2", "gpt_ordered3"}) {
    const auto one = std::find_if(all.begin(), all.end(), [&](const Case& c) { return c.name == name; });
    ASSERT_NE(one, all.end()) << name;
    Programs step = compiled(*one)[0];
    for (program::Program& program : step) depend_on_everything(program);
    const Count count = leave_out_each_dependency(step, one->name + " with all dependencies");
    total.matter += count.matter;
    total.do_not += count.do_not;
  }
  EXPECT_GE(total.matter, 50);
  EXPECT_GE(total.do_not, 500);
}

}  // namespace
}  // namespace lockstep::train
