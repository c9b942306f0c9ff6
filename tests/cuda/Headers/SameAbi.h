// SPDX-License-Identifier: MIT

// Compares our own declarations with those of NVIDIA's headers, in static
// assertions. Each .cpp file here includes one header of NVIDIA, then this
// header, then our declarations, which are in namespace qlora. headers.py
// compiles the files and checks that their lists are complete.
//
// Types may differ: our declarations use integers for enumerations, and only
// forward-declare descriptors. The ABI of a call must be equal:
//   * the number, order, size and sign of arguments;
//   * the target type of a pointer, and whether the call writes to it.
// Handles are compared by name.

#ifndef QLORA_TESTS_CUDA_HEADERS_SAMEABI_H
#define QLORA_TESTS_CUDA_HEADERS_SAMEABI_H

#include <cstddef>
#include <string_view>
#include <type_traits>

namespace qlora::abi {

/// Returns the name of a type without our namespace.
template <typename T> constexpr std::string_view nameOf() {
  std::string_view name = __PRETTY_FUNCTION__;
  constexpr std::string_view kBefore = "T = ", kOurs = "qlora::";
  name.remove_prefix(name.find(kBefore) + kBefore.size());
  name = name.substr(0, name.find_first_of(";]"));
  return name.starts_with(kOurs) ? name.substr(kOurs.size()) : name;
}

/// Returns "CUstream_st", without our namespace and the _t of some headers.
template <typename T> constexpr std::string_view handleName() {
  const std::string_view name = nameOf<T>();
  return name.ends_with("_t") ? name.substr(0, name.size() - 2) : name;
}

/// Handles, whose contents we do not access, are compared by name. Other
/// structs are equal after QLORA_SAME_STRUCT has compared them.
template <typename Ours, typename Theirs>
inline constexpr bool isSameClass = handleName<Ours>() == handleName<Theirs>();

template <typename Ours, typename Theirs> constexpr bool isSame() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using To = std::remove_pointer_t<Ours>;
    using ToTheirs = std::remove_pointer_t<Theirs>;
    return std::is_const_v<To> == std::is_const_v<ToTheirs> &&
           isSame<std::remove_const_t<To>, std::remove_const_t<ToTheirs>>();
  } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
    return isSameClass<Ours, Theirs>;
  } else if constexpr (std::is_integral_v<Ours> && std::is_enum_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_integral_v<Ours> &&
                       std::is_integral_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) &&
           std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
  }
  return false;
}

template <typename Ours, typename Theirs>
inline constexpr bool isSameFunction = false;
template <typename Result, typename... Parameters, typename TheirResult,
          typename... TheirParameters>
  requires(sizeof...(Parameters) == sizeof...(TheirParameters))
inline constexpr bool isSameFunction<Result(Parameters...),
                                     TheirResult(TheirParameters...)> =
    isSame<Result, TheirResult>() &&
    (isSame<Parameters, TheirParameters>() && ...);

} // namespace qlora::abi

/// Expands to the text of an argument after macro expansion.
#define QLORA_EXPANDED(...) #__VA_ARGS__
#define QLORA_EXPAND(...) QLORA_EXPANDED(__VA_ARGS__)

/// Compares our declaration of a function with the header's. `Name` is the
/// string that the runtime looks up, and spells `Symbol`. If the header has a
/// newer version of the function, `Symbol` is a macro for the newer name. The
/// expanded `Symbol` then differs from `Name`.
#define QLORA_SAME_FUNCTION(Name, Symbol, Result, Parameters)                  \
  static_assert(std::string_view(Name) == QLORA_EXPAND(Symbol),                \
                Name ": the header has a newer version");                      \
  static_assert(                                                               \
      qlora::abi::isSameFunction<Result Parameters, decltype(::Symbol)>,       \
      Name ": not the parameters of the header");

/// Compares a function whose pointer is a member of ours.
#define QLORA_SAME_MEMBER(Member, Symbol)                                      \
  static_assert(qlora::abi::isSameFunction<                                    \
                    std::remove_pointer_t<decltype(Member)>,                   \
                    decltype(::Symbol)>,                                       \
                #Symbol ": not the parameters of the header");

#define QLORA_SAME_CONSTANT(Ours, Theirs)                                      \
  static_assert(static_cast<long long>(Ours) ==                                \
                    static_cast<long long>(Theirs),                            \
                #Ours ": not the value of " #Theirs)
/// Compares a row of a list of (our name, value, their name).
#define QLORA_SAME_ROW(Ours, Value, Theirs) QLORA_SAME_CONSTANT(Ours, Theirs);

/// Compares a struct with declared fields. Use QLORA_SAME_FIELD for each field.
#define QLORA_SAME_STRUCT(Type)                                                \
  template <>                                                                  \
  inline constexpr bool abi::isSameClass<qlora::Type, ::Type> = true;          \
  static_assert(sizeof(qlora::Type) == sizeof(::Type) &&                       \
                    alignof(qlora::Type) == alignof(::Type) &&                 \
                    std::is_trivially_copyable_v<qlora::Type>,                 \
                #Type ": not the size and alignment of the header");
#define QLORA_SAME_FIELD(Type, Ours, Theirs)                                   \
  static_assert(                                                               \
      offsetof(qlora::Type, Ours) == offsetof(::Type, Theirs) &&               \
          sizeof(qlora::Type::Ours) == sizeof(::Type::Theirs),                 \
      #Type "::" #Ours ": not the place and size of " #Theirs);

#endif // QLORA_TESTS_CUDA_HEADERS_SAMEABI_H
