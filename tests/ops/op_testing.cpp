#include "ops/op_testing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <limits>
#include <sstream>

#include "base/ensure.h"
#include "base/half.h"
#include "base/philox.h"
#include "lockstep/error.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kGuardBytes = 64;
constexpr int kGuardByte = 0xA5;
constexpr int32_t kPoisonInteger = -1'000'000'007;

std::unique_ptr<device::Device> make_device(device::DeviceKind kind) {
  switch (kind) {
    case device::DeviceKind::async_cpu:
      return device::make_async_cpu_device({});
    case device::DeviceKind::cuda:
      return device::make_cuda_device(0);
    default:
      return device::make_cpu_device();
  }
}

}  // namespace

/// Host memory with its guard words and, where the device has memory of its own, as much there.
struct OpHarness::Block {
  device::Device* device;
  device::Buffer host, twin;
  int64_t size_bytes;

  Block(device::Device& host_device, device::Device& device_, int64_t size)
      : device(&device_), host(host_device.allocate(size + kGuardBytes)), size_bytes(size) {
    std::memset(host.data() + size, kGuardByte, kGuardBytes);
    if (!device->shares_host_memory()) twin = device->allocate(host.size_bytes());
  }
  std::byte* on_device() const { return twin.data() != nullptr ? twin.data() : host.data(); }
  void upload() {
    if (twin.data() != nullptr) device->copy_now(twin.data(), host.data(), host.size_bytes());
  }
  void download() {
    if (twin.data() != nullptr) device->copy_now(host.data(), twin.data(), host.size_bytes());
  }
  bool holds(const void* data) const {
    return std::less_equal<const void*>()(host.data(), data) &&
           std::less<const void*>()(data, host.data() + host.size_bytes());
  }
  bool intact() const {
    const auto* guard = reinterpret_cast<const unsigned char*>(host.data()) + size_bytes;
    return std::all_of(guard, guard + kGuardBytes, [](unsigned char byte) { return byte == kGuardByte; });
  }
};

OpHarness::OpHarness(const Op& op, std::vector<TensorSpec> specs, const ops::KernelOptions& options,
                     device::DeviceKind device)
    : signature_(ops::infer(op, specs)),
      host_(device::make_cpu_device()),
      device_(make_device(device)),
      stream_(device_->create_stream("compute")),
      kernel_(ops::make_kernel(device_->kind(), op, specs, options)) {
  kernel_->prepare(*device_);
  const auto batched = [&](const TensorSpec& spec) {
    return TensorSpec{spec.shape.batched(options.batch),
                      spec.dtype == DType::float32 ? options.compute : spec.dtype};
  };
  const auto aliased = [](Tensor tensor, const TensorSpec& spec) {
    return Tensor{tensor.data, spec.shape, spec.dtype};
  };
  for (const TensorSpec& spec : specs) inputs.push_back(make(batched(spec)));
  for (const TensorSpec& spec : signature_.outputs) {
    const TensorSpec full = batched(spec);
    outputs.push_back(signature_.alias ? aliased(inputs[0], full) : make(full));
    output_gradients.push_back(make(full));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!signature_.differentiable[i])
      input_gradients.push_back({nullptr, inputs[i].shape, inputs[i].dtype});
    else
      input_gradients.push_back(signature_.passes_gradient ? aliased(output_gradients[0], batched(specs[i]))
                                                           : make(batched(specs[i])));
  }
  for (const ops::ParameterSpec& spec : signature_.parameters) {
    parameters.push_back(make({spec.shape, spec.narrow ? options.compute : DType::float32}));
    parameter_gradients.push_back(make({spec.shape}));
  }
  for (const ops::AuxiliarySpec& spec : signature_.auxiliary)
    auxiliary.push_back(
        make({spec.shape.batched(spec.per_sample ? options.batch : options.virtual_replicas), spec.dtype}));
  std::fill(metrics, std::end(metrics), std::numeric_limits<double>::quiet_NaN());
}

OpHarness::~OpHarness() = default;

Tensor OpHarness::make(const TensorSpec& spec) {
  Tensor tensor{nullptr, spec.shape, spec.dtype};
  tensor.data = blocks_.emplace_back(*host_, *device_, tensor.size_bytes()).host.data();
  poison(tensor);
  return tensor;
}

int OpHarness::parameter_index(const std::string& name) const {
  for (size_t i = 0; i < signature_.parameters.size(); ++i)
    if (signature_.parameters[i].name == name) return static_cast<int>(i);
  throw InternalError(fmt::format("the op has no parameter '{}'", name));
}

