#include "runtime/recorder.h"

#include <algorithm>
#include <utility>

namespace stalloc::runtime {

void Recorder::start(Layers layers) {
  const std::lock_guard lock(mutex_);
  trace_ = trace::Trace{};
  trace_.iterations.push_back(0);
  records_.clear();
  live_.clear();
  shared_.clear();
  if (layers == Layers::kForgotten) {
    layers_.clear();
    dynamic_layers_.clear();
  }
  open_layers_.clear();
  tagged_.clear();
  seen_.clear();
  interrupted_.clear();
  order_ = ProgramOrder();
  extent_index_.clear();
  upcoming_extents_.reset();
  wants_extents_ = false;
  span_open_ = false;
  iteration_ = 0;
  clock_ = 0;
  training_thread_.set_to_this_thread();
  active_.store(true, std::memory_order_release);
}

trace::Trace Recorder::finish(const StreamTable* table) {
  const std::lock_guard lock(mutex_);
  if (!active()) return {};
  active_.store(false, std::memory_order_release);
  live_.clear();
  if (span_open_) trace_.phases.back().end = clock_;
  for (const auto& [thread, spans] : open_layers_) {
    for (const trace::LayerSpanIndex span : spans) trace_[span].end = clock_;
  }
  open_layers_.clear();
  for (auto& row : trace_.extents) row.values.resize(trace_.extent_names.size(), kNone);
  if (table) trace_.orders = order_.take(*table, clock_);
  trace_.layers = layers_;
  trace_.end = clock_;
  if (shares_pool()) trace_.info.emplace("shared", "1");
  trace_.requests.reserve(records_.size());
  // One record at a time: the records' chunks are freed while the trace grows.
  for (; !records_.empty(); records_.pop_front()) trace_.requests.push_back(records_.front());
  return std::exchange(trace_, trace::Trace{});
}

void Recorder::abandon() {
  const std::lock_guard lock(mutex_);
  active_.store(false, std::memory_order_release);
}

void Recorder::on_allocate(const void* block, Bytes size, StreamId stream, bool for_training,
                           NodeSequence node) {
  const std::lock_guard lock(mutex_);
  if (!active() || stream == kNone) return;
  trace::Request r;
  r.size = size;
  r.phase_begin = current_span();
  r.lower = clock_++;
  r.layer_begin = current_layer(node);
  r.stream = stream;
  r.thread = for_training || training_thread_.is_this_thread() ? 0 : this_thread_ordinal();
  r.dynamic = r.layer_begin != kNone && dynamic_layers_[r.layer_begin];
  live_[block] = static_cast<std::uint32_t>(records_.size());
  records_.push_back(r);
  order_.note_work(stream, r.lower);
}

void Recorder::on_free(const void* block, NodeSequence node) {
  const std::lock_guard lock(mutex_);
  if (!active()) return;
  const auto it = live_.find(block);
  if (it == live_.end()) return;
  trace::Request& r = records_[it->second];
  live_.erase(it);
  r.phase_end = current_span();
  r.upper = clock_++;
  r.layer_end = current_layer(node);
}

void Recorder::on_share(const void* block) {
  const std::lock_guard lock(mutex_);
  if (!active()) return;
  const auto it = live_.find(block);
  if (it != live_.end()) shared_.push_back(it->second);
}

bool Recorder::shares_pool() const {
  const Tick second = trace_.iterations.size() > 1 ? trace_.iterations[1] : clock_;
  return std::ranges::any_of(shared_, [&](std::uint32_t record) {
    const trace::Request& r = records_[record];
    return r.upper != kNever || r.lower >= second;
  });
}

void Recorder::enter_phase(trace::PhaseKind kind, std::int32_t microbatch, std::int32_t chunk) {
  const std::lock_guard lock(mutex_);
  if (!active()) return;
  training_thread_.set_to_this_thread();
  trace::PhaseKey key{kind, microbatch, chunk, 0};
  key.occurrence = seen_[key]++;
  open_span(key);
  wants_extents_ = kind == trace::PhaseKind::kForward;
  if (wants_extents_ && upcoming_extents_) add_extents(std::move(*upcoming_extents_));
  upcoming_extents_.reset();
}

void Recorder::set_extents(std::span<const std::string> names,
                           std::span<const std::int64_t> values) {
  const std::lock_guard lock(mutex_);
  if (!active()) return;
  std::vector<std::int64_t> row(trace_.extent_names.size(), kNone);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto known = extent_index_.find(names[i]);
    if (known != extent_index_.end()) {
      row[known->second] = values[i];
    } else if (row.size() < kMaxExtents) {
      extent_index_[names[i]] = row.size();
      trace_.extent_names.push_back(names[i]);
      row.push_back(values[i]);
    }
  }
  if (wants_extents_) {
    add_extents(std::move(row));
  } else {
    upcoming_extents_ = std::move(row);
  }
}

