// The translation of `kernel<<<grid, block, shared, stream>>>(arguments)`.
#pragma once

#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "cudacpu/thread.h"

// A kernel's name as written, with macros expanded: inside a macro, `kernel` may be its parameter.
#define CUDACPU_TEXT(...) CUDACPU_TEXT_AGAIN(__VA_ARGS__)
#define CUDACPU_TEXT_AGAIN(...) #__VA_ARGS__

// First line of every kernel. The first thread of a launch on each OS thread reports which kernel
// it is in: the launch itself may not know, for template arguments can have been deduced. After the
// address and the limit on threads come the extents of __cluster_dims__, where the kernel has them.
#define CUDACPU_ENTRY(address, max_threads, ...)                                                   \
  if (::cudacpu::entry_pending) [[unlikely]]                                                       \
    ::cudacpu::enter_kernel(::cudacpu::kernel_type<address>(), __PRETTY_FUNCTION__, (max_threads), \
                            dim3{__VA_ARGS__});

namespace cudacpu {

struct LaunchSite {
  const char* kernel;  // as written; null if unknown
  const char* file;
  int line;
};

struct Configuration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  cudaStream_t stream = nullptr;
  bool cooperative =
      false;  // all blocks are resident at once, so that they may wait for each other
  dim3 cluster = {1, 1, 1};   // blocks that are resident together and share their shared memory
  bool programmatic = false;  // it may begin before the kernel in front of it has ended
};

// The type of a kernel's parameter, or of the argument given for it, as far as the runtime can make
// one from the other.
enum class ArgumentKind : uint8_t { kBool, kSigned, kUnsigned, kFloat, kPointer, kNull, kOther };
struct ArgumentType {
  ArgumentKind kind;
  size_t bytes;
  size_t alignment;
  const std::type_info* type;
};

template <class T>
constexpr ArgumentKind argument_kind() {
  if constexpr (std::is_enum_v<T>)
    return argument_kind<std::underlying_type_t<T>>();
  else if constexpr (std::is_same_v<T, bool>)
    return ArgumentKind::kBool;
  else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>)
    return ArgumentKind::kFloat;
  else if constexpr (std::is_integral_v<T> && sizeof(T) <= 8)
    return std::is_signed_v<T> ? ArgumentKind::kSigned : ArgumentKind::kUnsigned;
  else if constexpr (std::is_null_pointer_v<T>)
    return ArgumentKind::kNull;
  else
    return std::is_pointer_v<T> ? ArgumentKind::kPointer : ArgumentKind::kOther;
}
template <class T>
constexpr ArgumentType argument_type() {
  return {argument_kind<T>(), sizeof(T), alignof(T), &typeid(T)};
}

// The type of a kernel, which its address alone does not give. Every kernel that is instantiated
// registers its type when its library is loaded, for nodes of graphs, which get an address and
// untyped arguments.
struct KernelType {
  const void* address;
  void (*call)(void** arguments);
  const ArgumentType* parameters;
  const bool* references;  // of each parameter: a reference to what a kernel may change
  size_t count;
  bool by_address;  // to be called by `call`: it has such a parameter, or an object's
};

// A parameter with constructors or a destructor of its own, which no thread of a kernel runs: each
// has the bytes of the argument.
template <class P>
constexpr bool is_object =
    (std::is_class_v<P> || std::is_union_v<P>) &&
    !(std::is_trivially_copy_constructible_v<P> && std::is_trivially_move_constructible_v<P> &&
      std::is_trivially_destructible_v<P>);
template <class P>
constexpr bool is_reference_to_change =
    std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>;

// A thread's own copy of an object, passed by its address, as compilers do (Itanium C++ ABI, 3.1).
template <class P, bool object = is_object<P>>
struct Passed {
  using Type = P*;
  alignas(P) unsigned char bytes[sizeof(P)];
  explicit Passed(const void* argument) { __builtin_memcpy(bytes, argument, sizeof bytes); }
  Type get() { return reinterpret_cast<P*>(bytes); }
};
template <class P>
struct Passed<P, false> {
  using Type = P;
  std::remove_reference_t<P>* argument;
  explicit Passed(void* given) : argument(static_cast<std::remove_reference_t<P>*>(given)) {}
  Type get() { return static_cast<P>(*argument); }
};
struct KnownKernel : KernelType {
  explicit KnownKernel(const KernelType& type);
};

