// The share of the device's copy bandwidth that kernels bound by memory reach, at sizes that no cache holds.
//
//   kernel_benchmark [float32|bfloat16|float16 ...]
//
// For each op and phase: the bytes that must move at the least (what is read and what is written, once), the median time of
// five rounds, and the bandwidth beside that of a copy in the same run, which is measured before each op anew. The last line
// is the lowest share. Ends with 77 where there is no GPU.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "device/device.h"
#include "lockstep/error.h"
#include "ops/op.h"
#include "step/step_kernels.h"
#include "tensor/convert.h"

namespace lockstep {
namespace {

constexpr int kRounds = 5;
constexpr int kCallsPerRound = 10;

class Bench {
 public:
  Bench() : device_(make_cuda_device(0)), stream_(device_->create_stream("benchmark")) {
    for (auto& event : events_) event = device_->create_event(true);
    const int64_t bytes = int64_t{1} << 29;
    copy_from_ = device_->allocate(bytes);
    copy_to_ = device_->allocate(bytes);
    fill({copy_from_.data(), Shape({bytes / 4}), DType::float32}, 1);
  }

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

  /// Random numbers in [-1, 1), or integers in [0, below).
  void fill(const Tensor& tensor, int below) {
    const int64_t count = tensor.count(), block = std::min<int64_t>(count, 1 << 20);
    std::vector<float> numbers(static_cast<size_t>(block));
    std::vector<int32_t> integers(static_cast<size_t>(block));
    for (auto& number : numbers) number = static_cast<float>(static_cast<int32_t>(next() >> 32)) * 0x1p-31f;
    for (auto& integer : integers) integer = static_cast<int32_t>((next() >> 33) % static_cast<uint64_t>(below));
    std::vector<std::byte> bytes(static_cast<size_t>(block * size_of(tensor.dtype)));
    if (tensor.dtype == DType::int32) {
      std::memcpy(bytes.data(), integers.data(), bytes.size());
    } else {
      convert(bytes.data(), tensor.dtype, numbers.data(), DType::float32, block);
    }
    for (int64_t begin = 0; begin < count; begin += block)
      device_->copy_now(tensor.as<std::byte>() + begin * size_of(tensor.dtype), bytes.data(),
                        std::min(block, count - begin) * size_of(tensor.dtype));
  }

  Tensor make(const TensorSpec& spec, int below = 1) {
    Tensor tensor{nullptr, spec.shape, spec.dtype};
    buffers_.push_back(device_->allocate(tensor.size_bytes()));
    tensor.data = buffers_.back().data();
    fill(tensor, below);
    return tensor;
  }
  void* make_bytes(int64_t size_bytes) {
    buffers_.push_back(device_->allocate(std::max<int64_t>(size_bytes, 1)));
    return buffers_.back().data();
  }
  void release() { buffers_.clear(); }

  /// Milliseconds of one call: the median of rounds.
  double time(const std::function<void()>& call) {
    call();
    stream_->synchronize();
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      stream_->record(*events_[0]);
      for (int i = 0; i < kCallsPerRound; ++i) call();
      stream_->record(*events_[1]);
      stream_->synchronize();
      rounds.push_back(events_[1]->milliseconds_since(*events_[0]) / kCallsPerRound);
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[kRounds / 2];
  }

  void measure_copy() {
    const double milliseconds = time([&] { stream_->copy(copy_to_.data(), copy_from_.data(), copy_from_.size_bytes()); });
    copy_bandwidth_ = 2.0 * static_cast<double>(copy_from_.size_bytes()) / milliseconds / 1e6;
  }

  void report(const std::string& name, std::string_view type, std::string_view phase, int64_t bytes, const std::function<void()>& call) {
    const double milliseconds = time(call);
    const double bandwidth = static_cast<double>(bytes) / milliseconds / 1e6;
    const double share = bandwidth / copy_bandwidth_;
    if (share < least_share_) least_share_ = share, least_ = fmt::format("{} {} {}", name, type, phase);
    fmt::print("{:<22} {:<9} {:<16} {:>7.0f} MiB {:>8.3f} ms {:>6.0f} GB/s {:>5.1f} % of copy\n", name, type, phase,
               static_cast<double>(bytes) / (1 << 20), milliseconds, bandwidth, 100 * share);
    std::fflush(stdout);
  }

