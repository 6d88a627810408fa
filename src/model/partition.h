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

/// The place of a use of a parameter in its segment's bucket. Offsets are multiples of kBucketAlignment
/// bytes; the gaps are zero, so sums may include them. Elements are float32.
struct BucketEntry {
  int parameter;
  int use;  ///< 0 owns the parameter; later uses are gradients of tied weights
  int64_t offset_bytes;
  int64_t count;  ///< elements
};
inline constexpr int64_t kBucketAlignment = 64;
inline constexpr int64_t kNoPlace = -1;  ///< BucketEntry: of later uses of frozen parameters

/// Gradients of one segment in one flat buffer. Frozen parameters have none. Entries of owners come first,
/// exactly as the parameters in the segment's parameter buffer, so that one update runs over both; frozen
/// parameters follow them there. Tied uses follow. Gradients that are computed apart from those of inputs
/// come last among owners and first among tied uses.
struct Bucket {
  std::vector<BucketEntry> entries;
  /// Uses of frozen parameters: first ones with their place in the parameter buffer, later ones without.
  std::vector<BucketEntry> frozen;
  int64_t owned_bytes = 0;  ///< of the parameter buffer what is updated
  int64_t held_bytes = 0;   ///< size of the parameter buffer, >= owned_bytes
  /// Gradients that are computed apart from those of inputs (BackwardForm::split) are adjacent.
  int64_t split_begin = 0, split_end = 0;
  int64_t size_bytes = 0;  ///< size of the gradient buffer, >= owned_bytes
};

struct Partition {
  std::vector<Segment> segments;
  std::vector<Bucket> buckets;  ///< one per segment; empty (size 0) if it has no parameters
  std::vector<int> pieces;      ///< by segment: its piece of the model (divide_into_pieces)

  int piece_of(int segment) const { return nth(pieces, segment); }
  int piece_count() const { return pieces.empty() ? 1 : pieces.back() + 1; }

  const Segment& segment(int id) const { return nth(segments, id); }
  const Bucket& bucket(int segment) const { return nth(buckets, segment); }
  Segment& segment(int id) { return nth(segments, id); }
  Bucket& bucket(int segment) { return nth(buckets, segment); }
};

/// Cuts the graph after groups at which a bucket reaches `bucket_bytes`, preferably where only one value
/// crosses. The first segment's bucket is kept small, because nothing hides its reduction. Every piece of a
/// pipeline is cut separately. `piece_ends`: the last node of each piece; none for a model in one piece.
Partition make_partition(const Graph& graph, int64_t bucket_bytes, std::span<const int> piece_ends = {});
/// Cuts the graph after these nodes, ascending; the last one is the graph's last node. Pieces end where
/// segments end.
Partition partition_after(const Graph& graph, std::span<const int> last_nodes,
                          std::span<const int> piece_ends = {});

}  // namespace lockstep::model
