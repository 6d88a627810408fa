#include "layout/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "base/ensure.h"
#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::layout {
namespace {

template <auto field>
int get_field(const Layout& layout) {
  return static_cast<int>(layout.*field);
}

template <auto field>
void set_field(Layout& layout, int value) {
  using Value = std::remove_reference_t<decltype(layout.*field)>;
  layout.*field = static_cast<Value>(value);
}

/// A condition on another key.
struct Needs {
  std::string_view key;
  int value = 0;
};

template <auto field>
constexpr LayoutKey number(std::string_view name, int lowest, std::string_view meaning, Needs needs = {},
                           std::string_view derived = {}) {
  return {name, {}, lowest, meaning, needs.key, needs.value, derived, get_field<field>, set_field<field>};
}

template <auto field>
constexpr LayoutKey choice(std::string_view name, std::span<const std::string_view> words,
                           std::string_view meaning, Needs needs = {}) {
  return {name, words, 0, meaning, needs.key, needs.value, {}, get_field<field>, set_field<field>};
}

template <class Value>
constexpr Needs with(std::string_view key, Value value) {
  return {key, static_cast<int>(value)};
}
constexpr Needs kWithServers = with("sync", SyncMethod::parameter_server);

// Words in the order of their enumerations.
constexpr std::string_view kSchedules[] = {"gpipe", "1f1b", "interleaved", "zero_bubble"};
constexpr std::string_view kRecomputes[] = {"none", "selective", "full"};
constexpr std::string_view kShards[] = {"none", "optimizer"};
constexpr std::string_view kSyncs[] = {"all_reduce", "ps"};
constexpr std::string_view kPlacements[] = {"dedicated", "colocated"};
constexpr std::string_view kAssignments[] = {"sharded", "whole"};
constexpr std::string_view kAggregations[] = {"none", "host"};
constexpr std::string_view kModes[] = {"sync", "stale", "async"};

/// In the order in which they are printed, and in which the first mistake is looked for.
constexpr std::array kKeys = {
    number<&Layout::dp>("dp", 1, "replicas of the model", {}, "(processes - dedicated servers) / pp"),
    number<&Layout::pp>("pp", 1, "pipeline stages of each replica"),
    choice<&Layout::schedule>("schedule", kSchedules, "order of forward and backward passes", with("pp", 2)),
    number<&Layout::chunks>("chunks", 2, "pieces of the model on each rank",
                            with("schedule", PipelineSchedule::interleaved)),
    choice<&Layout::recompute>("recompute", kRecomputes, "activations that backward recomputes"),
    choice<&Layout::shard>(
        "shard", kShards,
        "what is split across the replicas of a stage; optimizer: optimizer state and updates",
        with("sync", SyncMethod::all_reduce)),
    choice<&Layout::sync>("sync", kSyncs, "how gradients are summed; ps: by parameter servers"),
    number<&Layout::servers>("servers", 1, "number of servers", kWithServers),
    choice<&Layout::placement>("placement", kPlacements,
                               "where servers run; dedicated: in processes of their own; colocated: on the "
                               "first workers of each stage",
                               kWithServers),
    choice<&Layout::assign>("assign", kAssignments,
                            "how servers divide parameters; sharded: by bytes; whole: each is on one server",
                            kWithServers),
    choice<&Layout::aggregate>("aggregate", kAggregations,
                               "host: workers on one host sum first, then hosts among themselves; with "
                               "sync=ps one worker of each host "
                               "talks to the servers"),
    choice<&Layout::mode>(
        "mode", kModes,
        "sync: workers wait for each other; stale: they run up to bound steps ahead; async: they never wait",
        kWithServers),
    number<&Layout::bound>("bound", 0,
                           "preceding updates that may be missing from the parameters that a worker reads",
                           with("mode", ServerMode::stale)),
    number<&Layout::pushes>("pushes", 1,
                            "parts that a batch is divided into, each of which is one update; at least dp",
                            with("mode", ServerMode::asynchronous), "one per worker"),
};

/// What no program can be written for yet: the nearest layout has the key's default instead. Adding it takes
/// its line away.
struct Unavailable {
  std::string_view key, what;
  bool (*is_asked_for)(const Layout&);
};
constexpr Unavailable kUnavailable[] = {
    {"recompute", "recomputed activations between servers that do not wait for all workers (recompute)",
     [](const Layout& layout) { return layout.recompute != Recompute::none && layout.has_sessions(); }},
    {"aggregate", "sums within hosts for a sharded optimizer (aggregate=host with shard=optimizer)",
     [](const Layout& layout) {
       return layout.aggregate != Aggregation::none && layout.shard != ShardedState::none;
     }},
    {"mode",
     "servers of pipelines that do not wait for all workers (mode=stale and mode=async with pp above 1)",
     [](const Layout& layout) { return layout.pp > 1 && layout.has_sessions(); }},
};

const LayoutKey* find_key(std::string_view name) {
  const auto found =
      std::find_if(kKeys.begin(), kKeys.end(), [&](const auto& key) { return key.name == name; });
  return found == kKeys.end() ? nullptr : &*found;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const auto& key : kKeys) names.emplace_back(key.name);
  return names;
}

