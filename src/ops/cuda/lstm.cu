#include <algorithm>
#include <vector>

#include "ops/cuda/column_sum.h"
#include "ops/cuda/map.h"
#include "ops/cuda/product.h"
#include "ops/lstm.h"
#include "ops/parts.h"

// Of each direction, one product makes the input's part of all gates. Then positions follow each other: a
// product of the states, and a kernel that makes the next ones. Backward likewise, and products over all
// positions at last.

namespace lockstep::ops {
namespace {

constexpr int kThreads = 256;
constexpr size_t kParameters = 4, kAuxiliary = 2;  // of a direction

/// One direction of one call. `step` counts positions in the order of the direction.
struct Recurrence {
  int64_t batch, positions, units;
  int64_t output_stride, column;  ///< of the direction's units in the output
  bool reverse;

  __device__ int64_t row(int64_t sample, int64_t step) const {
    return sample * positions + (reverse ? positions - 1 - step : step);
  }
  __device__ int64_t row_before(int64_t row) const { return reverse ? row + 1 : row - 1; }
};

/// A thread has a unit of a sample.
struct Place {
  int64_t sample, unit;
  bool works;
  __device__ explicit Place(const Recurrence& r)
      : sample((int64_t{blockIdx.x} * kThreads + threadIdx.x) / r.units),
        unit((int64_t{blockIdx.x} * kThreads + threadIdx.x) % r.units),
        works(sample < r.batch) {}
};

template <class T>
__device__ inline bool is_masked(const T* mask, int64_t row) {
  return mask != nullptr && static_cast<float>(mask[row]) == 0.0f;
}

/// `recurrent` [batch, 4 units]: the states' part of the gates; null at the first position.
template <class T>
struct ForwardStep {
  Recurrence r;
  int64_t step;
  const T* mask;
  const float *recurrent, *bias_ih, *bias_hh;
  float *gates, *cells;
  T *output, *hidden;  ///< hidden [batch, units]: the factor of the next product
};

template <class T>
__global__ void __launch_bounds__(kThreads) lstm_forward_kernel(ForwardStep<T> call) {
  const Recurrence& r = call.r;
  const Place at(r);
  if (!at.works) return;
  const int64_t row = r.row(at.sample, call.step);
  float* const gates = call.gates + row * 4 * r.units + at.unit;
  float* const cell = call.cells + row * r.units + at.unit;
  T* const output = call.output + row * r.output_stride + r.column + at.unit;
  T* const hidden = call.hidden + at.sample * r.units + at.unit;
  const float cell_before = call.step == 0 ? 0.0f : call.cells[r.row_before(row) * r.units + at.unit];
  if (is_masked(call.mask, row)) {
    for (int gate = 0; gate < 4; ++gate) gates[gate * r.units] = 0.0f;
    *cell = cell_before;
    *output = T(0.0f);
    if (call.step == 0) *hidden = T(0.0f);
    return;
  }
  float sums[4];
  for (int gate = 0; gate < 4; ++gate) {
    const int64_t column = gate * r.units + at.unit;
    sums[gate] = gates[gate * r.units] + call.bias_ih[column] + call.bias_hh[column];
    if (call.recurrent != nullptr) sums[gate] += call.recurrent[at.sample * 4 * r.units + column];
  }
  const LstmUnit unit = lstm_unit(sums[0], sums[1], sums[2], sums[3], cell_before);
  gates[0] = unit.i;
  gates[r.units] = unit.f;
  gates[2 * r.units] = unit.g;
  gates[3 * r.units] = unit.o;
  *cell = unit.cell;
  *output = T(unit.hidden);
  *hidden = T(unit.hidden);
}

/// `recurrent` [batch, units]: gradients of the states, from the position after; null at the last one. What
/// masked positions pass on is in `hidden_gradient`, [batch, units] like `cell_gradient`.
template <class T>
struct BackwardStep {
  Recurrence r;
  int64_t step;
  const T* mask;
  const float *recurrent, *gates, *cells;
  const T* output_gradient;
  float *hidden_gradient, *cell_gradient;
  T *gate_gradients, *step_gradients;  ///< of all rows; [batch, 4 units]: the factor of the next product
};

template <class T>
__global__ void __launch_bounds__(kThreads) lstm_backward_kernel(BackwardStep<T> call) {
  const Recurrence& r = call.r;
  const Place at(r);
  if (!at.works) return;
  const int64_t row = r.row(at.sample, call.step), own = at.sample * r.units + at.unit;
  const bool is_last = call.recurrent == nullptr;
  float of_hidden = is_last ? 0.0f : call.hidden_gradient[own] + call.recurrent[own];
  const float of_cell = is_last ? 0.0f : call.cell_gradient[own];
  float made[4] = {};
  if (is_masked(call.mask, row)) {
    call.hidden_gradient[own] = of_hidden;
    call.cell_gradient[own] = of_cell;
  } else {
    of_hidden += static_cast<float>(call.output_gradient[row * r.output_stride + r.column + at.unit]);
    const float* const gates = call.gates + row * 4 * r.units + at.unit;
    const float cell_before = call.step == 0 ? 0.0f : call.cells[r.row_before(row) * r.units + at.unit];
    const LstmUnitGradient gradient =
        lstm_unit_gradient(gates[0], gates[r.units], gates[2 * r.units], gates[3 * r.units],
                           call.cells[row * r.units + at.unit], cell_before, of_hidden, of_cell);
    made[0] = gradient.i;
    made[1] = gradient.f;
    made[2] = gradient.g;
    made[3] = gradient.o;
    call.hidden_gradient[own] = 0.0f;
    call.cell_gradient[own] = gradient.cell_before;
  }
  for (int gate = 0; gate < 4; ++gate) {
    const int64_t column = gate * r.units + at.unit;
    call.gate_gradients[row * 4 * r.units + column] = T(made[gate]);
    call.step_gradients[at.sample * 4 * r.units + column] = T(made[gate]);
  }
}

/// The state that each position began with, [rows, units].
template <class T>
__global__ void __launch_bounds__(kThreads)
    lstm_states_kernel(Recurrence r, const T* mask, const T* output, T* hidden) {
  const Place at(r);
  if (!at.works) return;
  T last = T(0.0f);
  for (int64_t step = 0; step < r.positions; ++step) {
    const int64_t row = r.row(at.sample, step);
    hidden[row * r.units + at.unit] = last;
    if (!is_masked(mask, row)) last = output[row * r.output_stride + r.column + at.unit];
  }
}

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// The parts of a workspace, one after the other.
class Pieces {
 public:
  explicit Pieces(void* workspace) : next_(static_cast<std::byte*>(workspace)) {}
  void* take(int64_t bytes) {
    void* const piece = next_;
    next_ += whole_lines(bytes);
    return piece;
  }

