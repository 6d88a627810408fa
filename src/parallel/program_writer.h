#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/index.h"
#include "layout/placement.h"
#include "model/graph.h"
#include "model/partition.h"
#include "program/program.h"
#include "program/segment_code.h"

namespace lockstep::parallel {

/// What an update waits for besides `agree`: nothing; `norm` and its clipping; and its finite flag, too.
enum class UpdateVerdict { none, scale, scale_and_predicate };
/// Whose gradients are complete on a rank: of what it updates or, where nobody's are added to its own, all.
enum class GradientsOf { updated, all };

/// What a server has beside parameters and their state where workers do not wait for each other, for each of
/// its ranges: places where a worker's pushes land, by turns, and as many bytes for copies, which are older
/// versions, or what is on its way to workers.
struct ServerRoom {
  int workers = 0;  ///< 0: nobody pushes
  int slots = 0;
  int copies = 0;
  bool apart = false;  ///< the rank's device has memory of its own: all of this is the host's
};

/// Which gradients of a bucket a backward, or one of its halves, computes.
std::vector<layout::ByteSpan> gradients_of(program::InstructionKind backward, const model::Bucket& bucket);

/// What every compiler of programs needs: the buffers of a model and the instructions that use them. Operands
/// carry the graph's ids as their index (values for activations and their gradients, segments for parameters
/// and gradients), which is how the executor finds its way back from an instruction to kernels.
///
/// Buffers that live for ever come first and in one order in every program of a rank, so that all of its
/// programs see the same parameters at the same place.
class ProgramWriter {
 public:
  /// For a rank, which saves `share` of a checkpoint.
  ProgramWriter(std::string name, const model::Graph& graph, const model::Partition& partition,
                const program::ModelCode& code, const layout::Placement& placement, int state_slots, int rank,
                const std::vector<layout::SavedPart>& share, const ServerRoom& room = {});

  program::Program program;

  /// Gradient buffers for `slots` tree nodes per segment, of what this rank holds of its bucket
  /// (Placement::held_gradients), one part after the other.
  void add_gradient_slots(int slots);
  int gradient_buffer(int segment, int slot) const { return nth(nth(gradients_, slot), segment); }
  /// One record of kMetricCount doubles per leaf of this rank.
  void add_metrics(int leaves);

  /// The step's constants, for all that follows.
  void constants(int lane);
  /// Fields that a rank's segments read, which may be none of them: then it has nothing to load.
  bool loads(const std::vector<int>& segments) const;
  void load(int lane, int micro_batch, int leaf);
  /// Batches take turns in so many sets of staging buffers: two, so that one is filled while the other is
  /// read, unless more micro-batches are under way.
  void set_batch_buffers(int count) { batch_buffers_ = count; }
  /// Makes the narrow copies of all parameters that are read so; nothing where float32 is computed.
  void cast_parameters(int lane);
  /// `keeps`: what backward needs of it besides inputs and outputs; otherwise a recompute has to make it
  /// again.
  void forward(int lane, int segment, int micro_batch, int leaf, int local_leaf, bool accumulate,
               bool keeps = true);
  /// Nothing if the segment has nothing that is not kept.
  void recompute(int lane, int segment, int micro_batch, int leaf);
  /// Backward, or one of its halves; nothing if that has nothing to do.
  void backward(program::InstructionKind kind, int lane, int segment, int micro_batch, int leaf, int slot,
                bool accumulate);
  /// Micro-batches take turns in so many buffers of these values of a piece, or of their gradients, whatever
  /// their number: of what passes from rank to rank, whose buffers are in use beside computation.
  void take_turns(const std::vector<int>& storages, bool gradients, int piece, int buffers);
  /// Values of a micro-batch, or their gradients, to or from the rank that has the next piece of the model,
  /// or the one before: an exchange for all of them. `piece`: of this rank; `storages`: of activations or of
  /// gradients; `peer`: rank in the group.
  void pass(program::Role direction, int lane, int group, int peer, const std::vector<int>& storages,
            bool gradients, int piece, int micro_batch);
  void exchange(int lane, int group, std::vector<program::Operand> transfers);
  void add_ranges(int lane, program::ByteRange destination, program::ByteRange source);
  /// Adds the gradients of later uses of the segment's tied parameters to those of their first, in graph
  /// order: before they meet those of other replicas, where Placement::is_tied_first, of all of a worker's.
  void add_ties_first(int lane, int segment);
  /// Likewise of all others when they have met, of what this rank updates, a slice. `elsewhere`: where the
  /// gradient of a use lies whose segment another stage computes.
  void add_tied_uses(int lane, int segment, const layout::Slice& slice = {},
                     const std::function<program::ByteRange(int parameter, int use)>& elsewhere = {});
  /// Bytes of a segment's bucket in this rank's memory, of slot 0. REQUIRES: it holds them.
  program::ByteRange gradients(int segment, const layout::ByteSpan& bytes) const {
    return gradient_range(segment, 0, bytes);
  }
  void agree(int lane, int group, int ranks, int most_leaves);
  /// Of gradients that this rank holds complete. Without owners that is all of them; otherwise `write_sum`
  /// appends the sum of a range of float64 over all ranks, each of which writes zero for what others know.
  void norm(int lane, const std::function<void(program::ByteRange chunks)>& write_sum = {},
            GradientsOf of = GradientsOf::updated);
  /// Of all parameters that this rank holds.
  void digest(int lane);
  /// Of a slice of what this rank updates of a segment.
  void update(int lane, int segment, UpdateVerdict verdict, const layout::Slice& slice = {});
  /// Copies this rank's share of a checkpoint. Whether all went well travels as a loss: 0, or 1 for a
  /// failure.
  void snapshot(int lane);

