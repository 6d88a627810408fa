#include "program/blocks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"

namespace lockstep::program {
namespace {

/// Calls visit(begin, end) for a rank's piece of a run, where it has one.
template <class Visit>
void visit_piece(const BlockRun& run, int owner, int ranks, Visit&& visit) {
  const int64_t piece = (owner - run.owner + ranks) % ranks;
  if (piece >= run.pieces()) return;
  const int64_t begin = run.begin + piece * run.each;
  visit(begin, begin + std::min(run.each, run.end - begin));
}

}  // namespace

std::string fault_of(const Blocks& blocks, int64_t size_bytes, int ranks, int64_t element_bytes) {
  if (blocks.empty()) return "it has no blocks";
  int64_t done = 0;
  for (const BlockRun& run : blocks) {
    if (run.begin < done || run.end <= run.begin || run.end > size_bytes)
      return fmt::format("blocks of bytes {} to {} follow byte {}; expected some of the {} bytes, ascending",
                         run.begin, run.end, done, size_bytes);
    if (run.each < 1 || run.pieces() > ranks)
      return fmt::format(
          "bytes {} to {} are cut into blocks of {}; expected at most one for each of {} ranks", run.begin,
          run.end, run.each, ranks);
    if (run.owner < 0 || run.owner >= ranks)
      return fmt::format("the block at byte {} belongs to rank {} of a group of {}", run.begin, run.owner,
                         ranks);
    const bool is_cut = run.pieces() > 1 && run.each % element_bytes != 0;
    if (run.begin % element_bytes != 0 || run.end % element_bytes != 0 || is_cut)
      return fmt::format("the blocks from byte {} on are no whole elements of {} bytes", run.begin,
                         element_bytes);
    done = run.end;
  }
  return "";
}

std::vector<layout::ByteSpan> block_of(const Blocks& blocks, int owner, int ranks) {
  std::vector<layout::ByteSpan> spans;
  for (const BlockRun& run : blocks)
    visit_piece(run, owner, ranks, [&](int64_t begin, int64_t end) { spans.push_back({begin, end}); });
  return spans;
}

int64_t block_bytes(const Blocks& blocks, int owner, int ranks) {
  int64_t bytes = 0;
  for (const BlockRun& run : blocks)
    visit_piece(run, owner, ranks, [&](int64_t begin, int64_t end) { bytes += end - begin; });
  return bytes;
}

int64_t largest_block_bytes(const Blocks& blocks, int ranks) {
  // The pieces of one run belong to different ranks.
  if (blocks.size() == 1) return std::min(blocks[0].each, blocks[0].end - blocks[0].begin);
  std::vector<int64_t> bytes(static_cast<size_t>(ranks), 0);
  for (const BlockRun& run : blocks)
    for (int64_t piece = 0; piece < run.pieces(); ++piece)
      nth(bytes, (run.owner + piece) % ranks) += std::min(run.each, run.end - run.begin - piece * run.each);
  return *std::max_element(bytes.begin(), bytes.end());
}

int64_t bytes_of(const Blocks& blocks) {
  int64_t bytes = 0;
  for (const BlockRun& run : blocks) bytes += run.end - run.begin;
  return bytes;
}

std::vector<layout::ByteSpan> covered_by(const Blocks& blocks) {
  std::vector<layout::ByteSpan> spans;
  for (const BlockRun& run : blocks)
    if (!spans.empty() && spans.back().end == run.begin)
      spans.back().end = run.end;
    else
      spans.push_back({run.begin, run.end});
  return spans;
}

std::string to_text(const Blocks& blocks) {
  std::string text;
  for (const BlockRun& run : blocks) {
    // A text may have held any numbers: modulo 2^64 they are written as they were.
    const auto size = static_cast<int64_t>(static_cast<uint64_t>(run.end) - static_cast<uint64_t>(run.begin));
    text += fmt::format("{}{}+{}", text.empty() ? "" : ",", run.begin, size);
    if (run.each != size) text += fmt::format("/{}", run.each);
    text += fmt::format("@{}", run.owner);
  }
  return text;
}

}  // namespace lockstep::program
