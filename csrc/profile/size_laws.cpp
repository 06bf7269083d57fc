#include "profile/size_laws.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>

#include "profile/alignment.h"
#include "profile/derived_stages.h"
#include "profile/law_fit.h"
#include "profile/runs.h"

namespace stalloc::profile {
namespace {

constexpr std::size_t kMostExtents = 4;  // that laws use

// If one request in so many or more has no law, those without are dynamic. Otherwise they are
// exceptions, such as scratch space.
constexpr std::int64_t kMostlyExplained = 8;

// A family has at most so many laws that may be chance. A mixture of experts would have one for
// each size; other programs repeat theirs from layer to layer.
constexpr std::size_t kMostByChance = 4;

// The multiples to which models pad. They are tried if the extents explain too little without.
constexpr std::array<Extent, 7> kMultiples = {8, 16, 32, 64, 128, 256, 512};

// The laws found so far, each once.
class LawTable {
 public:
  LawIndex add(const SizeLaw& law) {
    SizeLaw formula = law;
    if (law.proof != LawProof::kUnexplained) formula.proof = LawProof::kProven;
    if (law.terms.empty()) formula.source = LawSource::kOwn;
    const auto [it, is_new] = index_.try_emplace(formula, laws_.size());
    if (is_new) laws_.push_back(law);
    // A law that one family proves is proven for all.
    SizeLaw& known = laws_[it->second.position()];
    known.proof = std::min(known.proof, law.proof);
    return it->second;
  }
  const SizeLaw& operator[](LawIndex i) const { return laws_[i.position()]; }
  std::vector<SizeLaw> take() { return std::move(laws_); }

 private:
  std::map<SizeLaw, LawIndex> index_;
  std::vector<SizeLaw> laws_;
};

// One family: aligns its runs and finds the laws of its positions.
class Family {
 public:
  Family(const trace::Trace& trace, const ExtentTable& extents, trace::PhaseKind kind,
         std::vector<Run>& runs)
      : trace_(trace), extents_(extents), kind_(kind), runs_(runs) {
    choose_reference();
    for (std::size_t r = 0; r < runs_.size(); ++r) align(runs_[r]);
    sizes_.assign(reference().requests.size(), std::vector<Bytes>(runs_.size(), kNone));
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      for (std::size_t i = 0; i < runs_[r].requests.size(); ++i) {
        const std::int32_t position = runs_[r].positions[i];
        if (position == kNone || request(runs_[r], i).dynamic) continue;
        sizes_[position][r] = request(runs_[r], i).size;
      }
    }
  }

  const std::vector<std::vector<Bytes>>& sizes() const { return sizes_; }

  // The rows of extents that a source gives the runs; unknown ones are kNone throughout.
  std::vector<std::vector<Extent>> rows(LawSource source) const {
    std::vector<std::vector<Extent>> rows;
    for (const Run& run : runs_) rows.push_back(row(run, source));
    return rows;
  }

  // Steps of any height explain some sizes of stages by chance.
  static bool is_settled(const SizeLaw& law) {
    return law.proof == LawProof::kProven && law.step == 1;
  }

  // The sizes that no settled law explains.
  std::vector<OpenSizes> open_sizes(const SizeLaws& laws) {
    std::vector<std::int32_t> rows;
    for (const Run& run : runs_) rows.push_back(run.own);
    std::map<std::vector<Bytes>, std::int64_t> requests;
    for (std::size_t p = 0; p < sizes_.size(); ++p) {
      bool is_open = false;
      for (std::size_t r = 0; r < runs_.size() && !is_open; ++r) {
        if (sizes_[p][r] == kNone) continue;
        const LawIndex law = laws.of[request_at(r, static_cast<std::int32_t>(p))];
        is_open = law == kNone || !is_settled(laws[law]);
      }
      if (is_open) ++requests[sizes_[p]];
    }
    std::vector<OpenSizes> open;
    for (const auto& [sizes, count] : requests) open.push_back({rows, sizes, count});
    return open;
  }

