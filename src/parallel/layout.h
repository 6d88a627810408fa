#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class LayoutSync { all_reduce, parameter_server };
enum class PipelineSchedule { gpipe, one_f_one_b, interleaved, zero_bubble };
enum class ServerMode { synchronous, stale, asynchronous };

/// How processes share a run, as commands take it: one comma list, every key once, in any order:
///
///     dp=2,pp=2,schedule=1f1b,sync=ps,servers=1,mode=stale,bound=2
///
///     dp        replicas of the model (1)
///     pp        pipeline stages of each (1)
///     schedule  with pp above 1: gpipe, 1f1b, interleaved, zero_bubble (1f1b)
///     sync      all_reduce, or ps: parameter servers (all_reduce)
///     servers   with sync=ps: processes that serve (1)
///     mode      with sync=ps: sync, stale, async (sync)
///     bound     with mode=stale: steps that a worker may be ahead of the slowest (1)
struct Layout {
  int data_parallel = 1;
  int pipeline_stages = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  LayoutSync sync = LayoutSync::all_reduce;
  int servers = 0;  ///< 0 where sync is all_reduce
  ServerMode mode = ServerMode::synchronous;
  int bound = 0;  ///< 0 where mode is not stale

  int world_size() const { return data_parallel * pipeline_stages + servers; }
  bool operator==(const Layout&) const = default;
};

/// Throws ConfigError naming the key, what it takes and what was found; keys that would be ignored are
/// errors.
Layout parse_layout(std::string_view text);
/// Layouts separated by ';', at least one.
std::vector<Layout> parse_layouts(std::string_view text);
/// The shortest text that parse_layout reads as the same layout; always names dp.
std::string to_string(const Layout& layout);
/// Throws ConfigError naming what this version can run where it cannot run `layout`.
void require_available(const Layout& layout);

}  // namespace lockstep
