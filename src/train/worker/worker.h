#pragma once

#include <array>
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
#include "tensor/part.h"
#include "train/worker/batches.h"
#include "train/worker/run_length.h"
#include "train/worker/serving.h"

namespace lockstep::train {

/// Numbers by which Progress says what a rank executes (train/faults/position.h).
inline constexpr int kNoProgram = 0, kStepProgram = 1, kEvaluateProgram = 2, kBoundaryProgram = 3,
                     kReplayProgram = 4, kSaving = 5, kServeProgram = 6, kGatherProgram = 7;

class Worker;

/// What a rank has of a parameter, or of a slot of its optimizer state, packed in the device's memory.
struct HeldParameter {
  int parameter;
  tensor::Part part;
  float* data;

  int64_t size_bytes() const { return part.count() * static_cast<int64_t>(sizeof(float)); }
};

/// What a rank must know before programs are written. Everything else follows from the config.
struct WorkerOptions {
  int rank = 0;
  int world_size = 1;
  bool shared_memory = false;   ///< all workers share one host's memory, and programs may use it
  std::vector<int> hosts = {};  ///< each rank's host; empty: all are on one
  device::DeviceKind device = device::DeviceKind::cpu;  ///< of workers: cpu or cuda
  int gpu_ordinal = 0;                                  ///< of this rank, if it computes on one
  int reading_threads = 1;  ///< the most that prepare data with `data.threads: AUTOMATIC`
  /// If set, lanes run at the same time on the asynchronous CPU device, each on its own thread. Otherwise, on
  /// CPUs, all lanes run on the calling thread.
  std::optional<device::AsyncCpuOptions> asynchronous;
  observe::StartupTimes* startup = nullptr;  ///< gets the times of the start; may be null
  Company company;                           ///< with mode=async
  control::Progress* progress =
      nullptr;  ///< the watchdog reads it; null: there is no watchdog, and waiting has its own limit
  /// See ExecutorOptions::failed; may be empty.
  std::function<void(const std::exception_ptr& error)> failed;
  run::StampRecorder* recorder = nullptr;  ///< of steps; see ExecutorOptions
  double slowdown = 1;                     ///< of what a worker on a CPU computes; see ExecutorOptions
  /// Rank 0 proves all ranks' programs, which may take minutes; called again and again meanwhile. May be
  /// empty.
  std::function<void()> proof_gets_on;
  /// Called before each instruction, with its StepInputs::iteration; may be empty.
  std::function<void(const Worker&, const program::Program&, uint64_t iteration, int instruction)>
      before_instruction;
};

/// One rank's parts, ready to run: memory, data, communicators, executors. Owns them all. The rank may also
/// be a server, which has no batches and holds parts of parameters. The constructor does what needs no other
/// rank; connect() is COLLECTIVE.
class Worker {
 public:
  Worker(const config::RunConfig& config, const WorkerOptions& options);
  ~Worker();
  Worker(const Worker&) = delete;

  /// COLLECTIVE: makes the groups' communicators and the executors.
  void connect(comm::Communicator& world);
  /// What all ranks must have in common.
  std::vector<comm::AgreementField> agreement_fields() const;

