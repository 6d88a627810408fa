#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/agreement.h"
#include "comm/communicator.h"
#include "compile/compiled_run.h"
#include "config/run_config.h"
#include "data/dataset.h"
#include "device/host_window.h"
#include "observe/startup_times.h"
#include "run/executor.h"
#include "train/worker/batches.h"
#include "train/worker/run_length.h"
#include "train/worker/serving.h"

namespace lockstep::train {

/// How Progress knows what a rank executes (train/faults/position.h).
inline constexpr int kNoProgram = 0, kStepProgram = 1, kEvaluateProgram = 2, kBoundaryProgram = 3,
                     kReplayProgram = 4, kSaving = 5, kServeProgram = 6, kGatherProgram = 7;

class Worker;

/// What lies of a parameter in a rank's memory: `count` elements from `first` on.
struct HeldParameter {
  int parameter;
  int64_t first, count;
  float* data;
};

/// What a rank needs to know before programs are written: everything else follows from the config.
struct WorkerOptions {
  int rank = 0;
  int world_size = 1;
  bool shared_memory = false;   ///< all workers share a host's memory: the programs may count on it
  std::vector<int> hosts = {};  ///< of each rank; none: all are on one
  device::DeviceKind device = device::DeviceKind::cpu;  ///< of workers: cpu or cuda
  int gpu_ordinal = 0;                                  ///< of this rank, if it computes on one
  /// Where set, lanes run at once on the asynchronous CPU device, each on a thread of its own; otherwise, on
  /// CPUs, all of them on the calling thread.
  std::optional<device::AsyncCpuOptions> asynchronous;
  observe::StartupTimes* startup = nullptr;  ///< which is told what takes how long; may be null
  Company company;                           ///< with mode=async
  control::Progress* progress =
      nullptr;  ///< what the watchdog reads; null: none watches, and waiting has a limit of its own
  /// See ExecutorOptions::failed; may be empty.
  std::function<void(const std::exception_ptr& error)> failed;
  double slowdown = 1;  ///< of what a worker on a CPU computes; see ExecutorOptions
  /// Rank 0 proves all ranks' programs, which may take minutes; called again and again meanwhile. May be
  /// empty.
  std::function<void()> proof_gets_on;
  /// Called before each instruction, with its StepInputs::iteration; may be empty.
  std::function<void(const Worker&, const program::Program&, uint64_t iteration, int instruction)>
      before_instruction;
};

/// One rank's parts, ready to run: memory, data, communicators, executors. Owns them all. The rank may as
/// well be a server, which has no batches and holds parts of parameters. The constructor does what needs no
/// other rank; connect() is COLLECTIVE.
class Worker {
 public:
  Worker(const config::RunConfig& config, const WorkerOptions& options);
  ~Worker();
  Worker(const Worker&) = delete;

  /// COLLECTIVE: makes the groups' communicators and the executors.
  void connect(comm::Communicator& world);
  /// What all ranks must have in common.
  std::vector<comm::AgreementField> agreement_fields() const;

  /// One optimizer step, up to its report: afterwards verdict() holds what was agreed. Its last updates, and
  /// the sending of what they changed, may go on into the next step (Executor).
  void run_step(const run::StepInputs& inputs) { step_executor_->run(inputs); }
  /// COLLECTIVE. Completes the last step. Whatever below runs another program or touches parameters does so
  /// by itself.
  void finish_step() const;
  /// Whether what is left of a step gets on only while this rank waits for it, or makes the next one.
  bool needs_attention() const;
  run::IterationTimes step_times() const { return step_executor_->last_times(); }
  /// Of layouts with sessions: between begin and end, workers make steps as they are granted, and servers
  /// serve. Null for other layouts.
  Serving* serving() { return serving_.get(); }
  /// COLLECTIVE: waits for the end of the session. Who is left, by rank: where that is not everybody, nothing
  /// else that is collective may follow.
  std::vector<int> end_session();
  /// COLLECTIVE: workers get the last version of all parameters.
  void gather();
  /// COLLECTIVE: a step, complete, with an observer of its kernels.
  void run_observed_step(const run::StepInputs& inputs, const run::KernelObserver& observer);
  /// Likewise, but nothing is updated: to locate what is not finite.
  void replay_step(run::StepInputs inputs, const run::KernelObserver& observer);
  /// The whole evaluation set; returns the sums over it. Ends after the iteration in which any rank's
  /// `stop_requested` (may be empty) says so; the result says it too.
  program::Verdict evaluate(const std::function<bool()>& stop_requested = {});
  /// The boundary program: copies this rank's share of a checkpoint to snapshot(), then calls `prepare`; true
  /// where that is so on all ranks. COLLECTIVE.
  bool run_boundary(const std::function<bool()>& prepare);
  /// The copy, part behind part as in checkpoint_shares(). Nothing but run_boundary() writes there.
  std::byte* snapshot() const;

