#include "ops/cuda/library_product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/ensure.h"
#include "base/half.h"
#include "base/index.h"
#include "ops/elementwise.h"

namespace lockstep::ops {
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
      nth(turned, row * width + column) = nth(values, column * height + row);
  return turned;
}

template <class T>
void store(const ProductSpec& spec, std::vector<float> sums, const ProductOperands& operands) {
  auto* const kept = static_cast<T*>(operands.kept);
  if (spec.epilogue == Epilogue::gelu) {
    std::transform(sums.begin(), sums.end(), kept, [](float sum) { return T(sum); });
    for (float& sum : sums) sum = GeluFormula::forward(sum);
  } else if (spec.epilogue == Epilogue::gelu_gradient) {
    std::transform(sums.begin(), sums.end(), kept, sums.begin(),
                   [](float sum, T x) { return GeluFormula::backward(sum, static_cast<float>(x)); });
  }
  std::transform(sums.begin(), sums.end(), static_cast<T*>(operands.c), [](float sum) { return T(sum); });
}

void multiply(const ProductSpec& spec, const ProductOperands& operands) {
  const auto a = factor(spec, operands.a, spec.rows, spec.inner, spec.transpose_a);
  const auto b = factor(spec, operands.b, spec.inner, spec.columns, spec.transpose_b);
  std::vector<float> c(static_cast<size_t>(spec.rows * spec.columns));
  for (int64_t row = 0; row < spec.rows; ++row) {
    float* sums = c.data() + row * spec.columns;
    for (int64_t k = 0; k < spec.inner; ++k)
      for (int64_t column = 0; column < spec.columns; ++column)
        sums[column] += nth(a, row * spec.inner + k) * nth(b, k * spec.columns + column);
  }
  const auto add_to_rows = [&](const std::vector<float>& values) {
    for (size_t i = 0; i < c.size(); ++i) c[i] += values[i % values.size()];
  };
  if (operands.accumulate) add_to_rows(widened(spec.result, operands.c, spec.rows * spec.columns));
  if (spec.bias) add_to_rows(widened(spec.result, operands.bias, spec.columns));
  if (spec.result == DType::bfloat16)
    store<bfloat16>(spec, std::move(c), operands);
  else if (spec.result == DType::float16)
    store<float16>(spec, std::move(c), operands);
  else
    store<float>(spec, std::move(c), operands);
}

class EmulatedProduct : public LibraryProduct {
 public:
  explicit EmulatedProduct(const ProductSpec& spec) : spec_(spec) {}

  void run(const ProductOperands& operands, void* workspace, device::Stream& stream) override {
    const auto is_aligned = [](const void* data, int alignment) {
      return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) == 0;
    };
    ensure(is_aligned(operands.a, spec_.a_alignment) && is_aligned(operands.b, spec_.b_alignment) &&
               is_aligned(operands.c, spec_.c_alignment) && is_aligned(operands.bias, kTensorAlignment) &&
               is_aligned(operands.kept, kTensorAlignment) && is_aligned(workspace, kTensorAlignment),
           "a product's matrices are not aligned as its spec promises: " + spec_.to_string());
    ensure(!operands.accumulate || spec_.epilogue == Epilogue::none,
           "what goes through a GELU cannot be added to: " + spec_.to_string());
    stream.launch([spec = spec_, operands, workspace] {
      // As a library would, from beginning to end: nothing else of the call may lie there.
      const auto scribble = [workspace] { std::memset(workspace, 0x7f, kWorkspaceBytes); };
      scribble();
      ProductOperands item = operands;
      for (int64_t i = 0; i < spec.items; ++i, item = item.next(spec)) multiply(spec, item);
      scribble();
    });
  }

  ProductAlgorithm algorithm() const override {
    return {.name = "plain loops", .workspace_bytes = kWorkspaceBytes};
  }

 private:
  ProductSpec spec_;
};

}  // namespace

std::string LibraryProduct::library() { return "the emulated library"; }

int64_t LibraryProduct::workspace_bytes() { return kWorkspaceBytes; }

int64_t LibraryProduct::factor_bytes() { return 8 << 10; }  // little, so that small tests need several chunks

int64_t LibraryProduct::fold_bytes() { return 4 << 10; }  // likewise: several sums

// Which epilogues cuBLASLt lacks is its own affair. This library has them if every row begins on a
// multiple of 16 bytes, and no product of matrices that are not aligned to their elements.
std::vector<std::unique_ptr<LibraryProduct>> LibraryProduct::candidates(const ProductSpec& spec,
                                                                        device::Device&, int) {
  const auto [first, second, result] = column_major(spec);
  for (const ColumnMajorMatrix& matrix : {first, second, result}) {
    const int64_t element = size_of(matrix.dtype);
    const int rows_at = std::min(matrix.alignment, alignment_at(matrix.leading * element));
    if (rows_at < element || (spec.has_epilogue() && rows_at < kTensorAlignment)) return {};
  }
  std::vector<std::unique_ptr<LibraryProduct>> only;
  only.push_back(std::make_unique<EmulatedProduct>(spec));
  return only;
}

}  // namespace lockstep::ops