 private:
  std::byte* next_;
};

class LstmKernel : public Kernel {
 public:
  LstmKernel(const Lstm& op, Inputs inputs, const KernelOptions& options)
      : dtype_(options.compute),
        training_(options.training),
        batch_(options.batch),
        positions_(inputs[0].shape[0]),
        width_(inputs[0].shape[1]),
        units_(op.units),
        directions_(op.bidirectional ? 2 : 1),
        input_(spec(options, rows(), gates(), width_, false)),
        recurrent_(spec(options, batch_, gates(), units_, false)),
        recurrent_gradient_(spec(options, batch_, units_, gates(), true)),
        input_gradient_(typed(spec(options, rows(), width_, gates(), true))),
        input_weight_(weight_spec(options, width_)),
        hidden_weight_(weight_spec(options, units_)),
        bias_sum_(rows(), gates(), dtype_) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    const int64_t product = whole_lines(Product::workspace_bytes());
    if (phase == KernelPhase::forward)
      return product + whole_lines(batch_ * gates() * kFloat) + whole_lines(batch_ * units_ * element());
    if (phase == KernelPhase::backward_weight) return 0;
    return std::max(product, whole_lines(bias_sum_.workspace_bytes())) +
           whole_lines(rows() * gates() * element()) + whole_lines(batch_ * gates() * element()) +
           3 * whole_lines(batch_ * units_ * kFloat) + whole_lines(rows() * units_ * element()) +
           whole_lines(rows() * width_ * element());
  }

