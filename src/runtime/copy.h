/* Copies between the memories of any two devices.
 *
 * The way is through two page-locked host buffers that both devices know: while one is read by the receiving device the
 * other is filled by the sending one. Order comes from events, and from a timeline number in host memory that counts
 * the pieces whose bytes have arrived in a buffer. Two devices of one runtime may copy directly, if a test copy at
 * opening arrived with the right bytes. */
#ifndef ST_RUNTIME_COPY_H
#define ST_RUNTIME_COPY_H

#include <stdatomic.h>

#include "runtime/device.h"

enum st_channel_way {
    ST_CHANNEL_SAME,   /* one device: a copy in its memory */
    ST_CHANNEL_DIRECT, /* tested direct copies */
    ST_CHANNEL_HOST,
};

struct st_channel {
    struct st_device *from, *to;
    enum st_channel_way way;
    uint64_t piece;  /* bytes of one buffer */
    uint8_t *memory; /* both buffers, then a page with the timeline */
    uint64_t memory_size;
    bool from_registered, to_registered;
    struct st_event *filled[2];  /* on from: the buffer holds its piece */
    struct st_event *emptied[2]; /* on to: the buffer was read */
    bool in_use[2];              /* emptied was recorded and not yet waited for */
    struct st_event *passed;     /* on from, for the direct way */
    uint64_t pieces;             /* given so far */
    _Atomic uint32_t *timeline;
};

/* piece: bytes of one buffer, rounded up to whole pages; direct: try direct copies. Both devices outlive the channel.
 */
enum strata_result st_channel_open(struct st_device *from, struct st_device *to, uint64_t piece, bool direct,
                                   struct st_channel **out, struct strata_error *err);
/* Both queues of the last copy have been synchronised. */
void st_channel_close(struct st_channel *channel);

/* Copies size bytes after what from_queue holds, before what comes next in to_queue. Returns when the last piece has
 * left the sending device and its copy to the receiving one is in to_queue; the source may be overwritten by later
 * commands of from_queue. One thread at a time per channel. */
enum strata_result st_channel_copy(struct st_channel *channel, struct st_queue *from_queue, st_addr src,
                                   struct st_queue *to_queue, st_addr dst, uint64_t size, struct strata_error *err);

/* Pieces whose bytes have arrived in host memory since the channel was opened; any thread may ask. */
uint32_t st_channel_timeline(const struct st_channel *channel);

#endif
