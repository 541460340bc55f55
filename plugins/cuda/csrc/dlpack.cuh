// The part of DLPack 1.x that direct.cu calls: how another library looks at a tensor of torch without copying or
// keeping it. Layouts are those of DLPack's dlpack.h (https://github.com/dmlc/dlpack, Apache-2.0), which torch installs
// as ATen/dlpack.h and does not let a build against its stable interface include.
#pragma once

#include <cstdint>

namespace opdock::dlpack {

constexpr uint32_t kMajor = 1;
constexpr int32_t kCuda = 2;  // a kind of device
constexpr uint8_t kInt = 0, kFloat = 2, kBfloat = 4, kFloat8E4m3fn = 10, kFloat8E5m2 = 12;
constexpr char kCapsule[] = "dlpack_exchange_api";

struct Device {
  int32_t kind, index;
};

struct Type {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  Device device;
  int32_t dims;
  Type type;
  int64_t* sizes;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

// Functions of torch.Tensor, behind its capsule. The first three, which make and keep tensors, are not used here.
struct ExchangeApi {
  uint32_t major, minor;
  ExchangeApi* older;  // for a reader of an older major version
  void* allocate;
  void* export_owned;
  void* import_owned;
  int (*look)(void* object, DLTensor* out);  // what the tensor owns stays its own; -1 with a Python error; may be null
  int (*current_stream)(int32_t kind, int32_t index, void** out);
};

}  // namespace opdock::dlpack