/// Where the kernel finds what the test sees at `data`, memory of a block.
void* OpHarness::on_device(void* data) const {
  if (data == nullptr) return nullptr;
  for (const Block& block : blocks_)
    if (block.holds(data)) return block.on_device() + (static_cast<std::byte*>(data) - block.host.data());
  throw InternalError("a tensor of the harness points to memory that is not of the harness");
}

void OpHarness::call(ops::KernelPhase phase, bool accumulate) {
  const int64_t workspace_bytes = kernel_->workspace_bytes(phase);
  Block workspace(*host_, *device_, workspace_bytes), metric_block(*host_, *device_, sizeof metrics),
      constant_block(*host_, *device_, sizeof constants);
  std::memset(workspace.host.data(), 0xFF, static_cast<size_t>(workspace_bytes));  // NaN as a float
  std::memcpy(metric_block.host.data(), metrics, sizeof metrics);
  std::memcpy(constant_block.host.data(), &constants, sizeof constants);
  std::vector<Block*> all = {&workspace, &metric_block, &constant_block};
  for (Block& block : blocks_) all.push_back(&block);
  for (Block* block : all) block->upload();

  // An asynchronous stream is held until the call has returned and what its arguments pointed to is gone:
  // kernels may keep the pointers inside tensors, not the spans.
  std::promise<void> gate;
  if (device_->kind() == device::DeviceKind::async_cpu)
    stream_->launch([opened = gate.get_future().share()] { opened.wait(); });
  {
    std::vector<Tensor> spans[] = {inputs,           outputs,         parameters,         auxiliary,
                                   output_gradients, input_gradients, parameter_gradients};
    for (auto& span : spans)
      for (Tensor& tensor : span) tensor.data = on_device(tensor.data);
    ops::KernelArguments arguments{spans[0], spans[1], spans[2], spans[3], spans[4], spans[5], spans[6]};
    arguments.metrics = reinterpret_cast<double*>(metric_block.on_device());
    arguments.accumulate = accumulate;
    arguments.workspace = workspace.on_device();
    arguments.constants = reinterpret_cast<const ops::StepConstants*>(constant_block.on_device());
    arguments.first_sample = first_sample;
    switch (phase) {
      case ops::KernelPhase::forward:
        kernel_->forward(arguments, *stream_);
        break;
      case ops::KernelPhase::backward_input:
        kernel_->backward_input(arguments, *stream_);
        break;
      case ops::KernelPhase::backward_weight:
        kernel_->backward_weight(arguments, *stream_);
        break;
    }
    for (auto& span : spans)
      for (Tensor& tensor : span) tensor = {};
    arguments = {};
  }
  gate.set_value();
  stream_->synchronize();

  for (Block* block : all) block->download();
  std::memcpy(metrics, metric_block.host.data(), sizeof metrics);
  EXPECT_EQ(std::memcmp(&constants, constant_block.host.data(), sizeof constants), 0)
      << "the kernel wrote to the step's constants";
  EXPECT_TRUE(workspace.intact()) << "the kernel wrote past its workspace of " << workspace_bytes << " bytes";
  EXPECT_TRUE(metric_block.intact()) << "the kernel wrote past the metrics";
  for (size_t i = 0; i < blocks_.size(); ++i)
    EXPECT_TRUE(blocks_[i].intact()) << "the kernel wrote past tensor " << i << " of "
                                     << blocks_[i].size_bytes << " bytes";
}

void fill(const Tensor& tensor, const std::vector<double>& values) {
  ensure(static_cast<int64_t>(values.size()) == tensor.count(),
         fmt::format("{} values for a tensor of shape {}", values.size(), tensor.shape.to_string()));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    switch (tensor.dtype) {
      case DType::int32:
        tensor.as<int32_t>()[i] = static_cast<int32_t>(values[i]);
        break;
      case DType::bfloat16:
        tensor.as<bfloat16>()[i] = bfloat16(value);
        break;
      case DType::float16:
        tensor.as<float16>()[i] = float16(value);
        break;
      default:
        tensor.as<float>()[i] = value;
    }
  }
}

void fill(const Tensor& tensor, double value) {
  fill(tensor, std::vector<double>(static_cast<size_t>(tensor.count()), value));
}

void poison(const Tensor& tensor) {
  fill(tensor, tensor.dtype == DType::int32 ? kPoisonInteger : std::numeric_limits<double>::quiet_NaN());
}

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.count()));
  for (size_t i = 0; i < values.size(); ++i) {
    switch (tensor.dtype) {
      case DType::int32:
        values[i] = tensor.as<int32_t>()[i];
        break;
      case DType::bfloat16:
        values[i] = static_cast<float>(tensor.as<bfloat16>()[i]);
        break;
      case DType::float16:
        values[i] = static_cast<float>(tensor.as<float16>()[i]);
        break;
      default:
        values[i] = tensor.as<float>()[i];
    }
  }
  return values;
}

