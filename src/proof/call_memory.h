#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/range_map.h"
#include "proof/graph_symbols.h"

namespace lockstep::proof {

/// The memory that one instruction may touch while its kernel calls run, with symbols in place of numbers.
/// Addresses are numbers; nothing lies at them. What is wrong with an access is said in words, "" if nothing
/// is.
class CallMemory {
 public:
  enum class Kind {
    read,     ///< has contents, which stay
    written,  ///< each byte is written at most once
    updated,  ///< likewise, and added to what was there
    scratch,  ///< written as often as wanted
  };
  /// A stretch of a region with what it holds, from the region's first byte on.
  struct Content {
    int64_t begin, end;
    CallSymbol symbol;
    int64_t start;  ///< where the symbol's first byte lies
  };

  /// The symbols have to outlive it.
  explicit CallMemory(const GraphSymbols& symbols) : symbols_(symbols) {}

  void add_region(std::string name, int64_t address, int64_t size_bytes, Kind kind);
  /// What lies there before the calls. REQUIRES: it is in a region.
  void fill(int64_t address, int64_t size_bytes, const CallSymbol& symbol);
  void fill(int64_t region, const std::vector<Content>& contents);

  /// Whether the whole of the symbol lies there, from its first byte on.
  std::string read(int64_t address, int64_t size_bytes, const CallSymbol& symbol);
  std::string write(int64_t address, int64_t size_bytes, const CallSymbol& symbol);
  /// A kernel's workspace: whatever lay there is lost.
  std::string spoil(int64_t address, int64_t size_bytes);

  /// "bytes 64 to 128 of stash 1"
  std::string place(int64_t address, int64_t size_bytes) const;
  std::vector<Content> contents(int64_t address, int64_t size_bytes);

 private:
  struct Region {
    std::string name;
    int64_t begin, end;
    Kind kind;
  };
  struct Held {
    CallSymbol symbol;
    int64_t start;
    bool is_new;  ///< a call of this instruction has written it
  };

  const Region* find(int64_t address, int64_t size_bytes) const;
  /// What is wrong with where an access goes.
  std::string fault_of_place(int64_t address, int64_t size_bytes) const;

  const GraphSymbols& symbols_;
  std::vector<Region> regions_;
  program::RangeMap<Held> held_;
};

}  // namespace lockstep::proof
