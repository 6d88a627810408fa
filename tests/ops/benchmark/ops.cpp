#include <algorithm>
#include <cmath>
#include <variant>
#include <vector>

#include "bench.h"
#include "ops/op.h"

namespace lockstep {
namespace {

struct Case {
  std::string name;
  Op op;
  std::vector<TensorSpec> inputs;  // per sample
  int64_t batch;                   // of float32; narrower types get as many bytes
  int below = 1;                   // integers in inputs
  /// How often inputs and output gradients must be read: more than once where a sum over all of them comes
  /// first.
  int reads = 1;
  FusedNeighbors fused = {};
};

int64_t bytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.data != nullptr ? tensor.size_bytes() : 0;
  return bytes;
}

/// The tensors of one case.
class CaseRun {
 public:
  CaseRun(Bench& bench, const Case& c, DType compute)
      : bench_(bench),
        case_(c),
        compute_(compute),
        batch_(bench.tiny() ? c.batch : c.batch * 4 / size_of(compute)),
        signature_(infer(c.op, c.inputs)),
        kernel_(make_kernel(DeviceKind::cuda, c.op, c.inputs,
                            {.batch = batch_, .compute = compute, .fused = c.fused})) {
    kernel_->prepare(bench.device());
    make_tensors();
    int64_t workspace_bytes = 0;
    for (const auto phase : {KernelPhase::forward, KernelPhase::backward_input, KernelPhase::backward_weight})
      workspace_bytes = std::max(workspace_bytes, kernel_->workspace_bytes(phase));
    arguments_ = {.inputs = inputs_,
                  .outputs = outputs_,
                  .parameters = parameters_,
                  .auxiliary = auxiliary_,
                  .output_gradients = output_gradients_,
                  .input_gradients = input_gradients_,
                  .parameter_gradients = parameter_gradients_,
                  .metrics = static_cast<double*>(bench.make_bytes(kMetricCount * sizeof(double))),
                  .workspace = bench.make_bytes(workspace_bytes),
                  .constants = bench.make_copy(StepConstants{})};
  }

  void report() {
    bench_.measure_copy();
    if (!signature_.alias)
      bench_.report(case_.name, name_of(compute_), "forward", forward_bytes(),
                    [&] { kernel_->forward(arguments_, bench_.stream()); });
    if (signature_.passes_gradient) return;
    const auto report_backward = [&](std::string_view phase, int64_t written, const auto& call) {
      if (written > 0)
        bench_.report(case_.name, name_of(compute_), phase, backward_reads() + written,
                      [&] { call(*kernel_, bench_.stream()); });
    };
    const int64_t inputs = bytes_of(input_gradients_), parameters = bytes_of(parameter_gradients_);
    const auto input_half = [&](Kernel& kernel, Stream& stream) {
      kernel.backward_input(arguments_, stream);
    };
    if (signature_.backward != BackwardForm::split)
      return report_backward("backward", inputs + parameters, input_half);
    // Two passes, which may be far apart.
    report_backward("dinput", inputs, input_half);
    report_backward("dweight", parameters,
                    [&](Kernel& kernel, Stream& stream) { kernel.backward_weight(arguments_, stream); });
  }

 private:
  Tensor make(const Shape& shape, DType dtype) {
    return bench_.make({shape, dtype == DType::float32 ? compute_ : dtype}, case_.below);
  }

  void make_tensors() {
    for (size_t i = 0; i < case_.inputs.size(); ++i) {
      const Shape shape = case_.inputs[i].shape.batched(batch_);
      inputs_.push_back(make(shape, case_.inputs[i].dtype));
      input_gradients_.push_back(signature_.differentiable[i] ? make(shape, case_.inputs[i].dtype)
                                                              : Tensor{});
    }
    for (const auto& spec : signature_.outputs) {
      outputs_.push_back(signature_.alias ? inputs_[0] : make(spec.shape.batched(batch_), spec.dtype));
      output_gradients_.push_back(make(spec.shape.batched(batch_), spec.dtype));
    }
    // A neighbour's tensors follow the op's own, in its input's shape.
    if (case_.fused.add_before) {
      inputs_.push_back(make(inputs_[0].shape, DType::float32));
      outputs_.push_back(make(inputs_[0].shape, DType::float32));
    }
    if (case_.fused.fork_before) output_gradients_.push_back(make(inputs_[0].shape, DType::float32));
    for (const auto& spec : signature_.parameters) {
      parameters_.push_back(bench_.make({spec.shape, spec.narrow ? compute_ : DType::float32}));
      parameter_gradients_.push_back(bench_.make({spec.shape, DType::float32}));
    }
    for (const auto& spec : signature_.auxiliary)
      auxiliary_.push_back(
          bench_.make({spec.per_sample ? spec.shape.batched(batch_) : spec.shape, spec.dtype}, case_.below));
  }