bool is_stated(const LayoutKey& key, const StatedKeys& stated) {
  return std::any_of(stated.begin(), stated.end(), [&](const auto& one) { return one.first == &key; });
}

/// Whether a value of the needed key is one with which `key` has a meaning.
bool needs_is_met(const LayoutKey& key, int value) {
  return find_key(key.needs)->words.empty() ? value >= key.needed_value : value == key.needed_value;
}

Layout layout_of(const StatedKeys& stated) {
  Layout layout;
  for (const auto& [key, value] : stated) key->set(layout, value);
  return layout;
}

/// The first stated key that would be ignored.
const LayoutKey* first_ignored(const StatedKeys& stated) {
  const Layout layout = layout_of(stated);
  for (const auto& key : kKeys)
    if (!has_meaning(key, layout) && is_stated(key, stated)) return &key;
  return nullptr;
}

/// Whether something else is stated than what `key` needs.
bool is_contradicted(const LayoutKey& key, const StatedKeys& stated) {
  if (key.needs.empty()) return false;
  const LayoutKey& needed = *find_key(key.needs);
  if (is_stated(needed, stated) && !needs_is_met(key, needed.get(layout_of(stated)))) return true;
  return is_contradicted(needed, stated);
}

/// The nearest layout in which nothing is ignored: what a key needs is added, or, if something else is
/// stated, the key is left out.
Layout nearest_with_meaning(StatedKeys stated) {
  while (const LayoutKey* ignored = first_ignored(stated))
    if (is_contradicted(*ignored, stated))
      std::erase_if(stated, [&](const auto& one) { return one.first == ignored; });
    else
      stated.emplace_back(find_key(ignored->needs), ignored->needed_value);
  Layout nearest = layout_of(stated);
  if (nearest.assign == ServerAssignment::whole) nearest.servers = std::max(nearest.servers, 2);
  return nearest;
}

/// Fields without a meaning take their defaults again.
Layout canonical(Layout layout) {
  for (const auto& key : kKeys)
    if (!has_meaning(key, layout)) key.set(layout, key.otherwise());
  return layout;
}

std::string quoted(const Layout& layout) { return fmt::format("'{}'", to_string(layout)); }

std::string counted(int count, std::string_view what) {
  return fmt::format("{} {}{}", count, what,
                     count == 1                                    ? ""
                     : what.ends_with("s") || what.ends_with("sh") ? "es"
                                                                   : "s");
}

void check_colocated(const Layout& layout, const RefuseLayout& refuse) {
  if (layout.placement != ServerPlacement::colocated) return;
  Layout nearest = layout;
  if (layout.servers % layout.pp != 0) {
    nearest.servers = (layout.servers / layout.pp + 1) * layout.pp;
    refuse(*find_key("servers"),
           fmt::format("{} cannot be divided evenly among {} stages; the nearest that works is {}",
                       counted(layout.servers, "server"), layout.pp, quoted(nearest)));
  }
  if (layout.dp == 0 || layout.servers <= layout.workers()) return;
  nearest.servers = layout.workers();
  refuse(*find_key("servers"), fmt::format("{} need as many workers, but there are {}; the most is {}",
                                           counted(layout.servers, "server"),
                                           counted(layout.workers(), "worker"), quoted(nearest)));
}

void check_assignment(const Layout& layout, const RefuseLayout& refuse) {
  if (layout.assign != ServerAssignment::whole || layout.servers > 1) return;
  Layout nearest = layout;
  nearest.assign = ServerAssignment::sharded;
  refuse(*find_key("assign"),
         fmt::format("a single server has all parameters in either case; the nearest that works is {}",
                     quoted(nearest)));
}

void check_pushes(const Layout& layout, const RefuseLayout& refuse) {
  if (layout.pushes == 0 || layout.pushes >= layout.dp) return;
  Layout nearest = layout;
  nearest.pushes = 0;
  refuse(*find_key("pushes"),
         fmt::format("{} cannot be divided among {}, of which each needs one; the nearest that works is {}",
                     counted(layout.pushes, "push"), counted(layout.dp, "worker"), quoted(nearest)));
}

