// The columns of a plan's tables, in the order of the file format. The phases' are
// trace::kPhaseColumns.
#pragma once

#include "base/columns.h"
#include "plan/plan.h"

namespace stalloc::plan {

inline constexpr std::tuple kDecisionColumns{
    Column<&Decision::size>{"size"},     Column<&Decision::offset>{"offset"},
    Column<&Decision::lower>{"lower"},   Column<&Decision::upper>{"upper"},
    Column<&Decision::phase>{"phase"},   Column<&Decision::phase_end>{"phase_end"},
    Column<&Decision::stream>{"stream"}, Column<&Decision::law>{.name = "law", .optional = true},
};

inline constexpr std::tuple kGroupColumns{
    Column<&DynamicGroup::phase>{"phase"},
    Column<&DynamicGroup::after>{"after"},
    Column<&DynamicGroup::size>{"size"},
    Column<&DynamicGroup::offset>{"offset"},
    Column<&DynamicGroup::lower>{"lower"},
    Column<&DynamicGroup::upper>{"upper"},
    Column<&DynamicGroup::phase_end>{"phase_end"},
    Column<&DynamicGroup::stream>{"stream"},
    Column<&DynamicGroup::law>{.name = "law", .optional = true},
    Column<&DynamicGroup::host>{.name = "host", .optional = true},
};

inline constexpr std::tuple kPersistentColumns{
    Column<&PersistentRequest::phase>{"phase"},
    Column<&PersistentRequest::after>{"after"},
    Column<&PersistentRequest::size>{"size"},
    Column<&PersistentRequest::stream>{"stream"},
    Column<&PersistentRequest::law>{.name = "law", .optional = true},
};

inline constexpr std::tuple kStartupColumns{
    Column<&StartupRequest::phase>{"phase"},
    Column<&StartupRequest::after>{"after"},
    Column<&StartupRequest::size>{"size"},
    Column<&StartupRequest::offset>{"offset"},
    Column<&StartupRequest::lower>{"lower"},
    Column<&StartupRequest::upper>{.name = "upper", .never_is_null = true},
    Column<&StartupRequest::stream>{"stream"},
    Column<&StartupRequest::law>{.name = "law", .optional = true},
};

inline constexpr std::tuple kSlotColumns{
    Column<&SlotClass::size>{"size"},
    Column<&SlotClass::offset>{"offset"},
    Column<&SlotClass::count>{"count"},
    Column<&SlotClass::stream>{"stream"},
};

inline constexpr std::tuple kSlotDecisionColumns{
    Column<&SlotDecisionRow::row>{"row"},
    Column<&SlotDecisionRow::slots>{"slots"},
    Column<&SlotDecisionRow::over>{"over"},
    Column<&SlotDecisionRow::box>{"box"},
};

inline constexpr std::tuple kSlotStartupColumns{
    Column<&SlotStartupRow::row>{"row"},
    Column<&SlotStartupRow::slots>{"slots"},
    Column<&SlotStartupRow::decision>{.name = "decision", .optional = true},
};

inline constexpr std::tuple kTurnColumns{
    Column<&TurnRow::row>{"row"},       Column<&TurnRow::over>{"over"},
    Column<&TurnRow::offset>{"offset"}, Column<&TurnRow::size>{"size"},
    Column<&TurnRow::first>{"first"},   Column<&TurnRow::second>{"second"},
};

inline constexpr std::tuple kContextColumns{
    Column<&ContextRow::group>{"group"},
    Column<&ContextRow::context, &profile::DynamicContext::size>{"size"},
    Column<&ContextRow::context, &profile::DynamicContext::before>{"before"},
    Column<&ContextRow::context, &profile::DynamicContext::earlier>{"earlier"},
};

inline constexpr std::tuple kLawColumns{
    Column<&profile::SizeLaw::constant>{"constant"}, Column<&profile::SizeLaw::divisor>{"divisor"},
    Column<&profile::SizeLaw::step>{"step"},         Column<&profile::SizeLaw::proof>{"proof"},
    Column<&profile::SizeLaw::source>{"source"},
};

inline constexpr std::tuple kLawTermColumns{
    Column<&LawTermRow::law>{"law"},     Column<&LawTermRow::coefficient>{"coefficient"},
    Column<&LawTermRow::first>{"first"}, Column<&LawTermRow::second>{"second"},
    Column<&LawTermRow::third>{"third"},
};

inline constexpr std::tuple kReusableColumns{
    Column<&ReusableRow::group>{"group"},
    Column<&ReusableRow::range, &AddressRange::begin>{"begin"},
    Column<&ReusableRow::range, &AddressRange::end>{"end"},
};

}  // namespace stalloc::plan