  void prepare(device::Device& device) override {
    input_.prepare(device);
    recurrent_.prepare(device);
    if (!training_) return;
    for (Product* product : {&recurrent_gradient_, &input_gradient_, &input_weight_, &hidden_weight_})
      product->prepare(device);
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    with_element_type(dtype_, [&]<class T>(T) {
      for (int64_t d = 0; d < directions_; ++d) run_forward<T>(arguments, d, stream);
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    with_element_type(dtype_, [&]<class T>(T) {
      for (int64_t d = 0; d < directions_; ++d) run_backward<T>(arguments, d, stream);
    });
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);

  int64_t rows() const { return batch_ * positions_; }
  int64_t gates() const { return 4 * units_; }
  int64_t element() const { return size_of(dtype_); }

  /// [rows, columns] = [rows, inner] times a weight, which lies as the second factor or as its transpose.
  static ProductSpec spec(const KernelOptions& options, int64_t rows, int64_t columns, int64_t inner,
                          bool weight_is_as_it_lies) {
    return {.rows = rows,
            .columns = columns,
            .inner = inner,
            .transpose_b = !weight_is_as_it_lies,
            .factors = options.compute,
            .tf32 = options.tf32,
            .batchable = options.reproducible};
  }
  static ProductSpec typed(ProductSpec spec) {
    spec.result = spec.factors;
    return spec;
  }
  ProductSpec weight_spec(const KernelOptions& options, int64_t columns) const {
    ProductSpec made = spec(options, gates(), columns, rows(), true);
    made.transpose_a = true;
    return made;
  }

  Recurrence recurrence(int64_t direction) const {
    return {batch_, positions_, units_, directions_ * units_, direction * units_, direction > 0};
  }
  device::Grid grid() const {
    return {.blocks = device::blocks_for(batch_ * units_, kThreads, INT32_MAX), .threads = kThreads};
  }
  template <class T>
  static const T* mask_of(const KernelArguments& arguments) {
    return arguments.inputs.size() > 1 ? arguments.inputs[1].as<const T>() : nullptr;
  }
  static const Tensor& of_direction(std::span<const Tensor> tensors, int64_t direction, size_t each,
                                    size_t i) {
    return tensors[static_cast<size_t>(direction) * each + i];
  }

  template <class T>
  void run_forward(const KernelArguments& arguments, int64_t direction, device::Stream& stream) {
    const std::span<const Tensor> parameters =
        arguments.parameters.subspan(static_cast<size_t>(direction) * kParameters, kParameters);
    Pieces pieces(arguments.workspace);
    void* const product = pieces.take(Product::workspace_bytes());
    auto* const recurrent = static_cast<float*>(pieces.take(batch_ * gates() * kFloat));
    ForwardStep<T> call{.r = recurrence(direction),
                        .step = 0,
                        .mask = mask_of<T>(arguments),
                        .recurrent = nullptr,
                        .bias_ih = parameters[2].as<const float>(),
                        .bias_hh = parameters[3].as<const float>(),
                        .gates = of_direction(arguments.auxiliary, direction, kAuxiliary, 0).as<float>(),
                        .cells = of_direction(arguments.auxiliary, direction, kAuxiliary, 1).as<float>(),
                        .output = arguments.outputs[0].as<T>(),
                        .hidden = static_cast<T*>(pieces.take(batch_ * units_ * element()))};
    input_.run({.a = arguments.inputs[0].data, .b = parameters[0].data, .c = call.gates}, product, stream);
    for (; call.step < positions_; ++call.step) {
      if (call.step > 0) {
        recurrent_.run(ProductOperands{.a = call.hidden, .b = parameters[1].data, .c = recurrent}, product,
                       stream);
        call.recurrent = recurrent;
      }
      device::launch(stream, grid(), lstm_forward_kernel<T>, call);
    }
  }

  template <class T>
  void run_backward(const KernelArguments& arguments, int64_t direction, device::Stream& stream) {
    Pieces pieces(arguments.workspace);
    void* const library = pieces.take(std::max(Product::workspace_bytes(), bias_sum_.workspace_bytes()));
    auto* const recurrent = static_cast<float*>(pieces.take(batch_ * units_ * kFloat));
    BackwardStep<T> call{
        .r = recurrence(direction),
        .step = positions_ - 1,
        .mask = mask_of<T>(arguments),
        .recurrent = nullptr,
        .gates = of_direction(arguments.auxiliary, direction, kAuxiliary, 0).as<const float>(),
        .cells = of_direction(arguments.auxiliary, direction, kAuxiliary, 1).as<const float>(),
        .output_gradient = arguments.output_gradients[0].as<const T>(),
        .hidden_gradient = static_cast<float*>(pieces.take(batch_ * units_ * kFloat)),
        .cell_gradient = static_cast<float*>(pieces.take(batch_ * units_ * kFloat)),
        .gate_gradients = static_cast<T*>(pieces.take(rows() * gates() * element())),
        .step_gradients = static_cast<T*>(pieces.take(batch_ * gates() * element()))};
    const Tensor& weight = of_direction(arguments.parameters, direction, kParameters, 1);
    for (; call.step >= 0; --call.step) {
      device::launch(stream, grid(), lstm_backward_kernel<T>, call);
      if (call.step == 0) break;
      recurrent_gradient_.run(ProductOperands{.a = call.step_gradients, .b = weight.data, .c = recurrent},
                              library, stream);
      call.recurrent = recurrent;
    }
    auto* const hidden = static_cast<T*>(pieces.take(rows() * units_ * element()));
    device::launch(stream, grid(), lstm_states_kernel<T>, call.r, call.mask,
                   arguments.outputs[0].as<const T>(), hidden);
    finish_parameters(arguments, direction, call.gate_gradients, hidden, library, stream);
    finish_input<T>(arguments, direction, call.gate_gradients, static_cast<T*>(pieces.take(0)), library,
                    stream);
  }

  void finish_parameters(const KernelArguments& arguments, int64_t direction, const void* gate_gradients,
                         const void* hidden, void* library, device::Stream& stream) {
    const auto gradient = [&](size_t i) {
      return of_direction(arguments.parameter_gradients, direction, kParameters, i).as<float>();
    };
    input_weight_.run({.a = gate_gradients,
                       .b = arguments.inputs[0].data,
                       .c = gradient(0),
                       .accumulate = arguments.accumulate},
                      library, stream);
    hidden_weight_.run(
        {.a = gate_gradients, .b = hidden, .c = gradient(1), .accumulate = arguments.accumulate}, library,
        stream);
    for (const size_t bias : {2, 3})
      bias_sum_.run(gate_gradients, gradient(bias), arguments.accumulate, library, stream);
  }

  /// The second direction's is added to the first's.
  template <class T>
  void finish_input(const KernelArguments& arguments, int64_t direction, const T* gate_gradients, T* second,
                    void* library, device::Stream& stream) {
    T* const gradient = arguments.input_gradients[0].as<T>();
    if (gradient == nullptr) return;
    T* const made = direction == 0 ? gradient : second;
    input_gradient_.run({.a = gate_gradients,
                         .b = of_direction(arguments.parameters, direction, kParameters, 0).data,
                         .c = made},
                        library, stream);
    if (direction > 0) launch_map<T>(stream, gradient, gradient, second, rows() * width_, SumOfTwo{});
  }

  DType dtype_;
  bool training_;
  int64_t batch_, positions_, width_, units_, directions_;
  Product input_, recurrent_, recurrent_gradient_, input_gradient_, input_weight_, hidden_weight_;
  ColumnSum bias_sum_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Lstm& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<LstmKernel>(op, inputs, options);
}

}  // namespace lockstep::ops