void check_process_count(const Layout& layout, const RefuseLayout& refuse) {
  const int64_t processes = int64_t{std::max(layout.dp, 1)} * layout.pp + layout.dedicated_servers();
  if (processes > kMostProcesses)
    refuse(*find_key("dp"), fmt::format("dp times pp plus servers are {} processes; at most {} are possible",
                                        processes, kMostProcesses));
}

/// "dp=2,pp=2" as stated keys.
class Entries {
 public:
  explicit Entries(std::string_view text) : text_(trim(text)) {
    for (const auto& part : split(text_, ',')) add(part);
    if (stated_.empty()) refuse("it is empty; write a comma list such as dp=2");
  }

  const StatedKeys& stated() const { return stated_; }

  [[noreturn]] void refuse(std::string_view reason) const {
    throw ConfigError(fmt::format("layout '{}': {}", text_, reason));
  }

 private:
  void add(std::string_view part) {
    const auto equals = part.find('=');
    if (equals == std::string::npos)
      refuse(fmt::format("'{}' is not key=value; a layout is a comma list such as dp=2", part));
    const std::string name(trim(part.substr(0, equals))), value(trim(part.substr(equals + 1)));
    const LayoutKey* key = find_key(name);
    if (key == nullptr)
      refuse(fmt::format("there is no key '{}'{}; there are {}", name, did_you_mean(name, key_names()),
                         join(key_names(), ", ")));
    for (const auto& [other, ignored] : stated_)
      if (other == key) refuse(fmt::format("{} is given twice", name));
    stated_.emplace_back(key, value_of(*key, value));
  }

  int value_of(const LayoutKey& key, const std::string& text) const {
    const std::vector<std::string> words(key.words.begin(), key.words.end());
    if (!words.empty()) {
      const auto found = std::find(words.begin(), words.end(), text);
      if (found != words.end()) return static_cast<int>(found - words.begin());
    } else {
      int value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error == std::errc() && end == text.data() + text.size() && value >= key.lowest &&
          value <= kMostProcesses)
        return value;
    }
    refuse(
        fmt::format("{} takes {}, not '{}'{}", key.name, takes_text(key), text, did_you_mean(text, words)));
  }

  std::string text_;
  StatedKeys stated_;
};

/// The same with another dp, so that it takes just `world_size` processes; nothing if none does.
std::optional<Layout> fitted(Layout layout, int world_size) {
  const int workers = world_size - layout.dedicated_servers();
  if (workers < layout.pp || workers % layout.pp != 0) return std::nullopt;
  layout.dp = workers / layout.pp;
  if (layout.placement == ServerPlacement::colocated && layout.servers > workers) return std::nullopt;
  if (layout.pushes > 0 && layout.pushes < layout.dp) return std::nullopt;
  if (layout.pushes == layout.dp) layout.pushes = 0;
  return layout;
}

/// "2 x 2 workers + 1 server = 5 processes", as far as there is something to add up.
std::string arithmetic(const Layout& layout) {
  std::string text;
  const int servers = layout.dedicated_servers();
  if (layout.pp > 1)
    text = fmt::format("{} x {} workers", layout.dp, layout.pp);
  else if (servers > 0)
    text = counted(layout.dp, "worker");
  if (servers > 0) text += " + " + counted(servers, "server");
  return (text.empty() ? "" : text + " = ") + counted(layout.world_size(), "process");
}

/// Why no dp makes `layout` fit, and the numbers of processes next to `world_size` for which one does.
std::string no_dp_fits(const Layout& layout, int world_size) {
  const int workers = world_size - layout.dedicated_servers();
  if (layout.pushes > 0 && layout.pushes < workers)
    return fmt::format(
        "{} cannot be divided among {}, of which each needs one; set pushes={} or more, or remove pushes",
        counted(layout.pushes, "push"), counted(workers, "worker"), workers);
  const int servers = layout.dedicated_servers();
  std::string text = counted(world_size, "process");
  if (servers > 0) text += fmt::format(" minus {} leave {}, which", counted(servers, "server"), workers);
  text += layout.placement == ServerPlacement::colocated && layout.servers > world_size
              ? fmt::format(" cannot be {}", counted(layout.servers, "server"))
              : fmt::format(" cannot be divided into {}",
                            layout.pp == 1 ? "workers" : fmt::format("replicas of {} stages", layout.pp));
  int above = world_size + 1, below = world_size - 1;
  while (above <= kMostProcesses && !fitted(layout, above)) ++above;
  while (below > 0 && !fitted(layout, below)) --below;
  return text + fmt::format("; start {}{}", below > 0 ? fmt::format("{} or ", below) : "", above);
}

}  // namespace

int Layout::dedicated_servers() const {
  const bool dedicated = sync == SyncMethod::parameter_server && placement == ServerPlacement::dedicated;
  return dedicated ? servers : 0;
}

bool Layout::has_sessions() const {
  return mode == ServerMode::asynchronous || (mode == ServerMode::stale && bound > 0);
}

