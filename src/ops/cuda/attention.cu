#include <string>

#include "lockstep/error.h"
#include "ops/attention_documents.h"
#include "ops/attention_inputs.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/elements.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int kDotsThreads = 256;

/// Backward's D: the sum of output times gradient of each position and head. Memory holds them as rows of one
/// head, which `lanes` threads, a power of two, read together in packs. Moves 2 * sizeof(T) bytes an element.
template <class T, int kPack>
__global__ void dots_kernel(AttentionCall<T> call, int lanes) {
  const int lane = static_cast<int>(threadIdx.x) % lanes, rows_per_block = kDotsThreads / lanes;
  const int64_t rows = int64_t{call.batch} * call.positions * call.heads;
  for (int64_t first = int64_t{blockIdx.x} * rows_per_block; first < rows;
       first += int64_t{gridDim.x} * rows_per_block) {
    const int64_t row = first + static_cast<int>(threadIdx.x) / lanes;
    float sum = 0;
    if (row < rows)
      for (int i = lane * kPack; i < call.head_size; i += lanes * kPack) {
        const auto output =
            *reinterpret_cast<const device::Pack<T, kPack>*>(call.output + row * call.head_size + i);
        const auto gradient =
            *reinterpret_cast<const device::Pack<T, kPack>*>(call.output_gradient + row * call.head_size + i);
#pragma unroll
        for (int j = 0; j < kPack; ++j)
          sum = std::fma(static_cast<float>(output.value[j]), static_cast<float>(gradient.value[j]), sum);
      }
    for (int offset = lanes / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(device::kFullWarp, sum, offset);
    if (lane == 0 && row < rows) {
      const int64_t head = row % call.heads, position = row / call.heads % call.positions;
      const int64_t sample = row / call.heads / call.positions;
      call.dots[(sample * call.heads + head) * call.positions + position] = sum;
    }
  }
}

template <class T, int kPack>
void launch_dots(const AttentionCall<T>& call, device::Stream& stream) {
  int lanes = 1;
  while (lanes < device::kWarpSize && lanes * kPack < call.head_size) lanes *= 2;
  const int64_t rows = int64_t{call.batch} * call.positions * call.heads;
  device::launch(stream, {.blocks = device::blocks_for(rows, kDotsThreads / lanes), .threads = kDotsThreads},
                 dots_kernel<T, kPack>, call, lanes);
}

constexpr int kDocumentsThreads = 256;

/// The document of each position, from its mask and its number, of which one may be null. Moves at most 12
/// bytes an element.
template <class T>
__global__ void documents_kernel(const T* mask, const int32_t* numbers, int32_t* documents, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kDocumentsThreads + threadIdx.x;
  if (i >= count) return;
  documents[i] = attention_document(mask == nullptr ? 1.0f : static_cast<float>(mask[i]),
                                    numbers == nullptr ? 0 : numbers[i]);
}

template <class T>
class AttentionGpuKernel : public Kernel {
 public:
  AttentionGpuKernel(const Attention& op, Inputs inputs, const KernelOptions& options)
      : batch_(static_cast<int>(options.batch)),
        positions_(static_cast<int>(inputs[0].shape[0])),
        heads_(static_cast<int>(op.heads)),
        key_heads_(static_cast<int>(op.key_value_heads == 0 ? op.heads : op.key_value_heads)),
        head_size_(static_cast<int>(inputs[0].shape[1] / (heads_ + 2 * key_heads_))),
        given_(inputs),
        causal_(op.causal),
        dropout_(options.training ? op.dropout : 0.0f),
        op_number_(options.op_number) {
    if (head_size_ > kLargestAttentionHead)
      throw ConfigError("attention: heads have " + std::to_string(head_size_) +
                        " channels, GPU kernels take at most " + std::to_string(kLargestAttentionHead) +
                        "; use more heads or --device cpu");
    if (inputs[0].shape[0] > kMostAttentionPositions)
      throw ConfigError("attention: sequences have " + std::to_string(inputs[0].shape[0]) +
                        " positions, GPU kernels take at most " + std::to_string(kMostAttentionPositions) +
                        "; use shorter sequences or --device cpu");
  }

  int64_t workspace_bytes(KernelPhase phase) const override {
    if (phase == KernelPhase::backward_weight) return 0;
    const int64_t dots = phase == KernelPhase::backward_input ? dots_count() : 0;
    const int64_t documents = given_.mask > 0 ? int64_t{batch_} * positions_ : 0;
    return dots * static_cast<int64_t>(sizeof(float)) + documents * static_cast<int64_t>(sizeof(int32_t));
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    AttentionCall<T> call = make_call(arguments);
    call.documents = find_documents(arguments, static_cast<int32_t*>(arguments.workspace), stream);
    if constexpr (sizeof(T) == 2)
      if (takes_tensor_cores()) return attention_forward(call, stream);
    general_attention_forward(call, stream);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    AttentionCall<T> call = make_call(arguments);
    call.output_gradient = arguments.output_gradients[0].as<const T>();
    call.qkv_gradient = arguments.input_gradients[0].as<T>();
    call.dots = static_cast<float*>(arguments.workspace);
    call.documents = find_documents(arguments, reinterpret_cast<int32_t*>(call.dots + dots_count()), stream);
    if (head_size_ % kPackElements<T> == 0) {
      launch_dots<T, kPackElements<T>>(call, stream);
    } else {
      launch_dots<T, 1>(call, stream);
    }
    if constexpr (sizeof(T) == 2)
      if (takes_tensor_cores()) return attention_backward(call, stream);
    general_attention_backward(call, stream);
  }

 private:
  int64_t dots_count() const { return int64_t{batch_} * heads_ * positions_; }
  bool takes_tensor_cores() const { return on_tensor_cores(head_size_) && !given_.are_given(); }

  /// Without a mask they are the numbers that are given.
  const int32_t* find_documents(const KernelArguments& arguments, int32_t* workspace,
                                device::Stream& stream) const {
    const int32_t* const numbers =
        given_.documents > 0 ? arguments.inputs[given_.documents].as<const int32_t>() : nullptr;
    if (given_.mask == 0) return numbers;
    const int64_t count = int64_t{batch_} * positions_;
    device::launch(
        stream,
        {.blocks = device::blocks_for(count, kDocumentsThreads, INT32_MAX), .threads = kDocumentsThreads},
        documents_kernel<T>, arguments.inputs[given_.mask].as<const T>(), numbers, workspace, count);
    return workspace;
  }

  AttentionCall<T> make_call(const KernelArguments& arguments) const {
    return {.batch = batch_,
            .positions = positions_,
            .heads = heads_,
            .key_heads = key_heads_,
            .head_size = head_size_,
            .group = heads_ / key_heads_,
            .causal = causal_,
            .qkv = arguments.inputs[0].as<const T>(),
            .output = arguments.outputs[0].as<T>(),
            .log_sum_exp = arguments.auxiliary[0].as<float>(),
            .constants = arguments.constants,
            .dropout = dropout_,
            .op_number = op_number_,
            .first_sample = static_cast<uint32_t>(arguments.first_sample)};
  }

  int batch_, positions_, heads_, key_heads_, head_size_;
  AttentionInputs given_;
  bool causal_;
  float dropout_;
  uint32_t op_number_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Attention& op, Inputs inputs, const KernelOptions& options) {
  std::unique_ptr<Kernel> kernel;
  with_element_type(options.compute, [&](auto zero) {
    kernel = std::make_unique<AttentionGpuKernel<decltype(zero)>>(op, inputs, options);
  });
  return kernel;
}

}  // namespace lockstep::ops