void Recorder::add_extents(std::vector<std::int64_t> values) {
  trace_.extents.push_back({PhaseIndex(trace_.phases.size() - 1), std::move(values)});
  wants_extents_ = false;
}

void Recorder::enter_unplanned() {
  const std::lock_guard lock(mutex_);
  if (!active()) return;
  interrupted_.push_back(trace_[current_span()].key);
  open_span({trace::PhaseKind::kUnplanned, kNone, 0, 0});
}

void Recorder::begin_evaluation() {
  const std::lock_guard lock(mutex_);
  if (!active() || interrupted_.empty()) return;
  open_span({trace::PhaseKind::kUnplanned, kNone, 0, 0});
}

void Recorder::leave_unplanned() {
  const std::lock_guard lock(mutex_);
  if (!active() || interrupted_.empty()) return;
  open_span(interrupted_.back());
  interrupted_.pop_back();
}

void Recorder::end_iteration() {
  const std::lock_guard lock(mutex_);
  if (!active()) return;
  if (span_open_) trace_.phases.back().end = clock_;
  span_open_ = false;
  wants_extents_ = false;
  seen_.clear();
  trace_.iterations.push_back(clock_);
  ++iteration_;
}

void Recorder::join_iterations() {
  const std::lock_guard lock(mutex_);
  if (!active() || iteration_ == 0) return;
  // The counts of microbatches and occurrences continue from one part to the next, and so does the
  // phase in which a part ended.
  std::map<trace::PhaseKey, std::int32_t> before;
  std::map<trace::PhaseKey, std::int32_t> seen;
  std::int32_t microbatches_before = 0;
  std::int32_t microbatches = 0;
  const auto count_on = [&](trace::PhaseKey& key) {
    if (key.kind == trace::PhaseKind::kUnplanned) return;
    if (key.microbatch != kNone) key.microbatch += microbatches_before;
    microbatches = std::max(microbatches, key.microbatch + 1);
    trace::PhaseKey first = key;
    first.occurrence = 0;
    key.occurrence += before[first];
    seen[first] = std::max(seen[first], key.occurrence + 1);
  };
  trace::PhaseKey last;
  std::int32_t part = 0;
  for (trace::PhaseSpan& span : trace_.phases) {
    if (span.iteration != part) {
      before = seen;
      microbatches_before = microbatches;
      last.occurrence = 0;
      if (last == span.key) --before[last];
    }
    part = std::exchange(span.iteration, 0);
    count_on(span.key);
    last = span.key;
  }
  for (trace::PhaseKey& key : interrupted_) count_on(key);
  seen_ = std::move(seen);
  trace_.iterations.resize(1);
  iteration_ = 0;
}

void Recorder::open_span(const trace::PhaseKey& key) {
  if (span_open_) trace_.phases.back().end = clock_;
  trace_.phases.push_back({key, iteration_, clock_, clock_});
  span_open_ = true;
}

PhaseIndex Recorder::current_span() {
  // Between an iteration's end and the first phase of the next, only foreign threads allocate.
  if (!span_open_) open_span({trace::PhaseKind::kUnplanned, kNone, 0, 0});
  return PhaseIndex(trace_.phases.size() - 1);
}

