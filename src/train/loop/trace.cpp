#include "train/loop/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/hash.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

using Json = nlohmann::ordered_json;

std::string to_line(const char* kind, int64_t step, const Trace::Entries& entries) {
  Json values = Json::array();
  for (const auto& [name, bits] : entries) values.push_back({name, to_hex(bits)});
  return Json{{kind, step}, {"bits", std::move(values)}}.dump();
}

uint64_t from_hex(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
    throw DataError(fmt::format("'{}' is not 16 hexadecimal digits", text));
  return value;
}

void read_line(const std::string& line, Trace& trace) {
  const Json json = Json::parse(line);
  const bool is_step = json.contains("step");
  Trace::Entries entries;
  for (const auto& value : json.at("bits"))
    entries.emplace_back(value.at(0).get<std::string>(), from_hex(value.at(1).get<std::string>()));
  auto& part = is_step ? trace.steps : trace.evaluations;
  part[json.at(is_step ? "step" : "evaluation").get<int64_t>()] = std::move(entries);
}

/// What a person sees of a value: numbers as numbers too, since bits alone do not say how far they are apart.
std::string shown(const std::string& name, const std::optional<uint64_t>& bits) {
  if (!bits) return "absent";
  const bool is_number = name == "loss" || name == "gradient norm" || name.starts_with("evaluation ");
  return is_number ? fmt::format("{} ({})", exact(std::bit_cast<double>(*bits)), to_hex(*bits))
                   : to_hex(*bits);
}

std::optional<uint64_t> value_of(const Trace::Entries& entries, const std::string& name) {
  for (const auto& entry : entries)
    if (entry.first == name) return entry.second;
  return std::nullopt;
}

std::optional<TraceDifference> difference_at(int64_t step, const Trace::Entries& first,
                                             const Trace::Entries& second) {
  std::vector<std::string> names;
  for (const auto& entry : first) names.push_back(entry.first);
  for (const auto& entry : second)
    if (!value_of(first, entry.first)) names.push_back(entry.first);
  std::optional<TraceDifference> difference;
  for (const auto& name : names) {
    const auto a = value_of(first, name), b = value_of(second, name);
    if (a == b) continue;
    if (difference)
      ++difference->more;
    else
      difference =
          TraceDifference{.step = step, .name = name, .first = shown(name, a), .second = shown(name, b)};
  }
  return difference;
}

const Trace::Entries& entries_at(const std::map<int64_t, Trace::Entries>& part, int64_t step) {
  static const Trace::Entries kNone;
  const auto found = part.find(step);
  return found == part.end() ? kNone : found->second;
}

}  // namespace

void Trace::append(const Trace& later) {
  for (const auto& [step, entries] : later.steps) steps[step] = entries;
  for (const auto& [step, entries] : later.evaluations) evaluations[step] = entries;
}

std::string trace_path(const std::string& directory, int rank) {
  return fmt::format("{}/trace-{}.jsonl", directory, rank);
}

TraceWriter::TraceWriter(const std::string& directory, int rank) : path_(trace_path(directory, rank)) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  file_.open(path_, std::ios::trunc);
  if (error || !file_)
    throw IoError(fmt::format("cannot write {}: {}", path_, error ? error.message() : std::strerror(errno)));
}

void TraceWriter::add(const StepRecord& record, const Worker& worker, comm::Communicator& world) {
  Trace::Entries entries = {{"loss", std::bit_cast<uint64_t>(record.loss)},
                            {"gradient norm", std::bit_cast<uint64_t>(record.gradient_norm)}};
  for (auto& [name, hash] : tensor_hashes(worker, world)) entries.emplace_back(std::move(name), hash);
  write_line(to_line("step", record.step, entries));
}

void TraceWriter::add(const EvaluationRecord& record) {
  write_line(to_line("evaluation", record.step,
                     {{"evaluation loss", std::bit_cast<uint64_t>(record.loss)},
                      {"evaluation accuracy", std::bit_cast<uint64_t>(record.accuracy)}}));
}

void TraceWriter::write_line(const std::string& line) {
  file_ << line << '\n' << std::flush;
  if (!file_) throw IoError(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
}

Trace read_trace(const std::string& path) {
  Trace trace;
  int number = 0;
  for (const auto& line : split(read_text_file(path), '\n')) {
    ++number;
    if (line.empty()) continue;
    try {
      read_line(line, trace);
    } catch (const std::exception& error) {
      throw DataError(fmt::format("{}:{}: not a line of a trace: {}", path, number, error.what()));
    }
  }
  return trace;
}

std::optional<TraceDifference> first_difference(const Trace& first, const Trace& second) {
  std::set<int64_t> steps;
  for (const Trace* trace : {&first, &second}) {
    for (const auto& entry : trace->steps) steps.insert(entry.first);
    for (const auto& entry : trace->evaluations) steps.insert(entry.first);
  }
  for (const int64_t step : steps) {
    if (auto difference = difference_at(step, entries_at(first.steps, step), entries_at(second.steps, step)))
      return difference;
    if (auto difference =
            difference_at(step, entries_at(first.evaluations, step), entries_at(second.evaluations, step)))
      return difference;
  }
  return std::nullopt;
}

}  // namespace lockstep::train
