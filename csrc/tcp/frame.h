// The wire format of one TCP data stream: a fixed header, then `nbytes` of payload for WRITE and DATA.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace wt::tcp {

static_assert(std::endian::native == std::endian::little, "frames are little-endian on the wire");

inline constexpr uint32_t kFrameMagic = 0x31465457;  // "WTF1"

// A payload longer than this is no frame of ours: the stream is broken instead of being drained.
inline constexpr uint64_t kMaxFramePayload = 64ULL << 20;

enum class Op : uint8_t {
  Write = 1,  // initiator: store the payload
  Read = 2,   // initiator: asks for `nbytes`, no payload
  Flush = 3,  // initiator: nothing more of this work comes on this stream, acknowledge it
  Data = 4,   // owner: answers one Read; `nbytes` is what was asked for, or 0 with a code
  Ack = 5,    // owner: `nbytes` stored or served for this work on this stream so far
  Bye = 6,    // either: an orderly end, nothing follows
};

enum FrameFlag : uint8_t {
  kFrameDigest = 1,  // the owner takes the digest of what it stores
  kFrameLast = 2,    // of an initiator: the work's last frame on this stream; of an Ack: its answer
};

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint8_t op = 0;
  uint8_t flags = 0;
  uint16_t code = 0;        // ErrCode, of Data and Ack
  uint64_t epoch = 0;       // the endpoint's
  uint64_t key = 0;         // of the grant
  uint64_t generation = 0;  // of the grant
  uint64_t work = 0;
  uint64_t offset = 0;    // byte offset in the granted region
  uint64_t nbytes = 0;    // bytes of payload, asked for, or acknowledged
  uint64_t position = 0;  // global byte position of the first byte, for the digest
  uint32_t tensor = 0;
  uint32_t reserved = 0;

  [[nodiscard]] bool has(FrameFlag flag) const { return (flags & flag) != 0; }
};

static_assert(sizeof(FrameHeader) == 72 && std::is_trivially_copyable_v<FrameHeader>);

}  // namespace wt::tcp
