// Textures and surfaces: each line is a name and what was fetched. The test has the numbers of the
// programming guide's formulas.
#include <cuda_fp16.h>

#include <cstring>
#include <vector>

#include "check.cuh"

constexpr int STEPS = 57;

// Coordinates are in units of 1/8 element from -14/8 on: before, in and behind four elements.
__global__ void sample_1d(cudaTextureObject_t texture, float unit, float* out) {
  const int i = threadIdx.x;
  out[i] = tex1D<float>(texture, (i - 14) * unit);
}
__global__ void sample_weights(cudaTextureObject_t texture, float* out) {
  out[threadIdx.x] = tex1D<float>(texture, 0.5f + threadIdx.x / 1024.0f);
}
__global__ void sample_2d(cudaTextureObject_t texture, const float2* at, float2* out) {
  const float2 place = at[threadIdx.x];
  tex2D(&out[threadIdx.x], texture, place.x, place.y);
}
__global__ void sample_3d(cudaTextureObject_t texture, float* out) {
  out[threadIdx.x] = tex3D<float>(texture, 1.25f, 0.75f + threadIdx.x, 1.5f);
}
__global__ void sample_layers(cudaTextureObject_t texture, float* out) {
  out[threadIdx.x] = tex2DLayered<float>(texture, 0.5f, 1.5f, static_cast<int>(threadIdx.x) - 1);
}
template <class T>
__global__ void fetch(cudaTextureObject_t texture, T* out) {
  const int i = threadIdx.x;
  out[i] = tex1Dfetch<T>(texture, i - 1);
}

__global__ void add_border(cudaSurfaceObject_t surface, int* read) {
  const int x = threadIdx.x, y = threadIdx.y;
  const int size = sizeof(int);
  surf2Dwrite(10 * y + x, surface, x * size, y);
  __syncthreads();
  surf2Dwrite(99, surface, 4 * size, y, cudaBoundaryModeZero);  // nothing
  read[4 * y + x] = surf2Dread<int>(surface, (x - 1) * size, y - 1, cudaBoundaryModeClamp) * 100;
  read[4 * y + x] += surf2Dread<int>(surface, (x + 1) * size, y, cudaBoundaryModeZero);
}
__global__ void leave(cudaSurfaceObject_t surface) {
  surf2Dwrite(1, surface, 4 * threadIdx.x, 3);  // outside
}

template <class T>
std::vector<T> on_host(const T* x, size_t n) {
  std::vector<T> y(n);
  CHECK(cudaMemcpy(y.data(), x, n * sizeof(T), cudaMemcpyDeviceToHost));
  return y;
}
template <class T>
T* device(size_t n) {
  T* x;
  CHECK(cudaMalloc(&x, n * sizeof(T)));
  return x;
}
void print(const char* name, const float* x, size_t n) {
  printf("%s", name);
  for (float v : on_host(x, n)) printf(" %.9g", v);
  printf("\n");
}

cudaTextureDesc description(cudaTextureFilterMode filter, cudaTextureAddressMode address,
                            bool normalized, cudaTextureReadMode read = cudaReadModeElementType) {
  cudaTextureDesc d = {};
  d.filterMode = filter;
  for (auto& mode : d.addressMode) mode = address;
  d.normalizedCoords = normalized;
  d.readMode = read;
  return d;
}
cudaResourceDesc of(cudaArray_t array) {
  cudaResourceDesc r = {};
  r.resType = cudaResourceTypeArray;
  r.res.array.array = array;
  return r;
}