  void conclude() const { fmt::print("lowest share of the copy bandwidth: {:.1f} % ({})\n", 100 * least_share_, least_); }
  double copy_bandwidth() const { return copy_bandwidth_; }

 private:
  uint64_t next() { return state_ = state_ * 6364136223846793005u + 1442695040888963407u; }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> events_[2];
  Buffer copy_from_, copy_to_;
  std::vector<Buffer> buffers_;
  uint64_t state_ = 1;
  double copy_bandwidth_ = 0, least_share_ = std::numeric_limits<double>::infinity();
  std::string least_;
};

int64_t bytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.data != nullptr ? tensor.size_bytes() : 0;
  return bytes;
}

struct Case {
  std::string name;
  Op op;
  std::vector<TensorSpec> inputs;   // per sample
  int64_t batch;
  int int32_below = 1;
};

void run(Bench& bench, const Case& c, DType compute) {
  const OpSignature signature = infer(c.op, c.inputs);
  const auto kernel = make_kernel(DeviceKind::cuda, c.op, c.inputs, {.batch = c.batch, .compute = compute});
  kernel->prepare(bench.device());
  const auto make = [&](const TensorSpec& spec, bool stored = true) {
    return bench.make({spec.shape, spec.dtype == DType::float32 && stored ? compute : spec.dtype}, c.int32_below);
  };
  const auto batched = [&](const TensorSpec& spec) { return TensorSpec{spec.shape.batched(c.batch), spec.dtype}; };
  std::vector<Tensor> inputs, outputs, parameters, auxiliary, output_gradients, input_gradients, parameter_gradients;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    inputs.push_back(make(batched(c.inputs[i])));
    input_gradients.push_back(signature.differentiable[i] ? make(batched(c.inputs[i])) : Tensor{});
  }
  for (const auto& spec : signature.outputs) {
    outputs.push_back(make(batched(spec)));
    output_gradients.push_back(make(batched(spec)));
  }
  for (const auto& spec : signature.parameters) {
    parameters.push_back(make({spec.shape}, spec.narrow));
    parameter_gradients.push_back(make({spec.shape}, false));
  }
  for (const auto& spec : signature.auxiliary)
    auxiliary.push_back(make({spec.per_sample ? spec.shape.batched(c.batch) : spec.shape, spec.dtype}, false));
  StepConstants constants;
  auto* device_constants = static_cast<StepConstants*>(bench.make_bytes(sizeof constants));
  bench.device().copy_now(device_constants, &constants, sizeof constants);
  auto* metrics = static_cast<double*>(bench.make_bytes(kMetricCount * sizeof(double)));
  int64_t workspace_bytes = 0;
  for (const auto phase : {KernelPhase::forward, KernelPhase::backward_input, KernelPhase::backward_weight})
    workspace_bytes = std::max(workspace_bytes, kernel->workspace_bytes(phase));
  const KernelArguments arguments{.inputs = inputs, .outputs = outputs, .parameters = parameters, .auxiliary = auxiliary,
                                  .output_gradients = output_gradients, .input_gradients = input_gradients,
                                  .parameter_gradients = parameter_gradients, .metrics = metrics,
                                  .workspace = bench.make_bytes(workspace_bytes), .constants = device_constants};

  // Of an embedding's table only what is looked up is read.
  const int64_t forward_bytes = bytes_of(inputs) + bytes_of(outputs) + std::min(bytes_of(parameters), bytes_of(outputs)) + bytes_of(auxiliary);
  int64_t backward_bytes = bytes_of(output_gradients) + bytes_of(input_gradients) + bytes_of(parameter_gradients) +
                           bytes_of(auxiliary) + (signature.backward_needs_output ? bytes_of(outputs) : 0);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (signature.backward_needs_input[i]) backward_bytes += inputs[i].size_bytes();
  bench.measure_copy();
  bench.report(c.name, name_of(compute), "forward", forward_bytes, [&] { kernel->forward(arguments, bench.stream()); });
  bench.report(c.name, name_of(compute), "backward", backward_bytes, [&] {
    kernel->backward_input(arguments, bench.stream());
    if (signature.backward == BackwardForm::split) kernel->backward_weight(arguments, bench.stream());
  });
  bench.release();
}

