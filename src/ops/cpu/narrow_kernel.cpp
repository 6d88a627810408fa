#include "ops/cpu/narrow_kernel.h"

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "base/ensure.h"
#include "lockstep/error.h"
#include "ops/cpu/parallel.h"
#include "tensor/convert.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kPiece = 65536;  // elements that a thread converts at a time

int64_t padded_bytes(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// One list of tensors of a kernel's arguments, such as its inputs, as the float32 kernel sees it: narrow
/// ones have a stand-in of float32 elements. Shapes are made once; calls only fill in where things lie.
struct StandIns {
  std::vector<Tensor> tensors;
  std::vector<bool> narrow;

  void add(Shape shape, DType dtype, bool is_narrow) {
    tensors.push_back({nullptr, std::move(shape), dtype});
    narrow.push_back(is_narrow);
  }
};

class NarrowKernel : public Kernel {
 public:
  NarrowKernel(OpSignature signature, Inputs inputs, const KernelOptions& options,
               std::unique_ptr<Kernel> kernel)
      : signature_(std::move(signature)),
        compute_(options.compute),
        threads_(options.intra_op_threads),
        kernel_(std::move(kernel)) {
    const auto add = [&](List list, const TensorSpec& spec) {
      lists_[list].add(spec.shape.batched(options.batch), spec.dtype, spec.dtype == DType::float32);
    };
    for (const TensorSpec& input : inputs)
      for (const List list : {kInputs, kInputGradients}) add(list, input);
    for (const TensorSpec& output : signature_.outputs)
      for (const List list : {kOutputs, kOutputGradients}) add(list, output);
    for (const ParameterSpec& parameter : signature_.parameters)
      lists_[kParameters].add(parameter.shape, DType::float32, parameter.narrow);
  }

  int64_t workspace_bytes(KernelPhase phase) const override {
    if (!computes(phase)) return 0;
    int64_t bytes = padded_bytes(kernel_->workspace_bytes(phase));
    for (const List list : kLists)
      for (size_t i = 0; i < lists_[list].tensors.size(); ++i)
        if (has_place(phase, list, i)) bytes += padded_bytes(lists_[list].tensors[i].size_bytes());
    return bytes;
  }

  void prepare(device::Device& device) override { kernel_->prepare(device); }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    // Where outputs are the input's memory, nothing is computed.
    computes(KernelPhase::forward) ? call(KernelPhase::forward, arguments, stream)
                                   : kernel_->forward(arguments, stream);
  }
  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (computes(KernelPhase::backward_input)) call(KernelPhase::backward_input, arguments, stream);
  }
  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    if (computes(KernelPhase::backward_weight)) call(KernelPhase::backward_weight, arguments, stream);
  }

 private:
  enum List : size_t { kInputs, kOutputs, kParameters, kOutputGradients, kInputGradients, kListCount };
  static constexpr List kLists[] = {kInputs, kOutputs, kParameters, kOutputGradients, kInputGradients};

  bool computes(KernelPhase phase) const {
    if (phase == KernelPhase::forward) return !signature_.alias;
    if (phase == KernelPhase::backward_input) return !signature_.passes_gradient;
    return signature_.backward == BackwardForm::split;
  }
  bool reads(KernelPhase phase, List list, size_t i) const {
    const bool forward = phase == KernelPhase::forward;
    switch (list) {
      case kInputs:
        // Of ops whose backward is split, gradients of inputs need no inputs; a frozen one keeps none.
        return forward ||
               (signature_.backward_needs_input[i] &&
                (phase == KernelPhase::backward_weight || signature_.backward != BackwardForm::split));
      case kOutputs:
        return !forward && signature_.backward_needs_output;
      case kParameters:
        return true;
      case kOutputGradients:
        return !forward;
      default:
        return false;
    }
  }
  static bool writes(KernelPhase phase, List list) {
    return (list == kOutputs && phase == KernelPhase::forward) ||
           (list == kInputGradients && phase == KernelPhase::backward_input);
  }
  bool has_place(KernelPhase phase, List list, size_t i) const {
    return lists_[list].narrow[i] && (reads(phase, list, i) || writes(phase, list));
  }

  void call(KernelPhase phase, const KernelArguments& arguments, device::Stream& stream) {
    const std::array<std::span<const Tensor>, kListCount> originals = {
        arguments.inputs, arguments.outputs, arguments.parameters, arguments.output_gradients,
        arguments.input_gradients};
    std::byte* place =
        static_cast<std::byte*>(arguments.workspace) + padded_bytes(kernel_->workspace_bytes(phase));
    for (const List list : kLists)
      for (size_t i = 0; i < originals[list].size(); ++i) {
        const Tensor& original = originals[list][i];
        Tensor& stand_in = lists_[list].tensors[i];
        stand_in.data = lists_[list].narrow[i] ? nullptr : original.data;
        if (!has_place(phase, list, i)) continue;
        ensure(original.dtype == compute_, "a narrow kernel was given a tensor of another type");
        if (original.data != nullptr) stand_in.data = place;
        place += padded_bytes(stand_in.size_bytes());
        if (original.data != nullptr && reads(phase, list, i)) launch_conversion(original, stand_in, stream);
      }
    run(phase, arguments, stream);
    for (const List list : kLists)
      for (size_t i = 0; writes(phase, list) && i < originals[list].size(); ++i)
        if (const Tensor& made = lists_[list].tensors[i]; lists_[list].narrow[i] && made.data != nullptr)
          launch_conversion(made, originals[list][i], stream);
  }

  void run(KernelPhase phase, const KernelArguments& arguments, device::Stream& stream) {
    KernelArguments wide = arguments;
    wide.inputs = lists_[kInputs].tensors;
    wide.outputs = lists_[kOutputs].tensors;
    wide.parameters = lists_[kParameters].tensors;
    wide.output_gradients = lists_[kOutputGradients].tensors;
    wide.input_gradients = lists_[kInputGradients].tensors;
    switch (phase) {
      case KernelPhase::forward:
        return kernel_->forward(wide, stream);
      case KernelPhase::backward_input:
        return kernel_->backward_input(wide, stream);
      case KernelPhase::backward_weight:
        return kernel_->backward_weight(wide, stream);
    }
  }

  void launch_conversion(const Tensor& from, const Tensor& to, device::Stream& stream) const {
    stream.launch([from = from.as<const std::byte>(), from_type = from.dtype, to = to.as<std::byte>(),
                   to_type = to.dtype, count = to.count(), threads = threads_] {
      parallel_pieces(threads, count, kPiece, [=](int64_t begin, int64_t end) {
        tensor::convert(to + begin * size_of(to_type), to_type, from + begin * size_of(from_type), from_type,
                        end - begin);
      });
    });
  }

  OpSignature signature_;
  DType compute_;
  int threads_;
  std::unique_ptr<Kernel> kernel_;
  std::array<StandIns, kListCount> lists_;
};

}  // namespace

std::unique_ptr<Kernel> make_narrow_kernel(const Op& op, Inputs inputs, const KernelOptions& options,
                                           std::unique_ptr<Kernel> float32_kernel) {
  require(tensor::is_narrow(options.compute),
          fmt::format("op {}: elements of {} are not computed with; float32, bfloat16 and float16 are",
                      name_of(op), name_of(options.compute)));
  OpSignature signature = infer(op, inputs);
  // Of a view there is nothing to compute in either direction.
  if (signature.alias && signature.passes_gradient) return float32_kernel;
  return std::make_unique<NarrowKernel>(std::move(signature), inputs, options, std::move(float32_kernel));
}

}  // namespace lockstep::ops
