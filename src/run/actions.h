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

/// Where `load` takes batches from. Fields are the model's inputs, in graph order, batch in front.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// `position`: of the micro-batch's first sample within the iteration's global batch.
  virtual void load(uint64_t iteration, int64_t position, std::span<const Tensor> fields) = 0;
};

/// What one iteration of a program gets from outside.
struct StepInputs {
  StepScalars constants;
  uint64_t iteration = 0;         ///< of the data: which global batch
  bool suppress_updates = false;  ///< replay: everything runs, nothing is changed
  double stop_requested = 0;      ///< this rank's contribution to `agree`
  uint64_t state_hash = 0;        ///< likewise: of this replica before the program runs; 0: not compared
};

/// After every call of an op's kernel, and after every update, of an iteration that is observed.
struct KernelObservation {
  int instruction;
  const program::KernelCall* call;  ///< what ran; null: an update
  double seconds;                   ///< that it took, on the device
};

/// Everything instructions need to turn into work. Owned by whoever builds the executor; outlives it.
struct ExecutionContext {
  const model::Graph& graph;
  const program::ModelCode& code;
  const ProgramMemory& memory;
  device::Device& device;  ///< whose memory that is
  optim::OptimizerOptions optimizer;
  double clip_norm = 0;                ///< 0: none
  int update_threads = 1;              ///< that sums and updates may use (StepKernels)
  SumOrder sum_order = SumOrder::own;  ///< of processors
  double static_count = 1;             ///< terms of the loss in a global batch
  double statistic_scale = 1;          ///< 1 / micro-batches of a global batch
  std::vector<int64_t> first_samples;  ///< by micro-batch of this rank
  BatchSource* batches = nullptr;
  std::function<bool()> snapshot;                  ///< prepares saving what was copied; true if all is well
  std::vector<comm::Communicator*> communicators;  ///< by group; null if this rank is no member
  WorkerSession* session = nullptr;                ///< of pushes and pulls
};

/// An instruction made ready to run. Running it twice, for two iterations, allocates nothing. On devices
/// whose memory the host does not share, start, communicate and finish only enqueue on the stream; `finish`
/// follows where the instruction has neither, too.
struct Action {
  /// Of what does not communicate: computes. `between` is called between kernels of a long instruction.
  std::function<void(device::Stream&, const StepInputs&, const std::function<void()>& between)> start;
  /// Of communications: starts one on `communicator`, which tells by the ticket when it is complete.
  std::function<comm::Ticket(device::Stream&, const StepInputs&)> communicate;
  /// Of communications of several rounds, when a round is complete (on devices whose memory the host does not
  /// share: enqueued): starts the next one, or tells that there is none; may be empty.
  std::function<std::optional<comm::Ticket>(device::Stream&)> proceed;
  comm::Communicator* communicator = nullptr;  ///< of communications
  /// Of what waits for something that no communicator of the program brings: whether it is there, in memory
  /// of the host; may be empty.
  std::function<bool()> arrived;
  /// Of what the host gives away, on devices that do not share its memory: does so, in program order, when
  /// the device has done its part of the instruction; may be empty.
  std::function<void()> deliver;
  /// Whether what was delivered is on its way, and its memory free for the next start; goes with `deliver`.
  std::function<bool()> delivered;
  /// Of what copies from memory of the host, on devices that do not share it: the last copy, recorded on the
  /// instruction's stream, which must be done before the next start. May be null.
  const device::Event* staged = nullptr;
  std::function<void(device::Stream&)> finish;  ///< after completion; may be empty
};

using KernelObserver = std::function<void(const KernelObservation&)>;

/// Whether executors have an action for instructions of this kind.
bool is_runnable(program::InstructionKind kind);

/// One action per instruction of `program`. `observer` (may be null, or empty) is called as KernelObservation
/// says; the device works on nothing else meanwhile. Refuses what it cannot run, or what does not fit the
/// model (kinds without an action, operands that are missing, too small or of another type), before anything
/// runs: throws InternalError naming the instruction.
std::vector<Action> make_actions(const program::Program& program, const ExecutionContext& context,
                                 const KernelObserver* observer);

/// The most that an operation of a group takes of the host's memory, where messages between hosts carry
/// memory of a device (comm::make_staged_communicator). 0: the program has none.
int64_t staged_bytes(const program::Program& program, int group);

/// What these actions take of the host's memory (Device::allocate_host), on a device of that kind.
int64_t staging_bytes(const program::Program& program, const model::Graph& graph, int64_t micro_batch,
                      device::DeviceKind device);

}  // namespace lockstep::run
