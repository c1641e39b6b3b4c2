// The part of the C++ runtime API that NVIDIA's header has for nvcc only: functions that take a
// kernel or a __device__ or __constant__ variable itself.
#pragma once

template <class T>
cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute attribute, int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class T>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, T* kernel) {
  return ::cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class T>
cudaError_t cudaFuncSetCacheConfig(T* kernel, cudaFuncCache config) {
  return ::cudaFuncSetCacheConfig(reinterpret_cast<const void*>(kernel), config);
}

namespace cudacpu {
template <class T>
bool within(const T&, size_t bytes, size_t offset) {
  return offset <= sizeof(T) && bytes <= sizeof(T) - offset;
}
// The address of a variable, which may be volatile.
template <class T>
const void* symbol_address(const T& symbol) {
  return const_cast<const void*>(static_cast<const volatile void*>(&symbol));
}
cudaError_t set_error(cudaError_t code);
// Let host code pass the address of this variable to kernels: it has asked for it.
void give_address(const void* variable, size_t bytes);

// Record a call whose result the program does not use, if it failed (unchecked_calls.py).
void note_unchecked(cudaError_t error, Site site, const char* function);
inline void unchecked(cudaError_t error, Site site, const char* function) {
  if (error != cudaSuccess) note_unchecked(error, site, function);
}
}  // namespace cudacpu

template <class T>
cudaError_t cudaMemcpyToSymbol(const T& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
  if (!cudacpu::within(symbol, bytes, offset)) return cudacpu::set_error(cudaErrorInvalidValue);
  return ::cudaMemcpyToSymbol(cudacpu::symbol_address(symbol), from, bytes, offset, kind);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
  if (!cudacpu::within(symbol, bytes, offset)) return cudacpu::set_error(cudaErrorInvalidValue);
  return ::cudaMemcpyFromSymbol(to, cudacpu::symbol_address(symbol), bytes, offset, kind);
}
template <class T>
cudaError_t cudaMemcpyToSymbolAsync(const T& symbol, const void* from, size_t bytes,
                                    size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice,
                                    cudaStream_t stream = nullptr) {
  if (!cudacpu::within(symbol, bytes, offset)) return cudacpu::set_error(cudaErrorInvalidValue);
  return ::cudaMemcpyToSymbolAsync(cudacpu::symbol_address(symbol), from, bytes, offset, kind,
                                   stream);
}
template <class T>
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                      cudaMemcpyKind kind = cudaMemcpyDeviceToHost,
                                      cudaStream_t stream = nullptr) {
  if (!cudacpu::within(symbol, bytes, offset)) return cudacpu::set_error(cudaErrorInvalidValue);
  return ::cudaMemcpyFromSymbolAsync(to, cudacpu::symbol_address(symbol), bytes, offset, kind,
                                     stream);
}
template <class T>
cudaError_t cudaGetSymbolAddress(void** address, const T& symbol) {
  cudacpu::give_address(cudacpu::symbol_address(symbol), sizeof symbol);
  return ::cudaGetSymbolAddress(address, cudacpu::symbol_address(symbol));
}
template <class T>
cudaError_t cudaGetSymbolSize(size_t* bytes, const T& symbol) {
  *bytes = sizeof symbol;
  return cudaSuccess;
}