  /// Runs one optimizer step up to its report. Afterwards verdict() holds what was agreed. The last updates,
  /// and the sending of updated parameters, may continue during the next step (Executor).
  void run_step(const run::StepInputs& inputs) {
    last_was_observed_ = false;
    step_executor_->run(inputs);
  }
  /// COLLECTIVE. Completes the last step. Methods below that run another program or access parameters call it
  /// themselves.
  void finish_step() const;
  /// Whether the rest of a step advances only while this rank waits for it, or makes the next step.
  bool needs_attention() const;
  run::IterationTimes step_times() const {
    return (last_was_observed_ ? replay_executor_ : step_executor_)->last_times();
  }
  /// Of all steps so far, apart from observed ones; null if lanes do not share one thread.
  const run::WorkTimes* work_times() const { return step_executor_->work_times(); }
  const run::SampledTimes* sampled_times() const { return step_executor_->sampled_times(); }
  /// Of observed and replayed steps; likewise, or null if the layout has none.
  const run::WorkTimes* observed_work_times() const {
    return replay_executor_ ? replay_executor_->work_times() : nullptr;
  }
  /// For layouts with sessions: between begin and end, workers make granted steps, and servers serve. Null
  /// for other layouts.
  Serving* serving() { return serving_.get(); }
  /// COLLECTIVE: waits for the end of the session. Returns the ranks that are left. If some are missing, no
  /// other collective call may follow.
  std::vector<int> end_session();
  /// COLLECTIVE: workers receive the last version of all parameters.
  void gather();
  /// COLLECTIVE: runs a complete step with an observer of its kernels.
  void run_observed_step(const run::StepInputs& inputs, const run::KernelObserver& observer);
  /// The same without updates, to locate what is not finite.
  void replay_step(run::StepInputs inputs, const run::KernelObserver& observer);
  /// Evaluates the whole evaluation set and returns the sums over it. Ends early, after the iteration in
  /// which any rank's `stop_requested` (may be empty) returns true; the result says so.
  program::Verdict evaluate(const std::function<bool()>& stop_requested = {});
  /// COLLECTIVE: runs the boundary program, which copies this rank's share of a checkpoint to snapshot(),
  /// then calls `prepare`. True if `prepare` returned true on all ranks.
  bool run_boundary(const std::function<bool()>& prepare);
  /// The copy, one part after the other as in checkpoint_shares(). Only run_boundary() writes to it.
  std::byte* snapshot() const;

  program::Verdict verdict() const { return verdict_of(programs_.step); }
  /// Digests, by chunk of parameters (layout::norm_chunks_of), of what forward and backward of the last step
  /// have read. Empty if its program has no digest.
  std::vector<uint64_t> parameter_digests() const;
  int rank() const { return options_.rank; }
  /// Of the GPU that this rank computes on; empty if it does not.
  std::string gpu_uuid() const;
  /// The rank's first number, before others were lost; messages of the whole job use it.
  int first_rank() const {
    const auto& members = options_.company.members;
    return members.empty() ? options_.rank : members[static_cast<size_t>(options_.rank)];
  }
  const config::RunConfig& config() const {
    return config_;
  }  ///< its layout as stated; compiled().layout() is resolved
  const compile::CompiledRun& compiled() const { return *compiled_; }
  /// What compiled() was compiled from, besides the config.
  compile::CompileFacts compile_facts() const;
  const compile::CompiledRun::RankPrograms& programs() const { return programs_; }
  /// The program of a number (kStepProgram...); null for any other number.
  const program::Program* program_of(int number) const;
  /// The optimizer step, from 0, that an iteration of step or serve belongs to.
  int64_t step_of(const program::Program& program, uint64_t iteration) const;
  const run::ProgramMemory& memory() const { return *memory_; }
  const data::Dataset& train_data() const { return *data_.train; }
  const data::Dataset& eval_data() const { return *data_.eval; }
  /// Those of training and evaluation; null where there is none.
  std::array<const data::Dataset*, 2> datasets() const { return {data_.train.get(), data_.eval.get()}; }
  bool has_eval_data() const { return data_.eval != nullptr; }
  /// REQUIRES: there is training data.
  const RunLength& length() const { return *length_; }
  int64_t total_steps() const { return length_ ? length_->total_steps() : 0; }
  /// Makes the training continue from `position`. REQUIRES: nothing has been read yet.
  void go_on_from(RunPosition position);
  /// By name, parameters that were frozen at first, with the updates of the optimizer before their own first
  /// one (optim::ParameterRates::updates_before).
  void learn_since(std::map<std::string, int64_t> updates);
  const std::map<std::string, int64_t>& learning_since() const { return learning_since_; }
  /// Begins to read batches of training data ahead, from `step` on.
  void start_reading(uint64_t step);
  /// What threads have spent on preparing training data, by stage.
  data::StageTimes data_stage_times() const {
    return train_batches_ ? train_batches_->stage_times() : data::StageTimes{};
  }
  double data_wait_ms() const { return train_batches_ ? train_batches_->data_wait_ms() : 0; }
  /// Bytes that all exchanges so far have transferred.
  comm::TransferredBytes transferred() const;
  /// Peak use of the host's memory: pinned memory of the device, and batches read ahead.
  int64_t peak_host_bytes() const;

