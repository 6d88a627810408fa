#include "cudnn_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "lockstep/error.h"

namespace lockstep::ops {
namespace {

constexpr const char* kLibrary = "libcudnn.so.9";

void* open_library() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw DeviceError(fmt::format("there is no {}: {}", kLibrary, dlerror()));
  return library;
}

}  // namespace

template <class Function>
Function Cudnn::function(const char* name) const {
  void* const found = dlsym(library_, name);
  if (found == nullptr) throw DeviceError(fmt::format("{} has no {}", kLibrary, name));
  return reinterpret_cast<Function>(found);
}

Cudnn::Cudnn(cudaStream_t stream)
    : library_(open_library()),
      create_descriptor(function<decltype(&cudnnBackendCreateDescriptor)>("cudnnBackendCreateDescriptor")),
      destroy_descriptor(function<decltype(&cudnnBackendDestroyDescriptor)>("cudnnBackendDestroyDescriptor")),
      set_attribute(function<decltype(&cudnnBackendSetAttribute)>("cudnnBackendSetAttribute")),
      get_attribute(function<decltype(&cudnnBackendGetAttribute)>("cudnnBackendGetAttribute")),
      finalize(function<decltype(&cudnnBackendFinalize)>("cudnnBackendFinalize")),
      execute(function<decltype(&cudnnBackendExecute)>("cudnnBackendExecute")) {
  check(function<decltype(&cudnnCreate)>("cudnnCreate")(&handle_), "cudnnCreate");
  check(function<decltype(&cudnnSetStream)>("cudnnSetStream")(handle_, stream), "cudnnSetStream");
}

// The library stays open: at the program's end it would be closed anyway.
Cudnn::~Cudnn() { function<decltype(&cudnnDestroy)>("cudnnDestroy")(handle_); }

void Cudnn::check(cudnnStatus_t status, const char* call) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> words{};
  function<decltype(&cudnnGetLastErrorString)>("cudnnGetLastErrorString")(words.data(), words.size());
  throw DeviceError(fmt::format("{}: {} {}", call,
                                function<decltype(&cudnnGetErrorString)>("cudnnGetErrorString")(status),
                                words.data()));
}

std::string Cudnn::version() const {
  const size_t version = function<decltype(&cudnnGetVersion)>("cudnnGetVersion")();
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

CudnnObject::CudnnObject(const Cudnn& library, cudnnBackendDescriptorType_t type) : library_(&library) {
  library.check(library.create_descriptor(type, &object_), "cudnnBackendCreateDescriptor");
}

CudnnObject::~CudnnObject() {
  if (object_ != nullptr) library_->destroy_descriptor(object_);
}

void CudnnObject::set_many(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                           const void* values) {
  library_->check(library_->set_attribute(object_, name, type, count, values), "cudnnBackendSetAttribute");
}

int64_t CudnnObject::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room,
                         void* values) const {
  int64_t count = 0;
  library_->check(library_->get_attribute(object_, name, type, room, &count, values),
                  "cudnnBackendGetAttribute");
  return count;
}

void CudnnObject::finish() { library_->check(library_->finalize(object_), "cudnnBackendFinalize"); }

}  // namespace lockstep::ops