  void find_laws(LawTable& table, std::vector<LawIndex>& of) {
    const bool has_warm_up =
        std::ranges::any_of(runs_, [](const Run& r) { return r.iteration > 1; });
    std::set<std::int32_t> microbatches;
    for (const Run& run : runs_) microbatches.insert(run.microbatch);
    const std::uint64_t usual = reference().structure;
    std::vector<std::int32_t> open;  // positions
    for (std::size_t p = 0; p < sizes_.size(); ++p) open.push_back(static_cast<std::int32_t>(p));
    laws_.assign(sizes_.size(), kNone);

    const auto attempt = [&](auto includes, bool all) {
      std::vector<bool> included;
      for (const Run& run : runs_) included.push_back(includes(run));
      if (!all && std::ranges::count(included, true) == std::ranges::ssize(included)) return;
      fit(open, included, table, of);
    };
    const auto always = [](const Run&) { return true; };
    const auto warm = [](const Run& run) { return run.iteration > 0; };
    attempt(always, true);
    if (has_warm_up) attempt(warm, false);
    attempt([&](const Run& run) { return run.structure == usual; }, false);
    fit_from_above(open, has_warm_up, table, of);
    if (microbatches.size() > 1) {
      for (const std::int32_t m : microbatches) {
        // Each microbatch has a law of its own, so none of them closes a position.
        std::vector<std::int32_t> still_open = open;
        std::vector<bool> included;
        for (const Run& run : runs_) {
          included.push_back(run.microbatch == m && (!has_warm_up || warm(run)));
        }
        fit(still_open, included, table, of);
      }
    }
    bound_unexplained(open, table, of);
    predict(table, of);
  }

 private:
  const Run& reference() const { return runs_[reference_]; }
  const trace::Request& request(const Run& run, std::size_t i) const {
    return trace_.requests[run.requests[i]];
  }

  std::vector<Extent> row(const Run& run, LawSource source) const {
    const std::array<std::int32_t, 3> rows = {run.own, run.upcoming, run.returning};
    const std::int32_t i = rows.at(static_cast<std::size_t>(source));
    return i == kNone ? std::vector<Extent>(extents_.size(), kNone) : extents_.row(i);
  }
  static bool is_known(const std::vector<Extent>& row) {
    return std::ranges::any_of(row, [](Extent e) { return e >= 0; });
  }

  // The last run of the structure that most runs have.
  void choose_reference() {
    std::map<std::uint64_t, std::int64_t> counts;
    for (const Run& run : runs_) ++counts[run.structure];
    std::int64_t most = 0;
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      if (counts[runs_[r].structure] >= most) {
        most = counts[runs_[r].structure];
        reference_ = r;
      }
    }
  }