std::span<const LayoutKey> layout_keys() { return kKeys; }

bool has_meaning(const LayoutKey& key, const Layout& layout) {
  if (key.needs.empty()) return true;
  const LayoutKey& needed = *find_key(key.needs);
  return has_meaning(needed, layout) && needs_is_met(key, needed.get(layout));
}

std::string value_text(const LayoutKey& key, int value) {
  return key.words.empty() ? fmt::to_string(value) : std::string(nth(key.words, value));
}

std::string takes_text(const LayoutKey& key) {
  if (key.words.empty()) return fmt::format("a whole number from {} to {}", key.lowest, kMostProcesses);
  return join({key.words.begin(), key.words.end()}, ", ");
}

std::string otherwise_text(const LayoutKey& key) {
  return key.derived.empty() ? value_text(key, key.otherwise()) : std::string(key.derived);
}

std::string needs_text(const LayoutKey& key) {
  if (key.needs.empty()) return "";
  const LayoutKey& needed = *find_key(key.needs);
  return needed.words.empty() ? fmt::format("{} above {}", key.needs, key.needed_value - 1)
                              : fmt::format("{}={}", key.needs, value_text(needed, key.needed_value));
}

Layout make_layout(const StatedKeys& stated, const RefuseLayout& refuse) {
  if (const LayoutKey* ignored = first_ignored(stated))
    refuse(*ignored, fmt::format("{} applies only with {} (did you mean {}?)", ignored->name,
                                 needs_text(*ignored), quoted(nearest_with_meaning(stated))));
  const Layout layout = layout_of(stated);
  check_process_count(layout, refuse);
  check_colocated(layout, refuse);
  check_assignment(layout, refuse);
  check_pushes(layout, refuse);
  return layout;
}

Layout parse_layout(std::string_view text) {
  const Entries entries(text);
  return make_layout(entries.stated(),
                     [&](const LayoutKey&, const std::string& reason) { entries.refuse(reason); });
}

std::vector<Layout> parse_layouts(std::string_view text) {
  std::vector<Layout> layouts;
  for (const auto& part : split(text, ';'))
    if (!part.empty()) layouts.push_back(parse_layout(part));
  if (layouts.empty()) throw ConfigError("no layout is named; write, for example, \"dp=1; dp=2\"");
  return layouts;
}

std::string to_string(const Layout& layout) {
  std::vector<std::string> parts;
  for (const auto& key : kKeys)
    if (const int value = key.get(layout); has_meaning(key, layout) && value != key.otherwise())
      parts.push_back(fmt::format("{}={}", key.name, value_text(key, value)));
  return parts.empty() ? "pp=1" : join(parts, ",");  // a text must not be empty
}

std::string layout_help() {
  std::string text = "The keys of a layout, with accepted values and [default]:\n";
  for (const auto& key : kKeys)
    text += fmt::format("  {:<10} {} [{}]\n{:13}{}{}\n", key.name, takes_text(key), otherwise_text(key), "",
                        key.needs.empty() ? "" : fmt::format("with {}: ", needs_text(key)), key.meaning);
  return text;
}

Layout resolve(const Layout& layout, int world_size) {
  const auto fit = fitted(layout, world_size);
  if (fit && (layout.dp == 0 || layout.dp == fit->dp)) return *fit;
  const Layout plain{.dp = world_size};
  std::string reason;
  if (layout.dp > 0)
    reason = fmt::format("takes {}, but there {} {}; start {}", arithmetic(layout),
                         world_size == 1 ? "is" : "are", world_size, layout.world_size());
  else
    reason = no_dp_fits(layout, world_size);
  throw ConfigError(
      fmt::format("layout {}: {}, or use {}", quoted(layout), reason, quoted(fit.value_or(plain))));
}

Layout without_workers(Layout layout, int lost) {
  ensure(layout.mode == ServerMode::asynchronous && layout.pp == 1 && lost < layout.dp,
         "some workers of a layout whose workers do not wait are left");
  layout.pushes = layout.pushes_per_step();
  layout.dp -= lost;
  return layout;
}

void require_available(const Layout& layout) {
  Layout nearest = layout;
  std::string missing;
  for (const auto& [name, what, is_asked_for] : kUnavailable) {
    if (!is_asked_for(layout)) continue;
    const LayoutKey& key = *find_key(name);
    missing += fmt::format("{}{}", missing.empty() ? "" : " and ", what);
    key.set(nearest, key.otherwise());
  }
  if (!missing.empty())
    throw ConfigError(
        fmt::format("layout {}: {} are not available in this version; the nearest that works is {}",
                    quoted(layout), missing, quoted(canonical(nearest))));
}

}  // namespace lockstep::layout
