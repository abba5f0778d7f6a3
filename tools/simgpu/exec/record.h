/* record.h: who has last accessed each word of global memory (exec/record.c).
 *
 *      a word's cells  its last write and two reads since, in this launch: numbers of records, which say who, when and where. Most
 *                      often the words of a line have the same: then it is the line's
 *
 * Of the two launches before, if they may still run, the writes are known as well; and of all launches, and of what the host has copied
 * over what nobody had written, that there was a write. */
#ifndef RECORD_H
#define RECORD_H

#include "race.h"

#define NOT_WAITED UINT32_MAX

struct record {
    const struct function *fn;
    const struct inst *in;
    u32 unit;
    u32 time; /* NOT_WAITED: a bulk store that its thread has not waited for */
    u16 actor;
    u8 how;       /* enum access */
    u8 bytes : 4; /* which bytes of the word, 15: all */
    u8 step : 4;  /* as in struct by_lanes */
    u32 lanes;
    u32 fences; /* records.fences then */
};

/* Which lanes did it. With a step, elements of 1 << (step - 1) bytes that lie in a row: `lanes` is the number of lane 0's, modulo 32.
 * Else all of `lanes`, which one accessed what is not told apart; 0: it is not known which. */
struct by_lanes {
    u32 step, lanes;
};

enum { LINE = 16 };
struct numbers {
    u32 *lines, *words; /* NULL: no room for them */
};
#define BY_WORD UINT32_MAX       /* a line's: each word has its own */
#define BUSY    (UINT32_MAX - 1) /* ... another host thread is making it so */

extern struct records {
    u64 base, bytes;                      /* the device's addresses */
    struct numbers writes, reads, others; /* others: reads that do not synchronise with `reads` */
    struct record *now, *before,
        *earlier;                  /* by number: of this launch and the two before it, from these on: */
    u32 first, previous, earliest; /* where that one is over, the same as the next */
    _Atomic u32 next;
    u64 launches;
    bool forgotten;     /* what was written before some launch is no longer known */
    _Atomic u32 fences; /* fence.proxy.async of global memory, as many as this launch has executed */
} records;

/* Before a launch. `written`: how many bytes there are from the first to the last that the launch before has written to. */
void record_start_launch(const struct launch *l, u64 written);
void record_start_warp(struct warp *w);
void record_free_warp(struct warp *w);

/* Of what w does, known from `time` on. */
struct record record_make(const struct warp *w, const struct inst *in, u32 time, enum access how, u32 bytes,
                          struct by_lanes by);
/* The number of this record, or of a new one; 0 when there are too many. */
u32 record_keep(const struct record *r);
u32 record_new(const struct warp *w, const struct inst *in, u32 time, enum access how, u32 bytes,
               struct by_lanes by);
/* The same of what w does here and now. */
u32 record_here(struct warp *w, const struct inst *in, enum access how, u32 bytes, struct by_lanes by);

static inline const struct record *record_of(u32 number)
{
    return number >= records.first      ? &records.now[number - records.first]
           : number >= records.previous ? &records.before[number - records.previous]
                                        : &records.earlier[number - records.earliest];
}

/* Which of these lanes accesses what. */
struct by_lanes record_lanes_of(u32 mask, const u64 at[LANES], u32 bytes);
/* The lanes that have accessed these bytes of the word at `at`, of a record's; 0: not known. */
u32 record_lanes(const struct record *r, u64 at, u32 bytes);

/* A warp of its cluster, as records have it. */
static inline u32 actor_of(const struct warp *w)
{
    return w->block->cluster_rank * MAX_WARPS + w->id;
}

/* ---- Numbers of words ----------------------------------------------------------------------------------------------------- */

/* A line's number, when no other host thread is at it. */
static inline u32 numbers_line(const struct numbers *n, u64 line)
{
    u32 number;
    while ((number = __atomic_load_n(&n->lines[line], __ATOMIC_ACQUIRE)) == BUSY) {
    }
    return number;
}

static inline u32 numbers_word(const struct numbers *n, u64 word)
{
    u32 number = numbers_line(n, word / LINE);
    return number == BY_WORD ? __atomic_load_n(&n->words[word], __ATOMIC_ACQUIRE) : number;
}

/* Where this word has a number of its own from now on, which is its line's at first. */
__attribute__((no_sanitize("thread"))) static inline u32 *numbers_own(const struct numbers *n, u64 word)
{
    u32 *line = &n->lines[word / LINE], number;
    while ((number = numbers_line(n, word / LINE)) != BY_WORD) {
        if (!__atomic_compare_exchange_n(line, &number, BUSY, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        for (u64 k = word / LINE * LINE, end = k + LINE; k < end; k++) n->words[k] = number;
        __atomic_store_n(line, BY_WORD, __ATOMIC_RELEASE);
    }
    return &n->words[word];
}

/* What this number is of has been written down before. */
static inline void numbers_set(const struct numbers *n, u64 word, u32 number)
{
    __atomic_store_n(numbers_own(n, word), number, __ATOMIC_RELEASE);
}

/* The same of the words from `word` to `end`. */
void numbers_set_all(const struct numbers *n, u64 word, u64 end, u32 number);
/* Whether these words have the same number, of those below `floor` taken as 0: *number. */
bool numbers_same(const struct numbers *n, u64 word, u64 end, u32 floor, u32 *number);

/* ---- What nobody has written ---------------------------------------------------------------------------------------------- */

/* Whether no kernel has written the word at this address, nor anything else what record_wrote notes, as far as that is known. */
bool record_never_written(u64 at);
/* The host or a bulk copy has written here: notes where that is what memory holds that nobody has written. But where it has
 * been copied from such memory (`from`, or NULL), it still is. */
void record_wrote(const void *to, const void *from, u64 bytes);
/* All of this is about to be written by a library of the host's. */
void record_will_be_written(const void *to, u64 bytes);

#endif
