#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/index.h"
#include "program/program.h"
#include "proof/checker.h"

namespace lockstep::proof {

/// Of programs that are carried out: what holds from the first to the second holds from each to the next.
inline constexpr int kIterations = 2;

/// Collects findings up to a limit; every message begins with rank and instruction. Passes on that the work
/// gets on.
class Findings {
 public:
  using Property = CheckFinding::Property;

  Findings(std::span<const program::Program> programs, const CheckOptions& options)
      : programs_(programs), limit_(static_cast<size_t>(options.max_findings)), gets_on_(options.gets_on) {}

  void add(Property property, int rank, int instruction, const std::string& what);
  bool empty() const { return list_.empty(); }
  void get_on() const {
    if (gets_on_) gets_on_();
  }
  std::vector<CheckFinding> take() { return std::move(list_); }

 private:
  std::span<const program::Program> programs_;
  size_t limit_;
  std::function<void()> gets_on_;
  std::vector<CheckFinding> list_;
};

/// An instruction of a rank in an iteration.
struct Place {
  int rank, index, iteration;
};

/// A parameter of the model, as all ranks' programs describe it.
struct ModelParameter {
  std::string name;
  int64_t size_bytes = 0;
  std::vector<program::ParameterPlace::Use> uses;
  bool frozen = false;   ///< it has no gradients and never changes
  bool trained = false;  ///< some rank updates or pushes it
};

/// All ranks' programs with what they refer to in common resolved. REQUIRES: their structure is sound.
class ProgramWorld {
 public:
  explicit ProgramWorld(std::span<const program::Program> programs);

  const program::Program& program(int rank) const { return nth(programs_, rank); }
  const program::Instruction& instruction(int rank, int index) const {
    return nth(program(rank).instructions, index);
  }
  int size() const { return static_cast<int>(programs_.size()); }
  layout::Reduction reduction() const { return programs_[0].reduction; }
  DType wire() const { return programs_[0].wire; }
  bool error_feedback() const { return programs_[0].error_feedback; }
  int leaves() const { return programs_[0].leaves; }
  int micro_batches_per_leaf() const { return programs_[0].micro_batches_per_leaf; }

  const program::Members& members(int rank, const program::Instruction& instruction) const {
    return nth(program(rank).groups, instruction.group).members;
  }
  /// A number for the instruction's group that is the same on all of its ranks.
  int group_id(int rank, const program::Instruction& instruction) const {
    return nth(nth(group_ids_, rank), instruction.group);
  }
  int rank_in_group(int rank, const program::Instruction& instruction) const {
    return members(rank, instruction).index_of(rank);
  }
  /// World rank of an operand's peer.
  int peer_of(int rank, const program::Instruction& instruction, const program::Operand& operand) const {
    return nth(members(rank, instruction), operand.peer);
  }
  /// The instruction of rank `server` that owns shard `shard` of a segment, or -1.
  int find_serve(int server, int group_id, int segment, int shard) const;
  /// The micro-batch's place within its leaf, from 0: a rank's are numbered over its leaves, ascending. One
  /// that holds several leaves has all of them.
  int micro_batch_in_leaf(int rank, const program::Instruction& instruction) const {
    const auto& first = nth(first_leaves_, rank);
    const auto before = std::ranges::lower_bound(first, instruction.leaf) - first.begin();
    return instruction.micro_batch - static_cast<int>(before) * micro_batches_per_leaf();
  }

  const std::vector<ModelParameter>& parameters() const { return parameters_; }
  /// Some rank computes gradients of parameters, or updates them, or pushes.
  bool trains() const { return trains_; }
  bool has_servers() const { return has_servers_; }  ///< some rank has a `serve`, `push` or `pull`
  /// Whether a micro-batch of the leaf goes through the rank.
  bool computes(int rank, int leaf) const { return nth(leaves_, rank).contains(leaf); }
  /// By place in program(rank).parameters: the index into parameters().
  int parameter_of_place(int rank, size_t place) const { return nth(places_, rank)[place]; }

  /// A use of a parameter within a segment's bucket.
  struct BucketUse {
    int64_t begin, end;  ///< bytes of the bucket
    int parameter, use;
  };
  /// In ascending order; empty for a segment without parameters.
  const std::vector<BucketUse>& bucket(int segment) const;

 private:
  void collect_parameters();
  void mark_trained();

  std::span<const program::Program> programs_;
  std::vector<std::vector<int>> group_ids_, places_;  ///< by rank
  std::vector<std::set<int>> leaves_;                 ///< by rank
  std::vector<std::vector<int>> first_leaves_;        ///< likewise, with which micro-batches begin; ascending
  std::vector<ModelParameter> parameters_;
  bool trains_ = false, has_servers_ = false;
  std::map<int, std::vector<BucketUse>> buckets_;
};

/// Of a push, a pull or a serve: what its messages bring to the other side.
program::Role moved_role(program::InstructionKind kind);

/// "grad.1.slot0[256+128]", or the name alone for the whole buffer.
std::string describe(const program::Program& program, const program::ByteRange& range);

/// Each appends what it finds. They rely on a sound structure; `check_execution` on sound matching.
void check_matching(const ProgramWorld& world, Findings& findings);
void check_data(const ProgramWorld& world, int rank, Findings& findings);
/// Deadlock and mathematics, in one walk through all programs.
/// `flow`: of the model, or null.
void check_execution(const ProgramWorld& world, const ModelFlow* flow, Findings& findings);

}  // namespace lockstep::proof
