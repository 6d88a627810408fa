#pragma once

#include "lockstep/model.h"
#include "net/draw.h"

namespace lockstep::net {

struct GeneratedModel {
  ModelSpec spec;
  int64_t classes = 3;  ///< of images, or tokens
};

/// A small model of random layers. It leans towards what has been wrong: products whose output is added to a
/// value from far away, values with several readers, ties, views before and after all of these.
GeneratedModel generate_model(Draw& draw);

}  // namespace lockstep::net
