#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "compile/run_plan.h"
#include "layout/ownership.h"
#include "parallel/program_plan.h"
#include "pixels/packed_sample.h"
#include "program/memory/memory_plan.h"
#include "program/program_traffic.h"
#include "program/segment_code.h"
#include "program/session_terms.h"

namespace lockstep::compile {

/// The programs of a run and what they are compiled from. They are pure functions of options and facts,
/// without data, devices, communication or a trainer. `lockstep inspect` shows them. Each rank compiles and
/// executes its own programs; one rank proves the programs of all.
class CompiledRun {
 public:
  explicit CompiledRun(RunPlan plan);
  /// Throws ConfigError if they do not fit together.
  CompiledRun(const CompileOptions& options, const CompileFacts& facts)
      : CompiledRun(plan_run(options, facts)) {}
  CompiledRun(const CompiledRun&) = delete;  // programs refer to the graph and code inside

  /// Programs of one rank, with placed buffers.
  struct RankPrograms {
    program::Program step, evaluate, boundary;
    program::Program serve, gather;  ///< of layouts with sessions
    program::MemoryPlan step_plan, evaluate_plan, boundary_plan, serve_plan, gather_plan;

    /// The programs that the layout has.
    std::vector<const program::Program*> all() const;
    std::vector<program::MemoryPlan> plans() const {
      return {step_plan, evaluate_plan, boundary_plan, serve_plan, gather_plan};
    }
    /// Bytes that the rank sends and receives by step and serve, per step of all workers.
    program::ProgramTraffic traffic() const;
  };
  /// Compiles a rank's programs and proves their kernel calls. Throws InternalError, which says what is
  /// wrong.
  RankPrograms compile(int rank) const;
  /// Proves all ranks' programs; throws InternalError with what is wrong. `gets_on` (may be empty) is called
  /// again and again meanwhile, from one small piece of the work to the next: many ranks take minutes.
  void check(const std::function<void()>& gets_on = {}) const;
  /// Of everything that compile() is a function of but the rank: equal on all ranks of a job exactly if each
  /// of them would compile the same programs for all ranks (given equal binaries).
  uint64_t program_hash() const { return program_hash_; }

  const layout::Layout& layout() const { return run_.layout(); }  ///< resolved
  const model::Graph& graph() const { return run_.graph; }
  const model::Partition& partition() const { return run_.partition; }
  const layout::BatchDivision& division() const { return run_.division; }
  device::DeviceKind device() const { return plan_->device; }  ///< of workers
  device::DeviceKind device_of(int rank) const { return plan_->device_of(rank); }
  /// Times of a micro-batch by node: in seconds by the profile, or estimated if there is none.
  std::vector<model::NodeTime> node_times() const;
  const std::optional<model::Profile>& profile() const { return plan_->parallel.profile; }
  void require_noise() const { compile::require_noise(run_); }
  /// Makes what kernels need on a device, on ranks whose device is device(). Call it once, before kernels
  /// run.
  void prepare(device::Device& device);
  const program::ModelCode& training_code() const { return *training_; }
  const program::ModelCode& evaluation_code() const { return *evaluation_; }
  int state_slot_count() const { return plan_->state_slots; }
  /// What updates need besides gradients.
  const layout::Measures& measures() const { return plan_->measures; }
  const layout::Ownership& ownership() const { return *ownership_; }
  /// "worker", "server", or "worker, server".
  std::string_view role_of(int rank) const;
  /// The terms without steps, which the beginning of a session adds. REQUIRES: layout().has_sessions().
  program::SessionTerms session_terms() const;
  /// Whether gradients are rounded to the wire's type before they are summed.
  bool narrows_gradients() const { return plan_->narrows_gradients(); }
  /// Whether workers keep what that loses, and add it to the next step's gradients.
  bool keeps_residuals() const { return plan_->keeps_residuals(); }
  /// Whether workers' steps have digests of the parameters that they read (the instruction `digest`).
  bool digests_parameters() const { return plan_->digests_parameters; }
  /// The parts of a checkpoint that each rank saves.
  const std::vector<std::vector<layout::SavedPart>>& checkpoint_shares() const { return plan_->shares; }

 private:
  RunPlan run_;
  std::unique_ptr<program::ModelCode> training_, evaluation_;
  void check_kind(const parallel::ProgramPlan& plan,
                  program::Program (*compile_kind)(const parallel::ProgramPlan&, int rank),
                  const std::function<void()>& gets_on) const;
  void check_sessions(const std::function<void()>& gets_on) const;

  std::unique_ptr<layout::Ownership> ownership_;
  std::unique_ptr<parallel::ProgramPlan> plan_;
  uint64_t program_hash_ = 0;
};

}  // namespace lockstep::compile
