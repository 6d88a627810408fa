#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/index.h"
#include "layout/norm_chunks.h"
#include "layout/ownership.h"
#include "model/graph.h"
#include "model/partition.h"
#include "program/program.h"
#include "program/segment_code.h"

namespace lockstep::parallel {

/// What an update waits for besides `agree`: nothing; `norm` and its clipping; and its finite flag, too.
enum class UpdateVerdict { none, scale, scale_and_predicate };
/// Which gradients are complete on a rank: those of what it updates or, if no other rank's are added, all.
enum class GradientsOf { updated, all };

/// Memory of a server besides parameters and their state, if workers do not wait for each other. For each of
/// its ranges it has slots in which a worker's pushes land, in turn, and room for copies of older versions.
struct ServerRoom {
  int workers = 0;  ///< number of workers that push
  int slots = 0;
  int copies = 0;
  int64_t slice_bytes = 0;  ///< of slices of answers, of which it has room for some of each worker; 0: none
  bool apart = false;       ///< the rank's device has its own memory, and all of this is host memory
};

/// The gradients of a bucket that a backward, or one of its halves, computes.
std::vector<layout::ByteSpan> gradients_of(program::InstructionKind backward, const model::Bucket& bucket);

/// Writes the buffers of a model and the instructions that use them; all compilers of programs use it. The
/// index of an operand is the graph's id (values for activations and their gradients, segments for parameters
/// and gradients). By it the executor finds the kernels of an instruction.
///
/// Permanent buffers come first and in the same order in every program of a rank, so that all of its programs
/// see the same parameters at the same place.
class ProgramWriter {
 public:
  /// For a rank that saves `share` of a checkpoint, with the scratch of updates of whole parameters, by
  /// parameter (ProgramPlan::whole_scratch_of).
  ProgramWriter(std::string name, const model::Graph& graph, const model::Partition& partition,
                const program::ModelCode& code, const layout::Ownership& ownership, int state_slots, int rank,
                const std::vector<layout::SavedPart>& share, const ServerRoom& room,
                const std::vector<int64_t>& whole_scratch);

  program::Program program;

  /// Adds gradient buffers for `slots` tree nodes per segment: the parts of its bucket that this rank holds
  /// (Ownership::held_gradients), one after the other.
  void add_gradient_slots(int slots);
  int gradient_buffer(int segment, int slot) const { return nth(nth(gradients_, slot), segment); }
  /// Adds buffers of the same parts in a narrower type, in which gradients are summed over workers.
  void add_wire_slots(int slots, DType dtype);
  int wire_buffer(int segment, int slot) const { return nth(nth(wire_, slot), segment); }
  /// Adds buffers of what rounding the gradients of these leaves loses, which are permanent.
  void add_residuals(const layout::TreeNode& leaves);
  /// Adds records of kMetricCount doubles: one for each leaf of this rank.
  void add_metrics(int records);
  /// The leaves of each of the rank's micro-batches, ascending. Call it before those that name a micro-batch.
  void set_micro_batches(std::vector<layout::TreeNode> leaves) { micro_batches_ = std::move(leaves); }