  /// Private memory of the process before it allocated its plan.
  int64_t private_bytes_before_plan() const { return private_bytes_before_plan_; }

  device::Device& device() const { return *device_; }
  /// Whether this rank computes a replica of the model, or a stage of one; otherwise it only serves.
  bool is_worker() const { return compiled_->ownership().is_worker(options_.rank); }
  /// Whether this rank holds all parameters of the model.
  bool holds_all() const { return compiled_->ownership().holds_all(options_.rank); }
  /// The parts of parameters that this rank holds, by ascending number, in the device's memory. Access them
  /// after finish_step().
  std::vector<HeldParameter> held_parameters() const;
  /// The address of a parameter. REQUIRES: this rank holds all of it.
  float* parameter_data(int parameter) const;
  /// The part of a parameter's optimizer state that this worker holds: that of the bytes that it owns
  /// (ParameterPlace).
  float* state_data(int parameter, int slot) const;
  /// Lets the host read and write parameters and state, one at a time, between steps. COLLECTIVE after a
  /// step, which it completes.
  device::HostWindow& window() const;

 private:
  /// The micro-batches of an iteration, by places in its samples.
  struct Positions {
    std::vector<data::SampleSpan> train, eval;
  };
  Positions micro_batches() const;
  void make_batches(const Positions& positions);
  program::Verdict verdict_of(const program::Program& program) const;
  std::unique_ptr<run::Executor> make_executor(int program_number, const run::ExecutionContext& context,
                                               const run::KernelObserver* observer = nullptr);
  run::ExecutionContext make_context(const program::ModelCode& code,
                                     const std::vector<data::SampleSpan>& micro_batches,
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
  std::optional<RunLength> length_;  // none if there is nothing to train on
  std::map<std::string, int64_t> learning_since_;
  std::vector<uint32_t> updates_before_;  // the same by parameter; empty: all are 0
  data::DatasetPair data_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<PrefetchedBatches> train_batches_, eval_batches_;  // null if nothing is loaded
  bool device_tells_ = true;  // to options_.progress, where its lanes are
  int64_t private_bytes_before_plan_ = 0;
  std::unique_ptr<run::ProgramMemory> memory_;
  std::unique_ptr<device::HostWindow> window_;
  std::vector<std::unique_ptr<comm::Communicator>> communicators_;  // by program and group
  std::vector<std::unique_ptr<comm::Communicator>>
      channels_;  // through shared memory or of GPUs, each over one of those
  std::map<std::string, comm::Communicator*>
      gpu_channels_;  // by the group's name; null if this rank is no member
  std::unique_ptr<run::ExecutionContext> step_context_, evaluate_context_, boundary_context_;
  std::unique_ptr<run::ExecutionContext> serve_context_, gather_context_;  // of layouts with sessions
  std::unique_ptr<run::Executor> gather_executor_;
  std::function<bool()> prepare_save_;
  run::KernelObserver observer_;
  bool last_was_observed_ = false;  // the last step
  std::unique_ptr<run::Executor> step_executor_, evaluate_executor_, boundary_executor_, replay_executor_;
  std::unique_ptr<Serving> serving_;  // goes first: its messages use memory that executors own
};

}  // namespace lockstep::train