template <auto kernel>
struct KernelTypeOf;
template <class... P, void (*kernel)(P...)>
struct KernelTypeOf<kernel> {
  template <size_t... I>
  static void call_with(void** arguments, std::index_sequence<I...>) {
    if constexpr ((is_object<P> || ...)) {
      auto* by_address = reinterpret_cast<void (*)(typename Passed<P>::Type...)>(kernel);
      asm("" : "+r"(by_address));  // the compiler is not to know that the types differ
      std::tuple<Passed<P>...> passed{Passed<P>(arguments[I])...};
      by_address(std::get<I>(passed).get()...);
    } else {
      kernel(*static_cast<std::remove_cv_t<std::remove_reference_t<P>>*>(arguments[I])...);
    }
  }
  static void call(void** arguments) { call_with(arguments, std::index_sequence_for<P...>{}); }
  static inline const ArgumentType parameters[] = {
      argument_type<std::remove_cv_t<std::remove_reference_t<P>>>()...,
      argument_type<std::nullptr_t>()};
  static inline const bool references[] = {is_reference_to_change<P>..., false};
  static inline const KnownKernel type{
      KernelType{reinterpret_cast<const void*>(kernel), &call, parameters, references, sizeof...(P),
                 ((is_object<P> || is_reference_to_change<P>) || ...)}};
};

// Null for a kernel that cannot name itself.
template <auto kernel>
const KernelType* kernel_type() {
  if constexpr (std::is_null_pointer_v<decltype(kernel)>)
    return nullptr;
  else
    return &KernelTypeOf<kernel>::type;
}

extern CUDACPU_THREAD_LOCAL bool entry_pending;
void enter_kernel(const KernelType* type, const char* signature, unsigned max_threads,
                  dim3 cluster);

// End the thread that ran before and make the next one current. False when this fiber should
// return to the scheduler, because no thread is left to start or others should run first.
bool next_thread();

// Report the C++ exception that left the kernel, and end the launch.
void thread_threw();

// The operations on a call: a kernel together with the arguments of a launch.
struct CallType {
  void (*loop)(void* call);  // calls the kernel once for each thread that next_thread() gives it
  size_t bytes;
  void* (*copy)(const void* call);
  void (*destroy)(void* call);
  void (*find_arguments)(void* call, void** arguments);
  // What the arguments are copies of; null for a value that had no place.
  void* const* (*originals)(void* call);
  const ArgumentType* arguments;
  size_t count;
};

// Run the whole grid, or keep a copy of the call in a graph if the stream is being captured.
cudaError_t run_grid(const LaunchSite& site, const Configuration& config, const CallType& type,
                     void* call);

template <class Function, class... A>
struct Call {
  Function function;
  std::tuple<A...> arguments;
  void* originals[sizeof...(A) + 1];

  // (Not std::apply, which takes a compiler longer.)
  template <size_t... I>
  void run(std::index_sequence<I...>) {
    function(std::get<I>(arguments)...);
  }
  template <size_t... I>
  void find(void** found, std::index_sequence<I...>) {
    ((found[I] = const_cast<void*>(static_cast<const void*>(&std::get<I>(arguments)))), ...);
  }

  static void loop(void* self) {
    auto& call = *static_cast<Call*>(self);
    while (next_thread()) {
      try {
        call.run(std::index_sequence_for<A...>{});
      } catch (...) {
        thread_threw();
      }
    }
  }
  // As bytes, as a GPU keeps the arguments of a launch: their constructors and destructors have
  // run.
  static void* copy(const void* self) {
    void* bytes = operator new(sizeof(Call), std::align_val_t{alignof(Call)});
    return __builtin_memcpy(bytes, self, sizeof(Call));
  }
  static void destroy(void* self) { operator delete(self, std::align_val_t{alignof(Call)}); }
  static void find_arguments(void* self, void** found) {
    static_cast<Call*>(self)->find(found, std::index_sequence_for<A...>{});
  }
  static void* const* find_originals(void* self) { return static_cast<Call*>(self)->originals; }
  static inline const ArgumentType types[] = {argument_type<A>()...,
                                              argument_type<std::nullptr_t>()};
  static inline const CallType type{&loop,           sizeof(Call),    &copy, &destroy,
                                    &find_arguments, &find_originals, types, sizeof...(A)};
};

// Arguments of a launch whose type their parameter decides (launches.py).

// NULL: a null pointer or the number.
struct Null {
  template <class T>
  operator T*() const {
    return nullptr;
  }
  operator int() const { return 0; }
};
// A literal 0.
struct Zero : Null {};

template <class T>
struct TypeOf {
  using type = T;
};

// {a, b}: `make` returns it as the type that it is given.
template <class Make>
struct Braced {
  Make make;
  template <class T>
  operator T() const {
    return make(TypeOf<T>{});
  }
};
template <class Make>
Braced<Make> braced(Make make) {
  return {std::move(make)};
}

template <class Function>
class Launcher {
 public:
  Launcher(const LaunchSite& site, Function function, const Configuration& config)
      : site_(site), function_(std::move(function)), config_(config) {}

