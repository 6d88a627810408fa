#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/hash.h"
#include "base/host_name.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/compare_page.h"
#include "cli/compare_results.h"
#include "cli/job.h"
#include "cli/job_places.h"
#include "cli/traced_training.h"
#include "cli/workplace.h"
#include "lockstep/error.h"
#include "plan/link_traffic.h"
#include "train/loop/stop_request.h"
#include "train/worker/compile_options.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kMostRounds = 100;

struct CompareArguments {
  ConfigArguments config;
  OutputArguments output;
  DeviceArguments device;
  std::string layouts, workers = "1", directory, scaling = "strong", links, hostfile;
  int64_t steps = 50, proof_steps = 5;
  double precision_percent = 5, minutes = 10, price = 0;
  bool resume = false;
};

/// Somebody has asked to stop.
struct Interrupted {};

std::vector<int> parse_workers(const std::string& text) {
  std::vector<int> workers;
  for (const std::string& part : split(text, ',')) {
    const std::string word{trim(part)};
    size_t end = 0;
    int number = 0;
    try {
      number = std::stoi(word, &end);
    } catch (const std::exception&) {
      end = 0;
    }
    if (end == 0 || end != word.size() || number < 1 || number > layout::kMostProcesses)
      throw ConfigError(fmt::format("--workers {}: expected numbers from 1 to {}, such as 1,2,4, found '{}'",
                                    text, layout::kMostProcesses, word));
    if (std::ranges::find(workers, number) != workers.end())
      throw ConfigError(fmt::format("--workers {}: {} stands there twice", text, number));
    workers.push_back(number);
  }
  return workers;
}

/// "" alone where none are asked for.
std::vector<std::string> parse_links(const std::string& text) {
  if (text.empty()) return {""};
  std::vector<std::string> links;
  for (const std::string& link : split(text, ',')) {
    if (const std::string fault = link_rate_fault(link); !fault.empty())
      throw ConfigError(fmt::format("--link {}: {}, found '{}'", text, fault, link));
    if (std::ranges::find(links, link) != links.end())
      throw ConfigError(fmt::format("--link {}: {} stands there twice", text, link));
    links.push_back(link);
  }
  return links;
}

/// Of each rank, where ranks alternate between two hosts.
std::vector<int> alternating_hosts(int processes) {
  std::vector<int> hosts;
  for (int rank = 0; rank < processes; ++rank) hosts.push_back(rank % 2);
  return hosts;
}

layout::Layout with_workers(const layout::Layout& kind, int workers, const std::string& name) {
  if (kind.dp != 0)
    throw ConfigError(
        fmt::format("--layouts: '{}' says dp, which follows from --workers; leave it out there", name));
  if (workers % kind.pp != 0)
    throw ConfigError(fmt::format(
        "--layouts: '{}' has {} stages, which {} worker{} cannot make; use multiples of {} for --workers",
        name, kind.pp, workers, workers == 1 ? "" : "s", kind.pp));
  layout::Layout layout = kind;
  layout.dp = workers / kind.pp;
  return layout;
}

double longest(const Json& ranks, const char* field, bool of_workers) {
  double most = 0;
  for (const Json& rank : ranks)
    if (rank.contains(field) && (!of_workers || rank.at("role") != "server"))
      most = std::max(most, rank.at(field).get<double>());
  return most;
}

/// What of a worker's wait follows from its pipeline's schedule, and in what of the rest a server worked.
void split_wait(CompareSample& sample, double bubble_fraction) {
  sample.bubble_ms = std::min(sample.exposed_comm_ms, bubble_fraction * sample.step_ms);
  sample.server_ms = std::min(sample.exposed_comm_ms - sample.bubble_ms, sample.server_busy * sample.step_ms);
}

/// That the busiest interface of any host moved in a step, in its busier direction.
double busiest_interface(const Json& ranks) {
  double most = 0;
  for (const Json& rank : ranks)
    if (rank.contains("interface_bytes"))
      for (const Json& bytes : rank.at("interface_bytes"))
        most = std::max({most, bytes.at("sent").get<double>(), bytes.at("received").get<double>()});
  return most;
}

int count_hosts(const Json& ranks) {
  std::vector<std::string> hosts;
  for (const Json& rank : ranks) hosts.push_back(rank.at("host").get<std::string>());
  std::ranges::sort(hosts);
  return static_cast<int>(std::unique(hosts.begin(), hosts.end()) - hosts.begin());
}