  program::Verdict verdict() const { return verdict_of(programs_.step); }
  /// By chunks of parameters (layout::norm_chunks_of), what forward and backward of the last step have read,
  /// where its program has a digest of that; empty elsewhere.
  std::vector<uint64_t> parameter_digests() const;
  int rank() const { return options_.rank; }
  /// As messages of the whole job call it: before others were lost.
  int first_rank() const {
    const auto& members = options_.company.members;
    return members.empty() ? options_.rank : members[static_cast<size_t>(options_.rank)];
  }
  const config::RunConfig& config() const {
    return config_;
  }  ///< its layout as stated; compiled().layout() is resolved
  const compile::CompiledRun& compiled() const { return *compiled_; }
  const compile::CompiledRun::RankPrograms& programs() const { return programs_; }
  /// By its number (kStepProgram...); null for any other.
  const program::Program* program_of(int number) const;
  /// The optimizer step, from 0, that an iteration of step or serve belongs to.
  int64_t step_of(const program::Program& program, uint64_t iteration) const;
  const run::ProgramMemory& memory() const { return *memory_; }
  const data::Dataset& train_data() const { return *data_.train; }
  const data::Dataset& eval_data() const { return *data_.eval; }
  bool has_eval_data() const { return data_.eval != nullptr; }
  /// REQUIRES: there is something to train on.
  const RunLength& length() const { return *length_; }
  int64_t total_steps() const { return length_ ? length_->total_steps() : 0; }
  /// The training goes on from there. REQUIRES: nothing has been read yet.
  void go_on_from(RunPosition position);
  /// Where batches of the training data begin to be read ahead.
  void start_reading(uint64_t step);
  double data_wait_ms() const { return train_batches_ ? train_batches_->data_wait_ms() : 0; }
  /// By the exchanges of all steps so far.
  comm::TransferredBytes transferred() const;
  /// Most that was taken of the host's memory: what the device was given of it, and batches read ahead.
  int64_t peak_host_bytes() const;

  /// Private memory of the process before it allocated its plan.
  int64_t private_bytes_before_plan() const { return private_bytes_before_plan_; }

  device::Device& device() const { return *device_; }
  /// Whether it computes a replica of the model, or a stage of one; otherwise it only serves.
  bool is_worker() const { return compiled_->placement().is_worker(options_.rank); }
  /// Whether all of the model's parameters lie here.
  bool holds_all() const { return compiled_->placement().holds_all(options_.rank); }
  /// What it holds of the parameters, by ascending number, in the device's memory: to be touched after
  /// finish_step().
  std::vector<HeldParameter> held_parameters() const;
  /// Where a parameter lies. REQUIRES: it lies here, whole.
  float* parameter_data(int parameter) const;
  /// The part of a parameter's optimizer state that this worker holds, which is that of the bytes that it
  /// owns (ParameterPlace).
  float* state_data(int parameter, int slot) const;
  /// For the host to read and write them, one at a time. Between steps only. COLLECTIVE after a step, which
  /// it completes.
  device::HostWindow& window() const;

 private:
  /// Where micro-batches begin in the samples of an iteration.
  struct Positions {
    std::vector<int64_t> train, eval;
  };
  Positions read_positions();
  program::Verdict verdict_of(const program::Program& program) const;
  std::unique_ptr<run::Executor> make_executor(int program_number, const run::ExecutionContext& context,
                                               const run::KernelObserver* observer = nullptr);
  run::ExecutionContext make_context(const program::ModelCode& code, std::vector<int64_t> first_samples,
                                     run::BatchSource* batches);
  void connect_groups(comm::Communicator& world, const program::Program& program,
                      run::ExecutionContext& context);
  void connect_servers(comm::Communicator& world);
  bool computes_on_gpu() const;
  comm::Communicator* connect_gpus(comm::Communicator& channel, const std::string& group);
  void share_progress();
  void spent_on(observe::StartupPart part);

  WorkerOptions options_;
  config::RunConfig config_;
  std::unique_ptr<compile::CompiledRun> compiled_;
  compile::CompiledRun::RankPrograms programs_;
  std::optional<RunLength> length_;  // none where there is nothing to train on
  data::DatasetPair data_;
  std::unique_ptr<PrefetchedBatches> train_batches_, eval_batches_;  // null where nothing is loaded
  std::unique_ptr<device::Device> device_;
  bool device_tells_ = true;  // to options_.progress, where its lanes are
  int64_t private_bytes_before_plan_ = 0;
  std::unique_ptr<run::ProgramMemory> memory_;
  std::unique_ptr<device::HostWindow> window_;
  std::vector<std::unique_ptr<comm::Communicator>> communicators_;  // by program and group
  std::vector<std::unique_ptr<comm::Communicator>>
      channels_;  // through shared memory or of GPUs, each over one of those
  std::map<std::string, comm::Communicator*>
      gpu_channels_;  // by the group's name; null where this rank is no member
  std::unique_ptr<run::ExecutionContext> step_context_, evaluate_context_, boundary_context_;
  std::unique_ptr<run::ExecutionContext> serve_context_, gather_context_;  // of layouts with sessions
  std::unique_ptr<run::Executor> gather_executor_;
  std::function<bool()> prepare_save_;
  run::KernelObserver observer_;
  std::unique_ptr<run::Executor> step_executor_, evaluate_executor_, boundary_executor_, replay_executor_;
  std::unique_ptr<Serving> serving_;  // goes first: its messages use memory that executors own
};

}  // namespace lockstep::train
