/* A store's missing experts in host memory: in an arena that is page-locked as far as the system allows, and in the
 * file, from where direct reads bring them when there is not memory enough. An expert in the arena lies there as in a
 * slot.
 *
 * The arena is made of chunks, so that each can be page-locked by itself: the first refusal ends that, and what is not
 * locked is used all the same. Experts that make room in a slot of the device get a spare place of their size in the
 * arena. */
#ifndef ST_ENGINE_EXPERT_HOST_H
#define ST_ENGINE_EXPERT_HOST_H

#include "base/team.h"
#include "engine/expert_store.h"

struct st_expert_host;

struct st_expert_host_config {
    const struct st_expert_store *store;     /* filled; outlives the object */
    const struct st_expert_profile *profile; /* or NULL */
    uint64_t budget;                         /* bytes that the arena may take */
    struct st_team *team;                    /* fills it */
    /* Page-locks whole pages for the device; unlock false: they must stay where they are. */
    enum strata_result (*lock)(void *user, void *memory, uint64_t bytes, struct strata_error *err);
    bool (*unlock)(void *user, void *memory);
    void *user;
};

struct st_expert_host_stats {
    uint64_t arena, locked; /* bytes */
    uint64_t in_file;       /* bytes of missing experts that have no place in the arena */
    uint64_t read;          /* bytes that direct reads have brought */
    char refused[200];      /* why not all of the arena is page-locked, or "" */
};

enum strata_result st_expert_host_open(const struct st_expert_host_config *c, struct st_expert_host **out,
                                       struct strata_error *err);
void st_expert_host_close(struct st_expert_host *h);
void st_expert_host_stats(const struct st_expert_host *h, struct st_expert_host_stats *out);
/* Bytes that the arena takes when experts have slots as marked in resident [layers][experts] (enum st_expert_mark; those in
 * slots that may be lent come last); *in_file: of those without a slot that then are in the file alone. */
uint64_t st_expert_host_bytes(const struct st_expert_set *set, const struct st_expert_profile *profile,
                              const uint8_t *resident, uint64_t budget, uint64_t *in_file);

/* The expert in the arena, laid out as in a slot; NULL: it is in the file alone. */
const uint8_t *st_expert_host_at(const struct st_expert_host *h, uint32_t layer, uint32_t expert);

/* A direct read of one tensor's part of an expert. */
struct st_expert_read {
    uint32_t layer, expert, section;
    uint8_t *buffer;     /* st_expert_read_room bytes, at a multiple of 4096 */
    const uint8_t *data; /* once it is finished: the expert's bytes, inside the buffer */
};
uint64_t st_expert_read_room(uint64_t bytes);
/* Starts reads; they and their array stay valid until finish, which waits for all of them. A read that fails or comes
 * up short is STRATA_E_IO and names file and tensor. */
enum strata_result st_expert_host_begin(struct st_expert_host *h, struct st_expert_read *reads, size_t n,
                                        struct strata_error *err);
enum strata_result st_expert_host_finish(struct st_expert_host *h, struct strata_error *err);

/* Exchanges. A spare place for a slot of so many bytes, NULL when there is none (the expert is then in the file alone).
 * The outgoing expert gets it once its bytes lie there, and the place of the incoming one becomes a spare. */
uint8_t *st_expert_host_spare(struct st_expert_host *h, uint64_t slot);
void st_expert_host_exchange(struct st_expert_host *h, uint32_t in_layer, uint32_t in_expert, uint32_t out_layer,
                             uint32_t out_expert, uint8_t *place);
/* A spare that was not used after all. */
void st_expert_host_give_back(struct st_expert_host *h, uint8_t *place, uint64_t slot);

#endif
