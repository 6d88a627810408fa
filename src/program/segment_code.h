#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/index.h"
#include "device/device.h"
#include "model/fusion.h"
#include "model/graph.h"
#include "model/partition.h"
#include "ops/op.h"
#include "pixels/packed_sample.h"
#include "program/program.h"

namespace lockstep::program {

/// Numbers of a segment's stashes besides 0, which forward keeps: what the first half of backward keeps for
/// the second; what is cheap to repeat.
inline constexpr int kWeightStash = 1, kRepeatedStash = 2;

/// The activation storages and gradient storages that a segment's forward and backward need from outside. (A
/// storage is the value whose memory, or gradient memory, stands for all its views.) The compilers turn these
/// lists into operands, in this order; the executor turns operands back into pointers.
struct SegmentInterface {
  std::vector<int> reads;   ///< storages made before the segment (model inputs included) that forward reads
  std::vector<int> writes;  ///< storages made in the segment and read after it
  std::vector<int> backward_reads;    ///< storages of `reads` and `writes` whose contents backward needs
  std::vector<int> output_gradients;  ///< gradient storages that backward reads
  std::vector<int> input_gradients;   ///< gradient storages that backward writes
  std::vector<int>
      parameter_segments;  ///< segments whose parameter buffers it reads: its own and those of tied weights
  std::vector<int> narrow_parameter_segments;  ///< likewise, whose narrow copies it reads; empty if
                                               ///< computation is in float32
  int64_t stash_bytes = 0;                     ///< kept from forward to backward
  /// Likewise, of ops that are cheap to repeat (Options::repeats): kept, or made again from what is kept.
  int64_t repeated_stash_bytes = 0;
  int64_t forward_temporary_bytes = 0;
  int64_t backward_temporary_bytes = 0;
  // Of recomputation: all of the segment, or what is cheap to repeat.
  std::vector<int> recompute_reads, recompute_writes;
  int64_t recompute_temporary_bytes = 0;
  // Of backward in halves: what the first keeps for the second, gradients inside the segment.
  std::vector<int> weight_reads;             ///< those of backward_reads that the second one needs
  std::vector<int> weight_output_gradients;  ///< likewise of output_gradients and input_gradients
  int64_t weight_stash_bytes = 0;
  int64_t backward_input_temporary_bytes = 0;
  int64_t backward_weight_temporary_bytes = 0;
  bool has_loss = false;
  bool has_backward = false;  ///< something learns at or before one of its nodes, or it has the loss

  // Those of them that an instruction of this kind, which runs segments, uses.
  const std::vector<int>& inputs_of(InstructionKind kind) const;
  const std::vector<int>& output_gradients_of(InstructionKind kind) const;
  const std::vector<int>& input_gradients_of(InstructionKind kind) const;
  int64_t temporary_bytes_of(InstructionKind kind) const;
};

/// The addresses of everything that an instruction accesses.
struct SegmentBindings {
  std::function<std::byte*(int storage)> activation;
  std::function<std::byte*(int storage)> gradient;
  std::function<std::byte*(int parameter)> parameter;
  std::function<std::byte*(int parameter)>
      narrow_parameter;  ///< its rounded copy, in the graph's compute type
  std::function<std::byte*(int parameter, int use)> parameter_gradient;
  std::byte* stash = nullptr;
  std::byte* weight_stash = nullptr;
  std::byte* repeated_stash = nullptr;
  std::byte* temporary = nullptr;
  double* metrics = nullptr;
  const ops::StepConstants* constants = nullptr;
  bool accumulate = false;
};

/// One kernel call with everything resolved. Executing it allocates nothing.
struct KernelCall {
  ops::Kernel* kernel = nullptr;
  ops::KernelPhase phase = ops::KernelPhase::forward;
  int node = -1;
  std::vector<int> output_values,
      gradient_values;                   ///< of the graph: what `outputs` and `input_gradients` are
  std::vector<int> gradient_parameters;  ///< likewise, of which parameters `parameter_gradients` are
  std::vector<Tensor> inputs, outputs, parameters, auxiliary, output_gradients, input_gradients,
      parameter_gradients;
  double* metrics = nullptr;
  const ops::StepConstants* constants = nullptr;
  void* workspace = nullptr;
  bool accumulate = false;

  void run(device::Stream& stream, int64_t first_sample) const;
};

/// An input of the model that comes packed, and is made into the input's values by the load
/// (pixels/expand.h).
struct PackedInput {
  int input = 0;  ///< its place among the graph's inputs
  pixels::PackedLayout layout;
  bool operator==(const PackedInput&) const = default;
};

/// The kernels of a model for one device, mode and size of micro-batches, and the layout of each segment's
/// private memory; also of smaller micro-batches, if there are any. Thread-safety: kernels of one ModelCode
/// may be used by one thread at a time; two compute lanes need two.
class ModelCode {
 public:
  struct Options {
    device::DeviceKind device = device::DeviceKind::cpu;
    int64_t micro_batch = 0;
    int virtual_replicas = 1;  ///< in a micro-batch; see KernelOptions
    /// Other numbers of them, fewer, that some micro-batches have: these are smaller in proportion.
    std::vector<int> fewer_replicas = {};
    bool training = true;
    int intra_op_threads = 1;
    double loss_weight = 1;     ///< see KernelOptions
    bool tf32 = false;          ///< see KernelOptions
    bool reproducible = false;  ///< see KernelOptions
    bool fuse_gelu = false;     ///< GPUs: see fuse_for_gpu
    /// Backward may find what is cheap to repeat in a separate stash, so that it need not be kept. What a
    /// neighbour's kernel computes is kept.
    bool repeats = false;
    std::optional<PackedInput> packed = {};
  };
  /// `graph` and `partition` must outlive it.
  ModelCode(const model::Graph& graph, const model::Partition& partition, const Options& options);

