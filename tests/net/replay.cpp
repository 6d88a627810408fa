#include "net/replay.h"

#include <fmt/format.h>

#include <cstdlib>

#include "layout/layout.h"
#include "net/apart.h"

namespace lockstep::net {
namespace {

/// Why `lockstep verify` cannot show it, as far as the case itself says.
std::string_view hidden_from_verify(const Case& test_case, const Finding& finding) {
  if (finding.kind == Finding::Kind::oracle) return "it knows no oracle";
  if (test_case.training.fast) return "sums are FAST, and it makes them REPRODUCIBLE";
  if (test_case.on_gpu) return "it has no emulated GPU";
  if (test_case.ranks_per_host > 0) return "its processes are on one host";
  if (test_case.lanes_at_once) return "its lanes run one after the other";
  return "";
}

/// Its processes share memory, and its one process trains as the config says.
Case as_verify(Case test_case) {
  test_case.shared_memory = test_case.layout.world_size() > 1;
  return test_case;
}

}  // namespace

std::string replay_command(const Case& test_case, const std::string& file) {
  std::string text = fmt::format("{} --file {} --layout \"{}\"",
                                 test_case.on_gpu ? "net_campaign_emulated --gpu" : "net_campaign", file,
                                 layout::to_string(test_case.layout));
  if (test_case.shared_memory) text += " --shared-memory";
  if (test_case.lanes_at_once) text += " --lanes-at-once";
  if (test_case.ranks_per_host > 0) text += fmt::format(" --ranks-per-host {}", test_case.ranks_per_host);
  return text;
}

std::optional<Replay> parse_replay(std::span<const std::string> words) {
  Replay replay;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto value = [&] { return i + 1 < words.size() ? words[++i] : std::string(); };
    if (word == "--file") replay.file = value();
    if (word == "--layout") replay.layout = value();
    if (word == "--gpu") replay.facts.on_gpu = true;
    if (word == "--shared-memory") replay.facts.shared_memory = true;
    if (word == "--lanes-at-once") replay.facts.lanes_at_once = true;
    if (word == "--ranks-per-host")
      replay.facts.ranks_per_host = static_cast<int>(std::strtol(value().c_str(), nullptr, 10));
  }
  return replay.file.empty() ? std::nullopt : std::optional(replay);
}

std::string verify_command(const Case& test_case, const Finding& finding, const CheckOptions& options) {
  std::string hidden(hidden_from_verify(test_case, finding));
  if (hidden.empty()) {
    CheckOptions likewise = options;
    likewise.as_verify = true;
    const auto found = check_apart(as_verify(test_case), likewise);
    if (!found || found->kind != finding.kind)
      hidden = "one process of the same micro-batches, threads and limit of memory has the same numbers";
  }
  if (!hidden.empty()) return fmt::format("`lockstep verify` does not show it: {}", hidden);
  return fmt::format("lockstep verify case.textproto --layouts \"dp=1; {}\" --steps 3",
                     layout::to_string(test_case.layout));
}

}  // namespace lockstep::net
