#include "cli/chaos/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/index.h"
#include "base/philox.h"
#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

constexpr std::array kKinds = {ChaosKind::kill,   ChaosKind::stop,  ChaosKind::hang,
                               ChaosKind::delay,  ChaosKind::nan,   ChaosKind::flip,
                               ChaosKind::enospc, ChaosKind::error, ChaosKind::preempt};

/// Independent uniform numbers, one after the other.
class Draw {
 public:
  Draw(uint64_t seed, uint32_t run) : seed_(seed), run_(run) {}
  double uniform() { return Philox::uniform(Philox::generate({{next_++, run_, 0, 0}}, seed_).word[0]); }
  /// One of `count` whole numbers, from 0.
  int64_t below(int64_t count) {
    return std::min(count - 1, static_cast<int64_t>(uniform() * static_cast<double>(count)));
  }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return nth(values, below(static_cast<int64_t>(values.size())));
  }

 private:
  uint64_t seed_;
  uint32_t run_;
  uint32_t next_ = 0;
};

train::FaultKind failpoint_kind(ChaosKind kind) {
  switch (kind) {
    case ChaosKind::kill:
      return train::FaultKind::kill;
    case ChaosKind::stop:
      return train::FaultKind::stop;
    case ChaosKind::hang:
      return train::FaultKind::hang;
    case ChaosKind::delay:
      return train::FaultKind::delay;
    case ChaosKind::nan:
      return train::FaultKind::nan;
    case ChaosKind::flip:
      return train::FaultKind::flip;
    case ChaosKind::enospc:
      return train::FaultKind::enospc;
    case ChaosKind::error:
      return train::FaultKind::error;
    case ChaosKind::preempt:
      break;
  }
  throw InternalError("preempt is no failpoint");
}

/// A share of one rank is a few files of four operations each, plus what commits and deletes.
constexpr int64_t kMostOperations = 12;

/// One fault in five strikes beside the steps, where evaluation and saving are: there is far more code than
/// time there.
constexpr double kBesideSteps = 0.2;

/// Draws where `failpoint` strikes, and in which step.
void draw_place(const ChaosSpace& space, Draw& draw, train::Failpoint& failpoint) {
  const bool fails_files = failpoint.kind == train::FaultKind::enospc;
  std::vector<train::FaultPlace> beside;
  if (!space.saved_steps.empty()) beside.push_back(train::FaultPlace::write);
  if (!fails_files && !space.saved_steps.empty()) beside.push_back(train::FaultPlace::save);
  if (!fails_files && !space.evaluated_steps.empty()) beside.push_back(train::FaultPlace::evaluate);
  const bool is_beside = draw.uniform() < kBesideSteps;
  if (fails_files || (is_beside && !beside.empty())) {
    if (beside.empty()) throw ConfigError("enospc needs checkpoints, but this run saves none");
    failpoint.place = draw.one_of(beside);
    failpoint.step = draw.one_of(failpoint.place == train::FaultPlace::evaluate ? space.evaluated_steps
                                                                                : space.saved_steps);
    if (failpoint.place == train::FaultPlace::write)
      failpoint.number = 1 + static_cast<int>(draw.below(kMostOperations));
    return;
  }
  failpoint.step = 1 + draw.below(space.steps);
  failpoint.place = train::FaultPlace::instruction;
  // Kinds of which there are few are met as often as others.
  const auto& of_kind = draw.one_of(nth(space.instructions, failpoint.rank));
  failpoint.instruction = of_kind.kind;
  failpoint.number = 1 + static_cast<int>(draw.below(of_kind.count));
}

/// A NaN in gradients alone, which a run that scales its loss takes for an overflow: it lowers the scale,
/// unless that is at its minimum, and goes on.
bool passes_for_overflow(const ChaosFault& fault, const config::RunConfig& config) {
  if (fault.kind != ChaosKind::nan || !config.precision.scales_loss()) return false;
  const train::Failpoint& failpoint = fault.failpoint.value();
  return failpoint.place != train::FaultPlace::instruction ||
         failpoint.instruction != program::InstructionKind::forward;
}

}  // namespace

std::string_view name_of(ChaosKind kind) {
  return kind == ChaosKind::preempt ? std::string_view("preempt") : train::name_of(failpoint_kind(kind));
}

