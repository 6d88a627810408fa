#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <numeric>

#include "base/log.h"
#include "cli/commands.h"
#include "comm/measure.h"
#include "compare/bench_report.h"
#include "lockstep/error.h"
#include "plan/speed_of_light.h"
#include "train/start/machine_figures.h"
#include "train/start/world.h"

namespace lockstep::cli {
namespace {

struct BenchArguments {
  jobs::OutputArguments output;
  int64_t largest_bytes = 4 << 20;
  double seconds = 0.2;
  bool brief = false;
};

std::vector<int> peers_of(const std::vector<int>& hosts, bool brief) {
  if (brief) return train::typical_peers(hosts);
  std::vector<int> all(hosts.size() - 1);
  std::iota(all.begin(), all.end(), 1);
  return all;
}

/// From a sum of two numbers on, in steps of 16 times.
std::vector<int64_t> sizes_up_to(int64_t largest) {
  std::vector<int64_t> sizes;
  for (int64_t size = 8; size < largest; size *= 16) sizes.push_back(size);
  sizes.push_back(largest);
  return sizes;
}

compare::BenchReport measure(train::World& world, const BenchArguments& arguments) {
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("bench");
  const comm::MeasureOptions options{.long_message_bytes = arguments.largest_bytes,
                                     .seconds = arguments.seconds};
  compare::BenchReport report{.hosts = world.hosts()};
  if (report.hosts.empty()) report.hosts = {0};
  if (world.size() > 1) {
    comm::Communicator& all = world.communicator();
    const std::vector<int64_t> sizes = arguments.brief ? std::vector<int64_t>{8, arguments.largest_bytes}
                                                       : sizes_up_to(arguments.largest_bytes);
    report.pairs = comm::measure_pairs(all, *stream, peers_of(report.hosts, arguments.brief), options);
    report.sums = comm::measure_sums(all, *stream, sizes, options);
    if (world.one_host())
      report.shared_sums =
          comm::measure_sums(*comm::make_shared_memory_communicator(all), *stream, sizes, options);
  }
  report.addition_per_byte = comm::measure_addition();
  return report;
}

/// A shorter measurement is a trial.
constexpr double kSecondsToKeep = 0.1;

/// The most that one core moves, of arrays that its caches hold.
double cached_bytes_per_second() {
  double best = 0;
  for (const int64_t bytes : {int64_t{12} << 10, int64_t{128} << 10, int64_t{1} << 20})
    best = std::max(best, comm::measure_copying(bytes));
  return best;
}

/// For the share of the speed of light that later runs on this host report: what cannot be exceeded.
void keep(const compare::BenchReport& report) {
  const std::string path = plan::kept_speed_path();
  if (path.empty() || report.addition_per_byte <= 0) return;
  try {
    // An addition reads two numbers and writes one.
    const double from_memory = std::max(3 / report.addition_per_byte,
                                        comm::measure_copying(2 * static_cast<int64_t>(plan::kCachedBytes)));
    plan::keep_speed(path, {.flops_per_second = report.arithmetic->peak,
                            .bytes_per_second = from_memory,
                            .cached_bytes_per_second = cached_bytes_per_second()});
  } catch (const IoError& error) {
    log_warning(error.what());
  }
}

int bench(const BenchArguments& arguments) {
  return train::run_in_world([&](train::World& world) {
    compare::BenchReport report = measure(world, arguments);
    if (world.rank() == 0 && !arguments.brief) report.arithmetic = ops::measure_arithmetic(arguments.seconds);
    if (world.rank() == 0 && report.arithmetic && arguments.seconds >= kSecondsToKeep) keep(report);
    if (world.rank() == 0)
      write_result(arguments.output.json ? to_json(report).dump() + "\n" : report.table());
    return static_cast<int>(ExitCode::done);
  });
}

}  // namespace

void add_bench_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(program, "bench",
                                 "Measures messages and sums between the processes of a job, and the speed "
                                 "of the processor",
                                 "  mpirun -n 2 lockstep bench\n"
                                 "  mpirun -n 2 --host a,b lockstep bench --json");
  const auto arguments = std::make_shared<BenchArguments>();
  command
      .add_option("--largest", arguments->largest_bytes,
                  "Size of the longest message and sum in bytes, a multiple of 4")
      ->check(CLI::Range(int64_t{64}, int64_t{1} << 30))
      ->check([](const std::string& text) {
        return std::stoll(text) % 4 == 0 ? std::string() : std::string("expected a multiple of 4");
      })
      ->capture_default_str();
  command.add_option("--seconds", arguments->seconds, "Approximate time for each figure")
      ->check(finite_number())
      ->check(CLI::Range(0.001, 600.0))
      ->capture_default_str();
  command.add_flag("--brief", arguments->brief,
                   "Only what predictions need: one pair within a host, one between hosts, sums of two "
                   "sizes, no arithmetic");
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return bench(*arguments); }; });
}

}  // namespace lockstep::cli
