#include "lockstep/tensor.h"

#include <fmt/format.h>

#include <array>

#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t size_bytes;
};
constexpr std::array<DTypeRow, 6> kDTypes{{{DType::float32, "float32", 4},
                                           {DType::bfloat16, "bfloat16", 2},
                                           {DType::float16, "float16", 2},
                                           {DType::float64, "float64", 8},
                                           {DType::int32, "int32", 4},
                                           {DType::uint8, "uint8", 1}}};

}  // namespace

int64_t size_of(DType dtype) { return nth(kDTypes, dtype).size_bytes; }
std::string_view name_of(DType dtype) { return nth(kDTypes, dtype).name; }

DType dtype_from_name(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& row : kDTypes) {
    if (row.name == name) return row.dtype;
    names.emplace_back(row.name);
  }
  throw ConfigError(fmt::format("unknown element type '{}'{}; known are {}", name, did_you_mean(name, names),
                                join(names, ", ")));
}

int64_t Shape::count() const {
  int64_t product = 1;
  bool empty = false;
  for (const int64_t dim : dims_) {
    if (dim < 0) throw ConfigError(fmt::format("shape {} has a negative dimension", to_string()));
    empty |= dim == 0;
  }
  if (empty) return 0;  // whatever the order of the dimensions
  for (const int64_t dim : dims_) {
    if (__builtin_mul_overflow(product, dim, &product))
      throw ConfigError(fmt::format("shape {} has more elements than 63 bits count", to_string()));
  }
  return product;
}

Shape Shape::batched(int64_t n) const {
  std::vector<int64_t> dims{n};
  dims.insert(dims.end(), dims_.begin(), dims_.end());
  return Shape(std::move(dims));
}

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(dims_, ", ")); }

int64_t Tensor::size_bytes() const {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(count(), size_of(dtype), &bytes))
    throw ConfigError(fmt::format("a {} tensor of shape {} has more bytes than 63 bits count", name_of(dtype),
                                  shape.to_string()));
  return bytes;
}

}  // namespace lockstep
