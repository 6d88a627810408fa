#pragma once

#include <optional>
#include <span>
#include <string>

#include "net/case.h"
#include "net/check.h"

namespace lockstep::net {

/// A case as texts, from a file that a failure printed.
struct Replay {
  std::string file, layout;
  CaseFacts facts;
  bool operator==(const Replay&) const = default;
};

/// The command of net_campaign that checks a file of the case's config as the case is checked, whatever the
/// case is: "net_campaign --file case.textproto --layout dp=2 --ranks-per-host 2".
std::string replay_command(const Case& test_case, const std::string& file);

/// What the words behind the program's name ask for; nothing if no file is named.
std::optional<Replay> parse_replay(std::span<const std::string> words);

/// The command of `lockstep verify` that shows what was found, or a sentence that says why none does: it
/// compares REPRODUCIBLE sums of processes on one host with one process of the same config. Tries the case
/// again if that might show nothing.
std::string verify_command(const Case& test_case, const Finding& finding, const CheckOptions& options = {});

}  // namespace lockstep::net
