#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::observe {

struct RunReport;

/// What made a run slower than it could be, and what to do.
struct Advice {
  std::string rule;  ///< its name in the table
  std::string saw;   ///< what was measured, with the rank, host or GPU that it is about
  double cost = 0;   ///< share of a step that it takes, or, outside of steps, of the wall clock; 0: not known
  std::string act;   ///< what to do, as the option to type
  bool operator==(const Advice&) const = default;
};

/// A batch that fits into a device.
struct LargerBatch {
  int64_t micro_batch = 0, global_batch = 0;  ///< samples, as `trainer` states them
  int64_t bytes = 0;                          ///< of the plan
  int virtual_replicas = 0;  ///< to be stated as well, since the default follows from the batch; 0: not
};

/// A layout whose steps are predicted to be faster.
struct FasterLayout {
  std::string layout;  ///< as --layout takes it
  double share = 1;    ///< of the run's own step, what its step takes, both as predicted
};

/// What rules look at besides the report. Functions may be empty; they are called only if their rule applies.
struct RunTraits {
  bool on_gpus = false;
  bool float32 = true;  ///< products are computed in float32
  int64_t micro_batch = 0;
  int prefetch_threads = 0, intra_op_threads = 1;
  bool reading_adapts = false;  ///< data.threads: AUTOMATIC
  bool saves_in_background = true;
  int64_t saves = 0;  ///< checkpoints that the run has written, the one at its end included
  std::optional<FasterLayout> faster_layout = {};
  /// The command that predicts and measures other layouts; "": there is none.
  std::function<std::string()> compare_command = {};
  /// The largest batch, with this layout, whose plan takes at most so many bytes of a device; nothing if the
  /// run's own is the largest.
  std::function<std::optional<LargerBatch>(int64_t limit_bytes)> largest_batch = {};
};

/// A row of the table.
struct AdviceRule {
  std::string_view names;      ///< of the advice that it gives
  std::string_view threshold;  ///< for people
  std::string_view source;     ///< of the threshold
  /// Appends to `advice` what applies.
  void (*look)(const RunReport& report, const RunTraits& traits, std::vector<Advice>& advice);
};
std::span<const AdviceRule> advice_rules();

/// Whether the rule "communication" applies.
bool waits_for_communication(const RunReport& report);

/// By all rules, the most expensive first. A report without steps, or without an explanation, gives none. Of
/// a run that goes on, the report may lack what is not known: rules that need it are silent.
std::vector<Advice> advise(const RunReport& report, const RunTraits& traits);

}  // namespace lockstep::observe
