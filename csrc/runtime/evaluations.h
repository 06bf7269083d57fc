// Plans the evaluations of a run, which no profile has.
//
// An unplanned stretch has parts: its beginning, and each forward of the model with what follows.
//
//   stretch   | fetch a batch | forward, loss, fetch | forward, loss, fetch | forward, loss |
//   part      | beginning     | forward              | forward              | forward       |
//
// Each forward makes the same requests in the same order; only the batch differs. So the first one
// is recorded, and its requests are laid out for the later ones:
//
//   forward 1   the first idle addresses serve; sizes and lifetimes are recorded
//   forward 2   request i lies at the i-th offset of the layout, which has an idle range of the
//               pool to itself for the time of the part (StaticPool::open_zone)
//
// The same applies to beginnings. A request has a place if it is at most as large as the largest
// one at its position before. The layout grows with the batches. A part that differs in more than
// half of its requests is that of another program, and replaces what is known. Requests that
// outlive their part have no place.
//
// Parts of one program may have different ends: a short batch is fetched after the last forward but
// one, and none after the last. Numbers have one size for all batches, so they tell where such a
// part goes on:
//
//   known      ... forward | rows of 8 samples | 8 B, mask, 8 B, ...
//   this part  ... forward | one sample        | 8 B, mask, 8 B, ...
//
// A number that is not the next request here, but a later one, is left unplaced. If the request
// after it fits, too, the part goes on there.
//
// Two forwards with batches of two sizes show which sizes vary, and how. After that, the first of
// these sizes in a forward tells if the batch is larger than any before, and all sizes to come. So
// the layout is made for it, and memory is added once, instead of for each request by itself. Once
// much of the part is live, it keeps its layout: a second one would lie beside these requests.
//
// Safety does not depend on the layout: the pool checks every address.
//
// Cost: O(1) a request. A layout costs milliseconds; the number of layouts is limited. Memory: some
// dozen bytes a request of the largest part. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "plan/numbers.h"

namespace stalloc::runtime {

class Evaluations {
 public:
  explicit Evaluations(Bytes alignment) : alignment_(alignment) {}
  Evaluations(const Evaluations&) = delete;
  Evaluations& operator=(const Evaluations&) = delete;

  enum class Part : std::uint8_t { kBeginning, kForward };

  // Begins a part. The one before has ended.
  void begin(Part part);
  // Ends the part, if one has begun, and learns from it.
  void end();
  bool active() const { return active_; }
  // The part's forward has returned.
  void end_forward() { has_returned_ = true; }
  bool has_returned() const { return has_returned_; }

  // The height of the part's layout; 0 before the first.
  Bytes height() const { return program_->height; }
  StreamId stream() const { return program_->stream(); }

  // True if a forward has begun in this evaluation or, after it, in the last one.
  bool has_forward() const { return forwards_ > 0; }

  static constexpr Bytes kAny = std::numeric_limits<Bytes>::max();

  // A request of at most this size holds one number, such as the sum of a metric. A loop may keep
  // it for good. In the pool it would displace the decisions over its addresses in every iteration;
  // beside the pool it costs hardly anything. So a number has the place of a number of its size
  // only, and none where one has outlived its part, until another program is learnt.
  static constexpr Bytes kNumber = plan::kNumber;

  // The bytes that the part's requests without a place in the layout, which outlive it, need
  // besides.
  Bytes room() const { return program_->room; }

  // True if the next request, which is of this size, tells that the part is larger than any before
  // it. Then the layout is made for that.
  bool enlarge(Bytes size, StreamId stream);
  // Counts the part's next request. Returns its offset in the layout; kUnplaced if it has none.
  Offset next(Bytes size, StreamId stream);
  // True if what outlives this part goes to the last addresses of the pool, else to the first.
  //
  // The outputs of a forward mostly live until those of the next one exist. If they lay side by
  // side, the later ones would end up in the middle of the pool. Both ends take turns, so that
  // those of the evaluation's last forward, which may stay for long, lie at the beginning. So do
  // the outputs of all forwards if they pile up, as in a list.
  bool leaves_last() const { return !piles_up() && (usual_forwards_ - forwards_) % 2 != 0; }
  // True if the position of the last request is known from an earlier part.
  bool is_known() const { return at_ < program_->known.size(); }
  // True if requests at this position, which is known, have outlived their part, or never have.
  bool outlives(Bytes below = kAny) const;  // and are smaller than this
  bool is_brief() const { return is_known() && !outlives(); }
  // Tells the block that serves this request.
  void serve(const void* p);
  // The block at `p` was freed.
  void release(const void* p);

 private:
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

  struct Request {
    Bytes size = 0;
    StreamId stream = 0;
    std::int32_t freed_at = kNone;  // the number of requests before its free; kNone: outlives them
    Offset offset = kUnplaced;
    std::size_t at = kNowhere;  // of a request of this part: its position among the known ones
  };

  struct Program {
    std::vector<Request> known;  // the largest at each position
    Bytes height = 0;
    Bytes room = 0;
    int layouts = 0;  // made so far
    // Sizes in two forwards that differ, by position, and the first position where they do. The
    // second ones are empty, and there is no such position, until the sizes vary.
    std::array<std::vector<Bytes>, 2> observed;
    std::size_t first_varying = kNowhere;

    StreamId stream() const { return known.empty() ? 0 : known.front().stream; }
    void forget_sizes() {
      observed = {};
      first_varying = kNowhere;
    }
  };

  // True if the outputs of more than one earlier forward are live.
  bool piles_up() const { return 2 * left_bytes_ > 3 * room(); }
  bool is_late() const;
  std::size_t find_position(Bytes size, StreamId stream);
  bool fits(std::size_t position, Bytes size, StreamId stream) const;
  void learn_numbers();
  bool learn();
  void forget_left(const void* p);
  void observe();
  Bytes size_at(std::size_t position, Bytes first) const;
  void lay_out();

  Bytes alignment_;
  std::array<Program, 2> programs_;      // by part
  Program* program_ = programs_.data();  // of this part
  std::vector<Request> now_;             // of this part
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::unordered_map<const void*, std::int32_t> live_{&nodes_};  // indices into now_
  // The sizes of the live blocks of this evaluation's earlier forwards, and their sum.
  std::pmr::unordered_map<const void*, Bytes> left_{&nodes_};
  Bytes left_bytes_ = 0;
  std::size_t alike_ = 0;          // requests of this part that are no larger than known
  std::size_t at_ = 0;             // the known position of the last request
  std::size_t next_ = 0;           // that of the next one
  std::size_t resync_ = kNowhere;  // that of the next one if the part goes on further ahead
  bool active_ = false;
  bool has_returned_ = false;  // the part's forward
  int forwards_ = 0;           // of this evaluation so far
  int usual_forwards_ = 1;     // of the evaluation before
};

}  // namespace stalloc::runtime
