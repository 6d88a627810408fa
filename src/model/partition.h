#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "model/graph.h"

namespace lockstep::model {

/// A run of fused groups that one forward or backward instruction executes. If it has parameters, their
/// gradients form one bucket: the unit of reduction and update.
struct Segment {
  int first_node = 0, last_node = 0;  ///< inclusive
  std::vector<int> inputs;            ///< values made before the segment and read in it
  std::vector<int> outputs;           ///< values made in it and read after it
  bool needs_input_gradient = false;
};

/// Where a use of a parameter lies in its segment's bucket. Offsets are multiples of kBucketAlignment bytes;
/// the gaps are zero and take part in sums harmlessly. Elements are float32.
struct BucketEntry {
  int parameter;
  int use;  ///< 0 owns the parameter; later uses are gradients of tied weights
  int64_t offset_bytes;
  int64_t count;  ///< elements
};
inline constexpr int64_t kBucketAlignment = 64;

/// Gradients of one segment in one flat buffer. Entries of owners come first and lie exactly as the
/// parameters do in the segment's parameter buffer, so that one update runs over both; tied uses follow. Of
/// the former those come last, of the latter first, that are computed apart from the gradients of inputs.
struct Bucket {
  std::vector<BucketEntry> entries;
  int64_t owned_bytes = 0;  ///< size of the parameter buffer
  /// Gradients that are computed apart from those of inputs (BackwardForm::split) lie side by side.
  int64_t split_begin = 0, split_end = 0;
  int64_t size_bytes = 0;  ///< size of the gradient buffer, >= owned_bytes
};

struct Partition {
  std::vector<Segment> segments;
  std::vector<Bucket> buckets;  ///< one per segment; empty (size 0) where it has no parameters
  std::vector<int> pieces;      ///< by segment: the piece of the model (divide_into_pieces) that it lies in

  int piece_of(int segment) const { return nth(pieces, segment); }
  int piece_count() const { return pieces.empty() ? 1 : pieces.back() + 1; }

  const Segment& segment(int id) const { return nth(segments, id); }
  const Bucket& bucket(int segment) const { return nth(buckets, segment); }
  Segment& segment(int id) { return nth(segments, id); }
  Bucket& bucket(int segment) { return nth(buckets, segment); }
};

/// Cuts the graph after the groups at which a bucket reaches `bucket_bytes`, preferring places that a single
/// value crosses; the first segment's bucket is kept small, since its reduction is the one that nothing
/// hides. Every piece of a pipeline is cut by itself; `piece_ends`: the last node of each, none for a model
/// in one piece.
Partition make_partition(const Graph& graph, int64_t bucket_bytes, std::span<const int> piece_ends = {});
/// Cuts the graph after these nodes, ascending, the last of which is the graph's. Pieces end where segments
/// do.
Partition partition_after(const Graph& graph, std::span<const int> last_nodes,
                          std::span<const int> piece_ends = {});

}  // namespace lockstep::model
