#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/index.h"
#include "run/serve/served_measures.h"
#include "run/step_kernels.h"

namespace lockstep::run {

/// The range of a `serve` instruction, in host memory except replica and state.
struct ServedRange {
  std::byte* contents = nullptr;
  std::byte* replica = nullptr;  ///< place of the range between sessions; null: it stays where it is served
  int64_t size_bytes = 0;
  std::byte* state = nullptr;   ///< of the optimizer; null without slots
  device::Buffer state_mirror;  ///< copy of it for updates, if the host cannot access it directly
  int workers = 1;
  std::vector<std::byte*> landings;  ///< by slot and worker
  std::vector<std::byte*> copies;    ///< of older versions
  std::vector<std::byte*>
      outboxes;               ///< by worker: of slices of answers, shared with the server's other ranges
  int64_t outbox_bytes = 0;   ///< of each
  UpdateCall update;          ///< of all of it, without what differs from push to push
  int64_t scratch_bytes = 0;  ///< that updates of its whole matrices need (use_scratch)
  std::optional<ServedMeasures> measures = {};  ///< if the optimizer needs norms of parameters

  std::byte* landing(int slot, int worker) const { return nth(landings, slot * workers + worker); }
};

}  // namespace lockstep::run
