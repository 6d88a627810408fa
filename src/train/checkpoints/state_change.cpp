#include "train/checkpoints/state_change.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/ensure.h"

namespace lockstep::train {
namespace {

/// Whether a field has another value in the checkpoint, or is there only or here only.
bool differs(const checkpoint::MathFields& saved, const checkpoint::MathFields& now, std::string_view name) {
  const auto value = [name](const checkpoint::MathFields& fields) {
    const auto found =
        std::ranges::find(fields, name, [](const auto& field) { return std::string_view(field.first); });
    return found == fields.end() ? std::string() : found->second;
  };
  return value(saved) != value(now);
}

checkpoint::ResidualName residual_of(const checkpoint::TensorRecord& record) {
  const auto name = checkpoint::residual_name_from(record.name);
  ensure(name.has_value(), "residuals have names of residuals");
  return *name;
}

/// Puts them in order. Returns the number of leaves.
int in_order(std::vector<checkpoint::TensorRecord>& residuals) {
  int leaves = 0;
  std::ranges::sort(residuals, {}, [](const auto& record) {
    const checkpoint::ResidualName name = residual_of(record);
    return std::tuple(name.parameter, name.leaf, name.use);
  });
  for (const auto& record : residuals) leaves = std::max(leaves, residual_of(record).leaf + 1);
  return leaves;
}

std::string parameter_of(const std::string& state) { return state.substr(0, state.rfind('.')); }

}  // namespace

StateChange state_change_of(const checkpoint::Checkpoint& checkpoint, const checkpoint::MathFields& fields,
                            std::span<const checkpoint::TensorRecord> records) {
  const auto& saved_fields = checkpoint.manifest().math_fields;
  const bool averages_differ = differs(saved_fields, fields, "optimizer.averaging"),
             frozen_differ = differs(saved_fields, fields, "model.frozen");
  StateChange change{.is_explained = averages_differ || frozen_differ, .missing = {}, .left_over = {}};
  if (!change.is_explained) return change;
  std::set<std::string> saved, saved_parameters, wanted_parameters;
  auto saved_records = checkpoint.tensors(checkpoint::FileKind::optimizer);
  std::erase_if(saved_records,
                [](const auto& record) { return checkpoint::residual_name_from(record.name).has_value(); });
  for (const auto& record : saved_records) {
    saved.insert(record.name);
    saved_parameters.insert(parameter_of(record.name));
  }
  for (const auto& record : records) {
    wanted_parameters.insert(parameter_of(record.name));
    if (saved.contains(record.name)) continue;
    const bool is_average = record.name.ends_with(checkpoint::kAverageSuffix);
    const bool was_frozen = frozen_differ && !saved_parameters.contains(parameter_of(record.name));
    change.is_explained = change.is_explained && (was_frozen || (is_average && averages_differ));
    change.begins_averages = change.begins_averages || is_average;
    if (!is_average && was_frozen) change.learning_anew.insert(parameter_of(record.name));
    change.missing.insert(record.name);
    saved.erase(record.name);
  }
  for (const auto& record : records) saved.erase(record.name);
  for (const auto& record : saved_records) {
    if (!saved.contains(record.name)) continue;
    change.left_over.push_back(record);
    change.is_explained =
        change.is_explained && ((averages_differ && record.name.ends_with(checkpoint::kAverageSuffix)) ||
                                (frozen_differ && !wanted_parameters.contains(parameter_of(record.name))));
  }
  return change;
}

ResidualChange residual_change_of(const checkpoint::Checkpoint& checkpoint,
                                  std::vector<checkpoint::TensorRecord> wanted) {
  ResidualChange change{.saved = checkpoint.tensors(checkpoint::FileKind::optimizer),
                        .wanted = std::move(wanted)};
  std::erase_if(change.saved,
                [](const auto& record) { return !checkpoint::residual_name_from(record.name).has_value(); });
  change.saved_leaves = in_order(change.saved);
  change.wanted_leaves = in_order(change.wanted);
  if (change.is_same()) return change;
  std::set<std::pair<std::string, int>> uses;
  std::map<std::string, const checkpoint::TensorRecord*> targets;
  for (const auto& record : change.wanted) {
    uses.emplace(residual_of(record).parameter, residual_of(record).use);
    targets.emplace(record.name, &record);
  }
  for (const auto& record : change.saved) {
    checkpoint::ResidualName to = residual_of(record);
    if (!uses.contains({to.parameter, to.use})) to.use = 0;
    to.leaf %= std::max(change.wanted_leaves, 1);
    const auto target = targets.find(checkpoint::to_text(to));
    if (target != targets.end() && target->second->shape == record.shape)
      change.sources[target->first].push_back(record);
  }
  return change;
}

}  // namespace lockstep::train
