#include <stdexcept>

#include "fuzz/fuzz.h"
#include "layout/layout.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {"dp=2,pp=2,schedule=gpipe", "sync=ps,servers=2,mode=stale,bound=3; dp=4",
          "sync=ring,reduction=reproducible,shard=optimizer"};
}

void parse(std::string_view bytes) {
  for (const layout::Layout& read : layout::parse_layouts(bytes))
    if (layout::parse_layout(to_string(read)) != read)
      throw std::logic_error("a layout that was read is written as another one");
}

}  // namespace lockstep::fuzz
