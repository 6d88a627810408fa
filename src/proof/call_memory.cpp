#include "proof/call_memory.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::proof {

void CallMemory::add_region(std::string name, int64_t address, int64_t size_bytes, Kind kind) {
  regions_.push_back({std::move(name), address, address + size_bytes, kind});
}

void CallMemory::fill(int64_t address, int64_t size_bytes, const CallSymbol& symbol) {
  held_.assign(address, address + size_bytes, {symbol, address, false});
}

void CallMemory::fill(int64_t region, const std::vector<Content>& contents) {
  for (const Content& content : contents)
    held_.assign(region + content.begin, region + content.end,
                 {content.symbol, region + content.start, false});
}

std::string CallMemory::read(int64_t address, int64_t size_bytes, const CallSymbol& symbol) {
  if (std::string fault = fault_of_place(address, size_bytes); !fault.empty()) return fault;
  std::string fault;
  const auto gap = [&](int64_t, int64_t) { fault = "nothing was written there"; };
  const auto piece = [&](int64_t, int64_t, const Held& held) {
    if (held.symbol != symbol)
      fault = fmt::format("{} is there", symbols_.text(held.symbol));
    else if (held.start != address)
      fault = fmt::format("it begins {} bytes from there", held.start - address);
  };
  held_.visit_all(address, address + size_bytes, piece, gap);
  return fault;
}

std::string CallMemory::write(int64_t address, int64_t size_bytes, const CallSymbol& symbol) {
  if (std::string fault = fault_of_place(address, size_bytes); !fault.empty()) return fault;
  const Region& region = *find(address, size_bytes);
  if (region.kind == Kind::read) return fmt::format("{} is not to be written", region.name);
  std::string fault;
  if (region.kind != Kind::scratch)
    held_.visit(address, address + size_bytes, [&](int64_t, int64_t, const Held& held) {
      if (held.is_new) fault = fmt::format("{} was written there before", symbols_.text(held.symbol));
    });
  held_.assign(address, address + size_bytes, {symbol, address, true});
  return fault;
}

std::string CallMemory::spoil(int64_t address, int64_t size_bytes) {
  if (std::string fault = fault_of_place(address, size_bytes); !fault.empty()) return fault;
  if (find(address, size_bytes)->kind != Kind::scratch)
    return fmt::format("{} is no scratch", place(address, size_bytes));
  held_.assign(address, address + size_bytes, {CallSymbol{}, address, true});
  return "";
}

std::string CallMemory::place(int64_t address, int64_t size_bytes) const {
  const Region* region = find(address, size_bytes);
  if (region == nullptr) return "memory that the instruction does not name";
  return fmt::format("bytes {} to {} of {}", address - region->begin, address - region->begin + size_bytes,
                     region->name);
}

std::vector<CallMemory::Content> CallMemory::contents(int64_t address, int64_t size_bytes) {
  std::vector<Content> list;
  held_.visit(address, address + size_bytes, [&](int64_t begin, int64_t end, const Held& held) {
    list.push_back({begin - address, end - address, held.symbol, held.start - address});
  });
  return list;
}

const CallMemory::Region* CallMemory::find(int64_t address, int64_t size_bytes) const {
  for (const Region& region : regions_)
    if (address >= region.begin && address + size_bytes <= region.end) return &region;
  return nullptr;
}

std::string CallMemory::fault_of_place(int64_t address, int64_t size_bytes) const {
  if (address == 0) return "it has no memory";
  return find(address, size_bytes) == nullptr ? "no operand of the instruction holds that memory" : "";
}

}  // namespace lockstep::proof
