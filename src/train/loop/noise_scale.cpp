#include "train/loop/noise_scale.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <set>

#include "base/ensure.h"
#include "base/index.h"
#include "base/log.h"
#include "program/instruction_rules.h"

namespace lockstep::train {
namespace {

constexpr const char* kNoiseTopic = "noise";
/// What an earlier step counts for, next to the one after it.
constexpr double kNoiseMemory = 0.9;
/// Steps whose sums rank 0 keeps, if some are missing.
constexpr size_t kMostNoisySteps = 8;

double squares_of(const float* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  return sum;
}

}  // namespace

void NoiseScaleEstimate::add(double small, double inverse_small_samples, double large, double samples) {
  const double difference = inverse_small_samples - 1 / samples;
  const double noise = (small - large) / difference;
  const double gradient = (large * inverse_small_samples - small / samples) / difference;
  noise_ = kNoiseMemory * noise_ + (1 - kNoiseMemory) * noise;
  gradient_ = kNoiseMemory * gradient_ + (1 - kNoiseMemory) * gradient;
  weight_ = kNoiseMemory * weight_ + (1 - kNoiseMemory);
}

std::optional<double> NoiseScaleEstimate::value() const {
  // Both have the same weight, which the quotient does not need.
  if (weight_ == 0 || !(gradient_ > 0) || !(noise_ >= 0)) return {};
  return noise_ / gradient_;
}

NoiseScale::NoiseScale(const Worker& worker, NoiseScaleOptions options)
    : worker_(worker), options_(std::move(options)) {
  const auto& division = worker.compiled().division();
  const layout::Ownership& ownership = worker.compiled().ownership();
  global_batch_ = static_cast<double>(division.global_batch);
  static_count_ = global_batch_ * static_cast<double>(worker.compiled().graph().loss_positions());
  ensure(!ownership.ties_stages(), "noise is not measured if stages share parameters");
  std::set<int> micro_batches;
  // Every stage has the same micro-batches: they count once.
  const bool counts = ownership.is_worker(worker.rank()) && ownership.stage_of(worker.rank()) == 0;
  for (const program::Instruction& i : worker.programs().step.instructions) {
    if (!program::is_backward(i.kind) || i.accumulate) continue;
    ensure(samples_of(i) < global_batch_, "noise is measured beside smaller batches");
    if (!counts || !micro_batches.insert(i.micro_batch).second) continue;
    own_.inverse_samples += 1 / samples_of(i);
    ++own_.micro_batches;
  }
}

double NoiseScale::samples_of(const program::Instruction& instruction) const {
  const auto& division = worker_.compiled().division();
  return static_cast<double>(instruction.leaves) * static_cast<double>(division.leaf_samples) /
         division.micro_batches_per_leaf;
}

const float* NoiseScale::on_host(const Tensor& tensor) {
  if (worker_.device().shares_host_memory()) return static_cast<const float*>(tensor.data);
  const int64_t count = tensor.shape.count();
  copy_.resize(static_cast<size_t>(count));
  worker_.device().copy_now(copy_.data(), static_cast<const std::byte*>(tensor.data),
                            count * static_cast<int64_t>(sizeof(float)));
  return copy_.data();
}

void NoiseScale::observe(const run::KernelObservation& observation) {
  if (observation.call == nullptr || observation.call->accumulate) return;
  const program::Instruction& instruction = worker_.programs().step.instruction(observation.instruction);
  if (!program::is_backward(instruction.kind)) return;
  const model::Graph& graph = worker_.compiled().graph();
  const model::Node& node = graph.node(observation.call->node);
  const bool is_first_half =
      node.has_second_half() && observation.call->phase != ops::KernelPhase::backward_weight;
  for (size_t g = 0; g < observation.call->parameter_gradients.size(); ++g) {
    const int parameter = observation.call->gradient_parameters[g];
    const Tensor& gradient = observation.call->parameter_gradients[g];
    const auto& of = graph.parameter(parameter);
    // Another kernel writes it, nobody needs it, or it is no gradient.
    if (gradient.data == nullptr || of.frozen || of.spec.role != ops::ParameterRole::weight) continue;
    // Calls for an op's two halves both name its gradients, which the second one writes.
    if (is_first_half && g < node.parameters.size()) continue;
    const int64_t count = gradient.shape.count();
    const float* values = on_host(gradient);
    MicroBatch& own = micro_batches_[instruction.micro_batch];
    own.samples = samples_of(instruction);
    if (of.uses.size() == 1) {
      own.squares[parameter] = squares_of(values, count);
      continue;
    }
    SharedGradient& shared = own.shared[parameter];
    shared.sum.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) shared.sum[static_cast<size_t>(i)] += values[i];
    // A copy of it lives no longer than its micro-batch's backward.
    if (++shared.uses < of.uses.size()) continue;
    own.squares[parameter] = squares_of(shared.sum.data(), count);
    own.shared.erase(parameter);
  }
}

