#include "plan/serving_slices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/index.h"
#include "plan/timeline_slices.h"

namespace lockstep::plan {
namespace {

using observe::SliceKind;
using observe::TimelineSlice;
using program::InstructionKind;

uint64_t message_number(const char* what, int worker, int server, int range, uint64_t iteration) {
  return hash_combine(hash64(fmt::format("{}/{}/{}/{}", what, worker, server, range)), iteration);
}

bool serves(const program::Instruction& instruction) { return instruction.kind == InstructionKind::serve; }

int64_t bytes_of_range(const program::Instruction& serve) {
  for (const program::Operand& operand : serve.operands)
    if (operand.role == program::Role::parameters) return operand.range.size_bytes;
  return 0;
}

}  // namespace

uint64_t push_number(int worker, int server, int range, uint64_t iteration) {
  return message_number("push", worker, server, range, iteration);
}

uint64_t pull_number(int worker, int server, int range, uint64_t iteration) {
  return message_number("pull", worker, server, range, iteration);
}

int64_t iterations_per_step(const compile::CompiledRun& run) {
  if (!run.layout().has_sessions()) return 1;
  const program::SessionTerms terms = run.session_terms();
  return terms.bound ? 1 : terms.pushes_per_step();
}

int pushes_per_iteration(const compile::CompiledRun& run) {
  if (!run.layout().has_sessions()) return 0;
  const program::SessionTerms terms = run.session_terms();
  return terms.bound ? terms.workers : 1;
}

ServingSlices::ServingSlices(const compile::CompiledRun& run, const program::Program& serve, int first_row)
    : run_(run), serve_(serve), first_row_(first_row) {
  if (std::ranges::any_of(serve.instructions, serves)) workers_ = run.layout().workers();
}

std::vector<observe::TimelineRow> ServingSlices::rows() const {
  std::vector<observe::TimelineRow> rows;
  if (workers_ == 0) return rows;
  rows.push_back({first_row_, "updates (server)"});
  for (int worker = 0; worker < workers_; ++worker) {
    rows.push_back({first_row_ + 1 + 2 * worker, fmt::format("from rank {} (server)", worker)});
    rows.push_back({first_row_ + 2 + 2 * worker, fmt::format("to rank {} (server)", worker)});
  }
  return rows;
}

int ServingSlices::range_of(int instruction) const {
  return static_cast<int>(
      std::count_if(serve_.instructions.begin(), serve_.instructions.begin() + instruction, serves));
}

TimelineSlice ServingSlices::slice(int row, int instruction, uint64_t iteration, double begin,
                                   double end) const {
  const program::Instruction& serve = serve_.instruction(instruction);
  TimelineSlice slice{.row = row, .kind = SliceKind::communication, .name = {}, .begin = begin, .end = end};
  add_step(run_, iteration, slice);
  slice.arguments.emplace_back("bucket", int64_t{serve.segment});
  slice.arguments.emplace_back("layers", layers_of(run_, serve.segment));
  slice.arguments.emplace_back("bytes", bytes_of_range(serve));
  return slice;
}

TimelineSlice ServingSlices::of_landing(int instruction, int worker, uint64_t iteration, double begin,
                                        double end) const {
  TimelineSlice landing = slice(first_row_ + 1 + 2 * worker, instruction, iteration, begin, end);
  landing.name = fmt::format("push of bucket {}", serve_.instruction(instruction).segment);
  landing.receives.push_back(push_number(worker, serve_.rank, range_of(instruction), iteration));
  return landing;
}

TimelineSlice ServingSlices::of_update(int instruction, int worker, uint64_t iteration, double begin,
                                       double end) const {
  TimelineSlice update = slice(first_row_, instruction, iteration, begin, end);
  update.kind = SliceKind::compute;
  update.name = fmt::format("update bucket {}", serve_.instruction(instruction).segment);
  if (worker >= 0) update.arguments.emplace_back("pushed_by", int64_t{worker});
  return update;
}

TimelineSlice ServingSlices::of_answer(int instruction, int worker, uint64_t iteration, double begin,
                                       double end) const {
  TimelineSlice answer = slice(first_row_ + 2 + 2 * worker, instruction, iteration, begin, end);
  answer.name = fmt::format("answer with bucket {}", serve_.instruction(instruction).segment);
  answer.sends.push_back(pull_number(worker, serve_.rank, range_of(instruction), iteration));
  return answer;
}

}  // namespace lockstep::plan
