#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/range_map.h"
#include "proof/graph_symbols.h"

namespace lockstep::proof {

/// The memory that one instruction may access while its kernel calls run, with symbols instead of numbers.
/// Addresses are only numbers, without memory. Methods return the fault of an access as text; "" if there is
/// none.
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

  /// The symbols must outlive it.
  explicit CallMemory(const GraphSymbols& symbols) : symbols_(symbols) {}

  void add_region(std::string name, int64_t address, int64_t size_bytes, Kind kind);
  /// Sets the contents before the calls. REQUIRES: the address is in a region.
  void fill(int64_t address, int64_t size_bytes, const CallSymbol& symbol);
  void fill(int64_t region, const std::vector<Content>& contents);

  /// Checks that the whole symbol is there, from its first byte on.
  std::string read(int64_t address, int64_t size_bytes, const CallSymbol& symbol);
  /// `replaced` may have been written there before: its last reader writes its own result over it.
  std::string write(int64_t address, int64_t size_bytes, const CallSymbol& symbol,
                    const CallSymbol& replaced = {});
  /// A kernel's workspace: its former contents are lost.
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