  /// Bytes of a segment's parameters to and from the server that owns them, whose position among the owners
  /// is `shard`; `server`, `worker`: rank in the group. With a push goes what the verdict says, if any.
  void pull(int lane, int group, int segment, int shard, int server, const layout::ByteSpan& bytes);
  void push(int lane, int group, int segment, int shard, int server, const layout::ByteSpan& bytes,
            std::optional<UpdateVerdict> verdict);
  /// What this rank serves of a segment, to the first so many ranks of the group. `bound`: -1 without.
  void serve(int lane, int group, int segment, int shard, int bound);

  int parameter_buffer(int segment) const { return nth(parameters_, segment); }
  int state_buffer(int segment) const { return nth(states_, segment); }
  int metrics_buffer() const { return metrics_; }

 private:
  program::Instruction instruction(program::InstructionKind kind, int lane, int segment, int micro_batch,
                                   int leaf) const;
  int keyed_buffer(const std::string& name, program::Category category, int64_t bytes);
  /// Where bytes of a segment's bucket lie in this rank's buffer of a slot. REQUIRES: it holds them.
  program::ByteRange gradient_range(int segment, int slot, const layout::ByteSpan& bytes) const;
  int activation(int storage, int micro_batch, int piece);
  int activation_gradient(int storage, int micro_batch, int piece);
  std::string place_text(int storage, bool gradient, int micro_batch, int piece) const;
  bool wants(int input) const;
  int scratch(std::string_view what, int64_t bytes);
  void read_parameters(program::Instruction& instruction, int segment) const;
  void read_for_forward(program::Instruction& instruction, int piece);
  /// What a segment keeps for backward.
  enum class Stash { kept, weight = program::kWeightStash, repeated = program::kRepeatedStash };
  void add_stash(program::Instruction& instruction, Stash stash, program::Access access);
  void add_scratch_stash(program::Instruction& instruction, Stash stash);
  int64_t stash_bytes(int segment, Stash stash) const;
  void add_temporary(program::Instruction& instruction, const char* name);
  void read_verdict(program::Instruction& instruction, UpdateVerdict verdict) const;
  layout::ByteSpan complete_gradients(int segment, GradientsOf of) const;
  /// Of uses that are added `first`, or of the others, within `complete` bytes of the segment's bucket.
  void add_ties(int lane, int segment, const layout::ByteSpan& complete, bool first,
                const std::function<program::ByteRange(int parameter, int use)>& elsewhere);
  void add_server_room(const ServerRoom& room);
  program::Operand activation_operand(program::Role role, int storage, program::Access access,
                                      int buffer) const;

  const model::Graph& graph_;
  const model::Partition& partition_;
  const program::ModelCode& code_;
  const layout::Placement& placement_;
  int state_slots_, rank_;
  const std::vector<layout::SavedPart>& share_;
  std::vector<int> parameters_, states_;     // by segment; -1 if it has none
  std::vector<int> narrow_parameters_;       // likewise, of their rounded copies
  int snapshot_ = -1;                        // -1 if the share is empty
  std::vector<std::vector<int>> gradients_;  // by slot, segment
  int constants_ = -1, verdict_ = -1, metrics_ = -1;
  int batch_buffers_ = 2;
  std::map<std::tuple<int, bool, int>, int> turns_;  // by storage, whether it is a gradient, piece
  struct Served {
    int buffer = -1;            // of contents that workers see; -1: those of parameters
    std::vector<int> landings;  // by slot and worker
    std::vector<int> copies;
  };
  std::vector<Served> served_;  // by segment
  int pushing_workers_ = 0;
  std::map<std::string, int> keyed_;
  int scratch_count_ = 0;
};

}  // namespace lockstep::parallel
