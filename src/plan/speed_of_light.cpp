#include "plan/speed_of_light.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/host_name.h"
#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "ops/op.h"

namespace lockstep::plan {
namespace {

using program::Instruction;
using program::InstructionKind;

/// Passes of a layer that an instruction runs.
struct Passes {
  bool forward = false, backward_input = false, backward_weight = false;
};

std::optional<Passes> passes_of(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::forward:
    case InstructionKind::recompute:
      return Passes{.forward = true};
    case InstructionKind::backward:
      return Passes{.backward_input = true, .backward_weight = true};
    case InstructionKind::backward_input:
      return Passes{.backward_input = true};
    case InstructionKind::backward_weight:
      return Passes{.backward_weight = true};
    default:
      return {};
  }
}

void add_pass(StepWork& work, double flops, double bytes, const MachineSpeed& speed) {
  work.flops += flops;
  const double rate = bytes <= kCachedBytes ? std::max(speed.bytes_per_second, speed.cached_bytes_per_second)
                                            : speed.bytes_per_second;
  work.least_seconds += std::max(flops / speed.flops_per_second, bytes / rate);
}

/// By node, of a micro-batch of so many samples.
std::vector<ops::OpCost> costs_of(const compile::CompiledRun& run, int64_t samples) {
  std::vector<ops::OpCost> costs;
  for (const auto& node : run.graph().nodes) {
    std::vector<TensorSpec> inputs;
    for (const int input : node.inputs) inputs.push_back(run.graph().logical_spec(input));
    costs.push_back(ops::cost(node.op, inputs, samples));
    if (node.frozen) costs.back().backward_weight_flops = costs.back().backward_weight_bytes = 0;
    // Nobody asks for the gradient of data, or of what nothing before it learns from.
    if (std::ranges::none_of(node.inputs, [&](int input) { return run.graph().value(input).needs_gradient; }))
      costs.back().backward_input_flops = costs.back().backward_input_bytes = 0;
  }
  return costs;
}

double operand_bytes(const Instruction& instruction) {
  double bytes = 0;
  for (const program::Operand& operand : instruction.operands)
    if (operand.role != program::Role::temporary)
      bytes += static_cast<double>(operand.range.size_bytes) *
               (operand.access == program::Access::read_write ? 2 : 1);
  return bytes;
}

/// "A40" is no word of "RTX A4000", nor "B200" of "GB200".
bool has_word(std::string_view text, std::string_view word) {
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_part(text[at - 1])) && (end == text.size() || !is_part(text[end]))) return true;
  }
  return false;
}

}  // namespace

StepWork work_of_step(const compile::CompiledRun& run, const program::Program& step,
                      const MachineSpeed& speed) {
  std::map<int, std::vector<ops::OpCost>> costs_by_size;
  for (const int leaves : run.division().sizes())
    costs_by_size[leaves] = costs_of(run, run.division().samples_at_once(leaves));
  StepWork work;
  for (const Instruction& instruction : step.instructions) {
    const bool is_step = !program::communicates(instruction.kind) && !instruction.anew;
    if (!is_step || instruction.kind == InstructionKind::load) continue;
    const auto passes = passes_of(instruction.kind);
    if (!passes) {
      add_pass(work, 0, operand_bytes(instruction), speed);
      continue;
    }
    const model::Segment& segment = run.partition().segment(instruction.segment);
    const std::vector<ops::OpCost>& costs = costs_by_size.at(instruction.leaves);
    for (int node = segment.first_node; node <= segment.last_node; ++node) {
      const ops::OpCost& cost = nth(costs, node);
      if (passes->forward) add_pass(work, cost.forward_flops, cost.forward_bytes, speed);
      if (passes->backward_input) add_pass(work, cost.backward_input_flops, cost.backward_input_bytes, speed);
      if (passes->backward_weight)
        add_pass(work, cost.backward_weight_flops, cost.backward_weight_bytes, speed);
    }
  }
  return work;
}

std::optional<MachineSpeed> speed_of_gpu(std::string_view name) {
  constexpr double kTera = 1e12;
  // The first whose words are all in the name.
  static const std::vector<std::pair<std::vector<std::string_view>, MachineSpeed>> kGpus = {
      {{"B200"}, {2250 * kTera, 8.0 * kTera}},         {{"H200"}, {989 * kTera, 4.8 * kTera}},
      {{"H100", "HBM3"}, {989 * kTera, 3.35 * kTera}}, {{"A100", "80GB"}, {312 * kTera, 2.0 * kTera}},
      {{"A100"}, {312 * kTera, 1.56 * kTera}},         {{"A40"}, {150 * kTera, 0.70 * kTera}},
      {{"V100"}, {125 * kTera, 0.90 * kTera}},         {{"P100"}, {21 * kTera, 0.73 * kTera}},
      {{"K80"}, {8.7 * kTera, 0.48 * kTera}},          {{"RTX 4090"}, {165 * kTera, 1.01 * kTera}},
      {{"RTX 3090"}, {71 * kTera, 0.94 * kTera}},
  };
  // Part of one, or another one of the same name.
  for (const std::string_view other : {"MIG", "Laptop"})
    if (name.find(other) != name.npos) return {};
  for (const auto& [words, speed] : kGpus)
    if (std::ranges::all_of(words, [&](std::string_view word) { return has_word(name, word); })) return speed;
  return {};
}

std::string kept_speed_path() {
  const auto variable = [](const char* variable_name) {
    const char* value = std::getenv(variable_name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string cache = variable("XDG_CACHE_HOME");
  if (const std::string home = variable("HOME"); cache.empty() && !home.empty()) cache = home + "/.cache";
  return cache.empty() ? "" : fmt::format("{}/lockstep/speed-{}.json", cache, host_name());
}

void keep_speed(const std::string& path, const MachineSpeed& measured) {
  const MachineSpeed kept = kept_speed(path).value_or(MachineSpeed{});
  const MachineSpeed speed{
      .flops_per_second = std::max(measured.flops_per_second, kept.flops_per_second),
      .bytes_per_second = std::max(measured.bytes_per_second, kept.bytes_per_second),
      .cached_bytes_per_second = std::max(measured.cached_bytes_per_second, kept.cached_bytes_per_second)};
  const std::filesystem::path file(path);
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  // Processes of several jobs may write it.
  const std::string next = fmt::format("{}.{}.next", path, ::getpid());
  std::ofstream stream(next, std::ios::trunc);
  stream << nlohmann::ordered_json{{"flops_per_second", speed.flops_per_second},
                                   {"bytes_per_second", speed.bytes_per_second},
                                   {"cached_bytes_per_second", speed.cached_bytes_per_second}}
                .dump()
         << "\n";
  stream.close();
  if (stream) std::filesystem::rename(next, file, error);
  if (!stream || error)
    throw IoError(fmt::format("cannot write {}; set XDG_CACHE_HOME to a folder that can be written", path));
}

std::optional<MachineSpeed> kept_speed(const std::string& path) {
  std::ifstream stream(path);
  const auto json = nlohmann::json::parse(stream, nullptr, false);
  if (!json.is_object()) return {};
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  const MachineSpeed speed{.flops_per_second = number("flops_per_second"),
                           .bytes_per_second = number("bytes_per_second"),
                           .cached_bytes_per_second = number("cached_bytes_per_second")};
  if (!(speed.flops_per_second > 0 && speed.bytes_per_second > 0)) return {};
  return speed;
}

}  // namespace lockstep::plan
