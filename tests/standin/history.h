// Who used which addresses last, and on which streams: finds reuse that nothing orders.
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
  // Notes the use at `p`, whose past is `past`. Returns an earlier use by another owner that is not
  // in that past, if there is one.
  std::optional<Use> add(const Use& use, const Point& p, const Clock& past);

  // A use of [begin, end) that is not in `past`, if there is one.
  std::optional<Use> unordered(Address begin, Address end, const Clock& past) const;

  // Nothing has been used there any more: the memory behind it is new.
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
