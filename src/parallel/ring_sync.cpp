#include "parallel/ring_sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "parallel/bucket_writer.h"

namespace lockstep::parallel {
namespace {

program::Instruction ring(const BucketSync& sync, program::InstructionKind kind, program::ByteRange data,
                          program::Blocks blocks) {
  const BucketWriter writer(sync);
  program::Instruction result = writer.instruction(kind);
  result.blocks = std::move(blocks);
  result.operands.push_back(writer.operand(program::Role::data, 0, program::Access::read_write, data.buffer,
                                           {data.offset, data.offset + data.size_bytes}));
  return result;
}

/// Blocks of float32 bytes, in bytes of another type.
program::Blocks blocks_as(program::Blocks blocks, DType dtype) {
  for (program::BlockRun& run : blocks)
    run = {bytes_as(run.begin, dtype), bytes_as(run.end, dtype), bytes_as(run.each, dtype), run.owner};
  return blocks;
}

/// Of the shards at positions [first, last). Most of many workers' are empty: halves of them are left out at
/// once.
void add_blocks(const Shards& shards, int first, int last, program::Blocks& blocks) {
  const auto parts = shards.parts(first, last);
  if (parts.empty()) return;
  if (last - first > 1) {
    const int middle = first + (last - first) / 2;
    add_blocks(shards, first, middle, blocks);
    add_blocks(shards, middle, last, blocks);
    return;
  }
  for (const layout::ByteSpan& part : parts)
    blocks.push_back({part.begin, part.end, part.size(), shards.position(first)});
}

}  // namespace

program::Blocks equal_blocks(int64_t size_bytes, int workers) {
  constexpr int64_t kAlignment = 64;
  const int64_t each = (size_bytes / workers + kAlignment - 1) / kAlignment * kAlignment;
  if (size_bytes <= each * workers) return {{0, size_bytes, each, workers - 1}};
  // What dividing has left over is the last one's.
  const int64_t last = each * (workers - 1);
  program::Blocks blocks;
  if (last > 0) blocks.push_back({0, last, each, workers - 1});
  blocks.push_back({last, size_bytes, size_bytes - last, (2 * workers - 2) % workers});
  return blocks;
}

program::Blocks blocks_of(const Shards& shards, int workers) {
  program::Blocks blocks;
  add_blocks(shards, 0, workers, blocks);
  std::sort(blocks.begin(), blocks.end(),
            [](const program::BlockRun& a, const program::BlockRun& b) { return a.begin < b.begin; });
  return blocks;
}

void write_ring_reduce_scatter(const BucketSync& sync, program::ByteRange data, program::Blocks blocks) {
  if (sync.workers == 1 || blocks.empty()) return;
  blocks = blocks_as(std::move(blocks), sync.dtype);
  const int received =
      sync.program.add_buffer(fmt::format("receive.{}", sync.segment), program::Space::arena,
                              program::Category::workspace, largest_block_bytes(blocks, sync.workers));
  program::Instruction sum =
      ring(sync, program::InstructionKind::ring_reduce_scatter, data, std::move(blocks));
  sum.operands.push_back({.role = program::Role::temporary,
                          .access = program::Access::write,
                          .range = sync.program.whole(received),
                          .dtype = sync.dtype});
  sync.program.instructions.push_back(std::move(sum));
}

void write_ring_all_gather(const BucketSync& sync, program::ByteRange data, program::Blocks blocks) {
  if (sync.workers == 1 || blocks.empty()) return;
  sync.program.instructions.push_back(
      ring(sync, program::InstructionKind::ring_all_gather, data, blocks_as(std::move(blocks), sync.dtype)));
}

}  // namespace lockstep::parallel