CompareSample sample_of(const Json& report, int round) {
  CompareSample sample{.round = round,
                       .step_ms = report.at("step_ms").at("mean").get<double>(),
                       .samples_per_second = report.at("samples_per_second").get<double>(),
                       .train_loss = report.at("train_loss").get<double>()};
  const Json& ranks = report.at("ranks");
  sample.exposed_comm_ms = longest(ranks, "exposed_comm_ms", true);
  sample.data_wait_ms = longest(ranks, "data_wait_ms", true);
  sample.server_busy = longest(ranks, "server_busy", false);
  for (const Json& rank : ranks) sample.sent_bytes_per_step += rank.at("wire_bytes").at("sent").get<double>();
  sample.link_bytes_per_step = busiest_interface(ranks);
  sample.hosts = count_hosts(ranks);
  for (const Json& rank : ranks) {
    const bool waited_longest = rank.contains("exposed_comm_ms") &&
                                rank.at("exposed_comm_ms").get<double>() == sample.exposed_comm_ms;
    if (waited_longest && rank.contains("compute_share"))
      sample.compute_ms = rank.at("compute_share").get<double>() * sample.step_ms;
  }
  split_wait(sample, report.value("bubble_fraction_theory", 0.0));
  if (report.contains("staleness")) sample.staleness_mean = report.at("staleness").at("mean").get<double>();
  return sample;
}

/// What does the same again, elsewhere.
std::string command_line(const CompareArguments& arguments) {
  std::vector<std::string> words = {"lockstep", "compare", arguments.config.path};
  for (const std::string& said : arguments.config.all_overrides()) words.push_back("--set=" + said);
  words.insert(words.end(), {"--workers", arguments.workers, "--layouts", arguments.layouts, "--scaling",
                             arguments.scaling, "--steps", fmt::to_string(arguments.steps), "--proof-steps",
                             fmt::to_string(arguments.proof_steps), "--precision",
                             fmt::format("{:g}", arguments.precision_percent), "--minutes",
                             fmt::format("{:g}", arguments.minutes), "--device", arguments.device.device,
                             "--out", arguments.directory});
  if (!arguments.links.empty()) words.insert(words.end(), {"--link", arguments.links});
  if (!arguments.hostfile.empty()) words.insert(words.end(), {"--hostfile", arguments.hostfile});
  if (arguments.price > 0) words.insert(words.end(), {"--price", fmt::format("{:g}", arguments.price)});
  return shell_line(words);
}

/// Complete or as it was.
void replace_file(const fs::path& path, const std::string& text) {
  const fs::path next = path.string() + ".next";
  {
    std::ofstream file(next, std::ios::binary | std::ios::trunc);
    file << text << std::flush;
    if (!file) throw IoError(fmt::format("cannot write {}: {}", next.string(), std::strerror(errno)));
  }
  std::error_code error;
  fs::rename(next, path, error);
  if (error) throw IoError(fmt::format("cannot write {}: {}", path.string(), error.message()));
}

class Comparing {
 public:
  explicit Comparing(const CompareArguments& arguments);
  /// Everything there is time for. Returns whether nobody asked to stop.
  bool run();
  const CompareResults& results() const { return results_; }
  std::string folder() const { return directory_; }
  bool all_are_well() const {
    return std::ranges::none_of(results_.rows, [](const CompareRow& row) {
      return !row.failure.empty() || row.proof == CompareProof::different ||
             row.proof == CompareProof::failed;
    });
  }

 private:
  std::vector<std::string> overrides(const CompareRow& row, bool proof) const;
  TrainingCommand command(const CompareRow& row, bool proof) const;
  void add_rows(int64_t global_batch);
  void check(CompareRow& row) const;
  void resume();
  void prove();
  void prove(CompareRow& row, const CompareRow*& first_row, std::optional<TracedTraining>& first);
  void measure();
  void measure(CompareRow& row, int round, size_t number);
  bool is_over() const { return seconds_left() <= 0; }
  double seconds_left() const {
    return 60 * arguments_.minutes - 1e-3 * milliseconds_between(began_, Clock::now());
  }
  std::string folder_of(const CompareRow& row, const std::string& what) const {
    return fmt::format("{}/runs/{}-{}", directory_, layout::to_string(row.layout), what);
  }
  void save() const;
  void use_link(const CompareRow& row);

  const CompareArguments& arguments_;
  std::string directory_;
  JobPlace place_;
  std::optional<StandInHosts> hosts_;
  std::string rate_;  // of their link
  std::optional<Workplace> workplace_;
  CompareResults results_;
  Clock::time_point began_ = Clock::now();
};