  // The calls of layers in a run: where each begins, and its token.
  struct Stays {
    std::vector<std::size_t> begins;  // and one past the end
    std::vector<Token> tokens;
  };
  Stays stays_of(const Run& run) const {
    Stays stays;
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < run.requests.size(); ++i) {
      const trace::Request& r = request(run, i);
      if (i == 0 || r.layer_begin != request(run, i - 1).layer_begin) {
        if (i > 0) stays.tokens.push_back({static_cast<Bytes>(hash)});
        stays.begins.push_back(i);
        hash = 0;
      }
      hash = mixed(hash, structure_of(r));
    }
    if (!run.requests.empty()) stays.tokens.push_back({static_cast<Bytes>(hash)});
    stays.begins.push_back(run.requests.size());
    return stays;
  }

  void align(Run& run) const {
    if (run.structure == reference().structure &&
        run.requests.size() == reference().requests.size()) {
      for (std::size_t i = 0; i < run.positions.size(); ++i) {
        run.positions[i] = static_cast<std::int32_t>(i);
      }
      return;
    }
    const Stays ours = stays_of(run);
    const Stays theirs = stays_of(reference());
    const std::vector<std::int32_t> matches = align_sequences(ours.tokens, theirs.tokens);
    for (std::size_t s = 0; s < matches.size(); ++s) {
      if (matches[s] == kNone) continue;
      const std::size_t begin = theirs.begins[matches[s]];
      const std::size_t count = ours.begins[s + 1] - ours.begins[s];
      if (theirs.begins[matches[s] + 1] - begin != count) continue;
      for (std::size_t i = 0; i < count; ++i) {
        run.positions[ours.begins[s] + i] = static_cast<std::int32_t>(begin + i);
      }
    }
  }

  // Finds laws of the open positions in the included runs, and closes those that have one.
  void fit(std::vector<std::int32_t>& open, const std::vector<bool>& included, LawTable& table,
           std::vector<LawIndex>& of) {
    std::vector<Candidate> candidates;
    for (std::size_t view = 0; view < extents_.views().size(); ++view) {
      candidates.push_back(candidate(LawSource::kOwn, view));
      // Only what comes between microbatches may be made for another one.
      if (kind_ != trace::PhaseKind::kOther) continue;
      candidates.push_back(candidate(LawSource::kUpcoming, view));
      candidates.push_back(candidate(LawSource::kReturning, view));
    }
    struct Hash {
      std::size_t operator()(const std::vector<Bytes>& sizes) const {
        std::uint64_t hash = 0;
        for (const Bytes size : sizes) hash = mixed(hash, static_cast<std::uint64_t>(size));
        return hash;
      }
    };
    const bool all = std::ranges::count(included, false) == 0;
    // Chance does not explain sizes that come again with their extents.
    const bool repeats = has_repeated_row(included);
    std::unordered_map<std::vector<Bytes>, std::optional<SizeLaw>, Hash> known;
    std::vector<const std::optional<SizeLaw>*> found;  // by open position
    std::set<SizeLaw> chance;
    for (const std::int32_t position : open) {
      std::vector<Bytes> sizes = sizes_[position];
      for (std::size_t r = 0; r < sizes.size(); ++r) {
        if (!included[r]) sizes[r] = kNone;
      }
      const auto [it, is_new] = known.try_emplace(std::move(sizes));
      std::optional<SizeLaw>& law = it->second;
      if (is_new) law = simplest(it->first, candidates);
      if (law && !repeats && may_be_chance(*law, all)) chance.insert(*law);
      found.push_back(&law);
    }
    std::vector<std::int32_t> still_open;
    for (std::size_t i = 0; i < open.size(); ++i) {
      const std::optional<SizeLaw>& law = *found[i];
      if (!law || (chance.size() > kMostByChance && may_be_chance(*law, all))) {
        still_open.push_back(open[i]);
        continue;
      }
      const LawIndex index = table.add(*law);
      if (laws_[open[i]] == kNone) laws_[open[i]] = index;
      assign(open[i], included, index, of);
    }
    open = std::move(still_open);
  }

  // True if two of the included runs have the same extents.
  bool has_repeated_row(const std::vector<bool>& included) const {
    std::set<std::vector<Extent>> rows;
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      if (!included[r]) continue;
      const std::vector<Extent> own = row(runs_[r], LawSource::kOwn);
      if (is_known(own) && !rows.insert(own).second) return true;
    }
    return false;
  }

  // True if the law would explain any sizes: it has as many unknowns as there are observations.
  // Two unknowns are believed if all runs agree. `all`: no run was left out.
  static bool may_be_chance(const SizeLaw& law, bool all) {
    const std::size_t unknowns = law.terms.size() + (law.constant != 0 ? 1 : 0);
    return law.proof == LawProof::kUnproven && unknowns >= (all ? 3 : 2);
  }

  // The extents that a source gives the runs, and laws in those of a view.
  struct Candidate {
    LawSource source = LawSource::kOwn;
    bool is_derived = false;  // the view is a stage's
    std::vector<std::size_t> extents;
    std::vector<std::vector<Extent>> rows;
    LawFitter fitter;

    // The law in the numbers of all extents.
    std::optional<SizeLaw> fit(const std::vector<Bytes>& sizes) const {
      std::optional<SizeLaw> law = fitter.fit(sizes);
      if (!law || (is_derived && !is_certain(*law, sizes))) return std::nullopt;
      law->source = source;
      for (LawTerm& term : law->terms) {
        for (ExtentIndex& factor : term.factors) {
          if (factor != kNone) factor = ExtentIndex(extents[factor.position()]);
        }
      }
      return law;
    }
    bool is_certain(const SizeLaw& law, const std::vector<Bytes>& sizes) const {
      return law.proof == LawProof::kProven && law.step == 1 && is_evident(law, rows, sizes);
    }
  };
  Candidate candidate(LawSource source, std::size_t view) const {
    const std::vector<std::size_t>& extents = extents_.views()[view];
    std::vector<std::vector<Extent>> found;
    for (const std::vector<Extent>& row : rows(source)) found.push_back(selected(row, extents));
    LawFitter fitter(found, selected(extents_.envelope(), extents),
                     selected(extents_.inputs(), extents));
    return {source, view > 0, extents, std::move(found), std::move(fitter)};
  }
  template <typename T>
  static std::vector<T> selected(const std::vector<T>& all,
                                 const std::vector<std::size_t>& indices) {
    std::vector<T> result;
    for (const std::size_t i : indices) result.push_back(all[i]);
    return result;
  }

  // The simplest law of any candidate; of several, that of the first. The stages' count if the
  // inputs' extents settle no law.
  static std::optional<SizeLaw> simplest(const std::vector<Bytes>& sizes,
                                         const std::vector<Candidate>& candidates) {
    const auto rank = [](const SizeLaw& law) {
      return std::tuple(law.proof, law.step > 1, law.terms.size(), law.constant != 0);
    };
    std::optional<SizeLaw> best;
    bool of_stage = false;
    for (const Candidate& c : candidates) {
      if (c.is_derived && best && is_settled(*best) && !of_stage) break;
      std::set<std::vector<Extent>> distinct;
      for (std::size_t r = 0; r < sizes.size(); ++r) {
        if (sizes[r] != kNone && is_known(c.rows[r])) distinct.insert(c.rows[r]);
      }
      // A single point supports no law.
      if (distinct.size() < 2) continue;
      std::optional<SizeLaw> law = c.fit(sizes);
      if (!law) continue;
      if (law->terms.empty()) {
        // A size is not constant if it differs where extents are unknown.
        const bool constant =
            std::ranges::all_of(sizes, [&](Bytes s) { return s == kNone || s == law->constant; });
        if (constant && c.source == LawSource::kOwn) return law;
        continue;
      }
      if (best && rank(*law) >= rank(*best)) continue;
      best = std::move(law);
      of_stage = c.is_derived;
    }
    return best;
  }

  // Gives the law to the position's requests in the included runs.
  void assign(std::int32_t position, const std::vector<bool>& included, LawIndex law,
              std::vector<LawIndex>& of) {
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      if (!included[r] || sizes_[position][r] == kNone) continue;
      LawIndex& mine = of[request_at(r, position)];
      if (mine == kNone) mine = law;
    }
  }
  std::int32_t request_at(std::size_t r, std::int32_t position) {
    if (by_position_.empty()) {
      for (const Run& run : runs_) {
        std::vector<std::int32_t> requests(reference().requests.size(), kNone);
        for (std::size_t i = 0; i < run.positions.size(); ++i) {
          if (run.positions[i] != kNone) requests[run.positions[i]] = run.requests[i];
        }
        by_position_.push_back(std::move(requests));
      }
    }
    return by_position_[r][position];
  }

  // Scratch space of a kernel follows a law from some extents on, and takes less below. Finds laws
  // that explain the larger sizes of a position and exceed the smaller ones, of which there are at
  // most a third.
  void fit_from_above(std::vector<std::int32_t>& open, bool has_warm_up, LawTable& table,
                      std::vector<LawIndex>& of) {
    const Candidate own = candidate(LawSource::kOwn, 0);
    std::vector<bool> included;
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      included.push_back((!has_warm_up || runs_[r].iteration > 0) && is_known(own.rows[r]));
    }
    std::map<std::vector<Bytes>, LawIndex> known;
    std::vector<std::int32_t> still_open;
    for (const std::int32_t position : open) {
      std::vector<Bytes> sizes = sizes_[position];
      for (std::size_t r = 0; r < sizes.size(); ++r) {
        if (!included[r]) sizes[r] = kNone;
      }
      const auto [it, is_new] = known.try_emplace(sizes, kNone);
      if (is_new) {
        const std::optional<SizeLaw> law = law_from_above(std::move(sizes), own);
        if (law) it->second = table.add(*law);
      }
      if (it->second == kNone) {
        still_open.push_back(position);
        continue;
      }
      laws_[position] = it->second;
      assign(position, included, it->second, of);
    }
    open = std::move(still_open);
  }

  std::optional<SizeLaw> law_from_above(std::vector<Bytes> sizes, const Candidate& own) const {
    std::set<Bytes> distinct;
    for (const Bytes size : sizes) {
      if (size != kNone) distinct.insert(size);
    }
    const std::vector<Bytes> all = sizes;
    auto smallest = distinct.begin();
    for (std::size_t dropped = 1; 3 * dropped <= distinct.size(); ++dropped, ++smallest) {
      std::ranges::replace(sizes, *smallest, Bytes{kNone});
      std::optional<SizeLaw> law = own.fit(sizes);
      if (!law || law->terms.empty() || law->proof != LawProof::kProven) continue;
      bool exceeds = true;
      for (std::size_t r = 0; r < all.size() && exceeds; ++r) {
        exceeds = all[r] == kNone || evaluate(*law, row(runs_[r], own.source)) >= all[r];
      }
      if (!exceeds) continue;
      law->proof = LawProof::kUnproven;
      return law;
    }
    return std::nullopt;
  }

  // Bounds sizes that no law explains by the largest one seen, if they are exceptions. Otherwise
  // the requests are dynamic.
  void bound_unexplained(const std::vector<std::int32_t>& open, LawTable& table,
                         std::vector<LawIndex>& of) {
    if (kMostlyExplained * std::ssize(open) >= std::ssize(sizes_)) return;
    const std::vector<bool> everywhere(runs_.size(), true);
    for (const std::int32_t p : open) {
      std::size_t seen = 0;
      Bytes largest = 0;
      for (const Bytes size : sizes_[p]) {
        seen += size != kNone ? 1 : 0;
        largest = std::max(largest, size);
      }
      if (seen < 2) continue;
      SizeLaw law;
      law.constant = largest + largest / 16;
      law.step = 512;
      law.constant = evaluate(law, {});
      law.step = 1;
      law.proof = LawProof::kUnexplained;
      const LawIndex index = table.add(law);
      laws_[p] = index;
      assign(p, everywhere, index, of);
    }
  }

  // True if the position was seen at several extents: if no law explains its sizes, they contradict
  // all of them, and one may equal another position's by chance.
  bool has_several_rows(std::size_t position) const {
    std::set<std::vector<Extent>> rows;
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      const std::vector<Extent> own = row(runs_[r], LawSource::kOwn);
      if (sizes_[position][r] != kNone && is_known(own)) rows.insert(own);
    }
    return rows.size() > 1;
  }

  // Aligns the runs that have requests without a law with the sizes that the laws predict.
  void predict(const LawTable& table, std::vector<LawIndex>& of) const {
    std::vector<bool> contradicts_laws;
    for (std::size_t p = 0; p < laws_.size(); ++p) {
      contradicts_laws.push_back(laws_[p] == kNone && has_several_rows(p));
    }
    for (const Run& run : runs_) {
      const bool complete =
          std::ranges::all_of(run.requests, [&](std::int32_t i) { return of[i] != kNone; });
      if (complete) continue;
      std::vector<Token> predicted;
      for (std::size_t p = 0; p < laws_.size(); ++p) {
        Token token{kNone, request(reference(), p).stream};
        if (laws_[p] != kNone) {
          const SizeLaw& law = table[laws_[p]];
          if (law.proof != LawProof::kUnexplained) {
            token.size = evaluate(law, row(run, law.source));
          }
        }
        predicted.push_back(token);
      }
      std::vector<Token> found;
      for (std::size_t i = 0; i < run.requests.size(); ++i) {
        found.push_back({request(run, i).size, request(run, i).stream});
      }
      const std::vector<std::int32_t> matches = align_sequences(found, predicted);
      for (std::size_t i = 0; i < matches.size(); ++i) {
        const std::int32_t own = run.positions[i];
        if (own != kNone && contradicts_laws[own]) continue;
        LawIndex& law = of[run.requests[i]];
        if (law == kNone && matches[i] != kNone) law = laws_[matches[i]];
        // Either of two equal requests in a row may be the one that other runs lack.
        const bool again =
            law == kNone && i > 0 && matches[i - 1] != kNone && found[i] == found[i - 1];
        if (again) law = laws_[matches[i - 1]];
      }
    }
  }

  const trace::Trace& trace_;
  const ExtentTable& extents_;
  const trace::PhaseKind kind_;
  std::vector<Run>& runs_;
  std::size_t reference_ = 0;
  std::vector<std::vector<Bytes>> sizes_;               // by position and run
  std::vector<std::vector<std::int32_t>> by_position_;  // by run: request, or kNone
  std::vector<LawIndex> laws_;                          // by position
};

