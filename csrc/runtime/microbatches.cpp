#include "runtime/microbatches.h"

#include <algorithm>
#include <utility>

#include "profile/derived_extent.h"

namespace stalloc::runtime {

Microbatches::Row Microbatches::row_of(std::span<const std::string> names,
                                       std::span<const std::int64_t> values) {
  if (!std::ranges::equal(names, told_names_)) {
    told_names_.assign(names.begin(), names.end());
    largest_.assign(values.begin(), values.end());
    for (std::size_t i = 0; i < told_names_.size(); ++i) {
      const auto profiled = fixed_.find(told_names_[i]);
      if (profiled != fixed_.end()) largest_[i] = std::max(largest_[i], profiled->second);
    }
    sources_.clear();
    for (std::size_t p = 0; p < names_.size(); ++p) {
      const profile::DerivedExtent extent = profile::parse_extent(names_[p]);
      const auto at = std::ranges::find(told_names_, extent.base);
      if (at == told_names_.end()) continue;
      sources_.push_back({static_cast<std::size_t>(at - told_names_.begin()), p, extent.form});
      largest_[sources_.back().told] = kNone;
    }
  }
  Row row;
  row.extents = unknown_;
  for (const Source& s : sources_) {
    row.extents[s.planned] = s.form.of(values[s.told]);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (largest_[i] == kNone) continue;
    largest_[i] = std::max(largest_[i], values[i]);
    if (values[i] > 0 && values[i] < largest_[i]) row.shares.push_back({values[i], largest_[i]});
  }
  return row;
}

void Microbatches::set(std::span<const std::string> names, std::span<const std::int64_t> values) {
  Row row = row_of(names, values);
  if (waits_) {
    row.microbatch = latest_.microbatch;
    row.chunk = latest_.chunk;
    take(std::move(row));
  } else {
    next_ = std::move(row);
    has_next_ = true;
  }
}

void Microbatches::take(Row row) {
  waits_ = false;
  told_ = true;
  latest_ = row;
  now_ = &latest_;
  const auto same = std::ranges::find_if(in_flight_, [&](const Row& r) {
    return r.microbatch == row.microbatch && r.chunk == row.chunk;
  });
  if (same != in_flight_.end()) {
    *same = std::move(row);
  } else {
    in_flight_.push_back(std::move(row));
  }
}

void Microbatches::enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk) {
  const bool told_ahead = std::exchange(has_next_, false);
  waits_ = false;
  now_ = &latest_;
  if (kind == trace::PhaseKind::kForward) {
    told_ = false;
    if (told_ahead) {
      next_.microbatch = microbatch;
      next_.chunk = chunk;
      take(std::exchange(next_, Row{}));
      return;
    }
    // Extents may be reported for a microbatch's first chunk only.
    const auto known = std::ranges::find(in_flight_, microbatch, &Row::microbatch);
    if (known != in_flight_.end()) {
      latest_ = *known;
      told_ = true;
      return;
    }
    latest_.microbatch = microbatch;
    latest_.chunk = chunk;
    latest_.extents = unknown_;
    latest_.shares.clear();
    waits_ = true;
  } else if (kind == trace::PhaseKind::kBackward) {
    const Row* found = nullptr;
    for (const Row& r : in_flight_) {
      if (r.microbatch == microbatch && (!found || r.chunk == chunk)) found = &r;
    }
    if (found) now_ = found;
  }
}

}  // namespace stalloc::runtime
