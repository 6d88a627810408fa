#include "train/checkpoints/state_change.h"

#include <algorithm>

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

}  // namespace lockstep::train