  /// The same for micro-batches of so many virtual replicas. REQUIRES: the options name them.
  const ModelCode& of_replicas(int count) const;
  int segment_count() const { return static_cast<int>(segments_.size()); }
  const SegmentInterface& segment(int s) const { return nth(segments_, s).face; }
  int64_t activation_bytes(int value) const;  ///< of a micro-batch
  int64_t metric_bytes() const;               ///< of a micro-batch: a record for each virtual replica
  const Options& options() const { return options_; }
  const model::Graph& graph() const { return graph_; }
  const model::Fusion& fusion() const { return fusion_; }

  /// Makes what kernels need on a device. Call it once, before they run.
  void prepare(device::Device& device);
  std::vector<KernelCall> bind_forward(int segment, const SegmentBindings& bindings) const;
  /// Forward again, for backward; with Options::repeats only the ops whose results are in the separate stash.
  std::vector<KernelCall> bind_recompute(int segment, const SegmentBindings& bindings) const;
  /// Op by op, in reverse order. backward_input: the gradients of inputs, and of parameters of ops that
  /// compute both at once (BackwardForm::joint). backward_weight: then those of all other parameters.
  /// backward: all of them.
  std::vector<KernelCall> bind_backward(int segment, const SegmentBindings& bindings,
                                        InstructionKind kind) const;

 private:
  struct SegmentLayout {
    SegmentInterface face;
    std::vector<std::pair<int, int64_t>> stash;     ///< storage -> offset
    std::vector<std::pair<int, int64_t>> repeated;  ///< likewise, in the stash of what is cheap to repeat
    std::vector<bool> repeats;                      ///< node in the segment
    std::vector<std::vector<int64_t>> auxiliary;    ///< node (in the segment), number -> offset, in its stash
                                                    ///< (training) or the forward temporary
    std::vector<std::pair<int, int64_t>> forward_temporary;  ///< storage -> offset
    std::vector<int64_t> forward_workspace;             ///< node in the segment -> offset in the temporary
    std::vector<std::pair<int, int64_t>> weight_stash;  ///< gradient storage -> offset
    /// Likewise, in the stash: gradients that forward has written over their values.
    std::vector<std::pair<int, int64_t>> stash_gradients;
    /// Gradient storages' offsets in the temporary, and likewise of each node's workspace.
    struct BackwardTemporary {
      std::vector<std::pair<int, int64_t>> temporary;
      std::vector<int64_t> workspace;
      std::vector<int64_t>
          unused_gradients;  ///< of frozen parameters, which their kernels compute nevertheless
    };
    std::map<InstructionKind, BackwardTemporary> backward;
  };

  void lay_out(int segment);
  void lay_out_forward(int segment, const std::vector<int>& temporaries);
  /// Chooses the nodes that are recomputed instead of kept, if asked for: those that are cheap to repeat from
  /// what is kept.
  void choose_repeated(int segment, const std::vector<int>& kept);
  void find_stash_gradients(int segment);
  void lay_out_recompute(int segment);
  void lay_out_weight_stash(int segment);
  int64_t lay_out_backward(int segment, InstructionKind kind);
  /// Room for the gradients of a node's frozen parameters, if its kernel makes them along with others.
  int64_t unused_gradient_bytes(const model::Node& node) const;
  /// The place of the gradient of a node's parameter.
  Tensor parameter_gradient(int node, size_t slot, const SegmentBindings& bindings) const;
  /// Places for the gradients of a node's parameters.
  void add_parameter_gradients(int node, std::byte* unused, const SegmentBindings& bindings,
                               KernelCall& call) const;
  /// The gradient of a linear layer's bias is passed from its call to that of the node that sums it.
  void pass_bias(int node, const SegmentBindings& bindings, KernelCall& call) const;
  Tensor view(int value, std::byte* data) const;
  /// Whether a node reads the parameter in `slot` from the narrow copy.
  bool reads_narrow(const model::Node& node, size_t slot) const;
  /// Whether a value's gradient passes from one node to another within a kernel, without being stored.
  bool gradient_stays_inside(int value) const;
  std::byte* activation(int segment, int value, const SegmentBindings& bindings) const;
  KernelCall begin_call(int segment, int node, const SegmentBindings& bindings) const;
  /// Adds what the kernel reads and writes for its neighbours.
  void fuse_forward(int segment, KernelCall& call, const SegmentBindings& bindings) const;

  const model::Graph& graph_;
  const model::Partition& partition_;
  Options options_;
  model::Fusion fusion_;
  std::vector<std::unique_ptr<ops::Kernel>> kernels_;  // by node
  std::vector<SegmentLayout> segments_;
  std::map<int, std::unique_ptr<ModelCode>> fewer_;  // by number of virtual replicas
};

}  // namespace lockstep::program
