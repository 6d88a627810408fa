#pragma once

#include <cstdint>
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

/// What rules look at besides the report.
struct RunTraits {
  bool on_gpus = false;
  bool float32 = true;  ///< products are computed in float32
  int64_t micro_batch = 0;
  int prefetch_threads = 0, intra_op_threads = 1;
  bool saves_in_background = true;
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

/// By all rules, the most expensive first. A report without steps, or without an explanation, gives none.
std::vector<Advice> advise(const RunReport& report, const RunTraits& traits);

}  // namespace lockstep::observe
