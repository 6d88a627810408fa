#include "compare/arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/shell_text.h"
#include "base/text.h"
#include "jobs/job.h"
#include "jobs/job_places.h"
#include "lockstep/error.h"
#include "train/faults/straggler.h"

namespace lockstep::compare {
namespace {

std::vector<int> parse_workers(const std::string& option, const std::string& text) {
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
      throw ConfigError(fmt::format("{} {}: expected numbers from 1 to {}, such as 1,2,4, found '{}'", option,
                                    text, layout::kMostProcesses, word));
    if (std::ranges::find(workers, number) != workers.end())
      throw ConfigError(fmt::format("{} {}: {} is listed twice", option, text, number));
    workers.push_back(number);
  }
  return workers;
}

/// "" alone if none are asked for.
std::vector<std::string> parse_links(const std::string& text) {
  if (text.empty()) return {""};
  std::vector<std::string> links;
  for (const std::string& link : split(text, ',')) {
    if (const std::string fault = jobs::link_rate_fault(link); !fault.empty())
      throw ConfigError(fmt::format("--link {}: {}, found '{}'", text, fault, link));
    if (std::ranges::find(links, link) != links.end())
      throw ConfigError(fmt::format("--link {}: {} is listed twice", text, link));
    links.push_back(link);
  }
  return links;
}

layout::Layout with_workers(const std::string& name, int workers) {
  const layout::Layout kind = layout::parse_layout(name);
  if (kind.dp != 0)
    throw ConfigError(fmt::format("--layouts: '{}' sets dp, but dp follows from --workers; remove it", name));
  if (workers % kind.pp != 0)
    throw ConfigError(
        fmt::format("--layouts: '{}' has {} stages, among which {} worker{} cannot be divided; use multiples "
                    "of {} for --workers",
                    name, kind.pp, workers, workers == 1 ? "" : "s", kind.pp));
  layout::Layout layout = kind;
  layout.dp = workers / kind.pp;
  return layout;
}

std::vector<CompareRow> all_rows(const CompareArguments& arguments, const std::vector<int>& all_workers,
                                 int64_t global_batch, std::vector<std::string>& refused) {
  std::vector<std::string> kinds = split(arguments.layouts, ';');
  std::erase_if(kinds, [](const std::string& kind) { return trim(kind).empty(); });
  std::vector<CompareRow> rows;
  for (const std::string& link : parse_links(arguments.links))
    for (const int workers : all_workers)
      for (const std::string& kind : kinds) {
        CompareRow row{.link = link,
                       .workers = workers,
                       .kind = std::string(trim(kind)),
                       .global_batch = global_batch * (arguments.is_weak() ? workers : 1)};
        try {
          row.layout = with_workers(row.kind, workers);
        } catch (const ConfigError& error) {
          if (std::ranges::find(refused, error.what()) == refused.end()) refused.emplace_back(error.what());
          continue;
        }
        const auto same = std::ranges::find_if(rows, [&](const CompareRow& other) {
          return other.link == link && other.workers == workers && other.layout == row.layout;
        });
        if (same != rows.end())
          throw ConfigError(fmt::format("--layouts: '{}' is the same as '{}'; remove it", kind, same->kind));
        rows.push_back(std::move(row));
      }
  return rows;
}

}  // namespace

std::vector<CompareRow> CompareArguments::rows(int64_t global_batch,
                                               std::vector<std::string>& refused) const {
  if (!links.empty() && !hostfile.empty())
    throw ConfigError("--link simulates hosts, so it excludes --hostfile; remove one of the two");
  const std::vector<int> all_workers = parse_workers("--workers", workers);
  std::vector<CompareRow> all = all_rows(*this, all_workers, global_batch, refused);
  if (!straggler.empty() && train::parse_straggler(straggler).rank >= std::ranges::min(all_workers))
    throw ConfigError(fmt::format("--straggler {}: {} worker{} have no such rank; rank 0 always exists",
                                  straggler, std::ranges::min(all_workers),
                                  std::ranges::min(all_workers) == 1 ? "" : "s"));
  if (!straggler.empty() && device.device == "cuda")
    throw ConfigError("--straggler: slows only workers on CPUs; remove it, or use --device cpu");
  if (kill_rank >= std::ranges::min(all_workers))
    throw ConfigError(fmt::format("--kill {}: {} worker{} have no such rank; rank 0 always exists", kill_rank,
                                  std::ranges::min(all_workers),
                                  std::ranges::min(all_workers) == 1 ? "" : "s"));
  const auto is_async = [](const CompareRow& row) {
    return row.layout.mode == layout::ServerMode::asynchronous;
  };
  if (kill_rank == 0 && std::ranges::any_of(all, is_async))
    throw ConfigError(
        "--kill 0: with mode=async a job goes on without any worker but the first; kill another one, such as "
        "1");
  if (all.size() < 2 && refused.empty())
    throw ConfigError(
        "--layouts: name at least two layouts, separated by ';', or several numbers of --workers");
  return all;
}

std::vector<CompareRow> CompareArguments::predicted_rows(int64_t global_batch,
                                                         std::vector<std::string>& refused) const {
  if (predicted_workers.empty()) return {};
  if (links.empty() && hostfile.empty() && jobs::slurm_hosts().empty())
    throw ConfigError(
        "--predict: more workers need more hosts, so the link between hosts must be known; pass --link or "
        "--hostfile, or run in a Slurm allocation");
  return all_rows(*this, parse_workers("--predict", predicted_workers), global_batch, refused);
}

std::string CompareArguments::command_line() const {
  std::vector<std::string> words = {"lockstep", "compare", config.path};
  for (const std::string& said : config.all_overrides()) words.push_back("--set=" + said);
  words.insert(words.end(), {"--workers", workers, "--layouts", layouts, "--scaling", scaling, "--steps",
                             fmt::to_string(steps), "--proof-steps", fmt::to_string(proof_steps),
                             "--precision", fmt::format("{:g}", precision_percent), "--minutes",
                             fmt::format("{:g}", minutes), "--device", device.device, "--out", directory});
  if (device.allow_shared_gpu) words.push_back("--allow-shared-gpu");
  if (!predicts) words.push_back("--no-prediction");
  if (!predicted_workers.empty()) words.insert(words.end(), {"--predict", predicted_workers});
  if (!links.empty()) words.insert(words.end(), {"--link", links});
  if (!hostfile.empty()) words.insert(words.end(), {"--hostfile", hostfile});
  if (!straggler.empty()) words.insert(words.end(), {"--straggler", straggler});
  if (kill_rank >= 0) words.insert(words.end(), {"--kill", fmt::to_string(kill_rank)});
  if (target_loss > 0) words.insert(words.end(), {"--target-loss", fmt::format("{:g}", target_loss)});
  if (price > 0) words.insert(words.end(), {"--price", fmt::format("{:g}", price)});
  return shell_line(words);
}

}  // namespace lockstep::compare