// Chooses extents if there are more than laws can use. Adds, one after another, the extent that
// explains the most sizes together with those chosen before.
std::vector<std::size_t> most_explaining(const trace::Trace& trace, const ExtentTable& extents,
                                         std::map<FamilyKey, std::vector<Run>>& families) {
  struct Case {
    std::vector<std::vector<Extent>> rows;
    std::set<std::vector<Bytes>> sizes;
  };
  std::vector<Case> cases;
  for (auto& [key, runs] : families) {
    const Family family(trace, extents, std::get<0>(key), runs);
    Case c{family.rows(LawSource::kOwn), {}};
    for (const std::vector<Bytes>& sizes : family.sizes()) c.sizes.insert(sizes);
    cases.push_back(std::move(c));
  }
  std::vector<std::size_t> chosen;
  while (chosen.size() < kMostExtents) {
    std::size_t best = extents.size();
    std::size_t most = 0;
    for (std::size_t e = 0; e < extents.size(); ++e) {
      if (std::ranges::find(chosen, e) != chosen.end()) continue;
      std::vector<std::size_t> tried = chosen;
      tried.push_back(e);
      std::vector<Extent> envelope;
      std::vector<std::size_t> inputs;
      for (const std::size_t t : tried) {
        envelope.push_back(extents.envelope()[t]);
        inputs.push_back(extents.inputs()[t]);
      }
      std::size_t explained = 0;
      for (const Case& c : cases) {
        std::vector<std::vector<Extent>> rows;
        for (const std::vector<Extent>& row : c.rows) {
          rows.emplace_back();
          for (const std::size_t t : tried) rows.back().push_back(row[t]);
        }
        const LawFitter fitter(rows, envelope, inputs);
        for (const std::vector<Bytes>& sizes : c.sizes) explained += fitter.fit(sizes).has_value();
      }
      if (best == extents.size() || explained > most) {
        best = e;
        most = explained;
      }
    }
    chosen.push_back(best);
  }
  return chosen;
}

