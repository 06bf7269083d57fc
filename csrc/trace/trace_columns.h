// The columns of a trace's tables, in the order of the file format.
#pragma once

#include "base/columns.h"
#include "trace/trace.h"

namespace stalloc::trace {

// The columns that identify a phase, in traces, profiles and plans alike. `Row` has a PhaseKey
// `key`, a `begin` and an `end`.
template <typename Row>
inline constexpr std::tuple kPhaseColumns{
    Column<&Row::key, &PhaseKey::kind>{"kind"},
    Column<&Row::key, &PhaseKey::microbatch>{"microbatch"},
    Column<&Row::key, &PhaseKey::chunk>{"chunk"},
    Column<&Row::key, &PhaseKey::occurrence>{"occurrence"},
    Column<&Row::begin>{"begin"},
    Column<&Row::end>{"end"},
};

inline constexpr auto kPhaseSpanColumns = std::tuple_cat(
    kPhaseColumns<PhaseSpan>, std::tuple{Column<&PhaseSpan::iteration>{"iteration"}});

inline constexpr std::tuple kLayerSpanColumns{
    Column<&LayerSpan::layer>{"layer"},         Column<&LayerSpan::phase>{"phase"},
    Column<&LayerSpan::begin>{"begin"},         Column<&LayerSpan::end>{"end"},
    Column<&LayerSpan::recompute>{"recompute"},
};

inline constexpr std::tuple kOrderColumns{
    Column<&Order::tick>{"tick"},
    Column<&Order::stream>{"stream"},
    Column<&Order::after>{"after"},
    Column<&Order::upto>{"upto"},
};

inline constexpr std::tuple kRequestColumns{
    Column<&Request::size>{"size"},
    Column<&Request::lower>{"lower"},
    Column<&Request::upper>{.name = "upper", .never_is_null = true},
    Column<&Request::phase_begin>{"phase_begin"},
    Column<&Request::phase_end>{"phase_end"},
    Column<&Request::layer_begin>{"layer_begin"},
    Column<&Request::layer_end>{"layer_end"},
    Column<&Request::stream>{"stream"},
    Column<&Request::thread>{"thread"},
    Column<&Request::dynamic>{"dynamic"},
};

// Table readers find a phase's kind by its name.
inline void from_string(std::string_view name, PhaseKind& kind) {
  kind = phase_kind_from_string(name);
}

}  // namespace stalloc::trace
