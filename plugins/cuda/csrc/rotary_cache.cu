// rotary_and_cache: rotary_embedding in place on query and key, and the update of a paged cache, in one launch.
#include "heads.cuh"
#include "rotary_cache_kernels.cuh"

namespace opdock {
namespace {

struct Given {
  const View &positions, &query, &key, &value, &key_cache, &value_cache, &slots, &cos_sin, &k_scale, &v_scale;
  Heads q, k, v;
  int64_t head_size;
};

template <typename T, typename C, typename O, bool NEOX> void launch(const Given& g) {
  constexpr int VEC = 16 / sizeof(T), N = NEOX ? VEC : VEC / 2;
  const int half = (int)g.cos_sin.size(1) / 2, total = g.q.count + g.k.count;
  const int width = std::max(1, half / N), rounds = total * width <= 640 ? 1 : 2, rows = (total + rounds - 1) / rounds;
  const Cached keys{g.key_cache.data_ptr(), g.key_cache.stride(0), (const float*)g.k_scale.data_ptr()};
  const Cached values{g.value_cache.data_ptr(), g.value_cache.stride(0), (const float*)g.v_scale.data_ptr()};
  const int64_t block_size = g.key_cache.size(1);
  const Slots slots{g.slots.data_ptr(), g.slots.element_size() == 8, block_size, g.key_cache.size(0) * block_size};
  bool fit = half % N == 0 && g.head_size % VEC == 0 && rows * width <= 1024 && vectors_fit(g.query, g.q, 16) &&
             vectors_fit(g.key, g.k, 16) && vectors_fit(g.value, g.v, 16) && aligned(g.cos_sin, N * sizeof(C)) &&
             g.cos_sin.stride(0) % N == 0;
  for (const View* cache : {&g.key_cache, &g.value_cache}) {
    fit = fit && aligned(*cache, VEC * sizeof(O)) && cache->stride(0) % VEC == 0;
  }
  auto go = [&](auto kernel, dim3 block) {
    start(kernel, (unsigned)g.positions.size(0), block, g.query.get_device_index(), stream_of(g.query),
          (const void*)g.positions.data_ptr(), g.positions.element_size() == 8, g.q, g.k, g.v,
          (const C*)g.cos_sin.data_ptr(), g.cos_sin.stride(0), g.cos_sin.size(0), half, (int)g.head_size, keys, values,
          slots);
  };
  if (fit && rounds == 2) {
    go(rotary_cache_kernel<T, C, O, NEOX, 2>, dim3(width, rows));
  } else if (fit) {
    go(rotary_cache_kernel<T, C, O, NEOX, 1>, dim3(width, rows));
  } else {
    go(any_rotary_cache_kernel<T, C, O, NEOX>, 256);
  }
}

template <typename T, typename C> void launch_for(const Given& g, bool is_neox) {
  const bool same = g.key_cache.scalar_type() == g.key.scalar_type();
  if (is_neox) {
    same ? launch<T, C, T, true>(g) : launch<T, C, __nv_fp8_e4m3, true>(g);
  } else {
    same ? launch<T, C, T, false>(g) : launch<T, C, __nv_fp8_e4m3, false>(g);
  }
}

bool dense_integers(const View& t, int64_t count) {
  return t.dim() == 1 && t.size(0) == count && (t.stride(0) == 1 || count <= 1) &&
         (t.scalar_type() == ScalarType::Long || t.scalar_type() == ScalarType::Int);
}

void run(const View& positions, const View& query, const View& key, const View& value, const View& key_cache,
         const View& value_cache, const View& slots, int64_t head_size, const View& cos_sin, const View& k_scale,
         const View& v_scale, bool is_neox) {
  const Heads q = heads_of(query, head_size, "query"), k = heads_of(key, head_size, "key");
  const Given g{positions, query, key,     value,   key_cache, value_cache, slots, cos_sin,
                k_scale,   v_scale, q,     k,       heads_of(value, head_size, "value"), head_size};
  const ScalarType type = query.scalar_type(), kept = key_cache.scalar_type(), angles = cos_sin.scalar_type();
  const int64_t tokens = positions.size(0);
  for (const View* other : {&positions, &key, &value, &key_cache, &value_cache, &slots, &cos_sin, &k_scale, &v_scale}) {
    STD_TORCH_CHECK(other->get_device_index() == query.get_device_index(), "tensors on several devices");
  }
  STD_TORCH_CHECK(key.scalar_type() == type && value.scalar_type() == type, "query, key and value differ in dtype");
  STD_TORCH_CHECK(value_cache.scalar_type() == kept && (kept == type || kept == ScalarType::Float8_e4m3fn),
                  "the caches must be of key's dtype, or float8_e4m3fn");
  STD_TORCH_CHECK(dense_integers(positions, tokens) && dense_integers(slots, tokens) && query.size(0) == tokens &&
                      key.size(0) == tokens && value.size(0) == tokens,
                  "one position and one slot for each row is needed, dense, of int32 or int64");
  STD_TORCH_CHECK(cos_sin.dim() == 2 && cos_sin.size(1) > 0 && cos_sin.size(1) % 2 == 0 &&
                      cos_sin.size(1) <= head_size && cos_sin.stride(1) == 1,
                  "cos_sin_cache does not fit");
  STD_TORCH_CHECK(angles == type || angles == ScalarType::Float, "cos_sin_cache must be float32 or of query's dtype");
  STD_TORCH_CHECK(g.v.count == g.k.count, "key and value differ in heads");
  const int64_t width = g.k.count * head_size;
  for (const View* cache : {&key_cache, &value_cache}) {
    STD_TORCH_CHECK(cache->dim() == 4 && cache->size(2) == g.k.count && cache->size(3) == head_size &&
                        cache->size(0) == key_cache.size(0) && cache->size(1) == key_cache.size(1),
                    "the caches are (blocks, block_size, heads, head_size) of key's heads");
    STD_TORCH_CHECK(cache->stride(3) == 1 && cache->stride(2) == head_size && cache->stride(1) == width,
                    "the rows of a cache's block must lie side by side");
  }
  for (const View* scale : {&k_scale, &v_scale}) {
    STD_TORCH_CHECK(scale->scalar_type() == ScalarType::Float && scale->numel() == 1, "a scale is one float32");
  }
  if (tokens == 0 || g.q.count + g.k.count == 0) return;
  STD_TORCH_CHECK(cos_sin.size(0) > 0, "cos_sin_cache has no rows");
  const bool same = angles == type;
  if (type == ScalarType::BFloat16) {
    same ? launch_for<__nv_bfloat16, __nv_bfloat16>(g, is_neox) : launch_for<__nv_bfloat16, float>(g, is_neox);
  } else if (type == ScalarType::Half) {
    same ? launch_for<__half, __half>(g, is_neox) : launch_for<__half, float>(g, is_neox);
  } else {
    STD_TORCH_CHECK(type == ScalarType::Float, "only float32, float16 and bfloat16");
    launch_for<float, float>(g, is_neox);
  }
}

void rotary_and_cache_(const Tensor& positions, Tensor query, Tensor key, const Tensor& value, Tensor key_cache,
                       Tensor value_cache, const Tensor& slots, int64_t head_size, const Tensor& cos_sin,
                       const Tensor& k_scale, const Tensor& v_scale, bool is_neox) {
  const torch::stable::accelerator::DeviceGuard guard(query.get_device_index());
  run(View(positions), View(query), View(key), View(value), View(key_cache), View(value_cache), View(slots), head_size,
      View(cos_sin), View(k_scale), View(v_scale), is_neox);
}

}  // namespace
}  // namespace opdock

STABLE_TORCH_LIBRARY_FRAGMENT(opdock_cuda, m) {
  m.def(
      "rotary_and_cache_(Tensor positions, Tensor(a!) query, Tensor(b!) key, Tensor value, Tensor(c!) key_cache, "
      "Tensor(d!) value_cache, Tensor slot_mapping, int head_size, Tensor cos_sin_cache, Tensor k_scale, "
      "Tensor v_scale, bool is_neox) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(opdock_cuda, CUDA, m) {
  m.impl("rotary_and_cache_", TORCH_BOX(&opdock::rotary_and_cache_));
}
