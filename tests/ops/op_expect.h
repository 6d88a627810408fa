#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lockstep/error.h"

namespace lockstep::testing {

/// Fails unless `call` throws a ConfigError whose message contains `part`.
template <class Call>
void expect_config_error(const Call& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "expected a ConfigError: " << part;
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << "message: " << error.what() << "\nexpected in it: " << part;
  }
}

}  // namespace lockstep::testing
