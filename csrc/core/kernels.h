// What the kernel files share: the scalar digest, and one accessor per instruction set.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/copy.h"

namespace wt::kernels {

static_assert(std::endian::native == std::endian::little, "the digest is defined over little-endian words");

uint64_t digest_scalar(const std::byte* data, size_t n, int64_t position);

const CopyKernels* portable();
const CopyKernels* avx2();
const CopyKernels* avx512();

}  // namespace wt::kernels
