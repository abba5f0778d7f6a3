/* fatbin.c: finds the PTX to run inside the fatbin that nvcc embeds in a program.
 *
 * A fatbin is a header and a sequence of entries, each with a header of its own and a payload: PTX text or a cubin
 * (SASS, which this simulator does not execute). NVIDIA does not document the format; the offsets below are those of
 * what nvcc 13.0 writes. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "../runtime/runtime.h"
#include "fatbin.h"

enum { FATBIN_MAGIC = 0xba55ed50, WRAPPER_MAGIC = 0x466243b1 };
enum { KIND_PTX = 1, KIND_ELF = 2, KIND_LTO = 8 };
/* A wrapper's version: what `nvcc -rdc=true` makes, a fatbin for each source file. */
enum { LINKED_LATER = 2 };
enum { FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };
enum { MAX_PTX = 1 << 30 }; /* bytes of text that are taken for possible */

/* The most that so many compressed bytes can hold: of zstd, blocks of 4 bytes that repeat one 128 Ki times (RFC 8878, "Blocks"); of
 * LZ4, lengths that grow by 255 a byte. */
enum { ZSTD_BLOCK = 4, ZSTD_BLOCK_HOLDS = 128 << 10, LZ4_BYTE_HOLDS = 255 };

static const char *const HOW_TO_COMPILE =
    "compile with `-arch=sm_90a`, or with `-gencode arch=compute_90a,code=[sm_90a,compute_90a]`";
static const char *const HOW_WITHOUT_LTO = ", without `-dlto`";

struct fatbin_header {
    u32 magic;
    u16 version, header_bytes;
    u64 bytes; /* of all entries, this header not counted */
};

struct entry_header {
    u16 kind, version;
    u32 header_bytes;
    u64 padded_bytes;     /* payload with padding: the next entry follows */
    u32 compressed_bytes; /* 0: stored as it is */
    u32 unused_20, unused_24;
    u32 arch;                /* 90 for sm_90 and for sm_90a */
    u32 name_at, name_bytes; /* of the source file, from this header's start on */
    u64 flags;
    u64 unused_48;
    u64 raw_bytes; /* after decompression */
};

struct wrapper {
    u32 magic, version;
    const void *fatbin, *const *parts; /* LINKED_LATER: a fatbin for each source file, then NULL */
};

/* What a fatbin without usable PTX holds instead, one word an entry, for the message. */
struct inventory {
    char text[256];
    size_t used;
    bool lto;
};

__attribute__((format(printf, 2, 3))) static void note(struct inventory *inv, const char *format, ...)
{
    char item[64];
    va_list args;
    va_start(args, format);
    vsnprintf(item, sizeof item, format, args);
    va_end(args);
    if (strstr(inv->text, item) || inv->used + strlen(item) + 3 > sizeof inv->text) return;
    inv->used += (size_t)snprintf(inv->text + inv->used, sizeof inv->text - inv->used, "%s%s",
                                  inv->used ? ", " : "", item);
}

/* libzstd, opened when the first compressed fatbin is met: nothing of it is needed to build the simulator. */
static struct {
    size_t (*decompress)(void *to, size_t capacity, const void *from, size_t bytes);
    unsigned (*is_error)(size_t code);
} zstd;

static void open_zstd(void)
{
    void *library = dlopen("libzstd.so.1", RTLD_NOW);
    if (!library) return;
    *(void **)&zstd.decompress = dlsym(library, "ZSTD_decompress");
    *(void **)&zstd.is_error = dlsym(library, "ZSTD_isError");
}

/* The payload as NUL-terminated text, malloc'ed; NULL and *why when it cannot be unpacked. */
static char *unpack(const struct entry_header *e, const u8 *payload, size_t *length, const char **why)
{
    bool zipped = e->flags & (FLAG_ZSTD | FLAG_LZ4);
    u64 bytes = zipped ? e->raw_bytes : e->padded_bytes, packed = e->compressed_bytes;
    u64 most = e->flags & FLAG_ZSTD ? (packed / ZSTD_BLOCK + 1) * ZSTD_BLOCK_HOLDS : packed * LZ4_BYTE_HOLDS;
    if (bytes > MAX_PTX || packed > e->padded_bytes || (zipped && bytes > most)) {
        *why = "its PTX is damaged (an entry says that it is larger than it can be)";
        return NULL;
    }
    char *text = malloc(bytes + 1);
    if (!text) {
        *why = "out of host memory while unpacking its PTX";
        return NULL;
    }
    if (e->flags & FLAG_ZSTD) {
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, open_zstd);
        if (!zstd.decompress || !zstd.is_error) {
            free(text);
            *why =
                "its PTX is compressed and libzstd.so.1 is not here; install libzstd1, or compile with nvcc -no-compress";
            return NULL;
        }
        size_t got = zstd.decompress(text, bytes, payload, e->compressed_bytes);
        if (zstd.is_error(got)) {
            free(text);
            *why = "its compressed PTX is damaged (zstd cannot read it)";
            return NULL;
        }
        bytes = got;
    } else if (e->flags & FLAG_LZ4) {
        bytes = lz4_unpack((u8 *)text, bytes, payload, e->compressed_bytes);
        if (bytes == LZ4_DAMAGED) {
            free(text);
            *why = "its compressed PTX is damaged (it is no LZ4 block)";
            return NULL;
        }
    } else {
        memcpy(text, payload, bytes);
    }
    text[bytes] = 0;
    *length = strlen(text); /* what follows is padding */
    return text;
}

/* How well PTX for `target` suits an sm_90a device: 0 not at all, else higher is better. */
static int suitability(const char *target)
{
    if (strcmp(target, "sm_90a") == 0) return 1000;
    char *end;
    long arch = strtol(strncmp(target, "sm_", 3) == 0 ? target + 3 : "", &end, 10);
    return *end == 0 && arch > 0 && arch <= 90 ? (int)arch : 0;
}

