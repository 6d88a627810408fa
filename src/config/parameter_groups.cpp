#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/text.h"
#include "config/schema.h"
#include "model/graph.h"
#include "model/hidden_layers.h"

// Which parameters the groups of an optimizer mean, and which are matrices for muon.

namespace lockstep::config {
namespace {

using Names = std::vector<std::string>;

/// Of a trained parameter, one for each layer that uses it; the first is its own.
struct Candidate {
  Names names;
  const model::Parameter* parameter;
};

std::vector<Candidate> candidates_of(const model::Graph& graph) {
  std::vector<Candidate> candidates;
  for (const auto& parameter : graph.parameters) {
    if (parameter.spec.role != ops::ParameterRole::weight || parameter.frozen) continue;
    Candidate candidate{{}, &parameter};
    for (const auto& use : parameter.uses) {
      const auto& node = graph.node(use.node);
      candidate.names.push_back(node.name + "." + nth(node.signature.parameters, use.slot).name);
    }
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

class GroupFinder {
 public:
  GroupFinder(const schema::Optimizer& optimizer, const model::Graph& graph, const Document& document)
      : optimizer_(optimizer),
        graph_(graph),
        document_(document),
        candidates_(candidates_of(graph)),
        hidden_(model::hidden_matrices(graph)) {}

  optim::GroupRates find() {
    for (int g = 0; g < optimizer_.groups_size(); ++g)
      for (int i = 0; i < optimizer_.groups(g).parameters_size(); ++i) require_match(g, i);
    std::set<int> used;
    optim::GroupRates rates;
    for (const Candidate& candidate : candidates_) {
      const int group = group_of(candidate);
      if (group >= 0) used.insert(group);
      if (group >= 0 || optimizer_.has_muon())
        rates.emplace(candidate.parameter->name, rates_of(group, *candidate.parameter));
    }
    for (int g = 0; g < optimizer_.groups_size(); ++g)
      if (!used.contains(g))
        document_.refuse(path_of(g),
                         "is ignored: every parameter that it matches is in an earlier group; move it "
                         "before that one, or remove it");
    return rates;
  }

 private:
  static std::string path_of(int group) { return fmt::format("optimizer.groups[{}]", group); }

  void require_match(int group, int pattern) const {
    const std::string& text = optimizer_.groups(group).parameters(pattern);
    Names names;
    for (const Candidate& candidate : candidates_)
      names.insert(names.end(), candidate.names.begin(), candidate.names.end());
    if (std::ranges::any_of(names, [&](const auto& name) { return matches_pattern(text, name); })) return;
    const std::string path = fmt::format("{}.parameters[{}]", path_of(group), pattern);
    for (const auto& parameter : graph_.parameters)
      if (matches_pattern(text, parameter.name))
        document_.refuse(
            path, fmt::format("'{}' matches only what the optimizer does not train, such as '{}' ({})", text,
                              parameter.name, parameter.frozen ? "model.frozen" : "a running statistic"));
    document_.refuse(path, fmt::format("'{}' matches no parameter{}", text, suggestion(text, names)));
  }

  static std::string suggestion(const std::string& text, const Names& names) {
    constexpr size_t kMostNames = 8;
    if (const std::string near = did_you_mean(text, names); !near.empty()) return near;
    const Names first(names.begin(),
                      names.begin() + static_cast<int64_t>(std::min(names.size(), kMostNames)));
    return fmt::format("; the model has {}{}", join(first, ", "), names.size() > kMostNames ? ", ..." : "");
  }

  /// The first group with a pattern for the name; -1: none.
  int first_group_for(const std::string& name) const {
    for (int g = 0; g < optimizer_.groups_size(); ++g)
      if (std::ranges::any_of(optimizer_.groups(g).parameters(),
                              [&](const auto& pattern) { return matches_pattern(pattern, name); }))
        return g;
    return -1;
  }

  int group_of(const Candidate& candidate) const {
    int group = -1;
    const std::string* by = nullptr;
    for (const std::string& name : candidate.names) {
      const int found = first_group_for(name);
      if (found < 0 || found == group) continue;
      if (group >= 0)
        document_.refuse(
            path_of(found),
            fmt::format("'{}' is the same parameter as '{}', which is in groups[{}]; a shared parameter "
                        "is in one group",
                        name, *by, group));
      group = found;
      by = &name;
    }
    return group;
  }

  /// `group`: -1 for none.
  optim::ParameterRates rates_of(int group, const model::Parameter& parameter) const {
    const auto& of = group < 0 ? schema::ParameterGroup::default_instance() : optimizer_.groups(group);
    const MatrixSize matrix = matrix_for_muon(group, parameter);
    const bool beside_muon = optimizer_.has_muon() && !matrix.is_matrix();
    const auto& adamw = optimizer_.muon().adamw();
    const bool decays = optimizer_.decay_norm_and_bias() || !parameter.spec.is_norm_or_bias;
    const double weight_decay =
        beside_muon && adamw.has_weight_decay() ? adamw.weight_decay() : optimizer_.weight_decay();
    // One schedule has both rates, which differ by a factor.
    const double factor = beside_muon ? adamw.learning_rate() / optimizer_.learning_rate() : 1;
    return {.weight_decay = of.has_weight_decay() ? of.weight_decay()
                            : decays              ? weight_decay
                                                  : 0,
            .learning_rate_factor = of.learning_rate_factor() * factor,
            .clips = of.adaptive_clip(),
            .matrix = matrix};
  }

  /// As which muon updates a parameter.
  MatrixSize matrix_for_muon(int group, const model::Parameter& parameter) const {
    if (!optimizer_.has_muon()) return {};
    const std::optional<MatrixSize> matrix = model::matrix_of(parameter);
    const bool states = group >= 0 && optimizer_.groups(group).has_muon();
    if (states && optimizer_.groups(group).muon() && !matrix)
      document_.refuse(
          path_of(group) + ".muon",
          fmt::format("is true, but '{}' is no matrix: it {}; match only weights of one layer each",
                      parameter.name,
                      parameter.uses.size() > 1         ? "is shared by layers"
                      : parameter.spec.shape.rank() < 2 ? "has one dimension"
                                                        : "has other sides than a matrix here may have"));
    const bool updates =
        states ? optimizer_.groups(group).muon() : nth(hidden_, &parameter - graph_.parameters.data());
    return updates ? matrix.value_or(MatrixSize{}) : MatrixSize{};
  }

  const schema::Optimizer& optimizer_;
  const model::Graph& graph_;
  const Document& document_;
  std::vector<Candidate> candidates_;
  std::vector<bool> hidden_;  // by parameter
};

}  // namespace

optim::GroupRates resolve_groups(const schema::Optimizer& optimizer, const model::Graph& graph,
                                 const Document& document) {
  if (optimizer.groups_size() == 0 && !optimizer.has_muon()) return {};
  optim::GroupRates rates = GroupFinder(optimizer, graph, document).find();
  const auto is_matrix = [](const auto& one) { return one.second.matrix.is_matrix(); };
  if (optimizer.has_muon() && std::ranges::none_of(rates, is_matrix))
    document.refuse(
        "optimizer.muon",
        "has no matrix to update: no linear layer or convolution that learns has layers with weights "
        "before and behind it; use adamw, or muon: true in optimizer.groups");
  return rates;
}

void check_scaled(const optim::OptimizerOptions& optimizer, const optim::GroupRates& groups,
                  const model::Graph& graph, const Document& document) {
  if (!optim::measures_parameters(optimizer)) return;
  const bool clips = optimizer.adaptive_clip.limit > 0;
  bool may_scale = false;  // whatever decays and clips
  for (const auto& parameter : graph.parameters) {
    const bool is_norm_or_bias = parameter.spec.is_norm_or_bias;
    const auto rates = optim::rates_of(optimizer, groups, parameter.name, is_norm_or_bias);
    if (!parameter.has_state()) continue;
    if (optim::is_scaled(optimizer, rates, is_norm_or_bias)) return;
    may_scale = may_scale || clips || !is_norm_or_bias;
  }
  if (!may_scale) return;
  if (clips)
    document.refuse("optimizer.adaptive_clip",
                    "is ignored: optimizer.groups with adaptive_clip: false have all parameters; remove one "
                    "of them");
  document.refuse(
      "optimizer.lamb",
      "would be plain Adam: no parameter has a ratio, since those without weight decay have none; "
      "set optimizer.weight_decay, such as 0.01, or weight_decay of a group, or "
      "adapt_without_decay: true");
}

}  // namespace lockstep::config
