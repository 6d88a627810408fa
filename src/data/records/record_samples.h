#pragma once

#include <memory>
#include <string>

#include "data/dataset.h"
#include "data/records/record_set.h"

namespace lockstep::data {

/// Samples whose fields lie in records as they are. Throws DataError if a record is not a sample's size.
std::shared_ptr<const Dataset> make_record_samples(std::shared_ptr<const RecordSet> records,
                                                   const RecordIndex& index, int part,
                                                   std::string description, DamagePolicy on_damage);

}  // namespace lockstep::data
