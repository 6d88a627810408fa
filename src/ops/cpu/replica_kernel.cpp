#include "ops/cpu/replica_kernel.h"

#include <array>
#include <utility>
#include <vector>

#include "base/ensure.h"
#include "lockstep/error.h"
#include "ops/cpu/replica_fold.h"

namespace lockstep::ops {
namespace {

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// One list of tensors of a call, as the kernel of one replica sees it. Shapes are made once.
struct Slices {
  std::vector<Tensor> tensors;
  std::vector<int64_t> stride_bytes;  ///< from one replica to the next

  void add(Shape shape, DType dtype) {
    tensors.push_back({nullptr, std::move(shape), dtype});
    stride_bytes.push_back(tensors.back().size_bytes());
  }
  /// Points to the memory of one of the replicas.
  void take(std::span<const Tensor> whole, int replica) {
    ensure(whole.size() == tensors.size(), "a call has the tensors of its op's signature");
    for (size_t i = 0; i < whole.size(); ++i)
      tensors[i].data = whole[i].data == nullptr
                            ? nullptr
                            : static_cast<std::byte*>(whole[i].data) + replica * stride_bytes[i];
  }
};

class ReplicaKernel : public Kernel {
 public:
  ReplicaKernel(OpSignature signature, Inputs inputs, const KernelOptions& options,
                std::unique_ptr<Kernel> kernel)
      : signature_(std::move(signature)),
        replicas_(options.virtual_replicas),
        samples_(options.batch / options.virtual_replicas),
        threads_(options.intra_op_threads),
        kernel_(std::move(kernel)) {
    for (const TensorSpec& input : inputs)
      for (const List list : {kInputs, kInputGradients})
        add(list, input.shape.batched(samples_), input.dtype);
    for (const TensorSpec& output : signature_.outputs)
      for (const List list : {kOutputs, kOutputGradients})
        add(list, output.shape.batched(samples_), output.dtype);
    for (const AuxiliarySpec& one : signature_.auxiliary)
      add(kAuxiliary, one.per_sample ? one.shape.batched(samples_) : one.shape, one.dtype);
    for (const ParameterSpec& parameter : signature_.parameters) {
      gradients_.push_back({nullptr, parameter.shape, DType::float32});
      slot_bytes_ += whole_lines(gradients_.back().size_bytes());
    }
  }

  int64_t workspace_bytes(KernelPhase phase) const override {
    const int64_t own = whole_lines(kernel_->workspace_bytes(phase));
    return phase == gradient_phase() ? own + (fold_slots(replicas_) - 1) * slot_bytes_ : own;
  }

  void prepare(device::Device& device) override { kernel_->prepare(device); }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    for (int replica = 0; replica < replicas_; ++replica)
      kernel_->forward(arguments_of(replica, arguments), stream);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    run(KernelPhase::backward_input, arguments, stream,
        [&](const KernelArguments& one) { kernel_->backward_input(one, stream); });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    run(KernelPhase::backward_weight, arguments, stream,
        [&](const KernelArguments& one) { kernel_->backward_weight(one, stream); });
  }

 private:
  enum List : size_t { kInputs, kOutputs, kOutputGradients, kInputGradients, kAuxiliary, kListCount };

  void add(List list, Shape shape, DType dtype) { lists_[list].add(std::move(shape), dtype); }

  /// In which gradients of parameters are made.
  KernelPhase gradient_phase() const {
    return signature_.backward == BackwardForm::joint ? KernelPhase::backward_input
                                                      : KernelPhase::backward_weight;
  }

  KernelArguments arguments_of(int replica, const KernelArguments& whole) {
    lists_[kInputs].take(whole.inputs, replica);
    lists_[kOutputs].take(whole.outputs, replica);
    lists_[kAuxiliary].take(whole.auxiliary, replica);
    KernelArguments one = whole;
    one.inputs = lists_[kInputs].tensors;
    one.outputs = lists_[kOutputs].tensors;
    one.auxiliary = lists_[kAuxiliary].tensors;
    if (!whole.output_gradients.empty()) {
      lists_[kOutputGradients].take(whole.output_gradients, replica);
      one.output_gradients = lists_[kOutputGradients].tensors;
    }
    if (!whole.input_gradients.empty()) {
      lists_[kInputGradients].take(whole.input_gradients, replica);
      one.input_gradients = lists_[kInputGradients].tensors;
    }
    if (whole.metrics != nullptr) one.metrics = whole.metrics + replica * kMetricCount;
    one.first_sample = whole.first_sample + replica * samples_;
    return one;
  }

  template <class Call>
  void run(KernelPhase phase, const KernelArguments& arguments, device::Stream& stream, const Call& call) {
    if (phase != gradient_phase() || gradients_.empty()) {
      for (int replica = 0; replica < replicas_; ++replica) call(arguments_of(replica, arguments));
      return;
    }
    ensure(!arguments.accumulate, "gradients of several virtual replicas are complete");
    const auto make = [&](int replica, int slot) {
      KernelArguments one = arguments_of(replica, arguments);
      for (size_t i = 0; i < gradients_.size(); ++i) gradients_[i].data = place(arguments, phase, slot, i);
      one.parameter_gradients = gradients_;
      call(one);
    };
    const auto add = [&](int slot) {
      for (size_t i = 0; i < gradients_.size(); ++i)
        launch_addition(place(arguments, phase, slot, i), place(arguments, phase, slot + 1, i),
                        gradients_[i].count(), stream);
    };
    fold_replicas(replicas_, make, add);
  }

  /// Slot 0 is where the result belongs; the others lie behind the kernel's own workspace. Null for what is
  /// not wanted.
  float* place(const KernelArguments& arguments, KernelPhase phase, int slot, size_t gradient) const {
    float* result = arguments.parameter_gradients[gradient].as<float>();
    if (slot == 0 || result == nullptr) return result;
    int64_t offset = whole_lines(kernel_->workspace_bytes(phase)) + (slot - 1) * slot_bytes_;
    for (size_t i = 0; i < gradient; ++i) offset += whole_lines(gradients_[i].size_bytes());
    return reinterpret_cast<float*>(static_cast<std::byte*>(arguments.workspace) + offset);
  }

  void launch_addition(float* to, const float* from, int64_t count, device::Stream& stream) const {
    if (to == nullptr) return;
    stream.launch([to, from, count, threads = threads_] { add_numbers(to, from, count, threads); });
  }

  OpSignature signature_;
  int replicas_;
  int64_t samples_;  // of a replica
  int threads_;
  std::unique_ptr<Kernel> kernel_;
  std::array<Slices, kListCount> lists_;
  std::vector<Tensor> gradients_;  // of parameters
  int64_t slot_bytes_ = 0;
};

}  // namespace

bool needs_replicas_apart(const Op& op, const OpSignature& signature) {
  return (!signature.parameters.empty() || signature.is_loss) && !std::holds_alternative<Linear>(op) &&
         !std::holds_alternative<Conv2d>(op);
}

std::unique_ptr<Kernel> make_replica_kernel(const Op& op, Inputs inputs, const KernelOptions& options,
                                            std::unique_ptr<Kernel> kernel_of_one) {
  require(options.batch % options.virtual_replicas == 0, "virtual replicas of a micro-batch are equal parts");
  return std::make_unique<ReplicaKernel>(infer(op, inputs), inputs, options, std::move(kernel_of_one));
}

}  // namespace lockstep::ops
