#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::layout {

/// The most processes of a job, and the highest number that a key of a layout takes.
inline constexpr int kMostProcesses = 65536;

enum class PipelineSchedule { gpipe, one_f_one_b, interleaved, zero_bubble };
enum class Recompute { none, selective, full };
enum class ShardedState { none, optimizer };
enum class SyncMethod { all_reduce, parameter_server };
enum class ServerPlacement { dedicated, colocated };
enum class ServerAssignment { sharded, whole };
enum class Aggregation { none, host };
enum class ServerMode { synchronous, stale, asynchronous };

/// How processes share a run: who holds, computes, sums and updates what. Fields have the names of the keys
/// of its text; layout_keys() explains them. A field that the other fields make meaningless holds its
/// default, so that equal layouts compare equal.
///
/// World rank: workers first, stage by stage (the replicas of one stage are neighbours), dedicated servers
/// last.
struct Layout {
  int dp = 0;  ///< 0: (processes - dedicated servers) / pp, which resolve() fills in
  int pp = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int chunks = 2;
  Recompute recompute = Recompute::none;
  ShardedState shard = ShardedState::none;
  SyncMethod sync = SyncMethod::all_reduce;
  int servers = 1;
  ServerPlacement placement = ServerPlacement::dedicated;
  ServerAssignment assign = ServerAssignment::sharded;
  Aggregation aggregate = Aggregation::none;
  ServerMode mode = ServerMode::synchronous;
  int bound = 1;
  int pushes = 0;  ///< 0: one per worker; resolve() leaves it so

  int workers() const { return dp * pp; }  ///< REQUIRES: dp is known
  /// Pieces of the model: with schedule=interleaved `chunks` per stage, otherwise one per stage.
  int pieces() const { return pp > 1 && schedule == PipelineSchedule::interleaved ? pp * chunks : pp; }
  /// Processes that only serve.
  int dedicated_servers() const;
  /// All processes. REQUIRES: dp is known.
  int world_size() const { return workers() + dedicated_servers(); }
  /// Whether workers may begin a step before all have finished the one before it. Then servers serve in
  /// sessions.
  bool has_sessions() const;
  /// With mode=async: pushes per step, each of an equal part of the batch. REQUIRES: dp is known.
  int pushes_per_step() const { return pushes > 0 ? pushes : workers(); }
  bool operator==(const Layout&) const = default;
};

/// One key of a layout. The parser, the printer, errors, help, the schema and the tables in the docs all use
/// it. Values are whole numbers; for a key with words, the word's index.
struct LayoutKey {
  std::string_view name;
  std::span<const std::string_view> words;  ///< none: the key takes a number
  int lowest = 1;                           ///< of numbers; kMostProcesses is the highest
  std::string_view meaning;
  /// The key has a meaning only if the key of this name has this value (a number: at least this value); "":
  /// always.
  std::string_view needs;
  int needed_value = 0;
  std::string_view derived;  ///< text of a default that follows from something else; only for numbers
  int (*get)(const Layout&) = nullptr;
  void (*set)(Layout&, int) = nullptr;

  int otherwise() const { return get(Layout{}); }  ///< the default
};
std::span<const LayoutKey> layout_keys();

/// Whether `key` has a meaning in `layout`.
bool has_meaning(const LayoutKey& key, const Layout& layout);
std::string value_text(const LayoutKey& key, int value);  ///< "1f1b", "4"
std::string takes_text(const LayoutKey& key);             ///< "gpipe, 1f1b", "a whole number from 1 to 65536"
std::string otherwise_text(const LayoutKey& key);         ///< "1f1b", "one per worker"
std::string needs_text(const LayoutKey& key);  ///< "sync=ps", "pp above 1"; "" if nothing is needed

/// Stated keys, each at most once, with valid values.
using StatedKeys = std::vector<std::pair<const LayoutKey*, int>>;
/// Called with a key and what is wrong with it; throws.
using RefuseLayout = std::function<void(const LayoutKey& key, const std::string& reason)>;
/// The layout of `stated`. Calls `refuse` if a key would be ignored, or if keys do not fit together.
Layout make_layout(const StatedKeys& stated, const RefuseLayout& refuse);

/// Reads one comma list, with keys in any order: "dp=2,pp=2,schedule=gpipe". Throws ConfigError, which names
/// the key, its accepted values, what was found, and the nearest valid layout.
Layout parse_layout(std::string_view text);
/// Layouts separated by ';', at least one.
std::vector<Layout> parse_layouts(std::string_view text);
/// The shortest text that parse_layout reads as the same layout.
std::string to_string(const Layout& layout);
/// A help text with all keys.
std::string layout_help();

/// `layout` on so many processes, with dp filled in. If they do not fit, throws ConfigError with the
/// arithmetic and the nearest layouts and numbers of processes that work.
Layout resolve(const Layout& layout, int world_size);

/// A layout with mode=async after it lost `lost` workers: fewer workers, but as many pushes per step.
/// REQUIRES: its dp is known, and pp is 1.
Layout without_workers(Layout layout, int lost);

/// Throws ConfigError if this version cannot run `layout`. It names what is missing and the nearest layout
/// that can run.
void require_available(const Layout& layout);

}  // namespace lockstep::layout
