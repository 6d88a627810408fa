#include "observe/sinks/metric_names.h"

#include <algorithm>

namespace lockstep::observe {
namespace {

constexpr MetricName kMetricNames[] = {
    {"loss", "train/loss", "lockstep_train_loss", 1,
     "Mean loss over the global batch of the last logged step."},
    {"accuracy", "train/accuracy", "lockstep_train_accuracy_ratio", 1,
     "Share of right answers in the global batch of the last logged step."},
    {"learning_rate", "train/learning_rate", "lockstep_learning_rate", 1,
     "Learning rate of the last logged step."},
    {"grad_norm", "train/grad_norm", "lockstep_gradient_norm", 1,
     "Norm of all gradients of the last logged step, before clipping."},
    {"noise_scale", "train/noise_scale", "lockstep_gradient_noise_scale_samples", 1,
     "Batch at which the noise of a gradient is as large as the gradient, as last measured."},
    {"loss_scale", "train/loss_scale", "lockstep_loss_scale", 1,
     "Scale of the loss of the last logged step."},
    {"skipped", "train/skipped", "lockstep_step_skipped", 1,
     "1 if the last logged step was skipped, because it was not finite."},
    {"loss_z", "train/loss_z", "lockstep_loss_deviations", 1,
     "Standard deviations by which the loss stands out."},
    {"grad_norm_z", "train/grad_norm_z", "lockstep_gradient_norm_deviations", 1,
     "Standard deviations by which the norm of the gradients stands out."},
    {"step_ms", "time/step_ms", "lockstep_step_seconds", 0.001, "Duration of the last logged step."},
    {"exposed_comm_ms", "time/exposed_comm_ms", "lockstep_exposed_communication_seconds", 0.001,
     "Time of the last logged step in which rank 0 waited for communication."},
    {"data_wait_ms", "time/data_wait_ms", "lockstep_data_wait_seconds", 0.001,
     "Time of the last logged step in which rank 0 waited for data."},
    {"samples_per_second", "speed/samples_per_second", "lockstep_samples_per_second", 1,
     "Throughput of all workers in the last logged step."},
    {"eval_loss", "eval/loss", "lockstep_eval_loss", 1, "Loss of the last evaluation."},
    {"eval_accuracy", "eval/accuracy", "lockstep_eval_accuracy_ratio", 1,
     "Share of right answers in the last evaluation."},
    {"eval_ms", "time/eval_ms", "lockstep_eval_seconds", 0.001, "Duration of the last evaluation."},
};

}  // namespace

std::span<const MetricName> metric_names() { return kMetricNames; }

std::string grouped_name(std::string_view field) {
  const auto* found = std::ranges::find(kMetricNames, field, &MetricName::field);
  return found == std::end(kMetricNames) ? "train/" + std::string(field) : std::string(found->grouped);
}

std::string grouped_name(const MachineSubject& subject, bool several_hosts, std::string_view field) {
  return group_of(subject, several_hosts) + "/" + std::string(field);
}

}  // namespace lockstep::observe
