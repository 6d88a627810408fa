#include "ops/op.h"

#include <array>
#include <type_traits>

#include "ops/cpu/loops/loops.h"
#include "ops/cpu/narrow_kernel.h"
#include "ops/cpu/replica_kernel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

template <class... Ops>
constexpr std::array<OpTableRow, sizeof...(Ops)> rows_of(std::type_identity<std::variant<Ops...>>) {
  return {{{.name = Ops::kName,
            .make = []() -> Op { return Ops{}; },
            .user_visible = !std::is_same_v<Ops, Fork>}...}};
}

constexpr auto kOpTable = rows_of(std::type_identity<Op>{});

std::unique_ptr<Kernel> make_wide_kernel(const Op& op, Inputs inputs, const KernelOptions& options) {
  loops();  // where it may throw: kernels call it on threads that may not
  const auto make = [&](const KernelOptions& with) {
    return std::visit([&](const auto& o) { return make_cpu_kernel(o, inputs, with); }, op);
  };
  if (options.virtual_replicas == 1 || !needs_replicas_apart(op, infer(op, inputs))) return make(options);
  KernelOptions one = options;
  one.batch /= options.virtual_replicas;
  one.virtual_replicas = 1;
  return make_replica_kernel(op, inputs, options, make(one));
}

}  // namespace

std::span<const OpTableRow> op_table() { return kOpTable; }

OpSignature infer(const Op& op, Inputs inputs) {
  return std::visit([&](const auto& o) { return infer_op(o, inputs); }, op);
}

OpCost cost(const Op& op, Inputs inputs, int64_t batch) {
  return std::visit([&](const auto& o) { return cost_op(o, inputs, batch); }, op);
}

std::unique_ptr<Kernel> make_kernel(device::DeviceKind device, const Op& op, Inputs inputs,
                                    const KernelOptions& options) {
  if (device == device::DeviceKind::cuda) {
    require(options.virtual_replicas == 1, "kernels for GPUs compute one virtual replica at a time");
    return make_cuda_kernel(op, inputs, options);
  }
  KernelOptions wide = options;
  wide.compute = DType::float32;
  auto kernel = make_wide_kernel(op, inputs, wide);
  return options.compute == DType::float32 ? std::move(kernel)
                                           : make_narrow_kernel(op, inputs, options, std::move(kernel));
}

}  // namespace lockstep::ops
