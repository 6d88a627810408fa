#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "model/graph.h"
#include "optim/optimizer.h"
#include "program/program.h"
#include "program/segment_code.h"
#include "program/step_scalars.h"
#include "run/program_memory.h"
#include "run/step_kernels.h"

namespace lockstep::run {

class WorkerSession;

/// The source of batches for `load`. Fields are the model's inputs, in graph order; the batch is the first
/// dimension.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// `position`: of the micro-batch's first sample within the iteration's global batch.
  virtual void load(uint64_t iteration, int64_t position, std::span<const Tensor> fields) = 0;
  /// Whether exchange() may be called, on devices that do not share the host's memory.
  virtual bool exchanges() const { return false; }
  /// The same as load() without a copy: `buffer` becomes memory that holds the batch, in exchange for what it
  /// was. Fields lie as tensor::batch_places() says for the largest micro-batch. REQUIRES: exchanges();
  /// nobody reads the buffer any more.
  virtual void exchange(uint64_t /*iteration*/, int64_t /*position*/, device::Buffer& /*buffer*/) {}
};

/// The inputs of one iteration of a program.
struct StepInputs {
  StepScalars constants;
  uint64_t iteration = 0;         ///< of the data: which global batch
  bool suppress_updates = false;  ///< replay: everything runs, nothing is changed
  /// Executors set it: nothing is left of an iteration before (program::Instruction::anew).
  bool begins_anew = false;
  double stop_requested = 0;  ///< this rank's contribution to `agree`
  uint64_t state_hash = 0;    ///< likewise: of this replica before the program runs; 0: not compared
};

/// Reported after every call of an op's kernel, and after every `update` and `propose`, of an observed
/// iteration.
struct KernelObservation {
  int instruction;
  const program::KernelCall* call;  ///< what ran; null: an update, or what goes before it
  double seconds;                   ///< its time on the device
};

/// Everything that instructions need to become work. Owned by the code that builds the executor; outlives it.
struct ExecutionContext {
  const model::Graph& graph;
  const program::ModelCode& code;
  const ProgramMemory& memory;
  device::Device& device;  ///< whose memory that is
  optim::OptimizerOptions optimizer;
  optim::GroupRates group_rates = {};
  /// ParameterRates::updates_before, by parameter; null or empty: all are 0. May change between iterations.
  const std::vector<uint32_t>* updates_before = nullptr;
  double clip_norm = 0;                ///< 0: none
  int update_threads = 1;              ///< that sums and updates may use (StepKernels)
  int matrix_threads = 1;              ///< likewise products of updates
  SumOrder sum_order = SumOrder::own;  ///< of processors
  double static_count = 1;             ///< terms of the loss in a global batch
  double statistic_scale = 1;          ///< 1 / leaves, or micro-batches if smaller, of a global batch
  std::vector<int64_t> first_samples;  ///< by micro-batch of this rank
  BatchSource* batches = nullptr;
  std::function<bool()> snapshot;                  ///< prepares saving what was copied; true if all is well
  std::vector<comm::Communicator*> communicators;  ///< by group; null if this rank is no member
  WorkerSession* session = nullptr;                ///< of pushes and pulls
};

/// A kernel call of an instruction that runs a segment.
struct ActionPart {
  int node;
  ops::KernelPhase phase;
};

/// An instruction that is ready to run. Running it, also several times, allocates nothing. On devices whose
/// memory the host does not share, start, communicate and finish only enqueue on the stream. `finish` also
/// runs if the instruction has neither of the others.
struct Action {
  /// Without communication: computes. `between` is called between kernels of a long instruction.
  std::function<void(device::Stream&, const StepInputs&, const std::function<void()>& between)> start;
  /// What `start` runs, if it is kernels of a segment: it calls `between` after each of them.
  std::vector<ActionPart> parts;
  /// With communication: starts it on `communicator`. The ticket tells when it is complete.
  std::function<comm::Ticket(device::Stream&, const StepInputs&)> communicate;
  /// With communication in several rounds: called when a round is complete (on devices whose memory the host
  /// does not share: enqueued). Starts the next round, or returns nothing if there is none. May be empty.
  std::function<std::optional<comm::Ticket>(device::Stream&)> proceed;
  comm::Communicator* communicator = nullptr;  ///< of communications
  /// For instructions that wait for data which no communicator of the program brings: whether it is in host
  /// memory. May be empty.
  std::function<bool()> arrived;
  /// For data that the host sends, on devices that do not share its memory: sends it, in program order, once
  /// the device has done its part of the instruction. May be empty.
  std::function<void()> deliver;
  /// Whether the delivered data is sent, and its memory free for the next start; goes with `deliver`.
  std::function<bool()> delivered;
  /// For copies from host memory, on devices that do not share it: the last copy, recorded on the
  /// instruction's stream. It must be done before the next start. May be null.
  const device::Event* staged = nullptr;
  std::function<void(device::Stream&)> finish;  ///< after completion; may be empty
};

using KernelObserver = std::function<void(const KernelObservation&)>;

/// Whether an instruction of this program does anything in an iteration with these inputs.
inline bool runs(const program::Instruction& instruction, const StepInputs& inputs) {
  return !instruction.anew || inputs.begins_anew;
}

/// Whether executors have an action for instructions of this kind.
bool is_runnable(program::InstructionKind kind);

/// One action per instruction of `program`. `observer` (may be null, or empty) is called as KernelObservation
/// says; the device does nothing else meanwhile. Before anything runs, it refuses instructions that it cannot
/// run, or that do not fit the model (kinds without an action, operands that are missing, too small or of
/// another type): it throws InternalError, which names the instruction.
std::vector<Action> make_actions(const program::Program& program, const ExecutionContext& context,
                                 const KernelObserver* observer);

/// The host memory that operations of a group need if messages between hosts carry device memory
/// (comm::make_staged_communicator). 0: the program has no such operation.
int64_t staged_bytes(const program::Program& program, int group);

/// Host memory (Device::allocate_host) that these actions need on a device of that kind.
int64_t staging_bytes(const program::Program& program, const model::Graph& graph, int64_t micro_batch,
                      device::DeviceKind device, const std::optional<program::PackedInput>& packed = {});

}  // namespace lockstep::run