// The extents of a table, or the few of them that explain the most.
ExtentTable usable(const trace::Trace& trace, ExtentTable extents,
                   std::map<FamilyKey, std::vector<Run>>& families) {
  if (extents.size() > kMostExtents) extents.choose(most_explaining(trace, extents, families));
  return extents;
}

// The laws in the extents of a table.
SizeLaws laws_in(const trace::Trace& trace, const ExtentTable& extents,
                 std::map<FamilyKey, std::vector<Run>>& families) {
  SizeLaws result;
  result.extent_names = extents.names();
  result.fixed = extents.others();
  result.envelope = extents.envelope();
  result.seen = extents.seen();
  result.of.assign(trace.requests.size(), kNone);
  const MicrobatchRows microbatches(trace);
  for (PhaseIndex phase(0); phase.points_into(trace.phases); ++phase) {
    const std::int32_t row = microbatches.own(phase);
    const bool known =
        row != kNone && std::ranges::none_of(extents.row(row), [](Extent e) { return e < 0; });
    result.own.push_back(known ? extents.row(row) : std::vector<Extent>{});
  }
  LawTable table;
  for (auto& [key, runs] : families)
    Family(trace, extents, std::get<0>(key), runs).find_laws(table, result.of);
  result.laws = table.take();
  return result;
}

