// Records the last users of addresses and their streams, and finds reuse that nothing orders.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "order.h"

namespace standin {

using Address = std::uintptr_t;

struct Use {
  Address begin = 0;
  Address end = 0;
  std::uint64_t owner = 0;
};

class History {
 public:
  // Records a use at `p`, which comes after all of `past`. Returns an earlier use by another owner
  // that is not in `past`, if there is one.
  std::optional<Use> add(const Use& use, const Point& p, const Clock& past);

  // Returns a use of [begin, end) that is not in `past`, if there is one.
  std::optional<Use> unordered(Address begin, Address end, const Clock& past) const;

  // Forgets all uses there: the memory is new.
  void forget(Address begin, Address end);

 private:
  struct Last {
    Address end = 0;
    std::uint64_t owner = 0;
    std::vector<Point> points;  // of the owner's uses, one a stream
  };

  void cut(Address at);

  std::map<Address, Last> last_;  // disjoint, by begin
};

}  // namespace standin