LayerIndex Recorder::define_layer(const std::string& name, bool dynamic) {
  const std::lock_guard lock(mutex_);
  layers_.push_back(name);
  dynamic_layers_.push_back(dynamic);
  return LayerIndex(layers_.size() - 1);
}

void Recorder::enter_layer(LayerIndex layer, bool recompute) {
  const std::lock_guard lock(mutex_);
  if (!active()) return;
  open_layers_[this_thread_ordinal()].emplace_back(trace_.layer_spans.size());
  trace_.layer_spans.push_back({layer, current_span(), clock_, clock_, recompute});
}

void Recorder::leave_layer() {
  const std::lock_guard lock(mutex_);
  if (!active()) return;
  const auto mine = open_layers_.find(this_thread_ordinal());
  if (mine == open_layers_.end()) return;
  trace_[mine->second.back()].end = clock_;
  mine->second.pop_back();
  if (mine->second.empty()) open_layers_.erase(mine);
}

void Recorder::tag_sequence(LayerIndex layer, std::uint64_t first, std::uint64_t last) {
  const std::lock_guard lock(mutex_);
  if (!active() || first >= last) return;
  auto& [begin, layers] = tagged_[thread_of_node(first)];
  if (layers.empty()) begin = first;
  if (first < begin) {  // the first outer module gets its tag after the first inner one
    layers.insert(layers.begin(), begin - first, kNone);
    begin = first;
  }
  if (layers.size() < last - begin) layers.resize(last - begin, kNone);
  // Inner modules end first and are tagged first; outer ones get the remaining nodes.
  for (std::uint64_t i = first - begin; i < last - begin; ++i) {
    if (layers[i] == kNone) layers[i] = layer;
  }
}

LayerIndex Recorder::current_layer(NodeSequence node) const {
  if (const auto mine = open_layers_.find(this_thread_ordinal()); mine != open_layers_.end()) {
    return trace_[mine->second.back()].layer;
  }
  if (!node) return kNone;
  const auto makers = tagged_.find(thread_of_node(*node));
  if (makers == tagged_.end() || *node < makers->second.first) return kNone;
  const std::uint64_t i = *node - makers->second.first;
  return i < makers->second.layers.size() ? makers->second.layers[i] : kNone;
}

void Recorder::on_event(Event what, ProgramOrder::Handle event, ProgramOrder::Handle stream) {
  const std::lock_guard lock(mutex_);
  if (!active()) return;
  switch (what) {
    case Event::kRecorded:
      return order_.record(event, stream, clock_);
    case Event::kAwaited:
      return order_.wait(event, stream, clock_);
    case Event::kGone:
      return order_.forget(event);
  }
}

void Recorder::on_synchronize(Awaited what, ProgramOrder::Handle handle) {
  const std::lock_guard lock(mutex_);
  if (!active()) return;
  switch (what) {
    case Awaited::kEvent:
      return order_.synchronize_event(handle, clock_);
    case Awaited::kStream:
      return order_.synchronize_stream(handle, clock_);
    case Awaited::kDevice:
      return order_.synchronize_device(clock_);
  }
}

std::size_t Recorder::requests() const {
  const std::lock_guard lock(mutex_);
  return records_.size();
}

std::int32_t Recorder::iterations() const {
  const std::lock_guard lock(mutex_);
  return iteration_;
}

std::size_t Recorder::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  constexpr std::size_t kHashNode = 4 * sizeof(void*);
  std::size_t tags = 0;
  for (const auto& [thread, nodes] : tagged_) tags += nodes.layers.capacity();
  return records_.size() * sizeof(trace::Request) + live_.size() * kHashNode +
         live_.bucket_count() * sizeof(void*) + tags * sizeof(LayerIndex) +
         trace_.phases.capacity() * sizeof(trace::PhaseSpan) +
         trace_.layer_spans.capacity() * sizeof(trace::LayerSpan);
}

}  // namespace stalloc::runtime
