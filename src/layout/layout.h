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

/// How processes share a run: who holds, computes, sums and updates what. Fields are named as the keys of its
/// text, and layout_keys() says what each means. A field that has no meaning beside the others holds its
/// default, so that equal layouts compare equal.
///
/// World rank: workers first, stage by stage (the replicas of one stage are neighbours), dedicated servers
/// last.
struct Layout {
  int dp = 0;  ///< 0: what the world size leaves; resolve() says how much that is
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
  int pushes = 0;  ///< 0: one of each worker; resolve() leaves it so

  int workers() const { return dp * pp; }  ///< REQUIRES: dp is known
  /// Of the model: chunks of each stage with schedule=interleaved, otherwise one of each.
  int pieces() const { return pp > 1 && schedule == PipelineSchedule::interleaved ? pp * chunks : pp; }
  /// Processes that do nothing but serve.
  int dedicated_servers() const;
  /// All processes. REQUIRES: dp is known.
  int world_size() const { return workers() + dedicated_servers(); }
  /// Whether workers go on with a step before all have made the one before it: then servers serve in
  /// sessions.
  bool has_sessions() const;
  /// With mode=async: what a step has of them, each of an equal part of its batch. REQUIRES: dp is known.
  int pushes_per_step() const { return pushes > 0 ? pushes : workers(); }
  bool operator==(const Layout&) const = default;
};

/// One key of a layout. The parser, the printer, errors, help, the schema and the tables of the docs all
/// follow this. Values are whole numbers: of a key with words, the word's place among them.
struct LayoutKey {
  std::string_view name;
  std::span<const std::string_view> words;  ///< none: the key takes a number
  int lowest = 1;                           ///< of numbers; kMostProcesses is the highest
  std::string_view meaning;
  /// The key has a meaning only where the key of this name has this value (or, of a number, at least it); "":
  /// everywhere.
  std::string_view needs;
  int needed_value = 0;
  std::string_view derived;  ///< of numbers whose default follows from something else: from what
  int (*get)(const Layout&) = nullptr;
  void (*set)(Layout&, int) = nullptr;

  int otherwise() const { return get(Layout{}); }  ///< where it is left out
};
std::span<const LayoutKey> layout_keys();

/// Whether `key` says anything in `layout`.
bool has_meaning(const LayoutKey& key, const Layout& layout);
std::string value_text(const LayoutKey& key, int value);  ///< "1f1b", "4"
std::string takes_text(const LayoutKey& key);             ///< "gpipe, 1f1b", "a whole number from 1 to 65536"
std::string otherwise_text(const LayoutKey& key);         ///< "1f1b", "what the world size leaves"
std::string needs_text(const LayoutKey& key);  ///< "sync=ps", "pp above 1"; "" where nothing is needed

/// Keys that somebody stated, each once, with values that it takes.
using StatedKeys = std::vector<std::pair<const LayoutKey*, int>>;
/// Called with what is wrong and at which key; throws.
using RefuseLayout = std::function<void(const LayoutKey& key, const std::string& reason)>;
/// The layout that they say. Calls `refuse` where one of them would be ignored, or they do not fit together.
Layout make_layout(const StatedKeys& stated, const RefuseLayout& refuse);

/// Reads one comma list, keys in any order: "dp=2,pp=2,schedule=gpipe". Throws ConfigError naming the key,
/// what it takes and what was found, with the nearest layout that has a meaning.
Layout parse_layout(std::string_view text);
/// Layouts separated by ';', at least one.
std::vector<Layout> parse_layouts(std::string_view text);
/// The shortest text that parse_layout reads as the same layout.
std::string to_string(const Layout& layout);
/// All keys, for people: a line each.
std::string layout_help();

/// `layout` on so many processes, its dp known. Throws ConfigError with the arithmetic and the nearest
/// layouts and numbers of processes that work where they do not fit.
Layout resolve(const Layout& layout, int world_size);

/// What `lost` workers leave of a layout with mode=async: fewer that push, and as many pushes of each step.
/// REQUIRES: its dp is known, and pp is 1.
Layout without_workers(Layout layout, int lost);

/// Throws ConfigError naming what of `layout` this version cannot run, and the nearest layout that it can.
void require_available(const Layout& layout);

}  // namespace lockstep::layout
