// Indices that cannot be mixed up. Each table has an index type of its own, named after the type of
// its rows, so that the index of a group does not compile where that of a decision belongs.
//
//   using DecisionIndex = Index<Decision>;
//   IndexedVector<DecisionIndex, Placed> places;   // places[d] takes a DecisionIndex only
//
// An index is a 32-bit number in a class: it costs what the number does. It begins as kNone. Like a
// pointer, it moves by a distance, and two of one type have a distance. A number becomes an index
// where one is expected; an index becomes neither a number nor an index of another type.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace stalloc {

// The type of kNone. It becomes an index of any kind, or the number -1.
struct None {
  constexpr operator std::int32_t() const { return -1; }
};

inline constexpr None kNone;  // no phase, no layer, no request

template <typename Row>
class Index {
 public:
  constexpr Index() = default;
  constexpr Index(None /*none*/) {}
  constexpr Index(std::integral auto number) : number_(static_cast<std::int32_t>(number)) {}

  constexpr std::int32_t number() const { return number_; }
  // The position in a table; the index is not kNone.
  constexpr std::size_t position() const { return static_cast<std::size_t>(number_); }
  // True if the table has such a row. Takes any number, as files may contain it.
  constexpr bool points_into(const auto& table) const {
    return number_ >= 0 && position() < table.size();
  }

  constexpr Index& operator++() { return ++number_, *this; }
  constexpr Index& operator--() { return --number_, *this; }
  constexpr Index operator++(int) { return Index(number_++); }
  constexpr Index operator--(int) { return Index(number_--); }
  friend constexpr Index operator+(Index i, std::int32_t by) { return Index(i.number_ + by); }
  friend constexpr Index operator-(Index i, std::int32_t by) { return Index(i.number_ - by); }
  friend constexpr std::int32_t operator-(Index a, Index b) { return a.number_ - b.number_; }
  friend constexpr auto operator<=>(Index, Index) = default;

 private:
  std::int32_t number_ = kNone;
};

template <typename Row>
std::string to_string(Index<Row> index) {
  return std::to_string(index.number());
}

// True for the instances of Index.
template <typename T>
inline constexpr bool kIsIndex = false;
template <typename Row>
inline constexpr bool kIsIndex<Index<Row>> = true;

// The indices of a table's rows, ascending: for (const DecisionIndex d :
// indices<DecisionIndex>(t)).
template <typename I>
constexpr auto indices(const auto& table) {
  return std::views::iota(I(0), I(table.size()));
}

// A vector that its own kind of index subscripts, and no number.
template <typename I, typename T>
class IndexedVector : private std::vector<T> {
  using Rows = std::vector<T>;

 public:
  using typename Rows::const_iterator;
  using typename Rows::iterator;
  using typename Rows::value_type;

  using Rows::Rows;
  IndexedVector() = default;
  IndexedVector(Rows rows) : Rows(std::move(rows)) {}

  using Rows::assign;
  using Rows::back;
  using Rows::begin;
  using Rows::clear;
  using Rows::emplace_back;
  using Rows::empty;
  using Rows::end;
  using Rows::front;
  using Rows::push_back;
  using Rows::reserve;
  using Rows::resize;
  using Rows::size;

  decltype(auto) operator[](std::same_as<I> auto i) { return Rows::operator[](i.position()); }
  decltype(auto) operator[](std::same_as<I> auto i) const { return Rows::operator[](i.position()); }

  I end_index() const { return I(size()); }
  auto indices() const { return stalloc::indices<I>(*this); }

  friend bool operator==(const IndexedVector&, const IndexedVector&) = default;
};

}  // namespace stalloc