// Every address mode with both filters, normalised and not.
void one_dimension() {
  const float texels[] = {10, 20, 40, 80};
  const auto format = cudaCreateChannelDesc<float>();
  cudaArray_t array;
  CHECK(cudaMallocArray(&array, &format, 4));
  CHECK(cudaMemcpyToArray(array, 0, 0, texels, sizeof texels, cudaMemcpyHostToDevice));
  const cudaResourceDesc resource = of(array);
  float* out = device<float>(STEPS);
  for (auto filter : {cudaFilterModePoint, cudaFilterModeLinear})
    for (auto address :
         {cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror, cudaAddressModeBorder})
      for (bool normalized : {false, true}) {
        cudaTextureDesc d = description(filter, address, normalized);
        d.borderColor[0] = 5;
        cudaTextureObject_t texture;
        CHECK(cudaCreateTextureObject(&texture, &resource, &d, nullptr));
        sample_1d<<<1, STEPS>>>(texture, normalized ? 1 / 32.0f : 1 / 8.0f, out);
        char name[32];
        snprintf(name, sizeof name, "1d,%d,%d,%d", filter, address, normalized);
        print(name, out, STEPS);
        CHECK(cudaDestroyTextureObject(texture));
      }
  CHECK(cudaFree(out));
  CHECK(cudaFreeArray(array));

  const float steps[] = {0, 256};
  CHECK(cudaMallocArray(&array, &format, 2));
  CHECK(cudaMemcpyToArray(array, 0, 0, steps, sizeof steps, cudaMemcpyHostToDevice));
  const cudaResourceDesc two = of(array);
  const cudaTextureDesc d = description(cudaFilterModeLinear, cudaAddressModeClamp, false);
  cudaTextureObject_t texture;
  CHECK(cudaCreateTextureObject(&texture, &two, &d, nullptr));
  out = device<float>(1024);
  sample_weights<<<1, 1024>>>(texture, out);
  print("weights", out, 1024);
  CHECK(cudaDestroyTextureObject(texture));
  CHECK(cudaFree(out));
  CHECK(cudaFreeArray(array));
}

// Texel (x, y) is (x + 10y, 100x - y), in pitched memory and in an array.
void two_dimensions() {
  constexpr int width = 5, height = 3, points = 6;
  float2 texels[height][width];
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      texels[y][x] = make_float2(x * x + 10.f * y * x, 100.f * x - y * y * y);
  const float2 at[points] = {{0.5f, 0.5f},   {2.5f, 1.5f},   {1.75f, 2.25f},
                             {-1.f, 2.625f}, {4.75f, 0.25f}, {3.f, 9.f}};
  float2 *places = device<float2>(points), *out = device<float2>(points);
  CHECK(cudaMemcpy(places, at, sizeof at, cudaMemcpyHostToDevice));
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypePitch2D;
  auto& pitched = resource.res.pitch2D;
  pitched.desc = cudaCreateChannelDesc<float2>();
  pitched.width = width, pitched.height = height;
  CHECK(cudaMallocPitch(&pitched.devPtr, &pitched.pitchInBytes, sizeof texels[0], height));
  CHECK(cudaMemcpy2D(pitched.devPtr, pitched.pitchInBytes, texels, sizeof texels[0],
                     sizeof texels[0], height, cudaMemcpyHostToDevice));
  cudaArray_t array;
  CHECK(cudaMallocArray(&array, &pitched.desc, width, height));
  CHECK(cudaMemcpy2DToArray(array, 0, 0, pitched.devPtr, pitched.pitchInBytes, sizeof texels[0],
                            height, cudaMemcpyDeviceToDevice));
  const cudaResourceDesc both[] = {resource, of(array)};
  for (const auto& each : both) {
    for (auto filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
      const cudaTextureDesc d = description(filter, cudaAddressModeClamp, false);
      cudaTextureObject_t texture;
      CHECK(cudaCreateTextureObject(&texture, &each, &d, nullptr));
      sample_2d<<<1, points>>>(texture, places, out);
      printf("2d,%d,%d", each.resType, filter);
      for (float2 v : on_host(out, points)) printf(" %.9g %.9g", v.x, v.y);
      printf("\n");
      CHECK(cudaDestroyTextureObject(texture));
    }
  }
  float2 back[2][2];
  CHECK(cudaMemcpy2DFromArray(back, sizeof back[0], array, sizeof(float2), 1, sizeof back[0], 2,
                              cudaMemcpyDeviceToHost));
  printf("back %g %g %g %g\n", back[0][0].x, back[0][1].x, back[1][0].y, back[1][1].y);
  CHECK(cudaFree(pitched.devPtr));
  CHECK(cudaFreeArray(array));
  CHECK(cudaFree(places));
  CHECK(cudaFree(out));
}

