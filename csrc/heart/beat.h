// One heartbeat as it stands on the wire, and the state machine that says when its absence or content is news.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace wt::heart {

static_assert(std::endian::native == std::endian::little, "beats are little-endian on the wire");

inline constexpr uint64_t kBeatMagic = 0x3154414542545721;  // "!WTBEAT1"

struct Beat {
  uint64_t magic = kBeatMagic;
  uint64_t seq = 0;
  uint64_t python_age_ns = 0;  // since the sender's Python last made progress
};

static_assert(sizeof(Beat) == 24 && std::is_trivially_copyable_v<Beat>);

enum class Liveness : int32_t {
  Silent = 1,     // no beat for silent_after
  Resumed = 2,    // a beat after Silent
  Eof = 3,        // the beat socket ended, failed or carried something else
  Exited = 4,     // the process behind the pidfd is gone
  Stalled = 5,    // beats arrive, their Python age exceeds silent_after
  Unstalled = 6,  // and no longer does
};

}  // namespace wt::heart
