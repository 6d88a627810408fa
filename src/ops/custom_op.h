#pragma once

#include <memory>
#include <vector>

#include "lockstep/custom_op.h"
#include "ops/parts.h"

namespace lockstep::ops {

/// The op that is registered under a name. Throws ConfigError, which lists those that are, if there is none.
std::shared_ptr<const CustomOp> registered_op(const std::string& name);

CustomOp::Attributes attributes_of(const Custom& op);

/// What the op says of these inputs. Throws ConfigError if it says nothing sensible.
CustomOp::Signature checked_signature(const Custom& op, const std::vector<Shape>& inputs);

}  // namespace lockstep::ops
