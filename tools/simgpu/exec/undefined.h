/* undefined.h: values that nobody has written (exec/undefined.c).
 *
 * Memory that nobody has written holds UNWRITTEN: NaN in every floating-point format, and no number that a program has by
 * chance. A load that finds it in two bytes asks what is kept of writes anyway, and both together are the proof:
 *
 *      shared    the cells of race.h; in kernels of the async proxy the stamps of proxy.h, 16 bytes at a time
 *      global    the records of global.h, for what kernels write; of what the host copies, fills or computes there, and of bulk
 *                copies, only what has just this value is noted (record_wrote)
 *      local     a bit for each two bytes that the thread has written
 *
 * A variable that was never set is a register that nothing can have written (front/unset.c): there is such an instruction, which does
 * as a load of it would, before what reads it.
 *
 * From then on the warp is watched until none of its registers holds such bits. What is computed from them is undefined too,
 * bit by bit as far as that is certain, and it is a fault when they decide something: an address, a branch, whether a store is
 * executed; so is an atomic operation on memory that nobody has written. In shared memory somebody may write it later, for want of
 * a barrier: that race is told then, and this, but for an address, when the block leaves. To move such bits about is no fault: who copies a tile may copy its padding. A word of which nothing is known and that is
 * stored to shared memory, or comes there by cp.async, is unwritten there, too, until somebody writes there. What is stored elsewhere counts as defined again, and so does what the rules of
 * undefined.c do not know: not everything is told, but what is told is true. (The rule, and the arithmetic on bits, are those of Stepanov and Serebryany,
 * "MemorySanitizer: fast detector of uninitialized memory use in C++", CGO 2015.) */
#ifndef UNDEFINED_H
#define UNDEFINED_H

#include "../sim.h"

#define UNWRITTEN_HALF 0x7fffu
#define UNWRITTEN      (UNWRITTEN_HALF << 16 | UNWRITTEN_HALF)

/* Makes this memory, which begins on an even address, memory that nobody has written. */
void undefined_fill(void *start, u64 bytes);

/* Local memory of each thread of w, from offset `at` on. */
void undefined_fill_local(struct warp *w, u32 at, u32 bytes);
void undefined_local_written(struct warp *w, u32 lane, u32 at, u32 bytes);

/* Whether two bytes of these 32 words may be such. */
static inline bool undefined_maybe(const u32 word[LANES])
{
#ifdef __AVX512BW__
    const __m512i half = _mm512_set1_epi16(UNWRITTEN_HALF), low = _mm512_loadu_si512(word),
                  high = _mm512_loadu_si512(word + 16);
    return (_mm512_cmpeq_epi16_mask(low, half) | _mm512_cmpeq_epi16_mask(high, half)) != 0;
#else
    typedef u16 half __attribute__((may_alias));
    const half *h = (const half *)word;
    u16 found = 0;
    for (int i = 0; i < 2 * LANES; i++) found |= (u16)(h[i] == UNWRITTEN_HALF);
    return found;
#endif
}
static inline bool undefined_maybe_word(u32 v)
{
    return (v & 0xffff) == UNWRITTEN_HALF || v >> 16 == UNWRITTEN_HALF;
}

/* The load `in` of these lanes is about to read in->count elements from these host addresses into its registers, and something
 * there looks like it. */
void undefined_load(struct warp *w, const struct inst *in, u32 mask, const u64 host[LANES]);

/* A cp.async has brought what was at this host address, of so many bytes, to this offset of w's shared memory. */
void undefined_copied(const struct warp *w, u32 at, const u8 *source, u32 bytes);

/* An atomic operation, at addresses as the program gives them, before it has been noted as a write. */
void undefined_atomic(struct warp *w, const struct inst *in, u32 mask, const u64 address[LANES], u32 bytes);

/* A product is added to what nobody has set; `more` is what else would do. */
void undefined_accumulators(struct warp *w, const struct inst *in, u32 mask, const char *more);

/* The last thread of b leaves. */
void undefined_end_block(struct block *b);

/* Whether w is watched; then this goes before each instruction, for the lanes whose guard holds, which may be none. */
static inline bool undefined_watching(const struct warp *w)
{
    return w->undefined_registers > 0;
}
void undefined_step(struct warp *w, const struct inst *in, u32 mask);

void undefined_start_warp(struct warp *w);
void undefined_free_warp(struct warp *w);

#endif
