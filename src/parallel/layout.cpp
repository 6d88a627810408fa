#include "parallel/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <utility>

#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

template <class E>
using Names = std::vector<std::pair<std::string, E>>;

const Names<PipelineSchedule> kSchedules = {{"gpipe", PipelineSchedule::gpipe},
                                            {"1f1b", PipelineSchedule::one_f_one_b},
                                            {"interleaved", PipelineSchedule::interleaved},
                                            {"zero_bubble", PipelineSchedule::zero_bubble}};
const Names<LayoutSync> kSyncs = {{"all_reduce", LayoutSync::all_reduce},
                                  {"ps", LayoutSync::parameter_server}};
const Names<ServerMode> kModes = {
    {"sync", ServerMode::synchronous}, {"stale", ServerMode::stale}, {"async", ServerMode::asynchronous}};
const std::vector<std::string> kKeys = {"dp", "pp", "schedule", "sync", "servers", "mode", "bound"};

constexpr int kMostProcesses = 65536;

/// One layout's keys and values, taken away as they are read.
class Entries {
 public:
  explicit Entries(std::string_view text) : text_(trim(text)) {
    for (const auto& part : split(text_, ',')) {
      const auto equals = part.find('=');
      if (equals == std::string::npos)
        refuse(fmt::format("'{}' is not key=value; a layout is a comma list such as dp=2", part));
      const std::string key(trim(std::string_view(part).substr(0, equals)));
      if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
        refuse(fmt::format("there is no key '{}'{}; there are {}", key, did_you_mean(key, kKeys),
                           join(kKeys, ", ")));
      if (!values_.emplace(key, trim(std::string_view(part).substr(equals + 1))).second)
        refuse(fmt::format("{} stands twice", key));
    }
    if (values_.empty()) refuse("it is empty; write a comma list such as dp=2");
  }

  bool has(const std::string& key) const { return values_.contains(key); }

  int number(const std::string& key, int otherwise) const {
    if (!has(key)) return otherwise;
    const std::string& value = values_.at(key);
    int number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < 1 || number > kMostProcesses)
      refuse(fmt::format("{} takes a whole number from 1 to {}, not '{}'", key, kMostProcesses, value));
    return number;
  }

  template <class E>
  E choice(const std::string& key, const Names<E>& names, E otherwise) const {
    if (!has(key)) return otherwise;
    std::vector<std::string> known;
    for (const auto& [name, value] : names) {
      if (name == values_.at(key)) return value;
      known.push_back(name);
    }
    refuse(fmt::format("{} takes {}, not '{}'{}", key, join(known, ", "), values_.at(key),
                       did_you_mean(values_.at(key), known)));
  }

  void demand(const std::string& key, bool condition, std::string_view needs) const {
    if (has(key) && !condition) refuse(fmt::format("{} has a meaning only with {}", key, needs));
  }

  [[noreturn]] void refuse(std::string_view reason) const {
    throw ConfigError(fmt::format("layout '{}': {}", text_, reason));
  }

 private:
  std::string text_;
  std::map<std::string, std::string> values_;
};

template <class E>
const std::string& name_in(const Names<E>& names, E value) {
  return std::find_if(names.begin(), names.end(), [&](const auto& name) { return name.second == value; })
      ->first;
}

}  // namespace

Layout parse_layout(std::string_view text) {
  const Entries entries(text);
  Layout layout;
  layout.data_parallel = entries.number("dp", 1);
  layout.pipeline_stages = entries.number("pp", 1);
  entries.demand("schedule", layout.pipeline_stages > 1, "pp above 1");
  layout.schedule = entries.choice("schedule", kSchedules, layout.schedule);
  layout.sync = entries.choice("sync", kSyncs, layout.sync);
  const bool served = layout.sync == LayoutSync::parameter_server;
  entries.demand("servers", served, "sync=ps");
  entries.demand("mode", served, "sync=ps");
  layout.servers = entries.number("servers", served ? 1 : 0);
  layout.mode = entries.choice("mode", kModes, layout.mode);
  const bool stale = layout.mode == ServerMode::stale;
  entries.demand("bound", stale, "mode=stale");
  layout.bound = entries.number("bound", stale ? 1 : 0);
  const int64_t processes = int64_t{layout.data_parallel} * layout.pipeline_stages + layout.servers;
  if (processes > kMostProcesses)
    entries.refuse(
        fmt::format("dp times pp plus servers are {} processes; {} are the most", processes, kMostProcesses));
  return layout;
}

std::vector<Layout> parse_layouts(std::string_view text) {
  if (trim(text).empty()) throw ConfigError("no layout is named; write for example \"dp=1; dp=2\"");
  std::vector<Layout> layouts;
  for (const auto& part : split(text, ';'))
    if (!part.empty()) layouts.push_back(parse_layout(part));
  if (layouts.empty()) throw ConfigError("no layout is named; write for example \"dp=1; dp=2\"");
  return layouts;
}

std::string to_string(const Layout& layout) {
  std::string text = fmt::format("dp={}", layout.data_parallel);
  if (layout.pipeline_stages > 1) {
    text += fmt::format(",pp={}", layout.pipeline_stages);
    if (layout.schedule != Layout{}.schedule) text += ",schedule=" + name_in(kSchedules, layout.schedule);
  }
  if (layout.sync == LayoutSync::parameter_server) {
    text += fmt::format(",sync=ps,servers={}", layout.servers);
    if (layout.mode != ServerMode::synchronous) text += ",mode=" + name_in(kModes, layout.mode);
    if (layout.mode == ServerMode::stale) text += fmt::format(",bound={}", layout.bound);
  }
  return text;
}

void require_available(const Layout& layout) {
  std::string missing;
  if (layout.pipeline_stages > 1) missing = "pipeline stages (pp above 1)";
  if (layout.sync == LayoutSync::parameter_server)
    missing += (missing.empty() ? "" : " and ") + std::string("parameter servers (sync=ps)");
  if (!missing.empty())
    throw ConfigError(
        fmt::format("layout '{}': {} are not available in this version; dp=N with sync=all_reduce is",
                    to_string(layout), missing));
}

}  // namespace lockstep