Comparing::Comparing(const CompareArguments& arguments)
    : arguments_(arguments), directory_(arguments.directory) {
  check_can_start_jobs("compare", 1);
  const config::RunConfig config =
      config::load_run_config(arguments.config.path, arguments.config.all_overrides(), std::nullopt);
  const std::time_t now = std::time(nullptr);
  results_ = {.command = command_line(arguments),
              .config = arguments.config.path,
              .config_hash = to_hex(config.config_hash),
              .version = LOCKSTEP_VERSION,
              .host = host_name(),
              .began = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now)),
              .weak = arguments.scaling == "weak",
              .steps = arguments.steps,
              .proof_steps = arguments.proof_steps,
              .cores = static_cast<int>(std::thread::hardware_concurrency()),
              .price = arguments.price,
              .rows = {}};
  add_rows(config.trainer.global_batch);
  for (CompareRow& row : results_.rows) check(row);
  if (!arguments.hostfile.empty()) place_ = hostfile_place(arguments.hostfile);
  if (!arguments.links.empty()) place_ = hosts_.emplace().place();
  if (arguments.resume && fs::exists(fs::path(directory_) / "results.json")) {
    resume();
  } else {
    workplace_.emplace("compare", directory_);
    directory_ = workplace_->path();
  }
}

void Comparing::add_rows(int64_t global_batch) {
  if (!arguments_.links.empty() && !arguments_.hostfile.empty())
    throw ConfigError("--link makes hosts of its own; leave out --hostfile, or --link");
  const std::vector<int> all_workers = parse_workers(arguments_.workers);
  const std::vector<std::string> kinds = split(arguments_.layouts, ';');
  for (const std::string& link : parse_links(arguments_.links))
    for (const int workers : all_workers)
      for (const std::string& kind : kinds) {
        CompareRow row{.link = link,
                       .workers = workers,
                       .layout = with_workers(layout::parse_layout(kind), workers, kind),
                       .kind = kind,
                       .global_batch = global_batch * (results_.weak ? workers : 1)};
        const auto same = std::ranges::find_if(results_.rows, [&](const CompareRow& other) {
          return other.link == link && other.workers == workers && other.layout == row.layout;
        });
        if (same != results_.rows.end())
          throw ConfigError(fmt::format("--layouts: '{}' is '{}' once more; leave it out", kind, same->kind));
        results_.rows.push_back(std::move(row));
      }
  if (results_.rows.size() < 2)
    throw ConfigError(
        "--layouts: name at least two layouts, separated by ';', or several numbers of --workers");
}

std::vector<std::string> Comparing::overrides(const CompareRow& row, bool proof) const {
  std::vector<std::string> all = arguments_.config.all_overrides();
  if (proof) all.push_back("parallel.reduction=REPRODUCIBLE");
  if (results_.weak) all.push_back(fmt::format("trainer.global_batch={}", row.global_batch));
  all.push_back("trainer.eval_every_steps=0");
  all.push_back("trainer.eval_at_end=false");
  return all;
}

TrainingCommand Comparing::command(const CompareRow& row, bool proof) const {
  return {.config = arguments_.config.path,
          .assignments = overrides(row, proof),
          .layout = row.layout,
          .device = arguments_.device.device,
          .allow_shared_gpu = arguments_.device.allow_shared_gpu,
          .place = place_};
}

/// Refuses what cannot run before anything does.
void Comparing::check(CompareRow& row) const {
  const int processes = row.layout.world_size();
  check_can_start_jobs("compare", processes);
  const std::string workers = fmt::format("{} worker{}: ", row.workers, row.workers == 1 ? "" : "s");
  const std::string place = fmt::format("layout '{}': ", layout::to_string(row.layout));
  try {
    const config::RunConfig config =
        config::load_run_config(arguments_.config.path, overrides(row, false), layout::to_string(row.layout));
    compile::CompileFacts facts{.world_size = processes, .shared_memory = processes > 1};
    if (!row.link.empty() && processes > 1) {
      facts.hosts = alternating_hosts(processes);
      facts.shared_memory = false;
    }
    const compile::CompiledRun run = train::compile_run(config, facts);
    run.check();
    if (!facts.hosts.empty()) row.link_bytes_theory = plan::busiest_link_bytes(run, facts.hosts);
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    throw ConfigError(workers + (message.starts_with(place) ? message : place + message));
  }
}