Array array_of(const Tensor& tensor) { return {tensor.shape, values_of(tensor), tensor.dtype}; }

std::vector<std::vector<double>> values_of_all(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<double>> values;
  for (const Tensor& tensor : tensors)
    if (tensor.data != nullptr) values.push_back(values_of(tensor));
  return values;
}

std::vector<std::vector<double>> results_of(OpHarness& harness) {
  harness.forward();
  std::vector<std::vector<double>> results = values_of_all(harness.outputs);
  if (harness.signature().is_loss) results.emplace_back(harness.metrics, harness.metrics + ops::kCorrect + 1);
  harness.backward();
  for (auto* tensors : {&harness.input_gradients, &harness.parameter_gradients})
    for (auto& values : values_of_all(*tensors)) results.push_back(std::move(values));
  return results;
}

std::vector<double> random_values(int64_t count, uint32_t stream, double low, double high) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(
        low + (high - low) * philox_uniform(20240229, RandomPurpose::data_generation, stream, i));
  return values;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 1;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < actual.size(); ++i) {
    // Written so that a NaN fails.
    if (!(std::fabs(actual[i] - expected[i]) <= tolerance * largest)) {
      ADD_FAILURE() << what << " at element " << i << " of " << actual.size() << " is " << actual[i]
                    << ", expected " << expected[i] << " within " << tolerance * largest;
      return;
    }
  }
}

std::unique_ptr<OpHarness> make_harness(const OpCase& c, device::DeviceKind device) {
  ops::KernelOptions options = c.options;
  options.batch = c.batch;
  auto harness = std::make_unique<OpHarness>(c.op, c.inputs, options, device);
  harness->constants = c.constants;
  harness->first_sample = c.first_sample;
  uint32_t stream = 0;
  std::vector<Array> inputs;
  for (const Tensor& tensor : harness->inputs) {
    Array array{tensor.shape, random_values(tensor.count(), stream++), tensor.dtype};
    if (tensor.dtype == DType::int32)
      for (double& value : array.values)
        value = std::floor((value + 1) / 2 * static_cast<double>(c.int32_below));
    inputs.push_back(std::move(array));
  }
  if (c.prepare) c.prepare(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) fill(harness->inputs[i], inputs[i].values);
  for (size_t i = 0; i < harness->parameters.size(); ++i) {
    const bool statistic = harness->signature().parameters[i].role == ops::ParameterRole::statistic;
    const Tensor& tensor = harness->parameters[i];
    fill(tensor, statistic ? random_values(tensor.count(), stream++, 0.5, 1.5)
                           : random_values(tensor.count(), stream++));
  }
  for (const Tensor& tensor : harness->output_gradients)
    fill(tensor, random_values(tensor.count(), stream++));
  return harness;
}

std::vector<Difference> finite_differences(const OpCase& c, const OpHarness& harness) {
  // The error of a central difference is about h² f'''/6, that of rounding 1e-16 |f| / h.
  constexpr double h = 1e-5;
  constexpr int64_t kElements = 61;  // prime, so that even steps do not meet one channel only

  std::vector<Array> inputs, parameters;
  for (const Tensor& tensor : harness.inputs) inputs.push_back(array_of(tensor));
  for (const Tensor& tensor : harness.parameters) parameters.push_back(array_of(tensor));
  std::vector<std::vector<double>> projection;
  for (const Tensor& tensor : harness.output_gradients) projection.push_back(values_of(tensor));
  const auto objective = [&] {
    const std::vector<Array> outputs = c.reference(inputs, parameters);
    if (harness.signature().is_loss)
      return c.options.loss_weight * c.constants.loss_scale * outputs.at(0).values.at(0);
    double sum = 0;
    for (size_t k = 0; k < outputs.size(); ++k)
      for (size_t i = 0; i < outputs[k].values.size(); ++i)
        sum += projection.at(k).at(i) * outputs[k].values[i];
    return sum;
  };

  std::vector<Difference> differences;
  const auto differentiate = [&](std::string name, const Tensor& gradient, std::vector<double>& values) {
    Difference difference{std::move(name), gradient, {}, {}};
    const auto count = static_cast<int64_t>(values.size());
    const int64_t picked = std::min(count, kElements);
    for (int64_t k = 0; k < picked; ++k) {
      const int64_t element = k * count / picked;
      double& value = values[static_cast<size_t>(element)];
      const double original = value;
      value = original + h;
      const double above = objective();
      value = original - h;
      const double below = objective();
      value = original;
      difference.elements.push_back(element);
      difference.values.push_back((above - below) / (2 * h));
    }
    differences.push_back(std::move(difference));
  };
  const ops::OpSignature& signature = harness.signature();
  for (size_t i = 0; i < inputs.size(); ++i)
    if (signature.differentiable[i])
      differentiate(fmt::format("input {}", i), harness.input_gradients[i], inputs[i].values);
  for (size_t i = 0; i < parameters.size(); ++i)
    if (signature.parameters[i].role == ops::ParameterRole::weight)
      differentiate("parameter " + signature.parameters[i].name, harness.parameter_gradients[i],
                    parameters[i].values);
  return differences;
}

