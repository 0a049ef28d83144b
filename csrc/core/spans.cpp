#include "core/spans.h"

#include <limits>
#include <string>

namespace wt {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

Status out_of_bounds(size_t row, const std::string& what) {
  return {ErrCode::BOUNDS, "span " + std::to_string(row) + ": " + what};
}

bool inside(int64_t offset, int64_t n, int64_t size) { return offset >= 0 && n >= 0 && n <= size && offset <= size - n; }

std::string range(int64_t offset, int64_t n, int64_t size) {
  return "offset " + std::to_string(offset) + ", nbytes " + std::to_string(n) + ", size " + std::to_string(size);
}

}  // namespace

Status check_local(const std::vector<Span>& spans, const Memory& local) {
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    if (span.block < 0 || span.block >= local.num_blocks())
      return out_of_bounds(i, "block " + std::to_string(span.block) + " of " + std::to_string(local.num_blocks()));
    const int64_t size = local.block_nbytes(span.block);
    if (!inside(span.src, span.nbytes, size)) return out_of_bounds(i, "local " + range(span.src, span.nbytes, size));
  }
  return {};
}

Status check_remote(const std::vector<Span>& spans, int64_t remote_nbytes) {
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    if (!inside(span.dst, span.nbytes, remote_nbytes))
      return out_of_bounds(i, "remote " + range(span.dst, span.nbytes, remote_nbytes));
  }
  return {};
}

Status check_digests(const std::vector<Span>& spans, size_t num_digests) {
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    if (span.tensor < 0 || static_cast<uint64_t>(span.tensor) >= num_digests)
      return out_of_bounds(i, "tensor " + std::to_string(span.tensor) + " of " + std::to_string(num_digests));
    if (!inside(span.position, span.nbytes, kMax)) return out_of_bounds(i, "position " + std::to_string(span.position));
  }
  return {};
}

int64_t total_nbytes(const std::vector<Span>& spans) {
  int64_t total = 0;
  for (const Span& span : spans) {
    if (__builtin_add_overflow(total, span.nbytes, &total)) return kMax;
  }
  return total;
}

}  // namespace wt