/// Takes over what an earlier start has found.
void Comparing::resume() {
  const std::string path = (fs::path(directory_) / "results.json").string();
  CompareResults before = compare_results_from_text(read_text_file(path), path);
  if (!results_.continues(before))
    throw ConfigError(fmt::format(
        "--resume: {} is of another comparison (config, layouts, workers, steps or version differ); name "
        "another folder",
        path));
  before.price = results_.price;
  results_ = std::move(before);
  // What failed may have been the machine's fault.
  for (CompareRow& row : results_.rows) {
    row.failure.clear();
    if (row.proof == CompareProof::failed) row.proof = CompareProof::not_tried;
  }
}

void Comparing::use_link(const CompareRow& row) {
  if (!hosts_ || rate_ == row.link) return;
  hosts_->set_rate(row.link);
  rate_ = row.link;
}

void Comparing::save() const {
  replace_file(fs::path(directory_) / "results.json", to_json(results_).dump(1) + "\n");
  replace_file(fs::path(directory_) / "results.csv", results_.csv());
  replace_file(fs::path(directory_) / "report.html", compare_page(results_));
}

bool Comparing::run() {
  train::install_stop_request(/*alone=*/true);
  try {
    prove();
    measure();
  } catch (const Interrupted&) {
    save();
    return false;
  }
  save();
  return true;
}

void Comparing::prove() {
  if (arguments_.proof_steps == 0) return;
  std::vector<int64_t> batches;
  for (const CompareRow& row : results_.rows)
    if (std::ranges::find(batches, row.global_batch) == batches.end()) batches.push_back(row.global_batch);
  for (const int64_t batch : batches) {
    const CompareRow* first_row = nullptr;
    std::optional<TracedTraining> first;
    const bool known = std::ranges::all_of(results_.rows, [&](const CompareRow& row) {
      return row.global_batch != batch || row.proof != CompareProof::not_tried;
    });
    if (known) continue;
    for (CompareRow& row : results_.rows)
      if (row.global_batch == batch) prove(row, first_row, first);
  }
}

void Comparing::prove(CompareRow& row, const CompareRow*& first_row, std::optional<TracedTraining>& first) {
  const std::string name = layout::to_string(row.layout);
  // The same programs over another link.
  const auto same = std::ranges::find_if(results_.rows, [&](const CompareRow& other) {
    return &other != &row && other.link != row.link && other.layout == row.layout &&
           other.global_batch == row.global_batch && other.proof != CompareProof::not_tried &&
           other.proof != CompareProof::failed;
  });
  if (same != results_.rows.end()) {
    row.proof = same->proof;
    row.proof_detail = same->proof_detail;
    return;
  }
  use_link(row);
  row.proof_detail.clear();
  if (row.layout.has_sessions()) {
    row.proof = CompareProof::other_mathematics;
    return;
  }
  TracedTraining training;
  const std::string folder = folder_of(row, "proof");
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  try {
    run_traced(command(row, true),
               {"--resume", "never", "--stop-after", fmt::to_string(arguments_.proof_steps)}, folder,
               training, [](pid_t) {
                 if (train::stop_requested()) throw Interrupted();
               });
    if (first) compare_traces(layout::to_string(first_row->layout), *first, name, training);
    row.proof = training.difference ? CompareProof::different : CompareProof::identical;
    if (training.difference) row.proof_detail = trim(describe_difference(training));
  } catch (const Error& error) {
    row.proof = CompareProof::failed;
    row.proof_detail = error.what();
  }
  log_info(
      fmt::format("{}: {} steps under REPRODUCIBLE: {}", name, arguments_.proof_steps, name_of(row.proof)));
  if (!first && row.proof == CompareProof::identical) {
    first = std::move(training);
    first_row = &row;
  }
  save();
}

void Comparing::measure() {
  const double precision = arguments_.precision_percent / 100;
  const auto is_done = [&](const CompareRow& row) {
    return !row.failure.empty() || row.is_precise(precision);
  };
  int round = 1;
  for (const CompareRow& row : results_.rows)
    for (const CompareSample& sample : row.samples) round = std::max(round, sample.round);
  for (; round <= kMostRounds; ++round) {
    if (std::ranges::all_of(results_.rows, is_done)) return;
    for (size_t i = 0; i < results_.rows.size(); ++i) {
      CompareRow& row = results_.rows[i];
      const bool has_it = !row.samples.empty() && row.samples.back().round >= round;
      if (!row.failure.empty() || has_it) continue;
      // The first round is made however long it takes: without it there is nothing to tell.
      if (round > 1 && is_over()) return;
      measure(row, round, i + 1);
    }
  }
}

