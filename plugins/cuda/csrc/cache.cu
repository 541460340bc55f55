// reshape_and_cache: writing keys and values into the slots of a paged cache.
#ifdef OPDOCK_KERNELS_ONLY
#include "common.cuh"
#else
#include "launch.cuh"
#endif

namespace opdock {
namespace {

// A slot below 0 is padding, and one behind the cache is refused: neither is written.
template <typename V>
__global__ void cache_kernel(const V* key, const V* value, V* key_cache, V* value_cache, const void* slots,
                             const bool wide_slots, const int64_t key_stride, const int64_t value_stride,
                             const int64_t key_block_stride, const int64_t value_block_stride, const int64_t block_size,
                             const int64_t capacity, const int width) {
  const int64_t token = blockIdx.x;
  after_previous();
  const int64_t slot = wide_slots ? ((const int64_t*)slots)[token] : ((const int32_t*)slots)[token];
  if (slot < 0 || slot >= capacity) return;
  const int64_t block = slot / block_size, place = slot - block * block_size;
  V* to_key = key_cache + block * key_block_stride + place * width;
  V* to_value = value_cache + block * value_block_stride + place * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const V k = key[token * key_stride + i], v = value[token * value_stride + i];
    to_key[i] = k;
    to_value[i] = v;
  }
}

#ifndef OPDOCK_KERNELS_ONLY

void write_rows(const View& key, const View& value, const View& key_cache, const View& value_cache,
                const View& slots) {
  STD_TORCH_CHECK(key.dim() == 3 && value.dim() == 3 && key_cache.dim() == 4 && value_cache.dim() == 4,
                  "key and value are (tokens, heads, head_size), the caches (blocks, block_size, heads, head_size)");
  const ScalarType type = key.scalar_type();
  STD_TORCH_CHECK(value.scalar_type() == type && key_cache.scalar_type() == type && value_cache.scalar_type() == type,
                  "keys, values and caches differ in dtype");
  STD_TORCH_CHECK(key.element_size() <= 4, "keys of 8 bytes have no kernel");
  STD_TORCH_CHECK(value.size(0) == key.size(0) && value_cache.size(0) == key_cache.size(0) &&
                      value_cache.size(1) == key_cache.size(1),
                  "keys and values, and their caches, must have the same sizes");
  STD_TORCH_CHECK(slots.dim() == 1 && (slots.stride(0) == 1 || slots.size(0) <= 1) &&
                      (slots.scalar_type() == ScalarType::Long || slots.scalar_type() == ScalarType::Int),
                  "slot_mapping must be dense, of int32 or int64");
  const int64_t tokens = std::min(slots.size(0), key.size(0)), width = key.size(1) * key.size(2);
  auto rows_dense = [&](const View& t, int64_t first) {
    return t.stride(first + 1) == 1 && t.stride(first) == t.size(first + 1);
  };
  STD_TORCH_CHECK(rows_dense(key, 1) && rows_dense(value, 1) && value.size(1) * value.size(2) == width,
                  "the heads of a token must lie side by side");
  for (const View* cache : {&key_cache, &value_cache}) {
    STD_TORCH_CHECK(rows_dense(*cache, 2) && cache->stride(1) == width, "the rows of a cache's block must lie side by side");
  }
  if (tokens == 0 || width == 0) return;
  const int64_t block_size = key_cache.size(1), capacity = key_cache.size(0) * block_size;
  auto go = [&](auto zero) {
    using V = decltype(zero);
    const int64_t each = sizeof(V) / key.element_size();
    const int block = (int)std::clamp<int64_t>((width / each + 31) / 32 * 32, 32, 512);
    start(cache_kernel<V>, (unsigned)tokens, block, key.get_device_index(), stream_of(key), (const V*)key.data_ptr(),
          (const V*)value.data_ptr(), (V*)key_cache.data_ptr(), (V*)value_cache.data_ptr(),
          (const void*)slots.data_ptr(), slots.element_size() == 8, key.stride(0) / each, value.stride(0) / each,
          key_cache.stride(0) / each, value_cache.stride(0) / each, block_size, capacity, (int)(width / each));
  };
  bool vectors = width * key.element_size() % 16 == 0;
  for (const View* t : {&key, &value, &key_cache, &value_cache}) {
    vectors = vectors && aligned(*t, 16) && t->stride(0) * t->element_size() % 16 == 0;
  }
  if (vectors) {
    go(uint4{});
  } else if (key.element_size() == 4) {
    go(uint32_t{});
  } else if (key.element_size() == 2) {
    go(uint16_t{});
  } else {
    go(uint8_t{});
  }
}

void reshape_and_cache_(const Tensor& key, const Tensor& value, Tensor key_cache, Tensor value_cache,
                        const Tensor& slots) {
  const torch::stable::accelerator::DeviceGuard guard(key.get_device_index());
  write_rows(View(key), View(value), View(key_cache), View(value_cache), View(slots));
}

#endif

}  // namespace
}  // namespace opdock

#ifndef OPDOCK_KERNELS_ONLY

STABLE_TORCH_LIBRARY_FRAGMENT(opdock_cuda, m) {
  m.def(
      "reshape_and_cache_(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping) "
      "-> ()");
}

STABLE_TORCH_LIBRARY_IMPL(opdock_cuda, CUDA, m) {
  m.impl("reshape_and_cache_", TORCH_BOX(&opdock::reshape_and_cache_));
}

#endif