// Texel (x, y, z) is x + 10y + 100z, in three dimensions and in layers.
void more_dimensions() {
  float texels[3][4][2];
  for (int z = 0; z < 3; ++z)
    for (int y = 0; y < 4; ++y)
      for (int x = 0; x < 2; ++x) texels[z][y][x] = x + 10.f * y + 100.f * z;
  const auto format = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
  for (unsigned flags : {cudaArrayDefault, cudaArrayLayered}) {
    cudaArray_t array;
    CHECK(cudaMalloc3DArray(&array, &format, make_cudaExtent(2, 4, 3), flags));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(texels, sizeof texels[0][0], 2, 4);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(2, 4, 3);
    copy.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&copy));
    const cudaResourceDesc resource = of(array);
    const cudaTextureDesc d =
        description(flags ? cudaFilterModePoint : cudaFilterModeLinear, cudaAddressModeClamp, 0);
    cudaTextureObject_t texture;
    CHECK(cudaCreateTextureObject(&texture, &resource, &d, nullptr));
    float* out = device<float>(5);
    if (flags)
      sample_layers<<<1, 5>>>(texture, out);
    else
      sample_3d<<<1, 4>>>(texture, out);
    print(flags ? "layers" : "3d", out, flags ? 5 : 4);
    CHECK(cudaDestroyTextureObject(texture));
    CHECK(cudaFree(out));
    CHECK(cudaFreeArray(array));
  }
}

// The elements of linear memory, and what is before and behind them.
template <class T, class Result = T>
std::vector<Result> elements(const std::vector<T>& texels, cudaChannelFormatDesc format,
                             cudaTextureReadMode read = cudaReadModeElementType) {
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeLinear;
  auto& linear = resource.res.linear;
  linear.devPtr = device<T>(texels.size());
  linear.desc = format;
  linear.sizeInBytes = texels.size() * sizeof(T);
  CHECK(cudaMemcpy(linear.devPtr, texels.data(), linear.sizeInBytes, cudaMemcpyHostToDevice));
  cudaTextureDesc d = {};
  d.readMode = read;
  cudaTextureObject_t texture;
  CHECK(cudaCreateTextureObject(&texture, &resource, &d, nullptr));
  Result* out = device<Result>(texels.size() + 2);
  fetch<<<1, texels.size() + 2>>>(texture, out);
  const auto result = on_host(out, texels.size() + 2);
  CHECK(cudaDestroyTextureObject(texture));
  CHECK(cudaFree(out));
  CHECK(cudaFree(linear.devPtr));
  return result;
}
template <class T, class Result = T>
void print_elements(const char* name, const std::vector<T>& texels,
                    cudaChannelFormatDesc format = cudaCreateChannelDesc<T>(),
                    cudaTextureReadMode read = cudaReadModeElementType) {
  printf("%s", name);
  for (Result v : elements<T, Result>(texels, format, read)) printf(" %.9g", 1.0 * v);
  printf("\n");
}

void types() {
  print_elements<char>("char", {-128, 127, 5});
  print_elements<unsigned char>("uchar", {0, 128, 255});
  print_elements<short>("short", {-32768, 32767});
  print_elements<unsigned short>("ushort", {65535, 7});
  print_elements<int>("int", {-2147483647, 5});
  print_elements<unsigned>("uint", {4294967295u, 5});
  print_elements<float>("float", {1.5f, -0.1f});
  print_elements<__half, float>("half", {__float2half(1.5f), __float2half(-0.1f)},
                                cudaCreateChannelDescHalf());
  constexpr auto normalize = cudaReadModeNormalizedFloat;
  print_elements<signed char, float>("char,n", {-128, -127, 0, 127},
                                     cudaCreateChannelDesc<signed char>(), normalize);
  print_elements<unsigned char, float>("uchar,n", {0, 51, 255},
                                       cudaCreateChannelDesc<unsigned char>(), normalize);
  print_elements<short, float>("short,n", {-32768, -32767, 32767}, cudaCreateChannelDesc<short>(),
                               normalize);
  print_elements<unsigned short, float>("ushort,n", {65535, 13107},
                                        cudaCreateChannelDesc<unsigned short>(), normalize);
  const auto vectors = elements<short4>({{1, -2, 3, -4}}, cudaCreateChannelDesc<short4>());
  const auto pairs = elements<uchar2, float2>({{255, 51}}, cudaCreateChannelDesc<uchar2>(),
                                              cudaReadModeNormalizedFloat);
  printf("vectors %d %d %d %d %g %g %d\n", vectors[1].x, vectors[1].y, vectors[1].z, vectors[1].w,
         pairs[1].x, pairs[1].y, vectors[2].w);
}

