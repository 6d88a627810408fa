#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep {

enum class DType : uint8_t { float32, bfloat16, float16, float64, int32, uint8 };

int64_t size_of(DType dtype);                  ///< bytes of one element
std::string_view name_of(DType dtype);         ///< "float32", ...
DType dtype_from_name(std::string_view name);  ///< throws ConfigError, listing the known names

/// Dimensions of a tensor, outermost first. Rank 0 is a scalar (count 1). The rank is fixed at construction.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}
  explicit Shape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  int rank() const { return static_cast<int>(dims_.size()); }
  /// `axis` may be negative: -1 is the last dimension. REQUIRES: -rank() <= axis < rank().
  int64_t operator[](int axis) const { return dims_[static_cast<size_t>(axis < 0 ? axis + rank() : axis)]; }
  const std::vector<int64_t>& dims() const { return dims_; }
  /// Number of elements. Throws ConfigError if the product does not fit 63 bits or a dimension is negative.
  int64_t count() const;
  /// The same shape with first dimension `n`: a batch of `n` samples of this shape.
  Shape batched(int64_t n) const;
  std::string to_string() const;  ///< "[28, 28, 1]"
  bool operator==(const Shape&) const = default;

 private:
  std::vector<int64_t> dims_;
};

/// A borrowed view: a pointer into a device's memory, with shape and element type. Owns nothing.
struct Tensor {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::float32;

  int64_t count() const { return shape.count(); }
  int64_t size_bytes() const;  ///< throws ConfigError if it does not fit 63 bits
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// Shape and element type without memory. In a model graph the shape is that of one sample.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::float32;
  bool operator==(const TensorSpec&) const = default;
};

}  // namespace lockstep
#pragma GCC visibility pop
