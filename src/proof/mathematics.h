#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/index.h"
#include "proof/check_world.h"
#include "proof/expressions.h"
#include "proof/symbolic_memory.h"

namespace lockstep::proof {

/// Interprets all ranks' programs with symbols. Whoever walks through them calls `local` for every
/// instruction of a rank that does not communicate, in program order, and the others as communications meet;
/// `finish` comes last. Since the data check proves that every allowed order computes what program order
/// computes, one walk is enough.
class Mathematics {
 public:
  Mathematics(const ProgramWorld& world, Findings& findings);

  /// An instruction of a rank in an iteration.
  struct Place {
    int rank, index, iteration;
  };
  void local(const Place& at);
  void transfer(const Place& from, const program::Operand& send, const Place& to,
                const program::Operand& receive);
  /// `members` in the order of their group.
  void collective(const std::vector<Place>& members);
  void push(const Place& worker, const program::Operand& gradients, int server, int serve);
  void push_metrics(const Place& worker, const program::Operand& metrics);
  void pull(const Place& worker, const program::Operand& parameters, int server, int serve);
  void finish(int iterations);

 private:
  using Atom = Expressions::Atom;
  using Coverage = Expressions::Coverage;

  const program::Instruction& instruction(const Place& at) const {
    return world_.instruction(at.rank, at.index);
  }
  const program::Program& program(const Place& at) const { return world_.program(at.rank); }
  SymbolicMemory& memory(int rank) { return nth(memories_, rank); }
  /// For an instruction that computes with what it reads, as numbers of that type: pieces of another one are
  /// wrong. Those that only move bytes ask the memory.
  std::vector<Piece> read(const Place& at, const program::ByteRange& range, DType dtype);
  std::vector<Piece> read(const Place& at, const program::Operand& operand) {
    return read(at, operand.range, operand.dtype);
  }
  Atom atom(const Place& at, int use) const {
    const program::Instruction& i = instruction(at);
    return {at.iteration, use, i.leaf, world_.micro_batch_in_leaf(at.rank, i)};
  }
  void fail(const Place& at, const std::string& tag, const std::string& what);

  // mathematics.cpp
  void enter_initial_contents();
  void load(const Place& at);
  void segment(const Place& at);
  void check_what_segment_reads(const Place& at);
  void write_results(const Place& at);
  void check_parameters(const Place& at, const program::Operand& operand);
  void check_use_of_parameters(const Place& at);
  void write_gradients(const Place& at, const program::Operand& operand);
  void add_metrics(const Place& at, const program::Operand& operand);
  void add(const Place& at);
  Piece added(const Place& at, const Piece& a, const Piece& b);
  void cast(const Place& at);

  // mathematics_activations.cpp
  void check_activation(const Place& at, const program::Operand& operand, int ordinal);
  void check_has_a_gradient(const Place& at, int output_gradients);
  void note_gradient_use(uint64_t signature);
  void check_gradients_used();

  // mathematics_update.cpp
  void update(const Place& at);
  void update_parameters(const Place& at, const program::Operand& parameters,
                         const program::Operand& gradients);
  void update_state(const Place& at, const program::Operand& state);
  void check_verdict(const Place& at, const program::Operand& operand);
  void norm_or_finite(const Place& at);
  void check_position(const Place& at, const program::Operand& gradients, const Piece& piece);
  /// Whether a piece of gradient is what an update wants; reports otherwise.
  bool check_final(const Place& at, const Piece& piece);
  std::string missing(const std::vector<Coverage>& coverage, bool once) const;
  void merge_facts(const std::vector<Piece>& pieces, std::set<int>& seen, Expressions::Facts& facts) const;
  /// A verdict or predicate of an update: what it was computed from, and which part of it is read.
  struct Obeyed {
    program::Role role;
    int index;
    int64_t position, size_bytes;
    bool has_norm, has_flag;
    auto operator<=>(const Obeyed&) const = default;
  };
  std::vector<Obeyed> obeyed_by(const Place& at);
  void check_obeys_the_same(const Place& at);
  void check_flags_obeyed(int iteration);
  void check_all_owned_updated(int iteration);
  void check_every_parameter_updated(int iteration);
  void check_pushes(int iteration);

  // mathematics_communication.cpp
  void reduce(const std::vector<Place>& members, bool scatter);
  void all_gather(const std::vector<Place>& members);
  // mathematics_ring.cpp
  void ring_reduce_scatter(const std::vector<Place>& members);
  void ring_all_gather(const std::vector<Place>& members);
  // mathematics_communication.cpp
  void broadcast(const std::vector<Place>& members);
  void agree(const std::vector<Place>& members);
  /// Whether there are metrics of leaves; reports those that are not as they should be.
  bool check_metrics(const std::vector<Place>& members);
  bool are_partial_norms(const std::vector<Piece>& pieces) const;
  Piece reduced(const std::vector<Piece>& pieces, bool ordered, int64_t begin, int64_t end);

  /// A part of a range in which a parameter of the rank lies.
  struct HeldPart {
    int parameter;
    int64_t begin, end;  ///< within the range
    int64_t position;    ///< byte of the parameter at `begin`
  };
  std::vector<HeldPart> held_in(int rank, const program::ByteRange& range) const;
  void check_owned(const Place& at, const HeldPart& part);
  /// Likewise for copies of parameters in elements of `dtype`; positions are those of the float32 parameter.
  std::vector<HeldPart> copies_in(int rank, const program::ByteRange& range, DType dtype) const;
  std::string name_of(const Piece& piece) const;

  const ProgramWorld& world_;
  Findings& findings_;
  Expressions expressions_;
  std::vector<SymbolicMemory> memories_;  ///< by rank
  std::map<std::tuple<int, int, int, int>, uint64_t>
      producers_;  ///< (kind, segment, role, ordinal): who feeds it
  /// Gradients of activations, by signature: who computes each, which ones a sum holds, which ones a backward
  /// reads.
  std::map<uint64_t, std::pair<Place, std::string>> computed_gradients_;
  std::map<uint64_t, std::set<uint64_t>> summed_gradients_;
  std::set<uint64_t> used_gradients_;
  std::set<int> loss_segments_;
  std::set<std::tuple<int, int, std::string>> reported_;
  std::map<int, std::vector<Coverage>> updated_;          ///< by iteration
  std::map<std::pair<int, int>, int64_t> updated_bytes_;  ///< by rank and iteration
  struct Obedience {
    Place by;
    std::vector<Obeyed> what;
  };
  std::map<int, Obedience> obeyed_;  ///< by iteration: by its first update
  std::map<int, Place> flags_;       ///< by iteration: its first `finite`
  struct Pushed {
    Coverage bytes;
    int expression;
    Place by;
  };
  std::map<int, std::vector<Atom>> pushed_metrics_;      ///< by iteration
  std::map<int, std::vector<Pushed>> pushed_;            ///< by iteration
  std::map<std::pair<int, bool>, std::string> missing_;  ///< (facts, once)
};

/// Metrics of leaves are kept like gradients of this parameter.
inline constexpr int kMetricsParameter = -2;
/// The gaps of segment s's bucket are kept like gradients of parameter kPaddingParameter - s.
inline constexpr int kPaddingParameter = -3;

}  // namespace lockstep::proof
