// rotary_embedding, in place on query and key.
#include "heads.cuh"

namespace opdock {
namespace {

template <typename T, typename C, bool NEOX>
void launch(const View& positions, const View& query, const View& key, const Heads& q, const Heads& k,
            const View& cache, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T) / (NEOX ? 1 : 2);
  const int half = (int)cache.size(1) / 2, total = q.count + k.count;
  const bool wide = positions.element_size() == 8;
  const unsigned tokens = (unsigned)positions.size(0);
  const C* angles = (const C*)cache.data_ptr();
  const int width = std::max(1, half / N), rounds = total * width <= 640 ? 1 : 2, rows = (total + rounds - 1) / rounds;
  const bool fit = half % N == 0 && rows * width <= 1024 && vectors_fit(query, q, 16) && vectors_fit(key, k, 16) &&
                   aligned(cache, N * sizeof(C)) && cache.stride(0) % N == 0;
  auto go = [&](auto kernel, dim3 block) {
    start(kernel, tokens, block, query.get_device_index(), stream, (const void*)positions.data_ptr(), wide, q, k, angles,
          cache.stride(0), cache.size(0), half);
  };
  if (fit && rounds == 2) {
    go(rotary_kernel<T, C, NEOX, 2>, dim3(width, rows));
  } else if (fit) {
    go(rotary_kernel<T, C, NEOX, 1>, dim3(width, rows));
  } else {
    go(any_rotary_kernel<T, C, NEOX>, 256);
  }
}

}  // namespace

void rotary(const View& positions, const View& query, const View& key, int64_t head_size, const View& cache,
            bool is_neox) {
  const Heads q = heads_of(query, head_size, "query"), k = heads_of(key, head_size, "key");
  const ScalarType type = query.scalar_type();
  STD_TORCH_CHECK(key.scalar_type() == type, "query and key differ in dtype");
  STD_TORCH_CHECK(positions.dim() == 1 && positions.size(0) == query.size(0) && positions.size(0) == key.size(0) &&
                      (positions.stride(0) == 1 || positions.size(0) <= 1),
                  "one position for each row is needed, dense");
  STD_TORCH_CHECK(positions.scalar_type() == ScalarType::Long || positions.scalar_type() == ScalarType::Int,
                  "positions must be int32 or int64");
  STD_TORCH_CHECK(cache.dim() == 2 && cache.size(1) % 2 == 0 && cache.size(1) <= head_size && cache.stride(1) == 1,
                  "cos_sin_cache does not fit");
  if (positions.size(0) == 0 || q.count + k.count == 0) return;
  STD_TORCH_CHECK(cache.size(0) > 0, "cos_sin_cache has no rows");
  const cudaStream_t stream = stream_of(query);
  auto with_types = [&](auto zero, auto angle) {
    using T = decltype(zero);
    using C = decltype(angle);
    if (is_neox) {
      launch<T, C, true>(positions, query, key, q, k, cache, stream);
    } else {
      launch<T, C, false>(positions, query, key, q, k, cache, stream);
    }
  };
  const bool same = cache.scalar_type() == type;
  STD_TORCH_CHECK(same || cache.scalar_type() == ScalarType::Float, "cos_sin_cache must be float32 or of query's dtype");
  if (type == ScalarType::BFloat16) {
    same ? with_types(__nv_bfloat16{}, __nv_bfloat16{}) : with_types(__nv_bfloat16{}, 0.0f);
  } else if (type == ScalarType::Half) {
    same ? with_types(__half{}, __half{}) : with_types(__half{}, 0.0f);
  } else {
    STD_TORCH_CHECK(type == ScalarType::Float, "only float32, float16 and bfloat16");
    with_types(0.0f, 0.0f);
  }
}

namespace {

void rotary_embedding_(const Tensor& positions, Tensor query, Tensor key, int64_t head_size, const Tensor& cache,
                       bool is_neox) {
  const torch::stable::accelerator::DeviceGuard guard(query.get_device_index());
  rotary(View(positions), View(query), View(key), head_size, View(cache), is_neox);
}

}  // namespace
}  // namespace opdock

STABLE_TORCH_LIBRARY_FRAGMENT(opdock_cuda, m) {
  m.def(
      "rotary_embedding_(Tensor positions, Tensor(a!) query, Tensor(b!) key, int head_size, Tensor cos_sin_cache, "
      "bool is_neox) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(opdock_cuda, CUDA, m) {
  m.impl("rotary_embedding_", TORCH_BOX(&opdock::rotary_embedding_));
}
