// The span table: which bytes of the local region belong to which bytes of the remote one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory.h"
#include "core/result.h"

namespace wt {

// One row of the table, as the int64 [n, 6] array has it.
struct Span {
  int64_t block;  // of the local region
  int64_t src;    // byte offset in that block's serialisation (local side)
  int64_t dst;    // byte offset in the remote region
  int64_t nbytes;
  int64_t tensor;    // digest accumulator
  int64_t position;  // global row-major byte position of the first byte
};
static_assert(sizeof(Span) == 6 * sizeof(int64_t));

constexpr uint32_t kFlagDigest = 1;

// Each returns BOUNDS, naming the first bad row, unless every row lies inside. A size of zero is allowed.
Status check_local(const std::vector<Span>& spans, const Memory& local);
Status check_remote(const std::vector<Span>& spans, int64_t remote_nbytes);
// Accumulator indices below num_digests, positions not negative and without overflow.
Status check_digests(const std::vector<Span>& spans, size_t num_digests);

// Sum of all rows' nbytes. Precondition: check_local or check_remote passed; saturates at INT64_MAX.
int64_t total_nbytes(const std::vector<Span>& spans);

}  // namespace wt
