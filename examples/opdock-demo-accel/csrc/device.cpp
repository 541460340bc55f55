// The device, as PyTorch wants it: memory, the current device, hooks, and the aten operators without which no tensor
// can exist. A vendor replaces the bodies (malloc by the driver's allocator, the empty stream methods by its streams)
// and keeps the structure.
#include "host.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// -- the driver: how many devices there are, and which one this thread uses

c10::DeviceIndex count_devices() {
  static const char* plugged_in = std::getenv("DEMO_ACCEL_DEVICES");
  return static_cast<c10::DeviceIndex>(plugged_in ? std::atoi(plugged_in) : 0);
}

thread_local c10::DeviceIndex current = 0;

// A driver starts with the first allocation, not when the library is loaded: a process may fork before it.
std::atomic<bool> started{false};

// -- memory

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    started = true;
    void* data = nullptr;
    if (bytes) {
      TORCH_CHECK_WITH(OutOfMemoryError, !posix_memalign(&data, 64, bytes), "demo_accel: no room for ", bytes, " bytes");
    }
    return {data, data, &std::free, c10::Device(kDevice, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &std::free;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator);

// -- devices and streams: work is done when a call returns, so there is one stream and nothing to wait for

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kDevice;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return count_devices();
  }
  c10::Device getDevice() const override {
    return {kDevice, current};
  }
  void setDevice(c10::Device device) const override {
    const int wanted = device.index(), count = count_devices();
    TORCH_CHECK(wanted < count, "demo_accel: there is no device ", wanted, ", the number of devices is ", count);
    current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return getStream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStream(device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getStream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return count_devices() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  // Random numbers are drawn on the host. A vendor with a generator of its own returns it here.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(c10::kCPU);
  }
  at::Device getDeviceFromPtr(void*) const override {
    return {kDevice, current};
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    auto grown = allocator.allocate(bytes);
    std::memcpy(grown.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};
Hooks hooks;
const bool hooked = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// -- the operators that make, view, move and read tensors

const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
using Sizes = c10::SymIntArrayRef;

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(at::Device(kDevice, current)));
  return at::detail::empty_generic(size, &allocator, keys, c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(at::Device(kDevice, current)));
  return at::detail::empty_strided_generic(size, stride, &allocator, keys, c10::dtype_or_default(dtype));
}
at::Tensor as_strided(const at::Tensor& t, Sizes size, Sizes stride, std::optional<c10::SymInt> offset) {
  const auto start = offset ? std::optional(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}
at::Tensor view(const at::Tensor& t, Sizes size) {
  return at::native::view(t, C10_AS_INTARRAYREF_SLOW(size));
}
at::Tensor reshape_alias(const at::Tensor& t, Sizes size, Sizes stride) {
  return at::native::_reshape_alias(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
const at::Tensor& resize_(const at::Tensor& t, Sizes size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(t.device());
  return at::native::resize_(t, C10_AS_INTARRAYREF_SLOW(size), format);
}
at::Tensor& set_source(at::Tensor& t, at::Storage from) {
  const auto count = static_cast<int64_t>(from.nbytes() / t.dtype().itemsize());
  return at::native::set_storage_cpu_(t, std::move(from), 0, {count}, {1});
}
at::Tensor& set_tensor(at::Tensor& t, const at::Tensor& from) {
  return at::native::set_storage_cpu_(t, from.storage(), from.storage_offset(), from.sizes(), from.strides());
}
// A vendor starts a copy between host and device here, or between two places on the device.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  host(to).copy_(host(from));
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, to.resize_(from.sizes()), false);
}
at::Scalar local_scalar_dense(const at::Tensor& t) {
  return host(t).item();
}

// Every other aten operator is copied to the CPU, computed there and copied back: slow and right, so that a new device
// runs any model on its first day. A vendor replaces them one by one, the most frequent first. An operator of any other
// library is refused: it must not run on the wrong device without a word.
void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto library = op.schema().getNamespace().value_or("");
  TORCH_CHECK_NOT_IMPLEMENTED(library == "aten", op.operator_name(), " has no demo_accel kernel");
  at::native::cpu_fallback(op, stack);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(demo_accel, m) {
  m.def("device_count() -> int", [] { return static_cast<int64_t>(count_devices()); });
  m.def("is_initialized() -> bool", [] { return started.load(); });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_source);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
}