void Comparing::measure(CompareRow& row, int round, size_t number) {
  use_link(row);
  const std::string folder =
      folder_of(row, fmt::format("{}round-{}", row.link.empty() ? "" : "link-" + row.link + "-", round));
  const TrainingCommand training = command(row, false);
  ProcessJob job{.processes = row.layout.world_size(),
                 .arguments = training.arguments(),
                 .place = training.place,
                 .stdout_path = folder + "/result.json",
                 .stderr_path = folder + "/stderr.txt",
                 .watch = [](pid_t) {
                   if (train::stop_requested()) throw Interrupted();
                 }};
  job.arguments.insert(job.arguments.end(),
                       {"--quiet", "--resume", "never", "--stop-after", fmt::to_string(arguments_.steps)});
  try {
    const JobOutcome outcome = run_to_end(job);
    if (outcome.code != 0)
      row.failure = job_failure("training", outcome, folder).what();
    else
      row.samples.push_back(sample_of(Json::parse(outcome.output), round));
  } catch (const nlohmann::json::exception& error) {
    row.failure = fmt::format("its report in {} is not as expected: {}", folder, error.what());
  }
  log_info(fmt::format(
      "round {}, {} of {}: {}: {}{}", round, number, results_.rows.size(), row.name(),
      row.failure.empty() ? fmt::format("{:.2f} ms a step", row.samples.back().step_ms) : "FAILED",
      is_over() ? "" : fmt::format("; at most {} left", human_seconds(seconds_left()))));
  save();
}

int compare(const CompareArguments& arguments) {
  Comparing comparing(arguments);
  const bool complete = comparing.run();
  const CompareResults& results = comparing.results();
  write_result(arguments.output.json ? to_json(results).dump() + "\n"
                                     : fmt::format("{}\n\n{}\ndrawn in {}/report.html\n", results.headline(),
                                                   results.table(), comparing.folder()));
  if (!complete) {
    log_warning(fmt::format("stopped by request; go on with --resume --out {}", comparing.folder()));
    return static_cast<int>(train::stop_exit_code());
  }
  return static_cast<int>(comparing.all_are_well() ? ExitCode::done : ExitCode::internal);
}

}  // namespace

void add_compare_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "compare",
      "Which layout is faster, and does it change the results: proves bits equal, then measures in turns",
      "  lockstep compare configs/mnist_lenet.textproto --data-dir DIR --workers 1,2 \\\n"
      "    --layouts \"sync=all_reduce; sync=ps,servers=1; sync=ps,servers=1,mode=async\" --out comparison");
  const auto arguments = std::make_shared<CompareArguments>();
  arguments->config.add_to(command, /*with_data=*/true);
  command
      .add_option("--layouts", arguments->layouts,
                  "Layouts without dp, separated by ';'; the first is what others "
                  "are shown beside")
      ->type_name("LIST")
      ->required();
  command.add_option("--workers", arguments->workers, "Numbers of workers; servers come on top")
      ->type_name("N,...")
      ->capture_default_str();
  command
      .add_option("--scaling", arguments->scaling,
                  "strong: the global batch stays as it is; weak: it grows with the workers")
      ->check(CLI::IsMember({"strong", "weak"}))
      ->capture_default_str();
  command.add_option("--steps", arguments->steps, "Steps of each measured run")
      ->check(CLI::Range(int64_t{10}, int64_t{1} << 40))
      ->capture_default_str();
  command
      .add_option("--proof-steps", arguments->proof_steps,
                  "Steps whose bits are compared under REPRODUCIBLE; 0: none are")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command
      .add_option("--precision", arguments->precision_percent,
                  "Rounds go on until each median is known so well, at 95 %, in percent")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  command.add_option("--minutes", arguments->minutes, "No further round begins after so many minutes")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--out", arguments->directory,
                  "Empty folder for report.html, results.json, results.csv and every run")
      ->type_name("DIR")
      ->required();
  command
      .add_option(
          "--link", arguments->links,
          "On two hosts that are made on this machine, joined by a link of each of these rates: none, "
          "1gbit, 200mbit, ...; needs root")
      ->type_name("RATE,...");
  command
      .add_option("--hostfile", arguments->hostfile,
                  "On these hosts, filled in order; lines 'HOST slots=N'. They share --out")
      ->type_name("FILE");
  command
      .add_option("--price", arguments->price,
                  "Of a host for an hour: rows tell what a million samples cost, hosts of servers counted")
      ->check(CLI::Range(0.0, 1e9));
  command.add_flag("--resume", arguments->resume, "Go on with the comparison in --out, if there is one");
  arguments->device.add_to(command);
  arguments->output.add_to(command);
  command.callback([&selected, arguments] { selected = [arguments] { return compare(*arguments); }; });
}

}  // namespace lockstep::cli
