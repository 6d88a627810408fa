#include "ops/cuda/product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int64_t kWorkspaceBytes = 256;

float round_to_tf32(float value) {  // 10 bits of fraction, ties to even
  const auto word = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((word + 0xfffu + ((word >> 13) & 1u)) & ~0x1fffu);
}

template <class T>
void widen(const void* from, std::vector<float>& to) {
  std::transform(static_cast<const T*>(from), static_cast<const T*>(from) + to.size(), to.begin(),
                 [](T value) { return static_cast<float>(value); });
}

std::vector<float> widened(DType dtype, const void* from, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  if (dtype == DType::bfloat16)
    widen<bfloat16>(from, values);
  else if (dtype == DType::float16)
    widen<float16>(from, values);
  else
    widen<float>(from, values);
  return values;
}

/// As float32 in [height, width], whatever its type and whether or not it lies transposed.
std::vector<float> factor(const ProductSpec& spec, const void* from, int64_t height, int64_t width,
                          bool transposed) {
  std::vector<float> values = widened(spec.factors, from, height * width);
  if (spec.tf32 && spec.factors == DType::float32)
    for (float& value : values)
      if (std::isfinite(value)) value = round_to_tf32(value);
  if (!transposed) return values;
  std::vector<float> turned(values.size());
  for (int64_t row = 0; row < height; ++row)
    for (int64_t column = 0; column < width; ++column)
      turned[static_cast<size_t>(row * width + column)] = values[static_cast<size_t>(column * height + row)];
  return turned;
}

template <class T>
void store(const std::vector<float>& values, void* to) {
  std::transform(values.begin(), values.end(), static_cast<T*>(to), [](float value) { return T(value); });
}

void multiply(const ProductSpec& spec, const void* a_data, const void* b_data, const void* bias_data,
              void* c_data, bool accumulate) {
  const auto a = factor(spec, a_data, spec.rows, spec.inner, spec.transpose_a);
  const auto b = factor(spec, b_data, spec.inner, spec.columns, spec.transpose_b);
  std::vector<float> c(static_cast<size_t>(spec.rows * spec.columns));
  for (int64_t row = 0; row < spec.rows; ++row) {
    float* sums = c.data() + row * spec.columns;
    for (int64_t k = 0; k < spec.inner; ++k)
      for (int64_t column = 0; column < spec.columns; ++column)
        sums[column] +=
            a[static_cast<size_t>(row * spec.inner + k)] * b[static_cast<size_t>(k * spec.columns + column)];
  }
  const auto add_to_rows = [&](const std::vector<float>& values) {
    for (size_t i = 0; i < c.size(); ++i) c[i] += values[i % values.size()];
  };
  if (accumulate) add_to_rows(widened(spec.result, c_data, spec.rows * spec.columns));
  if (spec.bias) add_to_rows(widened(spec.result, bias_data, spec.columns));
  if (spec.result == DType::bfloat16)
    store<bfloat16>(c, c_data);
  else if (spec.result == DType::float16)
    store<float16>(c, c_data);
  else
    store<float>(c, c_data);
}

}  // namespace

struct Product::Implementation {
  ProductSpec spec;
  bool prepared = false;
};

Product::Product(const ProductSpec& spec) : implementation_(new Implementation{spec}) { spec.validate(); }
Product::~Product() = default;
Product::Product(Product&&) noexcept = default;
Product& Product::operator=(Product&&) noexcept = default;

int64_t Product::workspace_bytes() { return kWorkspaceBytes; }

int64_t Product::factor_bytes() { return 8 << 10; }  // little, so that small tests need several chunks

void Product::prepare(Device&) { implementation_->prepared = true; }

void Product::run(const void* a, const void* b, const void* bias, void* c, bool accumulate, void* workspace,
                  Stream& stream) {
  const ProductSpec& spec = implementation_->spec;
  const auto is_aligned = [](const void* data, int alignment) {
    return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) == 0;
  };
  ensure(implementation_->prepared, "a product is run before it is prepared");
  ensure(is_aligned(a, spec.a_alignment) && is_aligned(b, spec.b_alignment) &&
             is_aligned(c, spec.c_alignment) && is_aligned(bias, kTensorAlignment) &&
             is_aligned(workspace, kTensorAlignment),
         "a product's matrices are not aligned as its spec promises: " + spec.to_string());
  stream.launch([spec, a, b, bias, c, accumulate, workspace] {
    // As a library would, from beginning to end: nothing else of the call may lie there.
    const auto scribble = [workspace] { std::memset(workspace, 0x7f, kWorkspaceBytes); };
    scribble();
    multiply(spec, a, b, bias, c, accumulate);
    scribble();
  });
}

}  // namespace lockstep
