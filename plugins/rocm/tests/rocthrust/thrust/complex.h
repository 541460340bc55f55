// What torch's headers need of rocThrust, which Debian does not have; no kernel uses it.
#pragma once
namespace thrust {
template <typename T> struct complex {
  T re, im;
  __host__ __device__ complex(T re = T(), T im = T()) : re(re), im(im) {}
  __host__ __device__ T real() const { return re; }
  __host__ __device__ T imag() const { return im; }
};
template <typename T> __host__ __device__ complex<T> polar(const T& size, const T& angle = T()) {
  return complex<T>(size, angle);
}
}  // namespace thrust