Golden read_golden(const std::string& op, const std::string& case_name) {
  // Tests that run on another machine than they were built on carry the goldens with them.
  const char* carried = std::getenv("LOCKSTEP_TEST_GOLDENS");
  const std::string path = fmt::format("{}/{}.txt", carried != nullptr ? carried : LOCKSTEP_GOLDENS_DIR, op);
  std::ifstream file(path);
  if (!file) throw InternalError(fmt::format("cannot read {}; scripts/make_goldens.py writes it", path));
  Golden golden;
  std::string line, current_case;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "case") {
      words >> current_case;
    } else if (kind == "tensor" && current_case == case_name) {
      // tensor <dtype> <rank> <dims...> <name>, then one line of values
      std::string dtype, name;
      int rank = 0;
      words >> dtype >> rank;
      std::vector<int64_t> dims(static_cast<size_t>(rank));
      for (int64_t& dim : dims) words >> dim;
      std::getline(words >> std::ws, name);
      Array array{Shape(dims), {}, dtype_from_name(dtype)};
      std::getline(file, line);
      std::istringstream numbers(line);
      for (double value; numbers >> value;) array.values.push_back(value);
      ensure(static_cast<int64_t>(array.values.size()) == array.shape.count(),
             fmt::format("{}, case {}: {} values for {} of shape {}", path, case_name, array.values.size(),
                         name, array.shape.to_string()));
      golden.emplace(name, std::move(array));
    }
  }
  if (golden.empty()) throw InternalError(fmt::format("{} has no case '{}'", path, case_name));
  return golden;
}

void expect_matches_golden(const Op& op, const Golden& golden, ops::KernelOptions options, double tolerance) {
  std::vector<TensorSpec> specs;
  std::vector<const Array*> inputs;
  for (int i = 0; golden.contains(fmt::format("input{}", i)); ++i) {
    inputs.push_back(&golden.at(fmt::format("input{}", i)));
    const auto& dims = inputs.back()->shape.dims();
    specs.push_back({Shape(std::vector<int64_t>(dims.begin() + 1, dims.end())), inputs.back()->dtype});
  }
  options.batch = inputs.at(0)->shape[0];
  OpHarness harness(op, specs, options);
  for (size_t i = 0; i < inputs.size(); ++i) fill(harness.inputs[i], inputs[i]->values);
  const auto& parameter_specs = harness.signature().parameters;
  for (size_t i = 0; i < parameter_specs.size(); ++i)
    fill(harness.parameters[i], golden.at(parameter_specs[i].name).values);

  int compared = 0;
  const auto compare = [&](const Tensor& tensor, const std::string& name) {
    const auto found = golden.find(name);
    if (found == golden.end()) return;
    EXPECT_EQ(tensor.shape, found->second.shape) << name;
    expect_near(values_of(tensor), found->second.values, tolerance, name);
    ++compared;
  };
  harness.forward();
  for (size_t i = 0; i < harness.outputs.size(); ++i) compare(harness.outputs[i], fmt::format("output{}", i));
  if (options.training) {
    for (size_t i = 0; i < harness.outputs.size(); ++i)
      fill(harness.output_gradients[i], golden.at(fmt::format("gradient of output{}", i)).values);
    harness.backward();
    for (size_t i = 0; i < inputs.size(); ++i)
      if (harness.input_gradients[i].data != nullptr)
        compare(harness.input_gradients[i], fmt::format("gradient of input{}", i));
    for (size_t i = 0; i < parameter_specs.size(); ++i)
      compare(harness.parameter_gradients[i], "gradient of " + parameter_specs[i].name);
  }
  EXPECT_GT(compared, 0) << "the golden has nothing that the op makes";
}

}  // namespace lockstep::testing
