#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

/// Memory and times of kernel_benchmark and gpu_probe, and the former's table. `tiny`: as little of
/// everything as shows that it runs, on the emulated GPU; figures mean nothing then.
class Bench {
 public:
  explicit Bench(bool tiny);

  bool tiny() const { return tiny_; }
  device::Device& device() { return *device_; }
  device::Stream& stream() { return *stream_; }

  /// Random numbers in [-1, 1), or integers in [0, below). Until release().
  Tensor make(const TensorSpec& spec, int below = 1);
  /// Zeroed.
  void* make_bytes(int64_t size_bytes);
  template <class T>
  T* make_copy(const T& value) {
    void* data = make_bytes(sizeof value);
    device_->copy_now(data, &value, sizeof value);
    return static_cast<T*>(data);
  }
  void release() { buffers_.clear(); }

  /// Of one call: the median of five rounds of ten, behind a round that does not count.
  double milliseconds(const std::function<void()>& call);

  /// What the lines that follow are held against.
  void measure_copy();
  double copy_bytes_per_second() const { return copy_bytes_per_second_; }
  /// A line of the table: `bytes` are what must move at the least.
  void report(std::string_view name, std::string_view type, std::string_view phase, int64_t bytes,
              const std::function<void()>& call);
  /// Products of two-byte numbers: what the lines of report_arithmetic() are held against.
  void set_product_ceiling(double flops_per_second) { product_flops_per_second_ = flops_per_second; }
  /// A line of the table that counts neither as PASS nor as FAIL, because arithmetic bounds it: `flops` are
  /// multiplications and additions.
  void report_arithmetic(std::string_view name, std::string_view type, std::string_view phase, double flops,
                         const std::function<void()>& call);
  /// The table's last line. Returns how many kernels are too slow.
  int conclude() const;

 private:
  void fill(const Tensor& tensor, int below);
  void repeat(std::byte* to, int64_t size_bytes, const std::vector<std::byte>& block);

  bool tiny_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<device::Event> events_[2];
  device::Buffer copy_from_, copy_to_;
  std::vector<device::Buffer> buffers_;
  uint64_t random_ = 1;
  double copy_bytes_per_second_ = 0, product_flops_per_second_ = 0, least_share_ = 0;
  int measured_ = 0, too_slow_ = 0;
  std::string least_;
};

/// Kernels of ops that are bound by memory, with tensors in `compute`.
void measure_ops(Bench& bench, DType compute);
/// What convolutions do beside products, and gradients of biases.
void measure_columns(Bench& bench, DType compute);
/// Optimizers, norm, tree add; casts.
void measure_step_kernels(Bench& bench);
/// GPT-2's products and attention, in bfloat16.
void measure_arithmetic(Bench& bench);
/// Operations a second of a large product of bfloat16 numbers.
double product_flops_per_second(Bench& bench);
/// One line of JSON: copy and product.
void print_ceilings(Bench& bench);
/// A line of JSON for each shape and type: microseconds of a convolution's three products.
void print_convolutions(Bench& bench);

}  // namespace lockstep::ops
