#include "cli/covering_layouts.h"

namespace lockstep::cli {

std::vector<layout::Layout> covering_layouts(int processes) {
  // From few processes to many within a kind, so that a smaller number keeps something of each. An optimizer
  // is sharded over replicas alone, so that it takes two of them.
  static constexpr const char* kLayouts[] = {
      "dp=1",
      "dp=1,recompute=full",
      "dp=1,recompute=selective",
      "dp=2",
      "dp=3",
      "dp=4,aggregate=host",
      "dp=8",
      "dp=2,shard=optimizer,recompute=full",
      "dp=6,shard=optimizer",
      "dp=1,pp=2,schedule=gpipe",
      "dp=1,pp=2",
      "dp=1,pp=2,schedule=interleaved",
      "dp=1,pp=2,schedule=zero_bubble",
      "dp=1,pp=2,recompute=full",
      "dp=1,pp=2,schedule=zero_bubble,recompute=selective",
      "dp=1,pp=3,schedule=gpipe",
      "dp=1,pp=3",
      "dp=1,pp=3,schedule=interleaved",
      "dp=1,pp=3,schedule=zero_bubble",
      "dp=1,pp=4,schedule=gpipe,recompute=selective",
      "dp=1,pp=4",
      "dp=1,pp=4,schedule=interleaved",
      "dp=1,pp=4,schedule=zero_bubble",
      "dp=2,pp=2,schedule=gpipe,shard=optimizer",
      "dp=2,pp=2",
      "dp=2,pp=2,shard=optimizer",
      "dp=2,pp=2,schedule=interleaved,shard=optimizer",
      "dp=2,pp=2,schedule=zero_bubble",
      "dp=2,pp=2,schedule=zero_bubble,shard=optimizer,recompute=full",
      "dp=2,pp=3,schedule=gpipe",
      "dp=2,pp=3,recompute=selective",
      "dp=2,pp=3,schedule=interleaved,shard=optimizer",
      "dp=2,pp=3,schedule=zero_bubble,shard=optimizer",
      "dp=2,pp=4,schedule=gpipe,shard=optimizer",
      "dp=2,pp=4,shard=optimizer",
      "dp=2,pp=4,schedule=interleaved,recompute=full",
      "dp=2,pp=4,schedule=zero_bubble,shard=optimizer,recompute=selective",
      "dp=4,pp=2,schedule=zero_bubble,shard=optimizer",
      "dp=2,sync=ps,servers=2,placement=colocated",
      "dp=2,sync=ps",
      "dp=2,sync=ps,servers=2,assign=whole",
      "dp=2,sync=ps,aggregate=host",
      "dp=2,sync=ps,mode=stale,bound=0",
      "dp=4,sync=ps,servers=2",
      "dp=1,pp=2,schedule=zero_bubble,sync=ps",
      "dp=1,pp=2,schedule=interleaved,sync=ps,servers=2,placement=colocated",
      "dp=1,pp=4,schedule=zero_bubble,sync=ps,servers=4,placement=colocated",
      "dp=2,pp=2,sync=ps,aggregate=host",
      "dp=2,pp=3,schedule=zero_bubble,sync=ps,servers=2",
  };
  std::vector<layout::Layout> layouts;
  for (const char* text : kLayouts)
    if (const layout::Layout layout = layout::parse_layout(text); layout.world_size() <= processes)
      layouts.push_back(layout);
  return layouts;
}

}  // namespace lockstep::cli
