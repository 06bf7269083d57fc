#include "plan/hosts.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace stalloc::plan {
namespace {

Bytes bytes_of(const profile::ProfiledGroup& group) {
  Bytes sum = 0;
  for (const auto& sightings : group.sightings) {
    for (const profile::DynamicSighting& s : sightings) sum += s.size;
  }
  return sum;
}

// A region that follows a law would need the law of all its groups.
bool takes_part(const profile::ProfiledGroup& g, Tick period, Sharing sharing) {
  if (sharing == Sharing::kAll) return g.upper <= period && g.law == kNone && bytes_of(g) > 0;
  const bool is_kept = g.phase_end != g.phase || g.upper > period;
  return is_kept != (sharing == Sharing::kTemporaries);
}

}  // namespace

std::vector<GroupIndex> find_hosts(std::span<const profile::ProfiledGroup> groups, Tick period,
                                   Sharing sharing) {
  struct Shared {
    std::vector<std::size_t> groups;
    Tick lower = 0;
    Tick upper = 0;
  };
  std::map<std::tuple<PhaseIndex, StreamId, std::int32_t>, Shared> all;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const profile::ProfiledGroup& g = groups[i];
    if (!takes_part(g, period, sharing)) continue;
    const bool of_all = sharing == Sharing::kAll;
    const bool of_site = sharing == Sharing::kKeptOfSite || sharing == Sharing::kTemporaries;
    Shared& shared =
        all[{of_all ? PhaseIndex(kNone) : g.phase, g.stream, of_site ? g.after : kNone}];
    shared.lower = shared.groups.empty() ? g.lower : std::min(shared.lower, g.lower);
    shared.upper = std::max(shared.upper, g.upper);
    shared.groups.push_back(i);
  }
  std::vector<GroupIndex> hosts(groups.size());
  for (const auto& [key, shared] : all) {
    if (shared.groups.size() < 2 || shared.upper - shared.lower > period) continue;
    for (const std::size_t i : shared.groups) hosts[i] = GroupIndex(shared.groups.front());
  }
  return hosts;
}

std::vector<profile::ProfiledGroup> with_hosts(std::span<const profile::ProfiledGroup> groups,
                                               const std::vector<GroupIndex>& hosts) {
  std::vector<profile::ProfiledGroup> result(groups.begin(), groups.end());
  std::vector<Bytes> most(groups.size());  // by host: what its largest group asks for
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (hosts[i] == kNone) continue;
    const std::size_t host = hosts[i].position();
    const Bytes asked = bytes_of(groups[i]);
    if (asked <= most[host]) continue;
    most[host] = asked;
    result[host].law = groups[i].law;
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (hosts[i] == kNone || hosts[i].position() == i) continue;
    profile::ProfiledGroup& host = result[hosts[i].position()];
    host.lower = std::min(host.lower, groups[i].lower);
    if (groups[i].upper > host.upper) host.phase_end = groups[i].phase_end;
    host.upper = std::max(host.upper, groups[i].upper);
    for (std::size_t t = 0; t < groups[i].sightings.size(); ++t) {
      const auto& more = groups[i].sightings[t];
      host.sightings[t].insert(host.sightings[t].end(), more.begin(), more.end());
      result[i].sightings[t].clear();
    }
  }
  for (profile::ProfiledGroup& group : result) {
    for (auto& sightings : group.sightings) {
      std::ranges::stable_sort(sightings, {}, &profile::DynamicSighting::lower);
    }
  }
  return result;
}

}  // namespace stalloc::plan
