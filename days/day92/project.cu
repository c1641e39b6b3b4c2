// Day 92: projecting 3D Gaussians
//
//   Σ = R diag(s)² Rᵀ     R: rotation of a quaternion, s: scales      means, scales: (n, 3)
//   Σ' = J V Σ Vᵀ Jᵀ + 0.3 I     V: the camera's rotation, J: derivative of the projection
//   form(d) = ½ log₂e · dᵀ Σ'⁻¹ d = a dx² + b dx dy + c dy²      level = log₂(255 · opacity)
//
//   splats: (n, 8) = x, y, a, b, c, level, half the width and half the height of the box
//
// Bytes per Gaussian: 44 read, 36 written. About 150 operations.
//
// Run: python run_day.py 92

#include "common/cuda/binding.cuh"  // taught in day 6
#include "common/cuda/tensor.cuh"   // taught in days 6 and 12

#include <cmath>
#include <limits>
#include <tuple>

namespace {

constexpr int THREADS = 256;
constexpr float NEAR = 0.2f;     // what is nearer to the camera, or behind it, is not drawn
constexpr float BLUR = 0.3f;     // pixels²: added to Σ', or a thin splat would miss all centres
constexpr float OUTSIDE = 1.3f;  // J is taken no further out than 1.3 times the image's border
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

struct Camera {
  const float* view;  // (3, 4): rotation and translation
  float fx, fy;       // focal lengths, in pixels
  float width, height;
};

struct Vector {
  float x, y, z;
};

__device__ float dot(const Vector& a, const Vector& b) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, a.z * b.z));
}

// scale · (a - share · b)
__device__ Vector difference(float scale, const Vector& a, float share, const Vector& b) {
  return {scale * fmaf(-share, b.x, a.x), scale * fmaf(-share, b.y, a.y),
          scale * fmaf(-share, b.z, a.z)};
}

// Σ' and its determinant, from the rows u and v of J V R diag(s): Σ' = (u, v)(u, v)ᵀ + 0.3 I.
struct Covariance {
  float xx, xy, yy, determinant;
};

// The determinant is |u × v|² + 0.3 (u² + v²) + 0.09: xx · yy - xy² would cancel in a thin ellipse.
__device__ Covariance covariance_of(const Vector& u, const Vector& v) {
  const float uu = dot(u, u), vv = dot(v, v);
  const Vector cross = {u.y * v.z - u.z * v.y, u.z * v.x - u.x * v.z, u.x * v.y - u.y * v.x};
  return {uu + BLUR, dot(u, v), vv + BLUR, dot(cross, cross) + BLUR * (uu + vv) + BLUR * BLUR};
}