std::vector<ChaosKind> parse_chaos_kinds(const std::string& list, const config::RunConfig& config,
                                         int workers) {
  const bool alone = workers < 2 || config.parallel.layout.has_sessions(),
             unwatched = config.trainer.nonfinite == config::NonFinitePolicy::ignore;
  std::vector<ChaosKind> kinds;
  std::vector<std::string> names;
  for (const auto kind : kKinds) names.emplace_back(name_of(kind));
  if (trim(list).empty()) {
    for (const auto kind : kKinds)
      if (!(kind == ChaosKind::nan && unwatched) && !(kind == ChaosKind::flip && alone))
        kinds.push_back(kind);
    return kinds;
  }
  for (const auto& name : split(list, ',')) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      throw ConfigError(fmt::format("--kinds: there is no kind '{}'{}; there are {}", name,
                                    did_you_mean(name, names), join(names, ", ")));
    kinds.push_back(nth(kKinds, found - names.begin()));
    if (std::count(kinds.begin(), kinds.end(), kinds.back()) > 1)
      throw ConfigError(fmt::format("--kinds: {} is named twice", name));
    if (kinds.back() == ChaosKind::flip && alone)
      throw ConfigError(
          "--kinds: flip needs at least two workers that wait for each other, since only these are compared; "
          "remove flip, or use more workers with another layout");
    if (kinds.back() == ChaosKind::nan && unwatched)
      throw ConfigError(
          "--kinds: with trainer.nonfinite: IGNORE no worker looks for a NaN; remove nan, or pass --set "
          "trainer.nonfinite=STOP");
  }
  return kinds;
}

std::string to_text(const ChaosFault& fault) {
  return fault.failpoint ? train::to_text(*fault.failpoint)
                         : fmt::format("preempt after step {}", fault.step);
}

ChaosFault draw_fault(const ChaosSpace& space, ChaosKind kind, uint64_t seed, uint32_t run) {
  Draw draw(seed, run);
  if (kind == ChaosKind::preempt) {
    // The last step leaves nothing to stop before.
    return {.kind = kind, .step = 1 + draw.below(std::max(int64_t{1}, space.steps - 1)), .failpoint = {}};
  }
  const bool needs_replica = kind == ChaosKind::nan || kind == ChaosKind::flip;
  const auto ranks = needs_replica ? space.workers : static_cast<int64_t>(space.instructions.size());
  train::Failpoint failpoint{.kind = failpoint_kind(kind), .rank = static_cast<int>(draw.below(ranks))};
  if (needs_replica) {
    failpoint.step = 1 + draw.below(space.steps);
    const bool forward = draw.uniform() < 0.5;
    failpoint.place = train::FaultPlace::instruction;
    // A bit that flips earlier may be gone before anything reads it, under what owners of shards send.
    failpoint.instruction = forward || kind == ChaosKind::flip ? program::InstructionKind::forward
                                                               : program::InstructionKind::backward;
  } else {
    draw_place(space, draw, failpoint);
  }
  if (kind == ChaosKind::delay) failpoint.delay_ms = 50 + draw.below(951);
  return {.kind = kind, .step = failpoint.step, .failpoint = failpoint};
}

std::vector<int> expected_codes(const ChaosFault& fault, const config::RunConfig& config, int64_t steps) {
  const auto code = [](ExitCode exit_code) { return static_cast<int>(exit_code); };
  // A checkpoint that is not written is one less; only the last one is worth the end of the run.
  const auto codes_of_failed_save = [&](ExitCode exit_code) -> std::vector<int> {
    if (config.checkpoint.on_failure != checkpoint::SaveFailurePolicy::go_on) return {code(exit_code)};
    return fault.step < steps ? std::vector<int>{0} : std::vector<int>{0, code(exit_code)};
  };
  switch (fault.kind) {
    case ChaosKind::kill:
      return {128 + 9, code(ExitCode::peer_lost)};
    case ChaosKind::stop:
    case ChaosKind::hang:
      return {code(ExitCode::hang)};
    case ChaosKind::delay:
      return {0};
    case ChaosKind::nan:
      if (config.trainer.nonfinite == config::NonFinitePolicy::skip) return {0};
      return passes_for_overflow(fault, config) ? std::vector<int>{0, code(ExitCode::internal)}
                                                : std::vector<int>{code(ExitCode::internal)};
    case ChaosKind::flip:
      return {code(ExitCode::internal)};
    case ChaosKind::error:
      return fault.failpoint && fault.failpoint->place == train::FaultPlace::write
                 ? codes_of_failed_save(ExitCode::internal)
                 : std::vector<int>{code(ExitCode::internal)};
    case ChaosKind::enospc:
      return codes_of_failed_save(ExitCode::disk);
    case ChaosKind::preempt:
      // 0: the request came after the last step.
      return {code(ExitCode::terminated), 0};
  }
  return {};
}

bool keeps_bits(const ChaosFault& fault, const config::RunConfig& config) {
  if (config.parallel.layout.has_sessions()) return false;  // numbers depend on who comes first
  return fault.kind != ChaosKind::nan ||
         (config.trainer.nonfinite != config::NonFinitePolicy::skip && !passes_for_overflow(fault, config));
}

}  // namespace lockstep::cli
