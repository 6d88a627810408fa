#include "doctor/job_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "comm/agreement.h"
#include "comm/gather_texts.h"
#include "comm/mpi_library.h"
#include "device/device.h"
#include "doctor/job_facts.h"
#include "doctor/link_trial.h"
#include "lockstep/error.h"
#include "train/start/launch_facts.h"
#include "train/start/shared_directory.h"
#include "train/worker/fingerprint.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::chrono::minutes kTimeout{2};
constexpr int kThreads = 2;  // that a rank has at least: one computes, one reads
constexpr int kWorkPieces = 25;
constexpr std::chrono::milliseconds kWorkPiece{8};
constexpr int64_t kElements = int64_t{4} << 20, kElementsOfSlow = kElements / 16;
constexpr double kSlowSum = 0.1;  // seconds, of the fewer elements
constexpr double kSumSeconds = 0.5;

double seconds_since(Clock::time_point start) { return milliseconds_between(start, Clock::now()) / 1000; }

/// A barrier whose end all ranks see at about the same time.
void meet(comm::Communicator& communicator, device::Stream& stream) {
  communicator.barrier(stream);
  communicator.synchronize(stream, deadline_in(kTimeout));
}

/// How often a second a fixed piece of arithmetic is done, at best: all ranks work at the same time, as they
/// do when they train.
double work_rate() {
  double best = 0;
  volatile float sink = 0;
  for (int piece = 0; piece < kWorkPieces; ++piece) {
    const auto start = Clock::now();
    int64_t rounds = 0;
    float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    while (Clock::now() - start < kWorkPiece) {
      for (int i = 0; i < 1000; ++i)
        for (float& value : values) value = value * 0.999F + 0.5F;
      ++rounds;
    }
    for (const float value : values) sink = sink + value;
    best = std::max(best, static_cast<double>(rounds) / seconds_since(start));
  }
  return best;
}

std::string own_program() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

/// COLLECTIVE: what all ranks say of themselves, on all of them.
Ranks gather_ranks(train::World& world, const JobRequest& request, device::Stream& stream) {
  RankFacts own{.host = world.host(),
                .host_number = world.hosts()[static_cast<size_t>(world.rank())],
                .program = own_program(),
                .binary = train::binary_identity(),
                .mpi = comm::mpi_library(),
                .arithmetic = train::arithmetic_fingerprint(),
                .gpu_libraries = device::gpu_libraries() + " " + comm::gpu_communication_library(),
                .gpus = static_cast<int>(device::probe_gpus().devices.size()),
                .launch_warnings = train::launch_warnings(world.launch(), kThreads),
                .host_findings = request.host_findings};
  auto& communicator = world.communicator();
  meet(communicator, stream);
  own.clock = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  own.work_rate = work_rate();
  Ranks ranks;
  for (const auto& text : comm::gather_texts(communicator, encode(own), kTimeout))
    ranks.push_back(decode_rank_facts(text));
  return ranks;
}

/// A folder that is made if there is none, with those above it, and removed again unless somebody has put
/// something there.
class BorrowedFolder {
 public:
  explicit BorrowedFolder(const std::string& directory) {
    std::error_code error;
    for (fs::path path = fs::absolute(directory).lexically_normal();
         path.has_relative_path() && !fs::exists(path, error); path = path.parent_path())
      if (path.has_filename()) made_.push_back(path);
    fs::create_directories(directory, error);
    if (error) throw IoError(fmt::format("cannot make the folder {}: {}", directory, error.message()));
  }
  ~BorrowedFolder() {
    std::error_code not_empty;
    for (const auto& path : made_) fs::remove(path, not_empty);
  }
  BorrowedFolder(const BorrowedFolder&) = delete;

 private:
  std::vector<fs::path> made_;  // innermost first
};

/// COLLECTIVE.
Finding look_at_shared_folder(train::World& world, const std::string& directory) {
  if (directory.empty()) return {Level::skip, "no folder named; pass --out DIR to check it"};
  std::optional<BorrowedFolder> folder;
  std::exception_ptr failure;
  try {
    if (world.rank() == 0) folder.emplace(directory);
  } catch (const Error&) {
    failure = std::current_exception();
  }
  try {
    comm::agree_on_outcome(world.communicator(), failure, kTimeout);
    train::check_shared_directory(world.communicator(), directory, world.host());
  } catch (const comm::CollectiveError& error) {
    return {Level::fail, error.what(),
            fmt::format("mount the same file system on every host: df -T {} shows what is there", directory)};
  }
  return {Level::ok, fmt::format("{} is the same folder for all ranks", directory)};
}