__global__ void __launch_bounds__(THREADS)
    project_kernel(const float* __restrict__ means, const float* __restrict__ quaternions,
                   const float* __restrict__ scales, const float* __restrict__ opacities,
                   const Camera camera, float4* __restrict__ splats, float* __restrict__ depths,
                   int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * THREADS + threadIdx.x;
  if (i >= n) return;
  const float* const V = camera.view;
  const float mx = means[3 * i], my = means[3 * i + 1], mz = means[3 * i + 2];
  const auto seen = [&](int row) {  // the mean's coordinate in the camera's space
    const float* const r = V + 4 * row;
    return fmaf(r[0], mx, fmaf(r[1], my, fmaf(r[2], mz, r[3])));
  };
  const float z = seen(2), across = seen(0) / z, down = seen(1) / z;

  float qw = quaternions[4 * i], qx = quaternions[4 * i + 1], qy = quaternions[4 * i + 2],
        qz = quaternions[4 * i + 3];
  const float shrink = 1.0f / sqrtf(qw * qw + qx * qx + qy * qy + qz * qz);
  qw *= shrink, qx *= shrink, qy *= shrink, qz *= shrink;
  const Vector columns[3] = {
      // of R
      {1 - 2 * (qy * qy + qz * qz), 2 * (qx * qy + qw * qz), 2 * (qx * qz - qw * qy)},
      {2 * (qx * qy - qw * qz), 1 - 2 * (qx * qx + qz * qz), 2 * (qy * qz + qw * qx)},
      {2 * (qx * qz + qw * qy), 2 * (qy * qz - qw * qx), 1 - 2 * (qx * qx + qy * qy)}};
  const float sx = scales[3 * i], sy = scales[3 * i + 1], sz = scales[3 * i + 2];
  const auto row_of = [&](int row) -> Vector {  // of V R diag(s)
    const Vector r = {V[4 * row], V[4 * row + 1], V[4 * row + 2]};
    return {sx * dot(r, columns[0]), sy * dot(r, columns[1]), sz * dot(r, columns[2])};
  };
  // x' = fx x / z: its derivatives are fx / z in x and -fx x / z² in z.
  const float limit_x = OUTSIDE * 0.5f * camera.width / camera.fx;
  const float limit_y = OUTSIDE * 0.5f * camera.height / camera.fy;
  const Vector forward = row_of(2);
  const Vector u =
      difference(camera.fx / z, row_of(0), fminf(fmaxf(across, -limit_x), limit_x), forward);
  const Vector v =
      difference(camera.fy / z, row_of(1), fminf(fmaxf(down, -limit_y), limit_y), forward);
  const Covariance s = covariance_of(u, v);

  const float strength = 255.0f * opacities[i];  // below 1 / 255, alpha is not seen
  const float level = log2f(strength), half = 0.5f * LOG2_E / s.determinant;
  float4 first =
      make_float4(fmaf(camera.fx, across, 0.5f * camera.width),
                  fmaf(camera.fy, down, 0.5f * camera.height), half * s.yy, -2.0f * half * s.xy);
  float4 second = make_float4(half * s.xx, level, sqrtf(2.0f * LN_2 * level * s.xx),
                              sqrtf(2.0f * LN_2 * level * s.yy));
  const float largest = std::numeric_limits<float>::max();
  const auto finite = [&](const float4& f) {
    return fabsf(f.x) <= largest && fabsf(f.y) <= largest && fabsf(f.z) <= largest &&
           fabsf(f.w) <= largest;
  };
  const bool drawn = z > NEAR && strength > 1.0f && finite(first) && finite(second);
  if (!drawn) {
    first = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    second = make_float4(0.0f, -1.0f, -1.0f, -1.0f);
  }
  splats[2 * i] = first;
  splats[2 * i + 1] = second;
  depths[i] = drawn ? z : 0.0f;
}

}  // namespace

std::tuple<Tensor, Tensor> splat_project(const Tensor& means, const Tensor& quaternions,
                                         const Tensor& scales, const Tensor& opacities,
                                         const Tensor& view, double fx, double fy, int64_t width,
                                         int64_t height) {
  check(means, "means").on_gpu().dtype({ScalarType::Float}).rank(2).size(1, 3).contiguous();
  const int64_t n = means.size(0);
  const auto check_like = [&](const Tensor& t, const char* name, int64_t columns) {
    check(t, name).on_gpu().dtype({ScalarType::Float}).rank(columns ? 2 : 1).size(0, n);
    if (columns) check(t, name).size(1, columns);
    check(t, name).contiguous().same_device(means, "means");
  };
  check_like(quaternions, "quaternions", 4);
  check_like(scales, "scales", 3);
  check_like(opacities, "opacities", 0);
  check(view, "view").on_gpu().dtype({ScalarType::Float}).rank(2).size(0, 3).size(1, 4);
  check(view, "view").contiguous().same_device(means, "means");
  const auto check_number = [](double value, double most, const char* name) {
    STD_TORCH_CHECK(value > 0 && value <= most, name, ": expected more than 0 and at most ", most,
                    ", got ", value);
  };
  check_number(fx, 1e6, "fx");
  check_number(fy, 1e6, "fy");
  check_number(static_cast<double>(width), 32768, "width");
  check_number(static_cast<double>(height), 32768, "height");
  const DeviceGuard guard(means);
  Tensor splats = allocate(means, {n, 8});
  Tensor depths = allocate(means, {n});
  if (n == 0) return {splats, depths};
  const Camera camera = {data<float>(view), static_cast<float>(fx), static_cast<float>(fy),
                         static_cast<float>(width), static_cast<float>(height)};
  project_kernel<<<grid_size(ceil_div<int64_t>(n, THREADS), "means"), THREADS, 0,
                   current_stream(means)>>>(data<float>(means), data<float>(quaternions),
                                            data<float>(scales), data<float>(opacities), camera,
                                            reinterpret_cast<float4*>(mutable_data<float>(splats)),
                                            mutable_data<float>(depths), n);
  check_launch("splat_project");
  return {splats, depths};
}

RUNG(day92, splat_project,
     "(Tensor means, Tensor quaternions, Tensor scales, Tensor opacities, Tensor view, float fx, "
     "float fy, int width, int height) -> (Tensor, Tensor)");