// The number of requests whose law is proven.
std::int64_t count_proven(const SizeLaws& laws) {
  return std::ranges::count_if(
      laws.of, [&](LawIndex law) { return law != kNone && laws[law].proof == LawProof::kProven; });
}

// True if one request in so many or more has no law.
bool is_mostly_open(const SizeLaws& laws) {
  return kMostlyExplained * std::ranges::count(laws.of, LawIndex(kNone)) >= std::ssize(laws.of);
}

// These laws, and those in the extents that stages of the model derive from the table's.
SizeLaws with_stages(const trace::Trace& trace, ExtentTable extents, SizeLaws laws,
                     std::map<FamilyKey, std::vector<Run>>& families) {
  std::vector<OpenSizes> open;
  for (auto& [key, runs] : families) {
    std::ranges::move(Family(trace, extents, std::get<0>(key), runs).open_sizes(laws),
                      std::back_inserter(open));
  }
  const std::vector<DerivedStage> stages = find_stages(extents, std::move(open));
  if (stages.empty()) return laws;
  extents.add_stages(stages);
  SizeLaws derived = laws_in(trace, extents, families);
  return count_proven(derived) > count_proven(laws) ? derived : laws;
}

}  // namespace

SizeLaws no_laws(const trace::Trace& trace) {
  ExtentTable extents(trace);
  extents.choose({});
  SizeLaws none;
  none.fixed = extents.others();
  return none;
}

