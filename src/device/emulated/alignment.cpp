// What -fsanitize=alignment has kernels call before they access memory at an address that is no multiple of
// the alignment of what they access: on a GPU such an access ends the process. The function's name and its
// arguments are those by which g++ and clang call the runtime library of that sanitizer; this stands in for
// the library, so that the kernel's launch throws like any other mistake of a kernel, and nothing besides is
// linked.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "device/emulated/block.h"
#include "lockstep/error.h"

namespace {

struct Place {
  const char* file;
  uint32_t line, column;
};
struct Type {
  uint16_t kind, info;
  char name[1];  // goes on to its zero
};
struct Access {
  Place place;
  const Type* type;
  unsigned char log_alignment, kind;
};

std::string message_of(const Access& access, uintptr_t address) {
  const uintptr_t alignment = uintptr_t{1} << access.log_alignment;
  return std::string(access.place.file) + ":" + std::to_string(access.place.line) + ":" +
         std::to_string(access.place.column) + ": a kernel accesses " + access.type->name +
         " at an address that should be a multiple of " + std::to_string(alignment) + ", and is " +
         std::to_string(address % alignment) + " bytes above one";
}

}  // namespace

extern "C" [[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(const Access* access, uintptr_t address) {
  // The compiler takes for granted that nothing is thrown from here.
  if (lockstep::device::emulated::in_kernel())
    lockstep::device::emulated::end_kernel(
        std::make_exception_ptr(lockstep::InternalError(message_of(*access, address))));
  // Code of the host in a kernel's source.
  std::fprintf(stderr, "%s\n", message_of(*access, address).c_str());
  std::abort();
}