double NoiseScale::squares_of_step() {
  double sum = 0;
  for (const auto& [number, micro_batch] : micro_batches_) {
    double squares = 0;
    for (const auto& [parameter, of_one] : micro_batch.squares) squares += of_one;
    // Some uses have no gradient, such as those before everything that is trained.
    for (const auto& [parameter, shared] : micro_batch.shared)
      squares += squares_of(shared.sum.data(), static_cast<int64_t>(shared.sum.size()));
    // What kernels make is a part of the global batch's mean.
    const double share = global_batch_ / micro_batch.samples;
    sum += share * share * squares;
  }
  micro_batches_.clear();
  return sum;
}

void NoiseScale::end_step(int64_t step, const program::Verdict& verdict, const run::StepScalars& constants,
                          bool skipped) {
  Sums sums = own_;
  const double scale = program::update_scale(verdict, constants.kernels, static_count_, false);
  sums.squares = scale * scale * squares_of_step();
  if (skipped || !worker_.compiled().ownership().is_worker(worker_.rank())) return;
  if (options_.mailbox->rank() == 0) {
    gathered_[step].large = verdict.gradient_norm * verdict.gradient_norm;
    return add(step, sums);
  }
  options_.mailbox->send(
      0, kNoiseTopic,
      fmt::format("{} {:a} {:a} {}", step, sums.squares, sums.inverse_samples, sums.micro_batches));
}

void NoiseScale::add(int64_t step, const Sums& sums) {
  Gathered& gathered = gathered_[step];
  ++gathered.workers;
  gathered.sums.squares += sums.squares;
  gathered.sums.inverse_samples += sums.inverse_samples;
  gathered.sums.micro_batches += sums.micro_batches;
}

void NoiseScale::collect(Deadline deadline) {
  if (options_.mailbox->rank() != 0) return;
  while (!gathered_.empty()) {
    const auto& [step, oldest] = *gathered_.begin();
    if (oldest.workers == worker_.compiled().ownership().workers()) {
      const double count = oldest.sums.micro_batches;
      // Steps that are not finite may be taken (trainer.nonfinite: IGNORE): they do not count.
      if (std::isfinite(oldest.sums.squares) && std::isfinite(oldest.large)) {
        estimate_.add(oldest.sums.squares / count, oldest.sums.inverse_samples / count, oldest.large,
                      global_batch_);
        if (const auto scale = estimate_.value()) options_.write(step, *scale);
      }
      gathered_.erase(gathered_.begin());
      continue;
    }
    const auto message = options_.mailbox->receive(kNoiseTopic, deadline);
    if (!message) break;
    long long of_step = 0;
    Sums sums;
    if (std::sscanf(message->text.c_str(), "%lld %la %la %d", &of_step, &sums.squares, &sums.inverse_samples,
                    &sums.micro_batches) == 4)
      add(of_step, sums);
  }
  if (gathered_.size() <= kMostNoisySteps) return;
  log_warning(fmt::format("step {}: sums of its gradient noise are missing; it does not count",
                          gathered_.begin()->first));
  gathered_.erase(gathered_.begin());
}

}  // namespace lockstep::train