/// COLLECTIVE: gradients' way, as a training would take it.
AllReduceFacts try_all_reduce(train::World& world, comm::Communicator& links, device::Stream& stream) {
  AllReduceFacts facts{.backend = std::string(links.backend()), .shm_problem = {}};
  std::unique_ptr<comm::Communicator> shared;
  if (world.one_host()) {
    try {
      shared = comm::make_shared_memory_communicator(links);
      facts.backend = "shared";
    } catch (const CommError& error) {
      facts.shm_problem = error.what();
    }
  }
  comm::Communicator& communicator = shared ? *shared : links;
  std::vector<float> values(static_cast<size_t>(kElements));
  const auto sum = [&](int64_t count) {
    const auto start = Clock::now();
    communicator.all_reduce(values.data(), count, DType::float32, comm::ReduceOp::sum, stream);
    communicator.synchronize(stream, deadline_in(kTimeout));
    return seconds_since(start);
  };
  // As rank 0 finds it.
  const auto agreed = [&](double seconds) {
    communicator.broadcast(&seconds, sizeof(seconds), 0, stream);
    communicator.synchronize(stream, deadline_in(kTimeout));
    return std::max(seconds, 1e-9);
  };
  sum(kElementsOfSlow);
  const bool slow = agreed(sum(kElementsOfSlow)) > kSlowSum;
  const int64_t count = slow ? kElementsOfSlow : kElements;
  const int times = std::clamp(static_cast<int>(kSumSeconds / agreed(sum(count))), 1, 20);
  facts.size_bytes = count * 4;
  meet(communicator, stream);
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) sum(count);
  facts.seconds = seconds_since(start) / times;
  return facts;
}

/// COLLECTIVE: every rank's list of these, in one list.
template <class T, class ToJson, class FromJson>
std::vector<T> gather_lists(comm::Communicator& communicator, const std::vector<T>& own,
                            const ToJson& to_json, const FromJson& from_json) {
  Json list = Json::array();
  for (const T& each : own) list.push_back(to_json(each));
  std::vector<T> all;
  for (const auto& text : comm::gather_texts(communicator, list.dump(), kTimeout))
    for (const auto& each : Json::parse(text)) all.push_back(from_json(each));
  return all;
}

std::vector<Latency> gather(comm::Communicator& communicator, const std::vector<Latency>& own) {
  return gather_lists(
      communicator, own,
      [](const Latency& each) {
        return Json{each.first, each.second, each.seconds};
      },
      [](const Json& json) {
        return Latency{json[0], json[1], json[2]};
      });
}

std::vector<LinkFacts> gather(comm::Communicator& communicator, const std::vector<LinkFacts>& own) {
  return gather_lists(
      communicator, own,
      [](const LinkFacts& each) {
        return Json{each.from, each.to, each.bytes_per_second, each.interface, each.speed_mbit};
      },
      [](const Json& json) {
        return LinkFacts{json[0], json[1], json[2], json[3], json[4]};
      });
}

}  // namespace

std::vector<Finding> look_at_job(train::World& world, const JobRequest& request,
                                 const std::function<void(const Finding&)>& tell) {
  std::vector<Finding> all;
  const auto say = [&](const std::string& check, Finding finding) {
    if (world.rank() != 0) return;
    finding.check = finding.check.empty() ? check : finding.check;
    tell(finding);
    all.push_back(std::move(finding));
  };
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("doctor");
  auto& communicator = world.communicator();
  comm::agree_on_fields(
      communicator, {{"--out", request.output_directory.empty() ? "no folder" : "a folder", ExitCode::usage}},
      kTimeout);
  const Ranks ranks = gather_ranks(world, request, *stream);
  say("ranks", judge_ranks(ranks));
  for (auto& finding : judge_hosts(ranks)) say("hosts", std::move(finding));
  say("binding", judge_binding(ranks));
  say("programs", judge_programs(ranks));
  say("mpi_libraries", judge_mpi_libraries(ranks));
  say("arithmetic", judge_arithmetic(ranks));
  say("gpus", judge_gpus_of_ranks(ranks));
  say("clocks", judge_clocks(ranks));
  say("speed", judge_speed(ranks));
  say("shared_folder", look_at_shared_folder(world, request.output_directory));
  // Of its own, so that deadlines count: the world's leaves them to the watchdog.
  const auto links = communicator.split(0, world.rank());
  say("pairs", judge_latencies(ranks, gather(*links, try_pairs(*links, ranks))));
  for (auto& finding : judge_links(ranks, gather(*links, try_links(*links, ranks))))
    say("links", std::move(finding));
  say("all_reduce", judge_all_reduce(ranks, try_all_reduce(world, *links, *stream)));
  return all;
}

}  // namespace lockstep::doctor
