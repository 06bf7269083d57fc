#include "trace/fingerprint.h"

namespace stalloc::trace {
namespace {

class Fnv1a128 {
 public:
  void add(std::int64_t number) {
    auto bits = static_cast<std::uint64_t>(number);
    for (int i = 0; i < 8; ++i, bits >>= 8) state_ = (state_ ^ (bits & 0xff)) * kPrime;
  }

  std::string hex() const {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string result;
    for (int shift = 124; shift >= 0; shift -= 4) {
      result += kDigits[static_cast<std::size_t>(state_ >> shift) & 0xf];
    }
    return result;
  }

 private:
  using State = unsigned __int128;

  static constexpr State kPrime = (State{1} << 88) + 0x13b;
  static constexpr State kBasis = (State{0x6c62272e07bb0142} << 64) + 0x62b821756295c58d;

  State state_ = kBasis;
};

}  // namespace

std::string fingerprint(const Trace& trace) {
  Fnv1a128 hash;
  hash.add(trace.end);
  hash.add(static_cast<std::int64_t>(trace.iterations.size()));
  for (const Tick tick : trace.iterations) hash.add(tick);
  hash.add(static_cast<std::int64_t>(trace.phases.size()));
  for (const PhaseSpan& s : trace.phases) {
    hash.add(static_cast<std::int64_t>(s.key.kind));
    for (const std::int32_t n : {s.key.microbatch, s.key.chunk, s.key.occurrence}) hash.add(n);
    hash.add(s.begin);
    hash.add(s.end);
  }
  hash.add(static_cast<std::int64_t>(trace.requests.size()));
  for (const Request& r : trace.requests) {
    hash.add(r.size);
    hash.add(r.lower);
    hash.add(r.upper == kNever ? kNone : r.upper);
    hash.add(r.phase_begin.number());
    hash.add(r.phase_end.number());
    hash.add(r.stream);
    hash.add(r.thread);
    hash.add(r.dynamic ? 1 : 0);
  }
  if (!trace.extents.empty()) {
    hash.add(static_cast<std::int64_t>(trace.extent_names.size()));
    for (const std::string& name : trace.extent_names) {
      hash.add(static_cast<std::int64_t>(name.size()));
      for (const char c : name) hash.add(static_cast<unsigned char>(c));
    }
    hash.add(static_cast<std::int64_t>(trace.extents.size()));
    for (const MicrobatchExtents& e : trace.extents) {
      hash.add(e.phase.number());
      for (const std::int64_t value : e.values) hash.add(value);
    }
  }
  return hash.hex();
}

}  // namespace stalloc::trace
