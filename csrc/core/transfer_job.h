// A span table's worth of copying, or of digesting in place, cut into chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "core/copy_pool.h"
#include "core/memory.h"
#include "core/spans.h"

namespace wt {

// One span with both ends as offsets in their memory's byte space.
struct Stretch {
  int64_t from;
  int64_t to;
  int64_t nbytes;
  int64_t tensor;
  int64_t position;
};

class TransferJob : public Job {
 public:
  // `to` empty: the bytes are only digested. Offsets have been checked; stretches of size 0 are absent.
  TransferJob(Memory from, Memory to, std::vector<Stretch> stretches, bool with_digest, int64_t chunk_nbytes);

  int64_t num_chunks() const override { return static_cast<int64_t>(cuts_.size()); }
  void run(int64_t chunk, Work& work, Scratch& scratch) override;
  void release() override;

 private:
  // Where a chunk begins; it ends where the next one does.
  struct Cut {
    size_t stretch;
    int64_t offset;
  };

  bool move(const Stretch& stretch, int64_t offset, int64_t n, Work& work, Scratch& scratch);

  Memory from_;
  Memory to_;
  const bool store_;
  const bool with_digest_;
  const std::vector<Stretch> stretches_;
  std::vector<Cut> cuts_;
};

}  // namespace wt