/* The word after .target, without what follows a comma. */
static void target_of(const char *ptx, char target[32])
{
    target[0] = 0;
    const char *at = strstr(ptx, "\n.target");
    if (at) sscanf(at + strlen("\n.target"), " %31[a-z0-9_]", target);
}

static bool is_text(const char *image)
{
    return *image == '.' || *image == '/' || (*image > 0 && *image <= ' ');
}

/* PTX text that a program hands over itself; copied, since messages quote it. False: not for this device. */
static bool plain_ptx(const char *text, struct ptx_text *ptx, struct inventory *inventory)
{
    char target[32];
    target_of(text, target);
    char *copy = suitability(target) ? strdup(text) : NULL;
    if (copy)
        *ptx = (struct ptx_text){.text = copy, .length = strlen(copy)};
    else
        note(inventory, "PTX for %s", target[0] ? target : "no known target");
    return copy;
}

/* The source file that an entry was made from, NULL if it does not say. */
static const char *name_of(const struct entry_header *e, const u8 *entry)
{
    if (!e->name_bytes || e->name_at > e->header_bytes || e->name_bytes > e->header_bytes - e->name_at)
        return NULL;
    return strndup((const char *)entry + e->name_at, e->name_bytes);
}

/* The best PTX of one fatbin, or of PTX text. False when there is none: *trouble says why, or `inventory` what there is instead. */
static bool best_ptx(const void *fatbin, struct ptx_text *best, struct inventory *inventory,
                     const char **trouble)
{
    static __thread char message[128];
    struct fatbin_header header;
    if (is_text(fatbin)) return plain_ptx(fatbin, best, inventory);
    memcpy(&header, fatbin, sizeof header);
    if (header.magic != FATBIN_MAGIC) {
        snprintf(message, sizeof message,
                 "its device code does not start as a fatbin does (0x%08x, not 0x%08x)", header.magic,
                 FATBIN_MAGIC);
        *trouble = message;
        return false;
    }
    *best = (struct ptx_text){.name = NULL};
    int best_score = 0;
    const u8 *at = (const u8 *)fatbin + header.header_bytes;
    u64 left = header.bytes;
    struct entry_header e;
    while (left >= sizeof e) {
        const u8 *entry = at;
        memcpy(&e, at, sizeof e);
        if (e.header_bytes < sizeof e || e.header_bytes > left || e.padded_bytes > left - e.header_bytes) {
            *trouble = "its device code is damaged (an entry reaches past the end)";
            break;
        }
        const u8 *payload = at + e.header_bytes;
        at = payload + e.padded_bytes;
        left -= e.header_bytes + e.padded_bytes;
        if (e.kind == KIND_ELF) note(inventory, "machine code (SASS) for sm_%u", e.arch);
        if (e.kind == KIND_LTO) note(inventory, "code for the linker to compile (LTO) for sm_%u", e.arch);
        inventory->lto |= e.kind == KIND_LTO;
        if (e.kind == KIND_PTX && e.arch > 90) note(inventory, "PTX for sm_%u", e.arch);
        if (e.kind != KIND_PTX || e.arch > 90) continue;
        size_t bytes;
        char *ptx = unpack(&e, payload, &bytes, trouble), target[32];
        if (!ptx) continue;
        target_of(ptx, target);
        int score = suitability(target);
        if (score == 0) note(inventory, "PTX for %s", target[0] ? target : "no known target");
        if (score > best_score) {
            free((void *)best->text);
            free((void *)best->name);
            *best = (struct ptx_text){.name = name_of(&e, entry), .text = ptx, .length = bytes};
            best_score = score;
        } else {
            free(ptx);
        }
    }
    return best->text;
}

u32 fatbin_ptx(const void *image, struct ptx_text **texts, const char **why)
{
    static __thread char message[768];
    const void *whole[] = {image, NULL}, *const *parts = whole;
    if (strncmp(image, "\177ELF", 4) == 0) {
        *why = "it is machine code (SASS); load its PTX instead";
        return 0;
    }
    const u32 magic = WRAPPER_MAGIC;
    if (!is_text(image) && memcmp(image, &magic, sizeof magic) == 0) {
        struct wrapper wrapper;
        memcpy(&wrapper, image, sizeof wrapper);
        whole[0] = wrapper.fatbin;
        if (wrapper.version == LINKED_LATER) parts = wrapper.parts;
    }
    u32 count = 0, all = 0;
    struct inventory inventory = {.used = 0};
    const char *trouble = NULL;
    while (parts[all]) all++;
    struct ptx_text *found = calloc(all + 1, sizeof *found);
    if (!found) trouble = "out of host memory";
    /* A part without PTX, such as NVIDIA's device runtime, may not be needed. */
    for (u32 k = 0; k < all && !trouble; k++)
        if (best_ptx(parts[k], &found[count], &inventory, &trouble)) count++;
    if (count && !trouble) {
        *texts = found;
        return count;
    }
    fatbin_free(found, count);
    if (!trouble)
        snprintf(message, sizeof message, "it holds no PTX that an sm_90a device runs, but %s; %s%s",
                 inventory.used ? inventory.text : "nothing", HOW_TO_COMPILE,
                 inventory.lto ? HOW_WITHOUT_LTO : "");
    *why = trouble ? trouble : message;
    return 0;
}

void fatbin_free(struct ptx_text *texts, u32 count)
{
    for (u32 k = 0; k < count; k++) {
        free((void *)texts[k].text);
        free((void *)texts[k].name);
    }
    free(texts);
}