  int64_t forward_bytes() const {
    int64_t parameters = bytes_of(parameters_);
    // Of an embedding's table only the rows that are looked up, each of them once.
    if (const auto* embedding = std::get_if<Embedding>(&case_.op)) {
      const double drawn = static_cast<double>(inputs_[0].count()), rows = case_.below;
      parameters = static_cast<int64_t>(rows * (1 - std::pow(1 - 1 / rows, drawn))) * embedding->width *
                   size_of(compute_);
    }
    return case_.reads * bytes_of(inputs_) + bytes_of(outputs_) + parameters + bytes_of(auxiliary_);
  }
  int64_t backward_reads() const {
    int64_t read = bytes_of(output_gradients_) + (signature_.backward_needs_output ? bytes_of(outputs_) : 0);
    for (size_t i = 0; i < case_.inputs.size(); ++i)
      if (signature_.backward_needs_input[i]) read += inputs_[i].size_bytes();
    return case_.reads * read + bytes_of(auxiliary_);
  }

  Bench& bench_;
  const Case& case_;
  DType compute_;
  int64_t batch_;
  OpSignature signature_;
  std::unique_ptr<Kernel> kernel_;
  std::vector<Tensor> inputs_, outputs_, parameters_, auxiliary_, output_gradients_, input_gradients_,
      parameter_gradients_;
  KernelArguments arguments_;
};

/// Every large tensor has at least 192 MiB: four times an H200's L2 cache.
std::vector<Case> cases(bool tiny) {
  const int64_t positions = tiny ? 8 : 1024, width = tiny ? 96 : 768, vocabulary = tiny ? 104 : 50304,
                odd = vocabulary - 47;
  const int64_t batch = tiny ? 2 : 64, rows = tiny ? 1 : 4, many = tiny ? 2 : 256, side = tiny ? 8 : 56;
  const int below = static_cast<int>(odd);
  // Few enough rows of an embedding's table that a cache holds them, as it does those of a text's most
  // frequent words: of ids drawn from all of it, no cache could spare most of the second look-ups.
  const int looked_up = std::min(below, 2048);
  const TensorSpec tokens{Shape({positions, width})}, images{Shape({side, side, tiny ? 8 : 64})},
      ids{Shape({positions}), DType::int32};
  return {
      {"relu", Relu{}, {tokens}, batch},
      {"gelu", Gelu{}, {tokens}, batch},
      {"sigmoid", Sigmoid{}, {tokens}, batch},
      {"tanh", Tanh{}, {tokens}, batch},
      {"add", Add{}, {tokens, tokens}, batch},
      {"fork", Fork{}, {tokens}, batch},
      {"dropout", Dropout{.rate = 0.1f}, {tokens}, batch},
      {"layer_norm", LayerNorm{}, {tokens}, batch},
      {"layer_norm with add, fork",
       LayerNorm{},
       {tokens},
       batch,
       1,
       1,
       {.add_before = true, .fork_before = true}},
      {"embedding", Embedding{.vocabulary = vocabulary, .width = width}, {ids}, batch, looked_up},
      {"position_embedding", PositionEmbedding{.positions = positions}, {tokens}, batch},
      {"softmax_cross_entropy", SoftmaxCrossEntropy{}, {{Shape({positions, vocabulary})}, ids}, rows, below},
      {"softmax, odd classes", SoftmaxCrossEntropy{}, {{Shape({positions, odd})}, ids}, rows, below},
      {"mean_squared_error", MeanSquaredError{}, {tokens, tokens}, batch},
      {"batch_norm", BatchNorm{}, {images}, many, 1, 2},
      {"pool2d, max", Pool2d{.kind = PoolKind::max, .kernel = 2}, {images}, many},
      {"pool2d, average", Pool2d{.kind = PoolKind::average, .kernel = 2}, {images}, many},
      {"global_pool2d", GlobalPool2d{}, {images}, many}};
}

}  // namespace

void measure_ops(Bench& bench, DType compute) {
  for (const Case& c : cases(bench.tiny())) {
    CaseRun(bench, c, compute).report();
    bench.release();
  }
}

}  // namespace lockstep
