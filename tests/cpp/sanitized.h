// Fewer repetitions under a sanitizer, which is slow: the optimised build does them all.
#pragma once

namespace stalloc::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// `count`, or a quarter of it.
constexpr unsigned repetitions(unsigned count) { return kSanitized ? (count + 3) / 4 : count; }

}  // namespace stalloc::testing
