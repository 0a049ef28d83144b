// A thread's buffer for strided memory: allocated on first need, kept for the next chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace wt {

class Scratch {
 public:
  static constexpr int64_t kNbytes = 1 << 20;  // half of a second-level cache

  // Null when memory is short.
  std::byte* buffer() {
    if (!buffer_) buffer_.reset(new (std::align_val_t(64), std::nothrow) std::byte[kNbytes]);
    return buffer_.get();
  }

 private:
  struct Delete {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
  };
  std::unique_ptr<std::byte[], Delete> buffer_;
};

}  // namespace wt
