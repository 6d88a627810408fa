#include "data/dataset.h"

#include <fmt/format.h>

#include <array>

#include "data/idx.h"
#include "data/own_samples.h"
#include "data/synthetic.h"
#include "data/text.h"
#include "data/tokens.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

struct KindRow {
  DataKind kind;
  DatasetPair (*open)(const DataOptions&);
};
/// Every kind of data set there is.
constexpr std::array<KindRow, 5> kKinds{{{DataKind::idx, open_idx_datasets},
                                         {DataKind::text, open_text_datasets},
                                         {DataKind::synthetic, open_synthetic_datasets},
                                         {DataKind::own, open_own_datasets},
                                         {DataKind::tokens, open_token_datasets}}};

}  // namespace

DatasetPair open_datasets(const DataOptions& options) {
  for (const auto& row : kKinds)
    if (row.kind == options.kind) return row.open(options);
  throw InternalError(
      fmt::format("data kind {} is not in the table of data sets", static_cast<int>(options.kind)));
}

}  // namespace lockstep::data