  /// Loads the step's constants, for all later instructions.
  void constants(int lane);
  /// Whether these segments of a rank read any field of the batch; otherwise the rank loads nothing.
  bool loads(const std::vector<int>& segments) const;
  void load(int lane, int micro_batch);
  /// Batches use so many sets of staging buffers in turn. Two suffice to fill one while the other is read,
  /// unless more micro-batches are in flight.
  void set_batch_buffers(int count) { batch_buffers_ = count; }
  /// Who changes parameters in the course of a program, from which their narrow copies follow.
  enum class Changes { none, updates, arrivals };
  /// Makes the narrow copies of all parameters that have one; nothing if computation is in float32. Copies
  /// are made in every iteration unless the program changes nothing, or by updates of this rank alone, which
  /// write the copies, too.
  void cast_parameters(int lane, Changes changes);
  /// `keeps`: whether to keep what backward needs besides inputs and outputs; otherwise a recompute must
  /// follow.
  void forward(int lane, int segment, int micro_batch, bool accumulate, bool keeps = true);
  /// Writes nothing if the segment keeps everything.
  void recompute(int lane, int segment, int micro_batch);
  /// Writes a backward, or one of its halves; nothing if there is nothing to do.
  void backward(program::InstructionKind kind, int lane, int segment, int micro_batch, int slot,
                bool accumulate);
  /// Micro-batches, whatever their number, use so many buffers in turn for these values of a piece, or for
  /// their gradients. For values that pass from rank to rank, whose buffers are in use while others compute.
  void take_turns(const std::vector<int>& storages, bool gradients, int piece, int buffers);
  /// Exchanges values of a micro-batch, or their gradients, with the rank that has the next or the preceding
  /// piece of the model: one exchange for all of them. `piece`: of this rank; `storages`: of activations or
  /// gradients; `peer`: rank in the group.
  void pass(program::Role direction, int lane, int group, int peer, const std::vector<int>& storages,
            bool gradients, int piece, int micro_batch);
  void exchange(int lane, int group, std::vector<program::Operand> transfers);
  void add_ranges(int lane, program::ByteRange destination, program::ByteRange source,
                  DType dtype = DType::float32);
  /// Rounds bytes of the gradient of a leaf to the wire's type, with its residuals if the program has error
  /// feedback. REQUIRES: this rank is a worker, which holds all of the bucket.
  void narrow_gradients(int lane, int segment, int wire_slot, int leaf, const layout::ByteSpan& bytes);
  /// Adds the gradients of later uses of the segment's tied parameters to those of their first use, in graph
  /// order: before sums over replicas, all of a worker's gradients for which Ownership::is_tied_first.
  void add_ties_first(int lane, int segment);
  /// The same for all other uses, after sums over replicas, for a slice of what this rank updates.
  /// `elsewhere`: the place of a gradient whose segment another stage computes.
  void add_tied_uses(int lane, int segment, const layout::Slice& slice = {},
                     const std::function<program::ByteRange(int parameter, int use)>& elsewhere = {});
  /// Bytes of a segment's bucket in slot 0 of this rank's memory. REQUIRES: the rank holds them.
  program::ByteRange gradients(int segment, const layout::ByteSpan& bytes) const {
    return gradient_range(segment, 0, bytes);
  }
  void agree(int lane, int group, int ranks, int most_records);
  /// Appends the sum of a range of float64 over all ranks, in which each rank writes zero for the chunks of
  /// other ranks. Empty if a rank has all chunks.
  using WriteSum = std::function<void(program::ByteRange chunks)>;
  /// Computes the norm of gradients that are complete on this rank. Without owners these are all gradients.
  /// `with_parameters`: also the sums of squares of the parameters that this rank updates.
  void norm(int lane, const WriteSum& write_sum = {}, GradientsOf of = GradientsOf::updated,
            bool with_parameters = false);
  /// Moves the first slots of the state of what this rank updates, and measures the updates that follow.
  void propose(int lane, int slots, UpdateVerdict verdict, const WriteSum& write_sum);
  /// Makes the scales that later updates read from everything that was measured.
  void ratios(int lane, UpdateVerdict verdict);
  /// Computes the digest of all parameters that this rank holds.
  void digest(int lane);
  /// Updates a slice of this rank's part of a segment.
  void update(int lane, int segment, UpdateVerdict verdict, const layout::Slice& slice = {});
  /// Copies this rank's share of a checkpoint. Its success travels as a loss: 0, or 1 for a failure.
  void snapshot(int lane);

  /// Exchanges bytes of a segment's parameters or gradients with the server that owns them. `shard`: its
  /// position among the owners; `server`, `worker`: ranks in the group. A push carries the verdict, if there
  /// is one.
  void pull(int lane, int group, int segment, int shard, int server, const layout::ByteSpan& bytes);
  void push(int lane, int group, int segment, int shard, int server, const layout::ByteSpan& bytes,
            std::optional<UpdateVerdict> verdict);
  /// Serves this rank's part of a segment to the first ranks of the group. `bound`: -1 for none.
  void serve(int lane, int group, int segment, int shard, int bound);

  int parameter_buffer(int segment) const { return nth(parameters_, segment); }
  int state_buffer(int segment) const { return nth(states_, segment); }
  int metrics_buffer() const { return metrics_; }

