#include "run/binding.h"

#include "base/ensure.h"

namespace lockstep::run {

comm::Communicator* Binding::communicator() const {
  comm::Communicator* found = context_.communicators.at(static_cast<size_t>(instruction().group));
  ensure(found != nullptr, "a rank communicates in groups of which it is a member");
  return found;
}

}  // namespace lockstep::run