SizeLaws find_size_laws(const trace::Trace& trace) {
  const ExtentTable all(trace);
  if (all.size() == 0) return no_laws(trace);
  std::map<FamilyKey, std::vector<Run>> families = families_of(trace);
  ExtentTable plain = usable(trace, all, families);
  SizeLaws of_inputs = laws_in(trace, plain, families);
  if (!is_mostly_open(of_inputs)) {
    return with_stages(trace, std::move(plain), std::move(of_inputs), families);
  }
  std::int64_t proven = count_proven(of_inputs);
  std::optional<ExtentTable> table;
  SizeLaws best = of_inputs;
  for (const Extent multiple : kMultiples) {
    ExtentTable padded = usable(trace, ExtentTable(trace, multiple), families);
    SizeLaws laws = laws_in(trace, padded, families);
    const std::int64_t more = count_proven(laws) - proven;
    if (kMostlyExplained * more < std::ssize(best.of)) continue;
    proven += more;
    best = std::move(laws);
    table.emplace(std::move(padded));
  }
  if (table) best = with_stages(trace, *table, std::move(best), families);
  // Padding may explain by chance a part of what stages explain together.
  SizeLaws derived = with_stages(trace, std::move(plain), std::move(of_inputs), families);
  const auto rank = [&](const SizeLaws& laws) {
    const bool both = table && laws.extent_names.size() > table->size() && &laws == &best;
    return std::tuple(-count_proven(laws), laws.extent_names.size(), both);
  };
  return rank(derived) < rank(best) ? std::move(derived) : std::move(best);
}

}  // namespace stalloc::profile
