#include "program/random_programs.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::program {
namespace {

int below(std::mt19937& random, int limit) {
  return static_cast<int>(random() % static_cast<unsigned>(std::max(limit, 1)));
}

bool chance(std::mt19937& random, double probability) {
  return std::uniform_real_distribution<>()(random) < probability;
}

Operand random_operand(std::mt19937& random, const Program& program, int near, bool parts) {
  const int buffers = static_cast<int>(program.buffers.size());
  const int buffer =
      chance(random, 0.1) ? below(random, buffers) : std::min(buffers - 1, near + below(random, 3));
  ByteRange range = program.whole(buffer);
  if (parts) {
    range.offset = below(random, static_cast<int>(range.size_bytes));
    range.size_bytes = below(random, static_cast<int>(range.size_bytes - range.offset) + 1);
  }
  const Access access = static_cast<Access>(below(random, 3));
  return {access == Access::read ? Role::source : Role::destination, 0, access, range};
}

}  // namespace

Program random_program(std::mt19937& random, const RandomProgramOptions& options) {
  Program program;
  program.name = "step";
  const int lanes = 1 + below(random, options.most_lanes);
  for (int l = 0; l < lanes; ++l) program.add_lane(fmt::format("lane{}", l), LaneKind::compute);
  for (int b = 0; b < options.buffers; ++b) {
    const Space space = chance(random, 0.85) ? Space::arena : Space::gradients;
    const Category category = chance(random, 0.5) ? Category::activations : Category::workspace;
    const int64_t size_bytes = chance(random, 0.1) ? 0 : 256 * (1 + below(random, 6)) - below(random, 2);
    program.add_buffer(fmt::format("b{}", b), space, category, size_bytes);
  }
  for (int i = 0; i < options.instructions; ++i) {
    Instruction instruction;
    instruction.kind = InstructionKind::add;
    instruction.lane = below(random, lanes);
    const int near = i * options.buffers / options.instructions;
    for (int o = below(random, options.operands + 1); o > 0; --o)
      instruction.operands.push_back(random_operand(random, program, near, options.parts));
    if (i > 0 && chance(random, options.dependency))
      instruction.after.push_back(chance(random, 0.8) ? Dependency{below(random, i), 0}
                                                      : Dependency{below(random, options.instructions), 1});
    program.instructions.push_back(std::move(instruction));
  }
  return program;
}

std::vector<std::vector<bool>> plain_order(const Program& program, int iterations) {
  const int count = static_cast<int>(program.instructions.size()), nodes = count * iterations;
  std::vector<std::vector<bool>> before(static_cast<size_t>(nodes),
                                        std::vector<bool>(static_cast<size_t>(nodes)));
  for (int node = 0; node < nodes; ++node) {
    const Instruction& instruction = program.instructions[static_cast<size_t>(node % count)];
    std::vector<int> direct;
    for (int earlier = 0; earlier < node; ++earlier)
      if (program.instructions[static_cast<size_t>(earlier % count)].lane == instruction.lane)
        direct.push_back(earlier);
    for (const Dependency& dependency : instruction.after)
      if (node / count >= dependency.distance)
        direct.push_back((node / count - dependency.distance) * count + dependency.instruction);
    for (const int earlier : direct) {
      before[static_cast<size_t>(earlier)][static_cast<size_t>(node)] = true;
      for (int first = 0; first < nodes; ++first)
        if (before[static_cast<size_t>(first)][static_cast<size_t>(earlier)])
          before[static_cast<size_t>(first)][static_cast<size_t>(node)] = true;
    }
  }
  return before;
}

}  // namespace lockstep::program
