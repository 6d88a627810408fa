#include "bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tensor/convert.h"

namespace lockstep::ops {
namespace {

constexpr int kRounds = 5;
constexpr int kCallsPerRound = 10;
constexpr double kLeastShare = 0.85;

}  // namespace

Bench::Bench(bool tiny)
    : tiny_(tiny), device_(device::make_cuda_device(0)), stream_(device_->create_stream("benchmark")) {
  for (auto& event : events_) event = device_->create_event(true);
  const int64_t bytes = int64_t{1} << (tiny ? 16 : 29);
  copy_from_ = device_->allocate(bytes);
  copy_to_ = device_->allocate(bytes);
  fill({copy_from_.data(), Shape({bytes / 4}), DType::float32}, 1);
}

void Bench::fill(const Tensor& tensor, int below) {
  const int64_t count = tensor.count(), block = std::min<int64_t>(count, 1 << 20);
  std::vector<std::byte> bytes(static_cast<size_t>(block * size_of(tensor.dtype)));
  const auto next = [this] { return random_ = random_ * 6364136223846793005u + 1442695040888963407u; };
  if (tensor.dtype == DType::int32) {
    std::vector<int32_t> integers(static_cast<size_t>(block));
    for (auto& integer : integers)
      integer = static_cast<int32_t>((next() >> 33) % static_cast<uint64_t>(below));
    std::memcpy(bytes.data(), integers.data(), bytes.size());
  } else {
    std::vector<float> numbers(static_cast<size_t>(block));
    for (auto& number : numbers) number = static_cast<float>(static_cast<int32_t>(next() >> 32)) * 0x1p-31f;
    tensor::convert(bytes.data(), tensor.dtype, numbers.data(), DType::float32, block);
  }
  repeat(tensor.as<std::byte>(), tensor.size_bytes(), bytes);
}

void Bench::repeat(std::byte* to, int64_t size_bytes, const std::vector<std::byte>& block) {
  int64_t filled = std::min(size_bytes, static_cast<int64_t>(block.size()));
  device_->copy_now(to, block.data(), filled);
  // The device copies much faster than the host.
  for (; filled < size_bytes; filled *= 2)
    stream_->copy(to + filled, to, std::min(filled, size_bytes - filled));
  stream_->synchronize();
}

Tensor Bench::make(const TensorSpec& spec, int below) {
  Tensor tensor{nullptr, spec.shape, spec.dtype};
  buffers_.push_back(device_->allocate(tensor.size_bytes()));
  tensor.data = buffers_.back().data();
  fill(tensor, below);
  return tensor;
}

void* Bench::make_bytes(int64_t size_bytes) {
  buffers_.push_back(device_->allocate(std::max<int64_t>(size_bytes, 1)));
  repeat(buffers_.back().data(), buffers_.back().size_bytes(), std::vector<std::byte>(1 << 20));
  return buffers_.back().data();
}

double Bench::milliseconds(const std::function<void()>& call) {
  const int calls = tiny_ ? 1 : kCallsPerRound;
  std::vector<double> rounds;
  for (int round = 0; round < (tiny_ ? 1 : kRounds + 1); ++round) {
    call();  // so that the device is busy when the clock starts, and the time of a first launch does not
             // count
    stream_->record(*events_[0]);
    for (int i = 0; i < calls; ++i) call();
    stream_->record(*events_[1]);
    stream_->synchronize();
    rounds.push_back(events_[1]->milliseconds_since(*events_[0]) / calls);
  }
  if (rounds.size() > 1) rounds.erase(rounds.begin());
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

void Bench::measure_copy() {
  const double time =
      milliseconds([&] { stream_->copy(copy_to_.data(), copy_from_.data(), copy_from_.size_bytes()); });
  copy_bytes_per_second_ = 2.0 * static_cast<double>(copy_from_.size_bytes()) / time * 1e3;
}

void Bench::report(std::string_view name, std::string_view type, std::string_view phase, int64_t bytes,
                   const std::function<void()>& call) {
  const double time = milliseconds(call);
  const double bandwidth = static_cast<double>(bytes) / time * 1e3;
  const double share = bandwidth / copy_bytes_per_second_;
  if (measured_++ == 0 || share < least_share_)
    least_share_ = share, least_ = fmt::format("{} {} {}", name, type, phase);
  const bool fast = share >= kLeastShare;
  if (!fast) ++too_slow_;
  fmt::print("{:<30} {:<8} {:<8} {:>6.0f} MiB {:>8.3f} ms {:>6.0f} GB/s {:>6.1f} % {}\n", name, type, phase,
             static_cast<double>(bytes) / (1 << 20), time, bandwidth / 1e9, 100 * share,
             fast ? "PASS" : "FAIL");
  std::fflush(stdout);
}

void Bench::report_arithmetic(std::string_view name, std::string_view type, std::string_view phase,
                              double flops, const std::function<void()>& call) {
  const double time = milliseconds(call), per_second = flops / time * 1e3;
  fmt::print("{:<30} {:<8} {:<8} {:>6.0f} GFLOP {:>7.3f} ms {:>5.0f} TFLOP/s {:>4.1f} % of a product\n", name,
             type, phase, flops / 1e9, time, per_second / 1e12, 100 * per_second / product_flops_per_second_);
  std::fflush(stdout);
}

int Bench::conclude() const {
  fmt::print("{} of {} kernels below {:.0f} % of the copy bandwidth; the lowest: {:.1f} % ({})\n", too_slow_,
             measured_, 100 * kLeastShare, 100 * least_share_, least_);
  return too_slow_;
}

}  // namespace lockstep::ops