void surfaces() {
  const auto format = cudaCreateChannelDesc<int>();
  cudaArray_t array, plain;
  CHECK(cudaMallocArray(&array, &format, 4, 3, cudaArraySurfaceLoadStore));
  CHECK(cudaMallocArray(&plain, &format, 4, 3));
  const cudaResourceDesc resource = of(array), other = of(plain);
  cudaSurfaceObject_t surface;
  CHECK(cudaCreateSurfaceObject(&surface, &resource));
  int* read = device<int>(12);
  add_border<<<1, dim3(4, 3)>>>(surface, read);
  printf("surface");
  for (int v : on_host(read, 12)) printf(" %d", v);
  printf("\n");
  CHECK(cudaDestroySurfaceObject(surface));

  cudaSurfaceObject_t none;
  printf("errors %s", cudaGetErrorName(cudaCreateSurfaceObject(&none, &other)));
  cudaTextureObject_t texture;
  const cudaTextureDesc linear = description(cudaFilterModeLinear, cudaAddressModeClamp, false);
  printf(" %s", cudaGetErrorName(cudaCreateTextureObject(&texture, &resource, &linear, nullptr)));
  cudaResourceDesc odd = {};
  odd.resType = cudaResourceTypeLinear;
  odd.res.linear.devPtr = read + 1;
  odd.res.linear.desc = format;
  odd.res.linear.sizeInBytes = 16;
  const cudaTextureDesc point = {};
  printf(" %s", cudaGetErrorName(cudaCreateTextureObject(&texture, &odd, &point, nullptr)));
  printf(" %s", cudaGetErrorName(
                    cudaMemcpy2DToArray(array, 4, 0, read, 16, 16, 3, cudaMemcpyDeviceToDevice)));
  printf(" %s\n", cudaGetErrorName(cudaDestroyTextureObject(12345)));
  cudaGetLastError();
  CHECK(cudaFreeArray(array));
  CHECK(cudaFreeArray(plain));
  CHECK(cudaFree(read));
}

// What a GPU answers with any value, or with a fault.
void fault(const char* what) {
  const auto format = cudaCreateChannelDesc<float>();
  cudaArray_t array;
  CHECK(cudaMallocArray(&array, &format, 4, 3, cudaArraySurfaceLoadStore));
  cudaResourceDesc resource = of(array);
  cudaSurfaceObject_t surface;
  CHECK(cudaCreateSurfaceObject(&surface, &resource));
  const cudaTextureDesc point = {};
  cudaTextureObject_t texture, linear;
  CHECK(cudaCreateTextureObject(&texture, &resource, &point, nullptr));
  float* memory = device<float>(4);
  CHECK(cudaMemset(memory, 0, 16));
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = memory;
  resource.res.linear.desc = cudaCreateChannelDesc<unsigned char>();
  resource.res.linear.sizeInBytes = 20;  // more than there is
  CHECK(cudaCreateTextureObject(&linear, &resource, &point, nullptr));
  switch (what[0]) {
    case 'o':
      leave<<<1, 4>>>(surface);
      break;
    case 'c':
      sample_2d<<<1, 1>>>(texture, device<float2>(1), device<float2>(1));
      break;
    case 'i':
      fetch<<<1, 1>>>(linear, memory);
      break;
    case 'b':
      fetch<<<1, 20>>>(linear, device<unsigned char>(20));
      break;
    case 't':
      sample_1d<<<1, 1>>>(texture, 1, memory);
      break;
    case 'd':
      CHECK(cudaDestroyTextureObject(texture));
      sample_1d<<<1, 1>>>(texture, 1, memory);
  }
  CHECK(cudaDeviceSynchronize());
}

int main(int argc, char** argv) {
  if (argc > 1) {
    fault(argv[1]);
    return 0;
  }
  one_dimension();
  two_dimensions();
  more_dimensions();
  types();
  surfaces();
}
