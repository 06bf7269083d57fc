// The addresses that a replay chose, as columns: `address` by request (-1 if the replay ended
// before it), and the pieces held of the device.
#include "replay/placements.h"

#include <memory>
#include <vector>

#include "base/error.h"
#include "bindings/columns.h"
#include "bindings/interruptible.h"
#include "bindings/parts.h"
#include "replay/replay.h"

namespace py = pybind11;

namespace stalloc::bindings {
namespace {

template <typename Field>
py::array_t<std::int64_t> copied(const std::vector<replay::HeldPiece>& rows, Field field) {
  py::array_t<std::int64_t> result(static_cast<py::ssize_t>(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    result.mutable_at(static_cast<py::ssize_t>(i)) = rows[i].*field;
  }
  return result;
}

template <typename Replay>
py::dict placements_of(const trace::Trace& trace, Replay replay) {
  replay::Placements placements(trace.requests.size());
  run_interruptibly(py::none(), [&](const auto*, const auto&) { return replay(&placements); });
  const std::vector<replay::HeldPiece> pieces = placements.pieces();
  const auto& addresses = placements.addresses();
  py::dict d;
  d["address"] =
      py::array_t<std::int64_t>(static_cast<py::ssize_t>(addresses.size()), addresses.data());
  d["piece_address"] = copied(pieces, &replay::HeldPiece::address);
  d["piece_size"] = copied(pieces, &replay::HeldPiece::size);
  d["piece_lower"] = copied(pieces, &replay::HeldPiece::lower);
  d["piece_upper"] = copied(pieces, &replay::HeldPiece::upper);
  return d;
}

}  // namespace

void bind_placements(py::module_& m) {
  m.def(
      "placements_caching",
      [](const trace::Trace& trace, const replay::CachingSettings& settings) {
        return placements_of(trace, [&](replay::Placements* to) {
          return replay::replay_caching(trace, settings, to);
        });
      },
      py::arg("trace"), py::arg("settings"));
  m.def(
      "placements_planned",
      [](const trace::Trace& trace, const plan::Plan& plan, Bytes capacity) {
        const Bytes limit = capacity > 0 ? capacity : replay::CachingSettings::kUnlimited;
        return placements_of(trace, [&](replay::Placements* to) {
          return replay::replay_planned(trace, plan, {.capacity = limit}, to);
        });
      },
      py::arg("trace"), py::arg("plan"), py::arg("capacity") = 0);
}

}  // namespace stalloc::bindings
