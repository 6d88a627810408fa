#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/index.h"

namespace lockstep::proof {

/// What the bytes of a buffer stand for if all programs are interpreted with symbols instead of numbers.
/// Equal expressions have equal numbers (hash consing), so comparing is cheap. Children have lower numbers
/// than parents.
///
/// Expressions of gradients do not contain the byte of the parameter to which they belong; that is kept
/// beside the expression. A gradient is a chain (a leaf's micro-batches in the order in which they were
/// accumulated), or a sum. Either may be rounded to the type that programs declare for their wire.
class Expressions {
 public:
  enum class Kind {
    nothing,     ///< never written
    other,       ///< contents that no proof is about: constants, padding
    parameter,   ///< after `version` updates; kPulled: as a server had it
    state,       ///< optimizer state, likewise
    residual,    ///< what roundings of one leaf's and use's gradient have lost, after `version` of them
    chain,       ///< previous chain or nothing, plus one micro-batch of one leaf
    sum,         ///< a + b, in that association; commutative
    reduction,   ///< a library's sum of several, in unknown order
    rounded,     ///< a gradient, rounded to the wire's type
    activation,  ///< a value or gradient that crosses segments
    facts,       ///< what a verdict, flag, list of partial norms or of scales was computed from
    wrong,       ///< not a meaningful combination; `text` says of what
  };
  static constexpr int kNothing = 0, kOther = 1;
  static constexpr int kPulled = -1;

  /// One micro-batch of one leaf, as a gradient of one use of a parameter (or as metrics).
  struct Atom {
    int iteration, use, leaf, micro_batch;  ///< micro_batch: within the leaf
    auto operator<=>(const Atom&) const = default;
  };
  /// Bytes of a parameter that a norm has seen.
  struct Coverage {
    int parameter;
    int64_t begin, end;
    auto operator<=>(const Coverage&) const = default;
  };
  /// What a verdict, flag, list of partial norms or list of scales was computed from.
  struct Facts {
    std::vector<Coverage> norm, parameters, updates;  ///< whose squares were summed; norm: of gradients
    bool counted = false;                             ///< the metrics of every leaf, too
  };
  struct Node {
    Kind kind;
    int iteration = 0;
    int a = 0, b = 0;  ///< sum: children; chain: a is the previous; rounded: a is what was rounded;
                       ///< parameter, state, residual: a is the version
    Atom atom{};       ///< chain: what was added; activation: leaf and micro-batch; residual: use and leaf
    uint64_t signature = 0;     ///< activation: which segment's which operand made it, and how large
    bool is_gradient = false;   ///< activation
    int64_t extent = 0;         ///< activation: all its bytes, counted as positions are
    std::vector<int> children;  ///< reduction
    Facts facts;
    std::string text;  ///< wrong; activation: its name
  };

  /// `rounds`: the programs declare a wire of a narrower type, to which every node of the canonical tree
  /// rounds.
  Expressions(int leaves, int micro_batches_per_leaf, bool rounds = false);

  int parameter(int version);
  int state(int version);
  int residual(int version, int use, int leaf);
  int chain(int previous, const Atom& added);
  int sum(int a, int b);
  int reduction(std::vector<int> children);
  /// A gradient, rounded to the wire's type. Rounding twice is rounding once.
  int rounded(int expression);
  enum class Nodes { exact, rounded };
  /// The canonical tree over `parts`, split at the largest power of two below their number. Its sums, without
  /// the parts themselves, are rounded or not.
  int tree(std::span<const int> parts, Nodes nodes = Nodes::exact);
  int activation(uint64_t signature, bool is_gradient, int64_t extent, const Atom& atom,
                 const std::string& name);
  /// Of gradients of one activation: its fan-out.
  int sum_of_activation_gradients(int a, int b);
  int facts(int iteration, Facts facts);
  int wrong(const std::string& text);

  const Node& node(int expression) const { return nth(nodes_, expression); }
  bool is_gradient_sum(int expression) const;  ///< chain, sum, reduction or one of them rounded
  bool are_gradients_of_one_activation(int a, int b) const;
  /// The signatures of the gradients that a sum of activations' gradients adds up; of another one, its own.
  std::set<uint64_t> terms_of(uint64_t signature) const;
  /// Adds what an expression knows, if anything, to `facts`; what has been `seen` is not added again.
  void merge_facts(int expression, std::set<int>& seen, Facts& facts) const;

  /// All terms of a gradient, ascending, with repetitions.
  const std::vector<Atom>& atoms(int expression);
  /// Of a gradient that has every micro-batch of one leaf once, of one use or of several: the first of them.
  std::optional<Atom> leaf_of(int expression);
  /// Whether each leaf of a gradient was rounded by itself, before anything of other leaves was added.
  bool rounds_each_leaf(int expression);
  /// Whether it sums every micro-batch of every leaf and use once.
  bool is_complete(int expression, int iteration, int uses);
  /// The leaf's complete chain, in ascending order of micro-batches.
  int complete_leaf(int iteration, int use, int leaf);
  /// The canonical tree over all leaves, uses added last in graph order. With a narrower wire each leaf and
  /// each sum of the tree is rounded; the sums over uses, which every rank makes by itself, are not.
  int canonical(int iteration, int uses);
  /// Every micro-batch of every leaf and use, once.
  std::vector<Atom> complete_atoms(int iteration, int uses) const;

  /// "(l0+l1)+l3", "l2[m0]" where micro-batches are missing, "sum(l0,l1)", "u1:l0" for a tied parameter's
  /// second use, "round(l0+l1)". Cut after 200 characters, but for the text of something wrong.
  std::string text(int expression, int iteration, int uses);

 private:
  using Key = std::tuple<Kind, int, int, int, Atom, uint64_t, bool, std::vector<int>, std::string>;
  int intern(Node node);
  int tree_of_leaves(int iteration, int use);
  /// Of the part of a chain that ends with `last` and begins after `first`: micro-batches of one leaf.
  std::string run_text(int last, int first, int iteration, int uses) const;
  std::string chain_text(int expression, int iteration, int uses, int depth);
  std::string nested_text(int expression, int iteration, int uses, int depth);

  int leaves_, micro_batches_per_leaf_;
  bool rounds_;
  std::vector<Node> nodes_;
  std::map<Key, int> known_;
  std::map<int, std::vector<Atom>> atoms_;
  std::map<uint64_t, std::set<uint64_t>> terms_;        ///< of sums of activations' gradients, by signature
  std::map<std::tuple<int, int>, int> canonical_;       ///< (iteration, uses)
  std::map<std::tuple<int, int, int>, bool> complete_;  ///< (expression, iteration, uses)
  std::map<int, bool> rounds_each_leaf_;
};

/// "missing l2[m1], twice l0[m0]": how `found` differs from `expected`, both ascending; "" if it does not.
std::string difference(const std::vector<Expressions::Atom>& found,
                       const std::vector<Expressions::Atom>& expected, int uses);

}  // namespace lockstep::proof
