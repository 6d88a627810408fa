#include "ops/cuda/product.h"

#include <fmt/format.h>

#include <mutex>
#include <set>
#include <string>

#include "base/ensure.h"
#include "base/log.h"
#include "lockstep/error.h"
#include "ops/cuda/epilogue.h"

namespace lockstep::ops {
namespace {

/// Layers of one shape have the same product: what is said of it is said once in a process.
void say_once(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> said;
  std::lock_guard lock(mutex);
  if (said.insert(message).second) log_info(message);
}

}  // namespace

Product::Product(const ProductSpec& spec) : spec_(spec) { spec.validate(); }

void Product::prepare(device::Device& device) {
  library_ = LibraryProduct::choose(spec_, device);
  epilogue_follows_ = library_ == nullptr && spec_.has_epilogue();
  if (epilogue_follows_) library_ = LibraryProduct::choose(spec_.without_epilogue(), device);
  if (library_ == nullptr)
    throw DeviceError(fmt::format(
        "{} has no deterministic algorithm for the product {} on {}{}; try another precision.compute, or "
        "CUBLASLT_LOG_LEVEL=5 to see why",
        LibraryProduct::library(), spec_.to_string(), device.description(),
        epilogue_follows_ ? ", nor for the product alone" : ""));
  if (epilogue_follows_)
    say_once(fmt::format("{} has no epilogue for the product {}: kernels of lockstep's own follow it",
                         LibraryProduct::library(), spec_.to_string()));
}

void Product::run(const ProductOperands& operands, void* workspace, device::Stream& stream) {
  ensure(library_ != nullptr, "a product is run before it is prepared");
  if (!epilogue_follows_) return library_->run(operands, workspace, stream);
  const int64_t rows = spec_.items * spec_.rows, count = rows * spec_.columns;
  void* const sums = spec_.epilogue == Epilogue::gelu ? operands.kept : operands.c;
  library_->run({.a = operands.a, .b = operands.b, .c = sums, .accumulate = operands.accumulate}, workspace,
                stream);
  if (spec_.bias) add_bias(operands.bias, rows, spec_.columns, spec_.result, sums, stream);
  if (spec_.epilogue == Epilogue::gelu)
    apply_gelu(operands.kept, count, spec_.result, operands.c, stream);
  else if (spec_.epilogue == Epilogue::gelu_gradient)
    apply_gelu_gradient(operands.kept, count, spec_.result, operands.c, stream);
}

}  // namespace lockstep::ops
