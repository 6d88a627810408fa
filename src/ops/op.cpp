#include "ops/op.h"

#include <array>
#include <type_traits>

#include "base/ensure.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/narrow_kernel.h"
#include "ops/cpu/replica_fold.h"
#include "ops/parts.h"
#include "ops/replica_kernel.h"

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
  const bool knows_of_replicas = std::holds_alternative<Linear>(op) || std::holds_alternative<Conv2d>(op) ||
                                 std::holds_alternative<Lstm>(op);
  if (options.virtual_replicas == 1 || knows_of_replicas || !sums_over_samples(infer(op, inputs)))
    return make(options);
  const auto add = [threads = options.intra_op_threads](float* to, const float* from, int64_t count,
                                                        device::Stream& stream) {
    stream.launch([=] { add_numbers(to, from, count, threads); });
  };
  return make_replica_kernel(op, inputs, options, make(options_of_one(options)), add);
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
  ensure(options.rows == 0 ||
             (device == device::DeviceKind::cpu && !options.training && options.compute == DType::float32),
         "only float32 kernels of CPUs compute single rows");
  if (device == device::DeviceKind::cuda) return make_cuda_kernel(op, inputs, options);
  KernelOptions wide = options;
  wide.compute = DType::float32;
  auto kernel = make_wide_kernel(op, inputs, wide);
  return options.compute == DType::float32 ? std::move(kernel)
                                           : make_narrow_kernel(op, inputs, options, std::move(kernel));
}

}  // namespace lockstep::ops
