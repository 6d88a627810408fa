#include <algorithm>
#include <cmath>
#include <span>
#include <variant>
#include <vector>

#include "bench.h"
#include "op_run.h"

namespace lockstep::ops {
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

int64_t bytes_of(std::span<const Tensor> tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.data != nullptr ? tensor.size_bytes() : 0;
  return bytes;
}

/// The lines of one case.
class CaseRun {
 public:
  CaseRun(Bench& bench, const Case& c, DType compute)
      : bench_(bench),
        case_(c),
        compute_(compute),
        run_(bench, c.op, c.inputs,
             {.batch = bench.tiny() ? c.batch : c.batch * 4 / size_of(compute),
              .compute = compute,
              .fused = c.fused},
             c.below) {}

  void report() {
    bench_.measure_copy();
    if (!signature_.alias)
      bench_.report(case_.name, name_of(compute_), "forward", forward_bytes(), [&] { run_.forward(); });
    if (signature_.passes_gradient) return;
    const auto report_backward = [&](std::string_view phase, int64_t written, const auto& call) {
      if (written > 0) bench_.report(case_.name, name_of(compute_), phase, backward_reads() + written, call);
    };
    const int64_t inputs = bytes_of(tensors_.input_gradients),
                  parameters = bytes_of(tensors_.parameter_gradients);
    const auto input_half = [&] { run_.backward_input(); };
    if (signature_.backward != BackwardForm::split)
      return report_backward("backward", inputs + parameters, input_half);
    // Two passes, which may be far apart.
    report_backward("dinput", inputs, input_half);
    report_backward("dweight", parameters, [&] { run_.backward_weight(); });
  }

 private:
  int64_t forward_bytes() const {
    int64_t parameters = bytes_of(tensors_.parameters);
    // Of an embedding's table only the rows that are looked up, each of them once.
    if (const auto* embedding = std::get_if<Embedding>(&case_.op)) {
      const double drawn = static_cast<double>(tensors_.inputs[0].count()), rows = case_.below;
      parameters = static_cast<int64_t>(rows * (1 - std::pow(1 - 1 / rows, drawn))) * embedding->width *
                   size_of(compute_);
    }
    return case_.reads * bytes_of(tensors_.inputs) + bytes_of(tensors_.outputs) + parameters +
           bytes_of(tensors_.auxiliary);
  }
  int64_t backward_reads() const {
    int64_t read = bytes_of(tensors_.output_gradients) +
                   (signature_.backward_needs_output ? bytes_of(tensors_.outputs) : 0);
    for (size_t i = 0; i < case_.inputs.size(); ++i)
      if (signature_.backward_needs_input[i]) read += tensors_.inputs[i].size_bytes();
    return case_.reads * read + bytes_of(tensors_.auxiliary);
  }

  Bench& bench_;
  const Case& case_;
  DType compute_;
  OpRun run_;
  const OpSignature& signature_ = run_.signature();
  const KernelArguments& tensors_ = run_.arguments();
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
      {"silu", Silu{}, {tokens}, batch},
      {"sigmoid", Sigmoid{}, {tokens}, batch},
      {"tanh", Tanh{}, {tokens}, batch},
      {"add", Add{}, {tokens, tokens}, batch},
      {"multiply", Multiply{}, {tokens, tokens}, batch},
      {"fork", Fork{}, {tokens}, batch},
      {"dropout", Dropout{.rate = 0.1f}, {tokens}, batch},
      {"layer_norm", LayerNorm{}, {tokens}, batch},
      {"rms_norm", RmsNorm{}, {tokens}, batch},
      {"layer_norm with add, fork",
       LayerNorm{},
       {tokens},
       batch,
       1,
       1,
       {.add_before = true, .fork_before = true}},
      {"transpose", Transpose{"1,0"}, {tokens}, batch},
      {"concatenate", Concatenate{}, {tokens, tokens}, batch},
      {"lstm", Lstm{.units = width}, {tokens}, batch},
      {"embedding", Embedding{.vocabulary = vocabulary, .width = width}, {ids}, batch, looked_up},
      {"position_embedding", PositionEmbedding{.positions = positions}, {tokens}, batch},
      {"rotary_embedding", RotaryEmbedding{.head_size = tiny ? 8 : 64}, {tokens}, batch},
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

}  // namespace lockstep::ops
