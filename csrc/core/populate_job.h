// Faulting in a mapping's pages ahead of the first copy.
#pragma once

#include <cstdint>
#include <memory>

#include "core/copy_pool.h"
#include "core/region.h"

namespace wt {

class PopulateJob : public Job {
 public:
  explicit PopulateJob(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)), nbytes_(mapping_->nbytes()) {}

  int64_t num_chunks() const override { return (nbytes_ + kChunkNbytes - 1) / kChunkNbytes; }
  void run(int64_t chunk, Work& work, Scratch& scratch) override;
  void release() override { mapping_.reset(); }

 private:
  static constexpr int64_t kChunkNbytes = 1 << 20;  // a core is not given up within

  std::shared_ptr<Mapping> mapping_;
  const int64_t nbytes_;
};

}  // namespace wt