 private:
  void place_parameter(int segment, const model::BucketEntry& first);
  program::Instruction instruction(program::InstructionKind kind, int lane, int segment = -1) const;
  /// One of a micro-batch.
  program::Instruction instruction_of(program::InstructionKind kind, int lane, int segment,
                                      int micro_batch) const;
  /// Kernels of a micro-batch's size.
  const program::ModelCode& code_of(int micro_batch) const {
    return code_.of_replicas(nth(micro_batches_, micro_batch).size());
  }
  int keyed_buffer(const std::string& name, program::Category category, int64_t bytes);
  /// The place of bytes of a segment's bucket in this rank's buffer of a slot. REQUIRES: the rank holds them.
  program::ByteRange gradient_range(int segment, int slot, const layout::ByteSpan& bytes) const;
  int activation(int storage, int micro_batch, int piece);
  int activation_gradient(int storage, int micro_batch, int piece);
  std::string place_text(int storage, bool gradient, int micro_batch, int piece) const;
  /// Of the buffer of that place, which micro-batches may share.
  int64_t place_bytes(int storage, bool gradient, int micro_batch, int piece) const;
  bool wants(int input) const;
  int scratch(std::string_view what, int64_t bytes);
  void read_parameters(program::Instruction& instruction, int segment) const;
  void read_for_forward(program::Instruction& instruction, int piece);
  /// What a segment keeps for backward.
  enum class Stash { kept, weight = program::kWeightStash, repeated = program::kRepeatedStash };
  void add_stash(program::Instruction& instruction, Stash stash, program::Access access);
  void add_scratch_stash(program::Instruction& instruction, Stash stash);
  static int64_t stash_bytes(const program::SegmentInterface& face, Stash stash);
  void add_temporary(program::Instruction& instruction, const char* name);
  void read_verdict(program::Instruction& instruction, UpdateVerdict verdict) const;
  /// Whether this rank updates all of a segment's parameters, so that updates can write their copy. A copy
  /// of what is frozen is made in every step all the same: nothing else would mend a bit of it that flips.
  bool updates_all(int segment) const;
  /// Scratch of an update of what this rank owns of a segment.
  int64_t update_scratch_bytes(int segment) const;
  layout::ByteSpan complete_gradients(int segment, GradientsOf of) const;
  /// A range of what this rank holds of a segment's parameters. REQUIRES: the rank holds it.
  program::ByteRange parameter_range(int segment, const layout::ByteSpan& bytes) const;
  /// Room for as many lists of sums of squares, one after the other.
  int add_chunks(const char* name, int lists);
  program::Operand chunks_operand(layout::Measured measured, program::Access access,
                                  const program::ByteRange& range) const;
  int64_t chunks_bytes() const;
  /// Bytes of gradients of a segment that this rank holds.
  int64_t gradient_bytes(size_t segment) const;
  /// Adds the uses that are added `first`, or the others, within `complete` bytes of the segment's bucket.
  void add_ties(int lane, int segment, const layout::ByteSpan& complete, bool first,
                const std::function<program::ByteRange(int parameter, int use)>& elsewhere);
  void add_server_room(const ServerRoom& room);
  /// `buffer` may be larger than a micro-batch.
  program::Operand activation_operand(program::Role role, int storage, program::Access access, int buffer,
                                      int micro_batch) const;

  const model::Graph& graph_;
  const model::Partition& partition_;
  const program::ModelCode& code_;
  const layout::Ownership& ownership_;
  int state_slots_, rank_;
  const std::vector<layout::SavedPart>& share_;
  const std::vector<int64_t>& whole_scratch_;
  std::vector<int> parameters_, states_;     // by segment; -1 if it has none
  std::vector<int> narrow_parameters_;       // likewise, of their rounded copies
  int snapshot_ = -1;                        // -1 if the share is empty
  std::vector<std::vector<int>> gradients_;  // by slot, segment
  std::vector<std::vector<int>> wire_;       // likewise
  int constants_ = -1, verdict_ = -1, metrics_ = -1;
  int scales_ = -1;                         // -1: updates are not scaled
  std::vector<program::Operand> measured_;  // sums of squares, as `ratios` reads them
  int kept_slots_ = 0;                      // of state, which have moved before updates
  std::vector<layout::TreeNode> micro_batches_;
  int batch_buffers_ = 2;
  std::map<std::tuple<int, bool, int>, int> turns_;  // by storage, whether it is a gradient, piece
  struct Served {
    int buffer = -1;            // of contents that workers see; -1: those of parameters
    std::vector<int> landings;  // by slot and worker
    std::vector<int> copies;
  };
  std::vector<Served> served_;  // by segment
  std::vector<int> outboxes_;   // by worker: of slices of answers
  int pushing_workers_ = 0;
  std::map<std::string, int> keyed_;
  int scratch_count_ = 0;
};

}  // namespace lockstep::parallel
