// rotary_embedding, in place on query and key.
#include "launch.cuh"

namespace opdock {
namespace {

struct Heads {
  void* data;
  int count;
  int64_t token_stride, head_stride;  // in elements
};

__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fffffff); }

template <typename C, int N> struct alignas(sizeof(C) * N) Few { C at[N]; };

// The angles of N pairs of one position; NaN for a position that the cache has not: a fault that shows.
template <typename C, int N> struct Angles {
  float cosine[N], sine[N];
  __device__ __forceinline__ Angles(const C* cache, int64_t stride, int64_t rows, int64_t position, int half, int pair) {
    const bool known = position >= 0 && position < rows;
    const C* at = cache + (known ? position : 0) * stride + pair;
    const auto c = *reinterpret_cast<const Few<C, N>*>(at);
    const auto s = *reinterpret_cast<const Few<C, N>*>(at + half);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      cosine[k] = known ? to_float(c.at[k]) : not_a_number();
      sine[k] = to_float(s.at[k]);
    }
  }
};

__device__ __forceinline__ int64_t position_of(const void* positions, bool wide, int64_t token) {
  return wide ? ((const int64_t*)positions)[token] : ((const int32_t*)positions)[token];
}

// 16 bytes at once. The pairs of one head are (j, j + half) for NEOX, (2 j, 2 j + 1) otherwise. A thread has the same
// pairs of every blockDim.y-th head of one token, ROUNDS of them. The position is asked for first, because the angles wait
// for it; heads are read while it is on its way.
template <typename T, typename C, bool NEOX, int ROUNDS>
__global__ void rotary_kernel(const void* positions, const bool wide_positions, const Heads query, const Heads key,
                              const C* cache, const int64_t cache_stride, const int64_t cache_rows, const int half) {
  constexpr int VEC = 2 * kPairs<T>, N = NEOX ? VEC : VEC / 2;
  using P = Pair<T>;
  const int pair = threadIdx.x * N;
  const int64_t token = blockIdx.x;
  after_previous();
  const int64_t position = position_of(positions, wide_positions, token);
  T* at[ROUNDS];
  Vec<T> one[ROUNDS], two[ROUNDS];
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const int head = threadIdx.y + r * blockDim.y;
    at[r] = nullptr;
    if (head >= query.count + key.count) continue;
    const bool is_query = head < query.count;
    const Heads& heads = is_query ? query : key;
    at[r] = (T*)heads.data + token * heads.token_stride + (is_query ? head : head - query.count) * heads.head_stride;
    at[r] += NEOX ? pair : 2 * pair;
    one[r] = load_once(at[r]);
    if constexpr (NEOX) two[r] = load_once(at[r] + half);
  }
  const Angles<C, N> angle(cache, cache_stride, cache_rows, position, half, pair);
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    if (at[r] == nullptr) continue;
#pragma unroll
    for (int k = 0; k < VEC / 2; ++k) {
      const float2 a = P::wide(one[r].at[k]);
      if constexpr (NEOX) {
        const float2 b = P::wide(two[r].at[k]);
        const float c0 = angle.cosine[2 * k], c1 = angle.cosine[2 * k + 1];
        const float s0 = angle.sine[2 * k], s1 = angle.sine[2 * k + 1];
        one[r].at[k] = P::narrow(make_float2(a.x * c0 - b.x * s0, a.y * c1 - b.y * s1));
        two[r].at[k] = P::narrow(make_float2(b.x * c0 + a.x * s0, b.y * c1 + a.y * s1));
      } else {
        const float c = angle.cosine[k], s = angle.sine[k];
        one[r].at[k] = P::narrow(make_float2(a.x * c - a.y * s, a.y * c + a.x * s));
      }
    }
    store(at[r], one[r]);
    if constexpr (NEOX) store(at[r] + half, two[r]);
  }
}

// Any alignment: a thread has one pair of one head at a time.
template <typename T, typename C, bool NEOX>
__global__ void any_rotary_kernel(const void* positions, const bool wide_positions, const Heads query, const Heads key,
                                  const C* cache, const int64_t cache_stride, const int64_t cache_rows,
                                  const int half) {
  const int64_t token = blockIdx.x;
  after_previous();
  const int64_t position = position_of(positions, wide_positions, token);
  for (int i = threadIdx.x; i < half * (query.count + key.count); i += blockDim.x) {
    const int head = i / half, pair = i - head * half;
    const bool is_query = head < query.count;
    const Heads& heads = is_query ? query : key;
    T* at = (T*)heads.data + token * heads.token_stride + (is_query ? head : head - query.count) * heads.head_stride;
    const Angles<C, 1> angle(cache, cache_stride, cache_rows, position, half, pair);
    T& first = at[NEOX ? pair : 2 * pair];
    T& second = at[NEOX ? pair + half : 2 * pair + 1];
    const float a = to_float(first), b = to_float(second);
    first = from_float<T>(a * angle.cosine[0] - b * angle.sine[0]);
    second = from_float<T>(b * angle.cosine[0] + a * angle.sine[0]);
  }
}

Heads heads_of(const View& t, int64_t head_size, const char* name) {
  STD_TORCH_CHECK(head_size > 0, "head_size must be positive");
  const bool three = t.dim() == 3;
  STD_TORCH_CHECK((three && t.size(2) == head_size) || (t.dim() == 2 && t.size(1) % head_size == 0), name,
                  " is not rows of whole heads");
  STD_TORCH_CHECK(t.stride(t.dim() - 1) == 1, name, " must be dense in its last dimension");
  const int count = (int)(three ? t.size(1) : t.size(1) / head_size);
  return {t.data_ptr(), count, t.stride(0), three ? t.stride(1) : head_size};
}

bool vectors_fit(const View& t, const Heads& heads, int64_t bytes) {
  const int64_t element = t.element_size();
  return aligned(t, bytes) && heads.token_stride * element % bytes == 0 && heads.head_stride * element % bytes == 0;
}

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
