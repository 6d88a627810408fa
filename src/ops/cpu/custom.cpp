#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/error.h"
#include "ops/cpu/parallel.h"
#include "ops/custom_op.h"

namespace lockstep::ops {
namespace {

using Numbers = std::span<float>;
using ConstNumbers = std::span<const float>;

/// A list of tensors of a call: where they are, and how many numbers a sample, or a parameter, has of each.
struct List {
  std::vector<float*> data;
  std::vector<size_t> sizes;

  List(std::span<const Tensor> tensors, bool of_samples) {
    for (const Tensor& tensor : tensors) {
      data.push_back(tensor.as<float>());
      sizes.push_back(static_cast<size_t>(of_samples ? tensor.count() / tensor.shape[0] : tensor.count()));
    }
  }
  Numbers of(size_t i, int64_t sample) const {
    if (data[i] == nullptr) return {};
    return {data[i] + static_cast<size_t>(sample) * sizes[i], sizes[i]};
  }
};

/// What the functions of an op are given, one sample after the other.
class Views {
 public:
  Views(const List& inputs, const List& parameters, const List& parameter_gradients)
      : inputs_(inputs.data.size()),
        parameters_(parameters.data.size()),
        input_gradients_(inputs.data.size()),
        parameter_gradients_(parameters.data.size()) {
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i] = parameters.of(i, 0);
    for (size_t i = 0; i < parameter_gradients.data.size(); ++i)
      parameter_gradients_[i] = parameter_gradients.of(i, 0);
    call_.inputs = inputs_;
    call_.parameters = parameters_;
    call_.input_gradients = input_gradients_;
    call_.parameter_gradients = parameter_gradients_;
  }
  Views(const Views&) = delete;

  /// `reads(i)`: whether the call may read input i.
  template <class Reads>
  CustomOp::Call& of(int64_t sample, const List& inputs, const List& input_gradients, const Reads& reads) {
    for (size_t i = 0; i < inputs_.size(); ++i)
      inputs_[i] = reads(i) ? ConstNumbers(inputs.of(i, sample)) : ConstNumbers();
    for (size_t i = 0; i < input_gradients.data.size(); ++i)
      input_gradients_[i] = input_gradients.of(i, sample);
    return call_;
  }

 private:
  std::vector<ConstNumbers> inputs_, parameters_;
  std::vector<Numbers> input_gradients_, parameter_gradients_;
  CustomOp::Call call_{};
};

/// Exceptions of the user's functions, which must not leave the threads that they are thrown on. That of the
/// first samples is kept, so that all runs say the same.
class FirstError {
 public:
  template <class Work>
  void guard(int64_t share, const Work& work) noexcept {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (error_ && share_ < share) return;
      error_ = std::current_exception();
      share_ = share;
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  int64_t share_ = 0;
};

class CustomKernel : public Kernel {
 public:
  CustomKernel(const Custom& op, Inputs inputs, const KernelOptions& options)
      : op_(registered_op(op.name)),
        name_(op.name),
        attributes_(attributes_of(op)),
        batch_(options.batch),
        threads_(options.intra_op_threads) {
    for (const TensorSpec& input : inputs) shapes_.push_back(input.shape);
    signature_ = checked_signature(op, shapes_);
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, inputs = List(arguments.inputs, true),
                   parameters = List(arguments.parameters, false), outputs = List(arguments.outputs, true)] {
      const List none({}, false);
      in_shares([&] { return std::make_unique<Views>(inputs, parameters, none); },
                [&](Views& views, int64_t sample) {
                  CustomOp::Call& call = views.of(sample, inputs, none, [](size_t) { return true; });
                  call.output = outputs.of(0, sample);
                  run("forward", sample, [&] { op_->forward(with_constants(call)); });
                });
    });
  }

  /// Gradients of parameters are sums over the samples in their order, whoever computes them and however they
  /// are cut into micro-batches.
  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, inputs = List(arguments.inputs, true),
                   parameters = List(arguments.parameters, false), outputs = List(arguments.outputs, true),
                   output_gradients = List(arguments.output_gradients, true),
                   input_gradients = List(arguments.input_gradients, true),
                   parameter_gradients = List(arguments.parameter_gradients, false),
                   accumulate = arguments.accumulate] {
      const List none({}, false);
      const auto call_of = [&](Views& views, int64_t sample, const List& of_inputs) -> CustomOp::Call& {
        CustomOp::Call& call = views.of(sample, inputs, of_inputs,
                                        [this](size_t i) { return signature_.backward_needs_input[i]; });
        if (signature_.backward_needs_output) call.kept_output = outputs.of(0, sample);
        call.output_gradient = output_gradients.of(0, sample);
        return with_constants(call);
      };
      const auto is_wanted = [](const float* data) { return data != nullptr; };
      if (std::ranges::any_of(input_gradients.data, is_wanted))
        in_shares([&] { return std::make_unique<Views>(inputs, parameters, none); },
                  [&](Views& views, int64_t sample) {
                    const CustomOp::Call& call = call_of(views, sample, input_gradients);
                    run("backward_input", sample, [&] { op_->backward_input(call); });
                  });
      if (std::ranges::none_of(parameter_gradients.data, is_wanted)) return;
      for (size_t i = 0; i < parameter_gradients.data.size() && !accumulate; ++i)
        std::ranges::fill(parameter_gradients.of(i, 0), 0.0f);
      Views views(inputs, parameters, parameter_gradients);
      for (int64_t sample = 0; sample < batch_; ++sample) {
        const CustomOp::Call& call = call_of(views, sample, none);
        run("backward_parameters", sample, [&] { op_->backward_parameters(call); });
      }
    });
  }

 private:
  /// Calls one of the user's functions, and says which it was if it throws something that is not ours.
  template <class Function>
  void run(const char* name, int64_t sample, const Function& function) const {
    try {
      function();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw Error(fmt::format("custom op '{}': {} threw at sample {} of {} of a micro-batch: {}", name_, name,
                              sample + 1, batch_, error.what()));
    }
  }

  CustomOp::Call& with_constants(CustomOp::Call& call) const {
    call.input_shapes = &shapes_;
    call.attributes = &attributes_;
    return call;
  }

  /// Calls work(views, sample) for all samples, those of a share on one thread with views of its own.
  template <class MakeViews, class Work>
  void in_shares(const MakeViews& make_views, const Work& work) const {
    const int64_t shares = std::min<int64_t>(threads_, batch_);
    FirstError error;
    parallel_for(static_cast<int>(shares), shares, [&](int64_t share) {
      error.guard(share, [&] {
        const auto views = make_views();
        for (int64_t sample = batch_ * share / shares; sample < batch_ * (share + 1) / shares; ++sample)
          work(*views, sample);
      });
    });
    error.rethrow();
  }

  std::shared_ptr<const CustomOp> op_;
  std::string name_;
  CustomOp::Attributes attributes_;
  std::vector<Shape> shapes_;
  CustomOp::Signature signature_;
  int64_t batch_;
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Custom& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<CustomKernel>(op, inputs, options);
}

}  // namespace lockstep::ops