void run_step_kernels(Bench& bench) {
  const int64_t count = int64_t{1} << 26;
  const auto kernels = make_step_kernels(DeviceKind::cuda);
  const auto floats = [&] { return bench.make({Shape({count})}).as<float>(); };
  Verdict verdict;
  verdict.count = 1;
  StepConstants constants;
  constants.learning_rate = 1e-6;
  constants.beta1_power = 0.9;
  constants.beta2_power = 0.999;
  auto* device_verdict = static_cast<Verdict*>(bench.make_bytes(sizeof verdict));
  auto* device_constants = static_cast<StepConstants*>(bench.make_bytes(sizeof constants));
  bench.device().copy_now(device_verdict, &verdict, sizeof verdict);
  bench.device().copy_now(device_constants, &constants, sizeof constants);
  float* const a = floats();
  float* const b = floats();
  float* const c = floats();
  float* const d = floats();
  void* const narrow = bench.make_bytes(2 * count);
  bench.measure_copy();
  bench.report("add (tree)", "float32", "", 12 * count, [&] { kernels->add(a, b, count, bench.stream()); });
  bench.report("cast", "bfloat16", "", 6 * count, [&] { kernels->cast(narrow, DType::bfloat16, b, DType::float32, count, bench.stream()); });
  NormCall norm{.pieces = {{b, count, 0}}, .weight_chunks = count / kNormChunk, .chunks = count / kNormChunk,
                .sums = static_cast<double*>(bench.make_bytes(count / kNormChunk * 8)), .verdict = device_verdict,
                .constants = device_constants};
  bench.report("norm", "float32", "", 4 * count, [&] { kernels->norm(norm, bench.stream()); });
  UpdateCall update{.pieces = {{0, count, true, false, 0}}, .optimizer = {.kind = OptimizerKind::adamw}, .parameters = a, .gradients = b,
                    .state = {c, d}, .verdict = device_verdict, .constants = device_constants};
  bench.report("update, AdamW", "float32", "", 28 * count, [&] { kernels->update(update, bench.stream()); });
  update.optimizer = {.kind = OptimizerKind::sgd, .momentum = 0.9};
  bench.report("update, momentum", "float32", "", 20 * count, [&] { kernels->update(update, bench.stream()); });
  bench.release();
}

std::vector<Case> cases() {
  // GPT-2's width and a micro-batch of 64 x 1024 positions: 192 MiB a tensor in float32.
  const TensorSpec tokens{Shape({1024, 768})}, images{Shape({56, 56, 64})}, ids{Shape({1024}), DType::int32};
  return {{"relu", Relu{}, {tokens}, 64},
          {"gelu", Gelu{}, {tokens}, 64},
          {"add", Add{}, {tokens, tokens}, 64},
          {"dropout", Dropout{.rate = 0.1f}, {tokens}, 64},
          {"layer_norm", LayerNorm{}, {tokens}, 64},
          {"embedding", Embedding{.vocabulary = 50304, .width = 768}, {ids}, 64, 50257},
          {"position_embedding", PositionEmbedding{.positions = 1024}, {tokens}, 64},
          {"softmax_cross_entropy", SoftmaxCrossEntropy{}, {{Shape({1024, 50304})}, ids}, 4, 50257},
          {"softmax, odd classes", SoftmaxCrossEntropy{}, {{Shape({1024, 50257})}, ids}, 4, 50257},
          {"batch_norm", BatchNorm{}, {images}, 128},
          {"pool2d, max", Pool2d{.kind = PoolKind::max, .kernel = 2}, {images}, 128},
          {"global_pool2d", GlobalPool2d{}, {images}, 128}};
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    if (const GpuProbe probe = probe_gpus(); probe.devices.empty()) {
      fmt::print(stderr, "kernel_benchmark: {}\n", probe.problem);
      return 77;
    }
    std::vector<DType> types;
    for (int i = 1; i < argc; ++i) types.push_back(dtype_from_name(argv[i]));
    if (types.empty()) types = {DType::float32, DType::bfloat16};
    Bench bench;
    bench.measure_copy();
    fmt::print("{}: a copy moves {:.0f} GB/s, read and written\n", bench.device().description(), bench.copy_bandwidth());
    run_step_kernels(bench);
    for (const DType type : types)
      for (const Case& c : cases()) run(bench, c, type);
    bench.conclude();
  } catch (const std::exception& error) {
    fmt::print(stderr, "kernel_benchmark: {}\n", error.what());
    return 1;
  }
  return 0;
}
