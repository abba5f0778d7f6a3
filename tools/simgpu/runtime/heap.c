/* heap.c: the simulated GPU's global memory. See heap.h.
 *
 * All device addresses come from one reservation of address space, handed out upwards. The table of allocations is
 * therefore sorted by address just by appending to it, and an entry stays where it is for ever: freeing one only
 * marks it. So a reader needs no lock: it takes the table's pointer, then its count, and searches. A table that is
 * full is copied into one twice as large; the old one is kept, since a reader may still be in it. */
#define _GNU_SOURCE
#include "heap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../exec/undefined.h"

enum { ALIGNMENT = 256, RED_ZONE = 512, HOST_PAGE = 4096, GUARD = 1 << 20 };
#define LARGE           (2ull << 20) /* from here on, freed memory goes back to the system with its page tables */
#define HUGE            (256ull << 20) /* from here on, pages become memory of their own only when they are written */
#define POISON_FILE     (32ull << 20)
#define MAX_RESERVATION (16ull << 40) /* address space, not memory */
#define MIN_RESERVATION (64ull << 30)

struct entry {
    struct allocation allocation;
    atomic_bool live;
};

struct table {
    u32 capacity;
    _Atomic u32 count;
    struct entry entries[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* writers */
static _Atomic(struct table *) table;
static u64 base, limit;     /* the reservation */
static u64 next, committed; /* first address not handed out; first page not yet made accessible */
static u64 used_bytes;
static _Atomic u64 frees;
static u32 mallocs;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static u64 round_up(u64 value, u64 unit)
{
    return (value + unit - 1) / unit * unit;
}

static void *address_space(u64 bytes)
{
    return mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* As much as there is four times over, since exec/record.c needs more than twice as much for what it knows of it: ThreadSanitizer
 * leaves a program little. The least is taken all the same. */
static void reserve(void)
{
    for (u64 bytes = MAX_RESERVATION; bytes >= MIN_RESERVATION; bytes /= 4) {
        void *room = address_space(4 * bytes);
        if (room != MAP_FAILED)
            munmap(room, 4 * bytes);
        else if (bytes > MIN_RESERVATION)
            continue;
        void *at = address_space(bytes);
        if (at == MAP_FAILED) continue;
        base = (u64)at;
        next = committed =
            base + GUARD; /* just below the first allocation is still the device, not the host */
        limit = base + bytes;
        return;
    }
    fprintf(stderr, "simgpu: cannot reserve %llu GiB of address space for the device (is `ulimit -v` set?)\n",
            MIN_RESERVATION >> 30);
    exit(3);
}

/* The last entry that starts at or before `address`; -1 if none. */
static s64 search(const struct table *t, u32 count, u64 address)
{
    u32 low = 0, high = count;
    while (low < high) {
        u32 middle = low + (high - low) / 2;
        if (t->entries[middle].allocation.address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return (s64)low - 1;
}

/* Room for one more entry; NULL when the host is out of memory. */
static struct entry *append(void)
{
    struct table *t = atomic_load(&table);
    if (!t || t->count == t->capacity) {
        u32 capacity = t ? t->capacity * 2 : 1024;
        struct table *larger = calloc(1, sizeof *larger + capacity * sizeof(struct entry));
        if (!larger) return NULL;
        larger->capacity = capacity;
        if (t) {
            memcpy(larger->entries, t->entries, t->count * sizeof(struct entry));
            atomic_store(&larger->count, t->count);
        }
        atomic_store(&table, larger);
        t = larger;
    }
    return &t->entries[t->count];
}

/* With the reservation used up: a freed range that is large enough. */
static struct entry *recycle(u64 bytes)
{
    struct table *t = atomic_load(&table);
    for (u32 i = 0; t && i < t->count; i++) {
        struct entry *e = &t->entries[i];
        if (!atomic_load(&e->live) && e->allocation.bytes >= bytes) return e;
    }
    return NULL;
}

static bool make_accessible(u64 from, u64 to)
{
    if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE) != 0) return false;
    if (to - from >= LARGE) madvise((void *)from, to - from, MADV_HUGEPAGE);
    return true;
}

/* Whole pages of NaN without taking memory for them: private copies of a file of them, mapped again and again. So a
 * program may allocate more than the host has, as long as it does not write all of it. */
static bool map_poison(u64 from, u64 to)
{
    static int file = -1;
    if (file < 0) {
        file = memfd_create("simgpu-poison", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, POISON_FILE) != 0) return false;
        void *bytes = mmap(NULL, POISON_FILE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (bytes == MAP_FAILED) return false;
        undefined_fill(bytes, POISON_FILE);
        munmap(bytes, POISON_FILE);
    }
    for (u64 at = from; at < to; at += POISON_FILE) {
        u64 bytes = to - at < POISON_FILE ? to - at : POISON_FILE;
        if (mmap((void *)at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file,
                 0) != (void *)at)
            return false;
    }
    return true;
}

static void poison(u64 address, u64 bytes)
{
    u64 first = round_up(address, HOST_PAGE), end = (address + bytes) / HOST_PAGE * HOST_PAGE;
    if (bytes < HUGE || !map_poison(first, end)) {
        undefined_fill((void *)address, bytes);
        return;
    }
    undefined_fill((void *)address, first - address);
    undefined_fill((void *)end, address + bytes - end);
}

/* Of the device's memory. */
static u64 counted_bytes(enum allocation_kind kind, u64 bytes)
{
    return kind == ALLOCATION_HOST ? 0 : bytes;
}

u64 heap_alloc(u64 bytes, enum allocation_kind kind, const char *name)
{
    pthread_once(&once, reserve);
    if (bytes == 0 || bytes > MAX_RESERVATION) return 0;
    pthread_mutex_lock(&lock);
    u64 address = 0;
    u64 counted = counted_bytes(kind, bytes);
    if (used_bytes + counted > options.memory) goto out;

    struct entry *e;
    bool fresh = bytes + RED_ZONE + HOST_PAGE <= limit - next;
    if (fresh) {
        e = append();
        if (!e) goto out;
        u64 end = round_up(next + bytes + RED_ZONE, HOST_PAGE);
        if (end > committed) {
            if (!make_accessible(committed, end)) goto out;
            committed = end;
        }
        address = next;
        next = round_up(next + bytes + RED_ZONE, ALIGNMENT);
    } else {
        e = recycle(bytes);
        if (!e) goto out;
        address = e->allocation.address;
        u64 first = address / HOST_PAGE * HOST_PAGE;
        if (!make_accessible(first, round_up(address + bytes, HOST_PAGE))) {
            address = 0;
            goto out;
        }
    }
    if (kind == ALLOCATION_VARIABLE || kind == ALLOCATION_CONST) {
        if (!fresh) memset((void *)address, 0, bytes); /* fresh pages are zeros */
    } else
        poison(address, bytes);
    e->allocation = (struct allocation){.address = address, .bytes = bytes, .kind = kind, .name = name};
    if (kind == ALLOCATION_DEVICE || kind == ALLOCATION_MANAGED) e->allocation.number = ++mallocs;
    used_bytes += counted;
    atomic_store(&e->live, true);
    if (fresh) atomic_fetch_add(&atomic_load(&table)->count, 1);
out:
    pthread_mutex_unlock(&lock);
    return address;
}

/* Gives the whole pages inside a freed range back; the pages at its ends may hold neighbours. */
static void release(u64 address, u64 bytes, bool accessible)
{
    u64 first = round_up(address, HOST_PAGE), end = (address + bytes) / HOST_PAGE * HOST_PAGE;
    if (end <= first) return;
    void *pages = (void *)first;
    if (end - first >= LARGE && !accessible &&
        mmap(pages, end - first, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
            pages)
        return;
    madvise(pages, end - first, MADV_DONTNEED);
}

static void free_entry(struct entry *e, bool accessible)
{
    atomic_store(&e->live, false);
    atomic_fetch_add(&frees, 1);
    used_bytes -= counted_bytes(e->allocation.kind, e->allocation.bytes);
    release(e->allocation.address, e->allocation.bytes, accessible);
}

static struct entry *entry_at(u64 address)
{
    struct table *t = atomic_load(&table);
    s64 i = t ? search(t, t->count, address) : -1;
    return i >= 0 && t->entries[i].allocation.address == address ? &t->entries[i] : NULL;
}

static bool free_at(u64 address, bool in_kernel, bool accessible)
{
    pthread_mutex_lock(&lock);
    struct entry *e = entry_at(address);
    bool found = e && atomic_load(&e->live) && (!in_kernel || e->allocation.kind == ALLOCATION_DEVICE_MALLOC);
    if (found) free_entry(e, accessible);
    pthread_mutex_unlock(&lock);
    return found;
}

bool heap_free(u64 address)
{
    return free_at(address, false, false);
}
bool heap_free_in_kernel(u64 address)
{
    return free_at(address, true, true);
}
bool heap_retire(u64 address)
{
    return free_at(address, false, true);
}

bool heap_revive(u64 address, u64 bytes)
{
    pthread_mutex_lock(&lock);
    struct entry *e = entry_at(address);
    bool right = e && e->allocation.bytes == bytes, was_live = right && atomic_load(&e->live);
    if (right && !was_live) {
        u64 first = address / HOST_PAGE * HOST_PAGE;
        right = used_bytes + bytes <= options.memory &&
                make_accessible(first, round_up(address + bytes, HOST_PAGE));
        if (right) used_bytes += bytes;
    }
    if (right) {
        poison(address, bytes);
        atomic_store(&e->live, true);
    }
    pthread_mutex_unlock(&lock);
    return right;
}
u64 heap_frees(void)
{
    return atomic_load_explicit(&frees, memory_order_relaxed);
}

void heap_free_all(void)
{
    pthread_mutex_lock(&lock);
    struct table *t = atomic_load(&table);
    for (u32 i = 0; t && i < t->count; i++) {
        enum allocation_kind kind = t->entries[i].allocation.kind;
        if (atomic_load(&t->entries[i].live) &&
            (kind == ALLOCATION_DEVICE || kind == ALLOCATION_DEVICE_MALLOC || kind == ALLOCATION_MANAGED))
            free_entry(&t->entries[i], false);
    }
    pthread_mutex_unlock(&lock);
}

/* Adopted memory: a list that only grows, whose entries stop being live. */
struct adopted {
    struct allocation allocation;
    atomic_bool live;
    struct adopted *next;
};
static _Atomic(struct adopted *) adopted;

void heap_adopt(u64 address, u64 bytes)
{
    struct adopted *a = malloc(sizeof *a);
    if (!a) return;
    a->allocation = (struct allocation){.address = address, .bytes = bytes, .kind = ALLOCATION_HOST};
    atomic_init(&a->live, true);
    pthread_mutex_lock(&lock);
    a->next = atomic_load(&adopted);
    atomic_store(&adopted, a);
    pthread_mutex_unlock(&lock);
}

void heap_disown(u64 address)
{
    for (struct adopted *a = atomic_load(&adopted); a; a = a->next)
        if (a->allocation.address == address) atomic_store(&a->live, false);
    atomic_fetch_add(&frees, 1);
}

static bool find_adopted(u64 address, struct allocation *found)
{
    for (const struct adopted *a = atomic_load(&adopted); a; a = a->next)
        if (atomic_load(&a->live) && address - a->allocation.address < a->allocation.bytes) {
            *found = a->allocation;
            return true;
        }
    return false;
}

bool heap_find(u64 address, struct allocation *found)
{
    if (!heap_is_device(address)) return find_adopted(address, found);
    struct table *t = atomic_load_explicit(&table, memory_order_acquire);
    if (!t) return false;
    s64 i = search(t, atomic_load_explicit(&t->count, memory_order_acquire), address);
    if (i < 0 || !atomic_load_explicit(&t->entries[i].live, memory_order_acquire)) return false;
    *found = t->entries[i].allocation;
    return address - found->address < found->bytes;
}

static u64 distance(const struct allocation *a, u64 address)
{
    if (address < a->address) return a->address - address;
    u64 last = a->address + a->bytes - 1;
    return address > last ? address - last : 0;
}

bool heap_nearest(u64 address, struct allocation *found)
{
    struct table *t = atomic_load(&table);
    if (!t || t->count == 0) return false;
    u32 count = t->count;
    s64 i = search(t, count, address);
    if (i < 0) i = 0;
    if (i + 1 < count &&
        distance(&t->entries[i + 1].allocation, address) < distance(&t->entries[i].allocation, address))
        i++;
    *found = t->entries[i].allocation;
    found->freed = !atomic_load(&t->entries[i].live);
    return true;
}

void heap_range(u64 *start, u64 *bytes)
{
    pthread_once(&once, reserve);
    *start = base;
    *bytes = limit - base;
}

bool heap_is_device(u64 address)
{
    return address >= base && address < limit;
}

bool heap_is_host(u64 address)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long long from, to;
    bool found = false;
    char line[512];
    while (maps && !found && fgets(line, sizeof line, maps))
        found = sscanf(line, "%llx-%llx", &from, &to) == 2 && address >= from && address < to;
    if (maps) fclose(maps);
    return found && !heap_is_device(address);
}

void heap_usage(u64 *free_bytes, u64 *total_bytes)
{
    pthread_mutex_lock(&lock);
    *total_bytes = options.memory;
    *free_bytes = options.memory - used_bytes;
    pthread_mutex_unlock(&lock);
}
