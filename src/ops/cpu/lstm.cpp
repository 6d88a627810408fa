#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/cpu/lstm_direction.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr size_t kParameters = 4, kAuxiliary = 2;  // of a direction

class LstmKernel : public Kernel {
 public:
  LstmKernel(const Lstm& op, Inputs inputs, const KernelOptions& options)
      : sizes_{.batch = options.batch,
               .positions = inputs[0].shape[0],
               .inputs = inputs[0].shape[1],
               .units = op.units,
               .directions = op.bidirectional ? 2 : 1},
        options_(options) {
    for (int64_t direction = 0; direction < sizes_.directions; ++direction)
      directions_.emplace_back(sizes_, direction, options);
  }

  int64_t workspace_bytes(KernelPhase phase) const override {
    int64_t floats = 0;  // directions follow each other
    for (const LstmDirection& direction : directions_) {
      if (phase == KernelPhase::forward) floats = std::max(floats, direction.forward_floats());
      if (phase == KernelPhase::backward_input) floats = std::max(floats, direction.backward_floats());
    }
    return floats * static_cast<int64_t>(sizeof(float));
  }

  void prepare(device::Device& device) override {
    int64_t floats = 0;
    for (const LstmDirection& direction : directions_) floats += direction.kept_floats();
    if (floats > 0) kept_ = device.allocate(floats * static_cast<int64_t>(sizeof(float)));
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const RowRange positions = rows_of(options_, arguments, sizes_.positions);
    const bool packs = kept_.data() != nullptr && !is_packed(arguments);
    auto* kept = reinterpret_cast<float*>(kept_.data());
    for (size_t d = 0; d < directions_.size(); ++d) {
      const auto parameter = [&](size_t i) {
        return arguments.parameters[d * kParameters + i].as<const float>();
      };
      const LstmForwardCall call{.x = arguments.inputs[0].as<const float>(),
                                 .mask = mask_of(arguments),
                                 .weight_ih = parameter(0),
                                 .weight_hh = parameter(1),
                                 .bias_ih = parameter(2),
                                 .bias_hh = parameter(3),
                                 .gates = arguments.auxiliary[d * kAuxiliary].as<float>(),
                                 .cells = arguments.auxiliary[d * kAuxiliary + 1].as<float>(),
                                 .output = arguments.outputs[0].as<float>()};
      stream.launch([&direction = directions_[d], call, positions, packs, kept,
                     workspace = static_cast<float*>(arguments.workspace)] {
        if (packs) direction.pack(call, kept);
        direction.forward(call, positions, kept, workspace);
      });
      if (kept != nullptr) kept += directions_[d].kept_floats();
    }
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    for (size_t d = 0; d < directions_.size(); ++d) {
      const auto parameter = [&](size_t i) {
        return arguments.parameters[d * kParameters + i].as<const float>();
      };
      const auto gradient = [&](size_t i) {
        return arguments.parameter_gradients[d * kParameters + i].as<float>();
      };
      const LstmBackwardCall call{.x = arguments.inputs[0].as<const float>(),
                                  .mask = mask_of(arguments),
                                  .weight_ih = parameter(0),
                                  .weight_hh = parameter(1),
                                  .gates = arguments.auxiliary[d * kAuxiliary].as<const float>(),
                                  .cells = arguments.auxiliary[d * kAuxiliary + 1].as<const float>(),
                                  .output = arguments.outputs[0].as<const float>(),
                                  .output_gradient = arguments.output_gradients[0].as<const float>(),
                                  .input_gradient = arguments.input_gradients[0].as<float>(),
                                  .weight_ih_gradient = gradient(0),
                                  .weight_hh_gradient = gradient(1),
                                  .bias_ih_gradient = gradient(2),
                                  .bias_hh_gradient = gradient(3),
                                  .accumulate = arguments.accumulate};
      stream.launch(
          [&direction = directions_[d], call, workspace = static_cast<float*>(arguments.workspace)] {
            direction.backward(call, workspace);
          });
    }
  }

 private:
  static const float* mask_of(const KernelArguments& arguments) {
    return arguments.inputs.size() > 1 ? arguments.inputs[1].as<const float>() : nullptr;
  }

  /// Whether weights are those of the last call. Within a step nobody changes them.
  bool is_packed(const KernelArguments& arguments) {
    if (arguments.constants == nullptr) return false;
    std::vector<const void*> weights;
    for (const Tensor& parameter : arguments.parameters) weights.push_back(parameter.data);
    const bool same = packed_step_ == arguments.constants->step && packed_ == weights;
    packed_step_ = arguments.constants->step;
    packed_ = std::move(weights);
    return same;
  }

  LstmSizes sizes_;
  KernelOptions options_;
  std::vector<LstmDirection> directions_;
  device::Buffer kept_;  // if some positions are computed in a call: weights, packed
  std::optional<uint64_t> packed_step_;
  std::vector<const void*> packed_;  // where these weights are
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Lstm& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<LstmKernel>(op, inputs, options);
}

}  // namespace lockstep::ops
