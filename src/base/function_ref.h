// A borrowed callable: what std::function is, without owning or allocating.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace m3 {

template <typename Signature>
class FunctionRef;

// Valid while the callable it was made from lives; a temporary lambda as an argument lives for the call.
template <typename Result, typename... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <typename Callable>
    requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>)
  FunctionRef(Callable&& callable)  // NOLINT(google-explicit-constructor): callers pass lambdas
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Arguments... arguments) -> Result {
          return (*static_cast<std::remove_reference_t<Callable>*>(object))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const { return call_(object_, std::forward<Arguments>(arguments)...); }

 private:
  void* object_;
  Result (*call_)(void*, Arguments...);
};

}  // namespace m3
