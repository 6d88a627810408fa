// all_reduce of float32 through shared memory beside MPI_Allreduce, in one run: the two take turns, and the
// medians are compared, so that what else the machine does meets both alike. Run by
// scripts/bench_all_reduce.sh.

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"

namespace {

using namespace lockstep;

double microseconds_of(int calls, const auto& call) {
  const auto begin = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  return milliseconds_between(begin, Clock::now()) * 1000.0 / calls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

struct Row {
  double shared_us, mpi_us;
};

/// Each turn is a batch of calls that takes some milliseconds, between barriers. What counts is the slowest
/// rank.
Row measure(comm::Communicator& shared, device::Stream& stream, std::vector<float>& data, int64_t count,
            double seconds) {
  const auto by_shared = [&] {
    shared.all_reduce(data.data(), count, DType::float32, comm::ReduceOp::sum, stream);
    shared.synchronize(stream, Deadline::max());
  };
  const auto by_mpi = [&] {
    MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  const auto turn = [&](int calls, const auto& call) {
    std::fill_n(data.begin(), count, 0.0f);  // or sums of sums would overflow
    MPI_Barrier(MPI_COMM_WORLD);
    double us = microseconds_of(calls, call);
    MPI_Allreduce(MPI_IN_PLACE, &us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return us;
  };
  turn(2, by_shared), turn(2, by_mpi);  // warms caches and maps pages
  const double once_us = std::max(turn(3, by_shared), turn(3, by_mpi));
  const int calls = static_cast<int>(std::clamp(5000.0 / once_us, 1.0, 1000.0));
  const int turns = static_cast<int>(std::clamp(seconds * 1e6 / (2 * calls * once_us), 5.0, 501.0));
  std::vector<double> shared_us, mpi_us;
  for (int i = 0; i < turns; ++i) {
    shared_us.push_back(turn(calls, by_shared));
    mpi_us.push_back(turn(calls, by_mpi));
  }
  return {median(shared_us), median(mpi_us)};
}

}  // namespace

/// all_reduce_benchmark [seconds per size] [largest size in bytes] [chunk in bytes]
int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1.0;
  const int64_t largest = argc > 2 ? std::atoll(argv[2]) : int64_t{100} << 20;
  const int64_t chunk_bytes = argc > 3 ? std::atoll(argv[3]) : 0;
  const auto environment = comm::make_mpi_environment();
  {
    const auto world = environment->world();
    const auto shared = comm::make_shared_memory_communicator(*world, {.chunk_bytes = chunk_bytes});
    const auto device = device::make_cpu_device();
    const auto stream = device->create_stream("benchmark");
    std::vector<int64_t> sizes;
    for (int64_t size = 1 << 10; size < largest; size *= 4) sizes.push_back(size);
    sizes.push_back(largest);
    std::vector<float> data(static_cast<size_t>(largest / 4));
    const int ranks = world->size();
    if (world->rank() == 0)
      fmt::print("{} ranks\n{:>12} {:>12} {:>12} {:>12} {:>12} {:>8}\n", ranks, "bytes", "shared us",
                 "MPI us", "shared GB/s", "MPI GB/s", "ratio");
    for (const int64_t size : sizes) {
      const Row row = measure(*shared, *stream, data, size / 4, seconds);
      // Bus bandwidth: what a ring would send through every link.
      const double bus_bytes = 2.0 * static_cast<double>(size) * (ranks - 1) / ranks;
      if (world->rank() == 0)
        fmt::print("{:>12} {:>12.2f} {:>12.2f} {:>12.2f} {:>12.2f} {:>8.2f}\n", size, row.shared_us,
                   row.mpi_us, bus_bytes / row.shared_us / 1000, bus_bytes / row.mpi_us / 1000,
                   row.mpi_us / row.shared_us);
    }
  }
  environment->finish();
  return 0;
}
