#include <algorithm>
#include <cmath>

#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

struct Sizes {
  int64_t rows = 0, channels = 0;
};

/// What distinguishes the kinds of norms.
struct NormForm {
  const LayerNormLoops& loops;
  float epsilon;
  bool centered;  // rows have means, which the first auxiliary tensor holds
  bool bias;
};

class NormKernel : public Kernel {
 public:
  NormKernel(const NormForm& form, const TensorSpec& input, const KernelOptions& options)
      : form_(form),
        sizes_{input.shape.count() / input.shape[-1] * options.batch, input.shape[-1]},
        threads_(options.intra_op_threads) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    // Sums of a bias that there is not.
    const bool sums = phase == KernelPhase::backward_input && !form_.bias;
    return sums ? sizes_.channels * static_cast<int64_t>(sizeof(float)) : 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([x = arguments.inputs[0].as<const float>(), y = arguments.outputs[0].as<float>(),
                   weight = arguments.parameters[0].as<const float>(),
                   bias = form_.bias ? arguments.parameters[1].as<const float>() : nullptr,
                   means = means_of<float>(arguments), inverses = inverses_of<float>(arguments), form = form_,
                   sizes = sizes_, threads = threads_] {
      parallel_for(threads, sizes.rows, [=](int64_t row) {
        const int64_t channels = sizes.channels;
        float mean = 0, variance = 0;
        form.loops.moments(x + row * channels, channels, &mean, &variance);
        if (means != nullptr) means[row] = mean;
        inverses[row] = 1.0f / std::sqrt(variance + form.epsilon);
        form.loops.normalize(y + row * channels, x + row * channels, {mean, inverses[row], weight, bias},
                             channels);
      });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    const Gradient gradient{.loops = form_.loops,
                            .x = arguments.inputs[0].as<const float>(),
                            .dy = arguments.output_gradients[0].as<const float>(),
                            .weight = arguments.parameters[0].as<const float>(),
                            .means = means_of<const float>(arguments),
                            .inverses = inverses_of<const float>(arguments),
                            .dx = arguments.input_gradients[0].as<float>(),
                            .dweight = arguments.parameter_gradients[0].as<float>(),
                            .dbias = form_.bias ? arguments.parameter_gradients[1].as<float>()
                                                : static_cast<float*>(arguments.workspace),
                            .channels = sizes_.channels};
    stream.launch([gradient, accumulate = arguments.accumulate, rows = sizes_.rows, threads = threads_] {
      if (!accumulate) {
        std::fill_n(gradient.dweight, gradient.channels, 0.0f);
        std::fill_n(gradient.dbias, gradient.channels, 0.0f);
      }
      if (threads == 1) {  // while a row lies in the cache
        for (int64_t row = 0; row < rows; ++row) {
          gradient.of_input(row);
          gradient.add_parameters(row, 0, gradient.channels);
        }
        return;
      }
      parallel_for(threads, rows, [&](int64_t row) { gradient.of_input(row); });
      parallel_for(threads, threads, [&](int64_t thread) {
        const int64_t begin = gradient.channels * thread / threads,
                      end = gradient.channels * (thread + 1) / threads;
        for (int64_t row = 0; row < rows; ++row) gradient.add_parameters(row, begin, end);
      });
    });
  }

 private:
  /// Gradients of parameters are chains over the rows, whoever computes them: they depend neither on threads
  /// nor on how rows are cut into micro-batches.
  struct Gradient {
    const LayerNormLoops& loops;
    const float *x, *dy, *weight, *means, *inverses;  // no means: null
    float* dx;                                        // null if not wanted
    float *dweight, *dbias;
    int64_t channels;

    LayerNormRow known(int64_t row) const {
      return {means == nullptr ? 0.0f : means[row], inverses[row], weight, nullptr};
    }

    void of_input(int64_t row) const {
      if (dx == nullptr) return;
      loops.input_gradient(dx + row * channels, dy + row * channels, x + row * channels, known(row),
                           channels);
    }
    void add_parameters(int64_t row, int64_t begin, int64_t end) const {
      const int64_t at = row * channels + begin;
      loops.add_parameter_gradients(dweight + begin, dbias + begin, dy + at, x + at, known(row), end - begin);
    }
  };

  template <class T>
  T* means_of(const KernelArguments& arguments) const {
    return form_.centered ? arguments.auxiliary[0].as<T>() : nullptr;
  }
  template <class T>
  T* inverses_of(const KernelArguments& arguments) const {
    return arguments.auxiliary[form_.centered ? 1 : 0].as<T>();
  }

  NormForm form_;
  Sizes sizes_;
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const LayerNorm& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<NormKernel>(NormForm{loops().layer_norm, op.epsilon, true, op.bias}, inputs[0],
                                      options);
}

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const RmsNorm& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<NormKernel>(NormForm{loops().rms_norm, op.epsilon, false, false}, inputs[0],
                                      options);
}

}  // namespace lockstep::ops
