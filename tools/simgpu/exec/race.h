/* race.h: ordinary accesses to shared memory that nothing orders (exec/race.c).
 *
 * Two accesses to a byte, one of them a write, must be ordered by what the program does (order.h), or both be strong: atomic,
 * volatile, relaxed or stronger. Else it is chance which comes first, whatever came first here:
 *
 *      by different warps      the later one's warp must know of the earlier one: through a barrier, an mbarrier, ...
 *      by lanes of one warp    they must have met since: at __syncwarp, of both, or a barrier. That they execute together, shuffles, votes,
 *                              ldmatrix and mma order nothing (PTX ISA, "Memory Consistency Model": these synchronise no memory)
 *
 * Lanes that write the same byte with one instruction, or warps that do so unordered, are let pass with a remark when they
 * write the same value. What cp.async brings counts as written when it has been waited for; until then nobody may touch it.
 *
 * What is remembered, in times of order.h's clocks (a word is 4 bytes, a piece 16):
 *
 *      a word's cell           its last write: when, who, where in the program, which of its bytes; if lanes of a warp have written
 *                              some each before they met, which lane wrote which
 *      a piece's readers       for each warp, its reads of the piece: when, where, which bytes, by which lanes; these, and where, word
 *                              by word if they are not alike or in a row, and which lane byte by byte where it read parts of a word
 *      a piece's `wrote`       when anybody did last. Not after the last barrier of the whole block: nothing to look at, which
 *                              makes most accesses quick
 *      a warp's log of reads   of all lanes, until somebody writes near by: seldom before the next barrier of the whole block
 *
 * A write that follows an unordered one is told as that race, and then it is forgotten; two halves of a word that different
 * warps write leave the later one. So not each race is told, but what is told is one. */
#ifndef RACE_H
#define RACE_H

#include "../sim.h"

/* An instruction's number in its module has so many bits here; in larger modules the others' is 0. */
enum { SITE_BITS = 17 };

/* How an instruction accesses memory. */
enum access {
    ACCESS_READ = 0,
    ACCESS_WRITE = 1,
    ACCESS_STRONG = 2,    /* atomic, volatile, relaxed, acquire or release */
    ACCESS_TOGETHER = 4,  /* by the warp as one, as ldmatrix does: no lane has bytes of its own */
    ACCESS_COPY = 8,      /* cp.async: written only when it has been waited for */
    ACCESS_CTA = 16,      /* strong, but its scope is the block's: for other blocks it is not */
    ACCESS_CONSTANT = 32, /* ld.global.nc */
    ACCESS_BULK = 64,     /* a bulk copy */
    ACCESS_DATA = 128     /* a strong load whose value decides nothing: front/decision.c */
};

void race_start_block(struct block *b);
void race_end_cluster(struct cluster *c);
void race_free_block(struct block *b);

/* A barrier of all of the block's threads, each of which waited, is complete. */
void race_all_met(struct block *b);

/* These lanes access `bytes` bytes of b's shared memory each, from offsets `at`; called before a store writes. Faults when that
 * is a race; a write of what may be the same value is decided by race_settle, to be called when it has been written. */
void race_access(struct warp *w, const struct inst *in, u32 mask, struct block *b, const u32 at[LANES],
                 u32 bytes, enum access how);

/* The same for 32 lanes and 4 bytes each: words at offsets 4 * word[i]. */
void race_access_words(struct warp *w, const struct inst *in, const u32 word[LANES], enum access how);

/* A store of one lane to a word of the own block. */
void race_write_word(struct warp *w, const struct inst *in, u32 lane, u32 word);

/* A read of 32 words, lane i's at word + i * step: step 0 or 1. */
void race_read_regular(struct warp *w, const struct inst *in, u32 word, u32 step);

/* Whether nobody has written the two bytes at this even offset since the block began, as far as that is known. */
bool race_never_written(const struct block *b, u32 at);

/* The word at this offset has just been written, with what nobody has: it is as unwritten as that was, until somebody writes there. */
void race_stored_unwritten(struct block *b, u32 at);
/* The store that did so, or NULL. */
const struct inst *race_unwritten_by(const struct block *b, u32 at, const struct function **fn);

/* A store of w has been executed, for these lanes, to these host addresses. */
void race_settle_now(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES]);
static inline void race_settle(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES])
{
    if (w->suspects) race_settle_now(w, in, mask, at);
}

/* A cp.async that `in` issued for `lane` of `owner` has been waited for: written at `time` of that warp. */
void race_landed(struct warp *owner, const struct inst *in, u32 lane, u32 at, u32 bytes, u32 time);

/* For a message on two accesses by lanes of w that have not met in between. */
const char *race_missing_syncwarp(const struct warp *w);

/* For a message on two accesses that nothing orders: what else would do, where they are the load and the store of `x += 1`. */
const char *race_update(const struct function *fn, const struct inst *in, const struct function *other,
                        const struct inst *with);

/* Whether this is a volatile load or store: what old programs have instead of __syncwarp(). */
bool race_is_volatile(const struct function *fn, const struct inst *in);
/* Such a load of a warp has read, at this place, what another lane has left there with such a store, and nothing orders the two. */
void race_tell_volatile(struct warp *w, const struct inst *in, u32 lane, const char *where, u32 writer,
                        const struct function *fn, const struct inst *store);

/* What wrote the 16 bytes around this offset of b's shared memory last, of ordinary instructions and cp.async, and what a warp of
 * b read them with; NULL when that is not known. For messages. */
const struct inst *race_writer(const struct block *b, u32 at, const struct function **fn);
const struct inst *race_reader(struct block *b, u32 warp, u32 at, const struct function **fn);

#endif
