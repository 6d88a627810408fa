#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "program/session_terms.h"
#include "run/serve/decision.h"

namespace lockstep::run {

inline constexpr int kMostWorkers = 8;

/// What a range's parameters have seen: the number of each worker's pushes that were added to them.
using Contents = std::array<uint16_t, kMostWorkers>;

/// Memory of the wrong size, or wrongly used.
struct MemoryFlaws {
  int copies_missing = 0;
  int slots_missing = 0;
  bool answers_are_current = false;  ///< copies are not looked at
  bool pushes_apply_twice = false;
};

/// What decisions do to the memory of one server. Throws InternalError at the first thing that is wrong.
class ServerMemory {
 public:
  ServerMemory(const program::SessionTerms& terms, int server, const MemoryFlaws& flaws);

  /// A worker sends a push, whose step had read `read` of the range: nobody else may need the slot any more.
  void send(int worker, int range, int64_t clock, int slot, const Contents& read);
  /// These return the sum of the staleness of what is applied.
  int64_t carry_out(const ApplyClock& apply);
  int64_t carry_out(const ApplyPush& apply);
  const Contents& answer(const AnswerPull& answer) const;

  /// By range.
  const std::vector<Contents>& current() const { return current_; }

  auto state() const { return std::tie(current_, copies_, landings_); }

 private:
  struct Landing {
    int64_t clock = -1;  // of the push that lies here, or is on its way
    Contents read = {};
    auto state() const { return std::tie(clock, read); }
  };

  Landing& landing(int worker, int range, int slot);
  int64_t missed(int worker, int range, const Contents& read) const;
  void add(int worker, int range, int64_t clock, int slot);

  int workers_, ranges_, slots_, copies_count_;
  bool answers_are_current_, pushes_apply_twice_;
  std::vector<Contents> current_;
  std::vector<Contents> copies_;   // by copy and range
  std::vector<Landing> landings_;  // by worker, range and slot
};

}  // namespace lockstep::run
