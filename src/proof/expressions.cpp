#include "proof/expressions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/hash.h"
#include "base/text.h"

namespace lockstep::proof {
namespace {

constexpr size_t kLongestText = 200;
constexpr int kDeepestText = 200;  // terms within terms; what lies deeper is left out

std::string atom_text(const Expressions::Atom& atom, int uses, bool with_micro_batch) {
  std::string text = uses > 1 ? fmt::format("u{}:l{}", atom.use, atom.leaf) : fmt::format("l{}", atom.leaf);
  if (with_micro_batch) text += fmt::format("[m{}]", atom.micro_batch);
  return text;
}

}  // namespace

Expressions::Expressions(int leaves, int micro_batches_per_leaf, bool rounds)
    : leaves_(leaves), micro_batches_per_leaf_(micro_batches_per_leaf), rounds_(rounds) {
  intern({.kind = Kind::nothing});
  intern({.kind = Kind::other});
}

int Expressions::intern(Node node) {
  // Facts are compared by identity: they are few, and equal coverage means nothing.
  if (node.kind == Kind::facts) {
    nodes_.push_back(std::move(node));
    return static_cast<int>(nodes_.size()) - 1;
  }
  Key key{node.kind,        node.iteration, node.a,
          node.b,           node.atom,      node.signature,
          node.is_gradient, node.children,  node.kind == Kind::wrong ? node.text : std::string()};
  const auto [found, is_new] = known_.emplace(std::move(key), static_cast<int>(nodes_.size()));
  if (is_new) nodes_.push_back(std::move(node));
  return found->second;
}

int Expressions::parameter(int version) { return intern({.kind = Kind::parameter, .a = version}); }
int Expressions::state(int version) { return intern({.kind = Kind::state, .a = version}); }

int Expressions::residual(int version, int use, int leaf) {
  return intern({.kind = Kind::residual, .a = version, .atom = {0, use, leaf, 0}});
}

int Expressions::chain(int previous, const Atom& added) {
  return intern({.kind = Kind::chain, .iteration = added.iteration, .a = previous, .atom = added});
}

int Expressions::sum(int a, int b) {
  return intern({.kind = Kind::sum, .a = std::min(a, b), .b = std::max(a, b)});
}

int Expressions::reduction(std::vector<int> children) {
  if (children.size() == 1) return children.front();
  std::sort(children.begin(), children.end());
  return intern({.kind = Kind::reduction, .children = std::move(children)});
}

int Expressions::rounded(int expression) {
  if (node(expression).kind == Kind::rounded) return expression;
  return intern({.kind = Kind::rounded, .a = expression});
}

int Expressions::activation(uint64_t signature, bool is_gradient, int64_t extent, const Atom& atom,
                            const std::string& name) {
  return intern({.kind = Kind::activation,
                 .iteration = atom.iteration,
                 .atom = atom,
                 .signature = signature,
                 .is_gradient = is_gradient,
                 .extent = extent,
                 .text = name});
}

int Expressions::sum_of_activation_gradients(int a, int b) {
  const Node x = node(a), y = node(b);
  const auto [low, high] = std::minmax(x.signature, y.signature);
  const uint64_t signature = hash_combine(low, high);
  if (!terms_.contains(signature)) {
    std::set<uint64_t> terms = terms_of(x.signature);
    terms.merge(terms_of(y.signature));
    terms_.emplace(signature, std::move(terms));
  }
  return activation(signature, true, x.extent, x.atom, x.text + " plus " + y.text);
}

int Expressions::facts(int iteration, Facts facts) {
  return intern({.kind = Kind::facts, .iteration = iteration, .facts = std::move(facts)});
}

int Expressions::wrong(const std::string& text) { return intern({.kind = Kind::wrong, .text = text}); }

bool Expressions::is_gradient_sum(int expression) const {
  const Kind kind = node(expression).kind;
  return kind == Kind::chain || kind == Kind::sum || kind == Kind::reduction || kind == Kind::rounded;
}

bool Expressions::are_gradients_of_one_activation(int a, int b) const {
  const Node &x = node(a), &y = node(b);
  return x.kind == Kind::activation && y.kind == Kind::activation && x.is_gradient && y.is_gradient &&
         x.atom == y.atom && x.extent == y.extent;
}

std::set<uint64_t> Expressions::terms_of(uint64_t signature) const {
  const auto sum = terms_.find(signature);
  return sum == terms_.end() ? std::set{signature} : sum->second;
}

void Expressions::merge_facts(int expression, std::set<int>& seen, Facts& facts) const {
  const Node& node = this->node(expression);
  if (node.kind != Kind::facts || !seen.insert(expression).second) return;
  for (const auto list : {&Facts::norm, &Facts::parameters, &Facts::updates}) {
    const std::vector<Coverage>& more = node.facts.*list;
    (facts.*list).insert((facts.*list).end(), more.begin(), more.end());
  }
  facts.counted = facts.counted || node.facts.counted;
}

const std::vector<Expressions::Atom>& Expressions::atoms(int expression) {
  const auto found = atoms_.find(expression);
  if (found != atoms_.end()) return found->second;
  // Chains may be as long as a step has micro-batches: neither recursion nor a list for every part of one.
  std::vector<Atom> list;
  std::vector<int> open{expression};
  while (!open.empty()) {
    const Node& node = this->node(open.back());
    open.pop_back();
    if (node.kind == Kind::chain) {
      list.push_back(node.atom);
      open.push_back(node.a);
    } else if (node.kind == Kind::sum) {
      open.insert(open.end(), {node.a, node.b});
    } else if (node.kind == Kind::rounded) {
      open.push_back(node.a);
    } else {
      open.insert(open.end(), node.children.begin(), node.children.end());
    }
  }
  std::sort(list.begin(), list.end());
  return atoms_[expression] = std::move(list);
}

std::optional<Expressions::Atom> Expressions::leaf_of(int expression) {
  const std::vector<Atom>& list = atoms(expression);
  const auto each = static_cast<size_t>(micro_batches_per_leaf_);
  if (list.empty() || list.size() % each != 0) return std::nullopt;
  for (size_t i = 0; i < list.size(); ++i) {
    const Atom expected{list[0].iteration, list[i - i % each].use, list[0].leaf, static_cast<int>(i % each)};
    if (list[i] != expected || (i > 0 && list[i] == list[i - 1])) return std::nullopt;
  }
  return list.front();
}

bool Expressions::rounds_each_leaf(int expression) {
  const auto [known, is_new] = rounds_each_leaf_.try_emplace(expression, true);
  if (!is_new) return known->second;
  std::vector<int> open{expression};
  while (!open.empty() && known->second) {
    const Node node = this->node(open.back());
    open.pop_back();
    if (node.kind == Kind::sum)
      open.insert(open.end(), {node.a, node.b});
    else if (node.kind == Kind::reduction)
      open.insert(open.end(), node.children.begin(), node.children.end());
    else if (node.kind == Kind::rounded && !leaf_of(node.a))
      open.push_back(node.a);
    else
      known->second = node.kind == Kind::rounded;
  }
  return known->second;
}

bool Expressions::is_complete(int expression, int iteration, int uses) {
  const auto [known, is_new] = complete_.try_emplace({expression, iteration, uses}, false);
  if (is_new) known->second = atoms(expression) == complete_atoms(iteration, uses);
  return known->second;
}

int Expressions::complete_leaf(int iteration, int use, int leaf) {
  int expression = kNothing;
  for (int m = 0; m < micro_batches_per_leaf_; ++m) expression = chain(expression, {iteration, use, leaf, m});
  return expression;
}

int Expressions::tree(std::span<const int> parts, Nodes nodes) {
  if (parts.size() == 1) return parts.front();
  const size_t left = std::bit_floor(parts.size() - 1);
  const int node = sum(tree(parts.first(left), nodes), tree(parts.subspan(left), nodes));
  return nodes == Nodes::rounded ? rounded(node) : node;
}

int Expressions::tree_of_leaves(int iteration, int use) {
  std::vector<int> leaves;
  for (int leaf = 0; leaf < leaves_; ++leaf) {
    const int complete = complete_leaf(iteration, use, leaf);
    leaves.push_back(rounds_ ? rounded(complete) : complete);
  }
  return tree(leaves, rounds_ ? Nodes::rounded : Nodes::exact);
}

int Expressions::canonical(int iteration, int uses) {
  const auto found = canonical_.find({iteration, uses});
  if (found != canonical_.end()) return found->second;
  int expression = tree_of_leaves(iteration, 0);
  for (int use = 1; use < uses; ++use) expression = sum(expression, tree_of_leaves(iteration, use));
  return canonical_[{iteration, uses}] = expression;
}

std::vector<Expressions::Atom> Expressions::complete_atoms(int iteration, int uses) const {
  std::vector<Atom> list;
  for (int use = 0; use < uses; ++use)
    for (int leaf = 0; leaf < leaves_; ++leaf)
      for (int m = 0; m < micro_batches_per_leaf_; ++m) list.push_back({iteration, use, leaf, m});
  return list;
}

std::string Expressions::run_text(int last, int first, int iteration, int uses) const {
  const Node& end = node(last);
  std::vector<int> micro_batches;
  for (int at = last; at != first; at = node(at).a) micro_batches.push_back(node(at).atom.micro_batch);
  std::reverse(micro_batches.begin(), micro_batches.end());
  std::string term = atom_text(end.atom, uses, false);
  bool complete = static_cast<int>(micro_batches.size()) == micro_batches_per_leaf_;
  for (size_t m = 0; m < micro_batches.size(); ++m)
    complete = complete && micro_batches[m] == static_cast<int>(m);
  if (!complete) term += fmt::format("[m{}]", fmt::join(micro_batches, ",m"));
  if (end.iteration != iteration) term += " of an earlier step";
  return term;
}

std::string Expressions::chain_text(int expression, int iteration, int uses, int depth) {
  // A run of one leaf's micro-batches is one term, with them listed unless the leaf is complete.
  std::vector<int> runs;  // the last of each, from the end of the chain to its beginning
  int at = expression;
  while (node(at).kind == Kind::chain) {
    const int last = at;
    runs.push_back(last);
    while (node(at).kind == Kind::chain && node(at).atom.leaf == node(last).atom.leaf &&
           node(at).atom.use == node(last).atom.use && node(at).iteration == node(last).iteration)
      at = node(at).a;
  }
  const int start = at;
  std::string text = start == kNothing ? "" : nested_text(start, iteration, uses, depth + 1) + " then ";
  for (size_t r = runs.size(); r-- > 0 && text.size() <= kLongestText;) {
    const int first = r + 1 < runs.size() ? runs[r + 1] : start;
    text += run_text(runs[r], first, iteration, uses);
    if (r > 0) text += " then ";
  }
  return text;
}

std::string Expressions::text(int expression, int iteration, int uses) {
  return nested_text(expression, iteration, uses, 0);
}

std::string Expressions::nested_text(int expression, int iteration, int uses, int depth) {
  if (depth > kDeepestText) return "...";
  const Node& node = this->node(expression);
  std::string result;
  switch (node.kind) {
    case Kind::nothing:
      return "nothing";
    case Kind::other:
      return "something that is no gradient";
    case Kind::parameter:
      return node.a == kPulled ? "a pulled parameter" : fmt::format("a parameter after {} updates", node.a);
    case Kind::state:
      return "optimizer state";
    case Kind::residual:
      return fmt::format("the residual of {} after {} roundings", atom_text(node.atom, uses, false), node.a);
    case Kind::chain:
      result = chain_text(expression, iteration, uses, depth);
      break;
    case Kind::sum: {
      const bool swapped = atoms(node.b) < atoms(node.a);
      const auto child = [&](int c) {
        const std::string inner = nested_text(c, iteration, uses, depth + 1);
        return this->node(c).kind == Kind::sum ? fmt::format("({})", inner) : inner;
      };
      result = child(swapped ? node.b : node.a) + "+" + child(swapped ? node.a : node.b);
      break;
    }
    case Kind::reduction: {
      std::vector<std::string> parts;
      for (int c : node.children) parts.push_back(nested_text(c, iteration, uses, depth + 1));
      std::sort(parts.begin(), parts.end());
      result = "sum(" + join(parts, ",") + ")";
      break;
    }
    case Kind::rounded:
      result = fmt::format("round({})", nested_text(node.a, iteration, uses, depth + 1));
      break;
    case Kind::activation:
      return fmt::format("{} of leaf {}, micro-batch {} within it{}", node.text, node.atom.leaf,
                         node.atom.micro_batch, node.iteration == iteration ? "" : ", of an earlier step");
    case Kind::facts:
      return "a verdict";
    case Kind::wrong:
      return node.text;
  }
  if (result.size() > kLongestText) result = result.substr(0, kLongestText) + "...";
  return result;
}

std::string difference(const std::vector<Expressions::Atom>& found,
                       const std::vector<Expressions::Atom>& expected, int uses) {
  std::vector<Expressions::Atom> missing, extra;
  std::set_difference(expected.begin(), expected.end(), found.begin(), found.end(),
                      std::back_inserter(missing));
  std::set_difference(found.begin(), found.end(), expected.begin(), expected.end(),
                      std::back_inserter(extra));
  const auto list = [&](const std::vector<Expressions::Atom>& atoms) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < atoms.size() && i < 6; ++i) parts.push_back(atom_text(atoms[i], uses, true));
    if (atoms.size() > 6) parts.push_back(fmt::format("{} more", atoms.size() - 6));
    return join(parts, ", ");
  };
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back("missing " + list(missing));
  if (!extra.empty()) parts.push_back("too many " + list(extra));
  return join(parts, "; ");
}

}  // namespace lockstep::proof