  // The arguments are evaluated once and copied, as a launch copies them to the device.
  template <class... A>
  void operator()(A&&... arguments) const {
    launch(std::forward<A>(arguments)...);
  }
  template <class... A>
  cudaError_t launch(A&&... arguments) const {
    using Arguments = std::tuple<std::decay_t<A>...>;
    Call<Function, std::decay_t<A>...> call{
        function_,
        Arguments(std::forward<A>(arguments)...),
        {(std::is_lvalue_reference_v<A>
              ? const_cast<void*>(static_cast<const volatile void*>(std::addressof(arguments)))
              : nullptr)...,
         nullptr}};
    return run_grid(site_, config_, call.type, &call);
  }

 private:
  LaunchSite site_;
  Function function_;
  Configuration config_;
};

template <class Function>
Launcher<Function> launcher(const LaunchSite& site, Function function, dim3 grid, dim3 block,
                            size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
  return Launcher<Function>(site, std::move(function),
                            Configuration{grid, block, shared_bytes, stream});
}

// Convert a `0` among the arguments: to an int if the kernel `Fits` it, as a template does that
// deduces a type, else to a Zero, as a pointer needs it.
inline int as_int(Zero) {
  return 0;
}
template <class T>
T&& as_int(T&& argument) {
  return std::forward<T>(argument);
}
template <class Fits, class Function>
struct ZeroLauncher {
  Launcher<Function> launcher;
  template <class... A>
  void operator()(A&&... arguments) const {
    if constexpr (std::is_invocable_v<Fits, std::decay_t<decltype(as_int(arguments))>&...>)
      launcher(as_int(std::forward<A>(arguments))...);
    else
      launcher(std::forward<A>(arguments)...);
  }
};
template <class Fits, class Function>
struct IntOrZero {
  Function function;
};
template <class Fits, class Function>
IntOrZero<Fits, Function> int_or_zero(Fits, Function function) {
  return {std::move(function)};
}
template <class Fits, class Function>
ZeroLauncher<Fits, Function> launcher(const LaunchSite& site, IntOrZero<Fits, Function> kernel,
                                      dim3 grid, dim3 block, size_t shared_bytes = 0,
                                      cudaStream_t stream = nullptr) {
  return {launcher(site, std::move(kernel.function), grid, block, shared_bytes, stream)};
}

// Return the error with which a GPU would refuse this cooperative launch, and set it as the last
// error; cudaSuccess if it would not.
cudaError_t check_cooperative(const void* kernel, const Configuration& config);

namespace detail {
template <class... P, size_t... I>
cudaError_t launch_pointers(Site site, void (*kernel)(P...), const Configuration& config,
                            void** arguments, std::index_sequence<I...>) {
  auto call = [=](auto&... a) { kernel(a...); };
  return Launcher<decltype(call)>({nullptr, site.file, site.line}, call, config)
      .launch(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
}
}  // namespace detail

// The rewriter puts the place of the call in front of the arguments of these functions.
template <class... P>
cudaError_t cudaLaunchKernel(Site site, void (*kernel)(P...), dim3 grid, dim3 block,
                             void** arguments, size_t shared_bytes = 0,
                             cudaStream_t stream = nullptr) {
  return detail::launch_pointers(site, kernel, {grid, block, shared_bytes, stream}, arguments,
                                 std::index_sequence_for<P...>{});
}
template <class... P>
cudaError_t cudaLaunchCooperativeKernel(Site site, void (*kernel)(P...), dim3 grid, dim3 block,
                                        void** arguments, size_t shared_bytes = 0,
                                        cudaStream_t stream = nullptr) {
  Configuration config{grid, block, shared_bytes, stream, true};
  cudaError_t status = check_cooperative(reinterpret_cast<const void*>(kernel), config);
  if (status != cudaSuccess) return status;
  return detail::launch_pointers(site, kernel, config, arguments, std::index_sequence_for<P...>{});
}

// Put `cooperative`, the extents of a cluster and programmatic dependence into `config`.
// Attributes that only tune the launch have no meaning here.
void read_attributes(const cudaLaunchConfig_t& from, Configuration& config);

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(Site site, const cudaLaunchConfig_t* from, void (*kernel)(P...),
                               A&&... arguments) {
  Configuration config{from->gridDim, from->blockDim, from->dynamicSmemBytes, from->stream};
  read_attributes(*from, config);
  if (config.cooperative) {
    cudaError_t status = check_cooperative(reinterpret_cast<const void*>(kernel), config);
    if (status != cudaSuccess) return status;
  }
  auto call = [=](auto&... a) { kernel(a...); };
  return Launcher<decltype(call)>({nullptr, site.file, site.line}, call, config)
      .launch(static_cast<std::remove_cv_t<P>>(std::forward<A>(arguments))...);
}

cudaError_t cudaGraphAddKernelNode(Site site, cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, size_t count,
                                   const cudaKernelNodeParams* parameters);

}  // namespace cudacpu
