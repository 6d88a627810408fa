#include "layout/layout.h"

#include "fuzz/fuzz.h"
#include "lockstep/error.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {"dp=1; dp=2; dp=2,pp=2,schedule=interleaved,chunks=2",
          "dp=4,sync=ps,servers=2,mode=stale,bound=2; dp=4,sync=ps,servers=2,assign=whole; "
          "dp=2,sync=ps,aggregate=host",
          "dp=2,shard=optimizer,recompute=full; dp=3,sync=ps,placement=colocated,mode=async",
          "sync=all_reduce,pp=3,schedule=zero_bubble,recompute=selective"};
}

void parse(std::string_view bytes) {
  for (const layout::Layout& layout : layout::parse_layouts(bytes)) {
    if (layout::parse_layout(layout::to_string(layout)) != layout)
      throw InternalError("a layout is another one when it is written and read");
    for (const int processes : {1, 2, 6, 8}) try {
        layout::resolve(layout, processes);
      } catch (const ConfigError&) {
      }
  }
}

}  // namespace lockstep::fuzz
