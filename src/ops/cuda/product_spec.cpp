#include "ops/cuda/product_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::ops {

int alignment_at(int64_t stride_bytes) {
  return static_cast<int>(std::min<int64_t>(kTensorAlignment, stride_bytes & -stride_bytes));
}

void ProductSpec::validate() const {
  const bool types_fit =
      (factors == DType::float32 || factors == DType::bfloat16 || factors == DType::float16) &&
      (result == factors || result == DType::float32);
  if (rows <= 0 || columns <= 0 || inner <= 0 || items <= 0 || !types_fit)
    throw InternalError(
        fmt::format("there is no product {} with a result of {}", to_string(), name_of(result)));
  const auto begin_aligned = [](int64_t elements, DType dtype, int alignment) {
    return alignment_at(elements * size_of(dtype)) >= alignment;
  };
  if (items > 1 && !(begin_aligned(a_count(), factors, a_alignment) &&
                     (shares_b || begin_aligned(b_count(), factors, b_alignment)) &&
                     begin_aligned(c_count(), result, c_alignment)))
    throw InternalError(
        fmt::format("there is no product {}: not all of its items begin where they promise", to_string()));
  const bool may_pass_gelu = factors != DType::float32 && result == factors && columns % 8 == 0 &&
                             c_alignment == kTensorAlignment &&
                             !(bias && epilogue == Epilogue::gelu_gradient);
  if (epilogue != Epilogue::none && !may_pass_gelu)
    throw InternalError(fmt::format(
        "there is no product {} with a result of {}: one through a GELU has two-byte factors, a "
        "result like them, aligned as tensors are, columns in multiples of 8, and no bias if it is the "
        "GELU's gradient",
        to_string(), name_of(result)));
}

ProductSpec ProductSpec::of_one() const {
  ProductSpec one = *this;
  one.items = 1;
  return one;
}

ProductSpec ProductSpec::without_epilogue() const {
  ProductSpec plain = *this;
  plain.bias = false;
  plain.epilogue = Epilogue::none;
  return plain;
}

std::string ProductSpec::to_string() const {
  const auto matrix = [](int64_t height, int64_t width, bool transposed) {
    return transposed ? fmt::format("[{}, {}]^T", width, height) : fmt::format("[{}, {}]", height, width);
  };
  const std::string_view behind = epilogue == Epilogue::gelu            ? ", through a GELU"
                                  : epilogue == Epilogue::gelu_gradient ? ", through a GELU's gradient"
                                                                        : "";
  return fmt::format("[{}, {}] = {} x {} of {}{}{}{}", rows, columns, matrix(rows, inner, transpose_a),
                     matrix(inner, columns, transpose_b), name_of(factors), bias ? " with a bias" : "",
                     behind, items == 1 ? "" : fmt::format(", {} times", items));
}

// A row-major matrix [r, c], read by columns, is its transpose [c, r], with the same leading dimension c. So
// instead of C, cuBLASLt computes what it sees of it, C^T = op(B)^T op(A)^T: the factors change places, and
// each is already transposed by being read so, which leaves its flag as it was. The bias, one value per
// column of C, has one per row of C^T, as cuBLASLt wants it.
ColumnMajorProduct column_major(const ProductSpec& spec) {
  const auto read_by_columns = [&](int64_t height, int64_t width, bool transposed, DType dtype,
                                   int alignment) {
    return ColumnMajorMatrix{width, height, width, transposed, dtype, alignment};
  };
  const auto factor = [&](int64_t height, int64_t width, bool transposed, int alignment) {
    if (transposed) std::swap(height, width);
    return read_by_columns(height, width, transposed, spec.factors, alignment);
  };
  return {.first = factor(spec.inner, spec.columns, spec.transpose_b, spec.b_alignment),
          .second = factor(spec.rows, spec.inner, spec.transpose_a, spec.a_alignment),
          .result = read_by_columns(spec.rows, spec.columns, false, spec.result, spec.c_alignment)};
}

}  // namespace lockstep::ops
