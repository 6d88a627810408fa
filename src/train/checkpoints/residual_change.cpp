#include "train/checkpoints/residual_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "base/ensure.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

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

}  // namespace

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

std::string describe(const ResidualChange& change) {
  if (change.wanted.empty()) return "the checkpoint's residuals of error feedback are dropped";
  if (change.saved.empty()) return "the checkpoint has no residuals of error feedback: they begin at 0";
  if (change.saved_leaves != change.wanted_leaves)
    return fmt::format(
        "the checkpoint has residuals of error feedback of {} leaves, this run has {}: those of "
        "leaf n are added to leaf n modulo {}",
        change.saved_leaves, change.wanted_leaves, change.wanted_leaves);
  size_t kept = 0;
  for (const auto& [name, sources] : change.sources) kept += sources.size();
  const size_t anew = change.wanted.size() - change.sources.size(), dropped = change.saved.size() - kept;
  if (anew + dropped == 0) return "";
  return fmt::format(
      "residuals of error feedback: {} are not in the checkpoint and begin at 0, {} are dropped", anew,
      dropped);
}

void load_changed(Worker& worker, const checkpoint::Checkpoint& checkpoint, const ResidualChange& change,
                  const checkpoint::BeforeRead& before_read) {
  std::vector<float> one;
  for (const auto& tensor : residual_tensors(worker))
    worker.window().write(const_cast<void*>(tensor.data), tensor.size_bytes(), [&](void* to) {
      const std::span<float> sum(static_cast<float*>(to), static_cast<size_t>(tensor.count()));
      std::ranges::fill(sum, 0.0f);
      one.resize(sum.size());
      const auto found = change.sources.find(tensor.name);
      if (found == change.sources.end()) return;
      for (const auto& source : found->second) {
        checkpoint.load(
            checkpoint::FileKind::optimizer,
            std::vector<checkpoint::TensorDestination>{{source.name, source.dtype, source.shape, one.data()}},
            before_read);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
      }
    });
}

}  // namespace lockstep::train
