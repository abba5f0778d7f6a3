// cuTensorMapEncodeTiled: which arguments the driver takes. Nothing runs on the GPU here; an element is a CUresult. Interleaved
// layouts are left out.

struct encode_args {
    u32 rank, type, address, map; // offsets from a multiple of 128
    u64 dim[6], stride[5];
    u32 box[6], step[6];
    u32 swizzle, l2, fill, null_address;
};

enum { ENCODE_CASES = 512 };

static struct encode_args encode_good(u32 type)
{
    struct encode_args e = {.rank = 3, .type = type};
    for (int d = 0; d < 6; d++) e.dim[d] = 64, e.box[d] = d ? 4 : 32 / tma_bytes[type], e.step[d] = 1;
    for (int d = 0; d < 5; d++) e.stride[d] = 1024ull << d;
    return e;
}

#define ENCODE_PICK(...)                           \
    [] {                                           \
        static const u64 values[] = {__VA_ARGS__}; \
        return PICK(values);                       \
    }()

// The bytes of a box, with element strides as `round` says: 0 without, 1 rounded down, 2 rounded up.
static u64 encode_box_size(const struct encode_args *e, int round)
{
    u64 bytes = tma_bytes[e->type];
    for (u32 d = 0; d < e->rank; d++)
        bytes *= round ? (e->box[d] + (round == 2 ? e->step[d] - 1 : 0)) / e->step[d] : e->box[d];
    return bytes;
}

// A box about as large as shared memory, in one of the ways to count it.
static void encode_large_box(struct encode_args *e, bool steps)
{
    for (;;) {
        e->rank = 2 + (u32)random_u64() % 4;
        for (u32 d = 1; d < 5; d++) e->box[d] = 1 + (u32)random_u64() % 256;
        for (u32 d = 0; d < 5 && steps; d++) e->step[d] = random_u64() % 2 ? 1 : 1 + (u32)random_u64() % 8;
        e->box[0] = 16 / tma_bytes[e->type] * (1 + (u32)random_u64() % (e->swizzle ? 2 : 16));
        if (e->box[0] > 256) e->box[0] = 256;
        for (int round = 0; round < 3; round++)
            if (encode_box_size(e, round) >= 220 << 10 && encode_box_size(e, round) <= 240 << 10) return;
    }
}

// One argument of a good call, or some, become one that may not be.
static void encode_spoil(struct encode_args *e, int what)
{
    const u32 d = (u32)random_u64() % 5, r = (u32)random_u64();
    const u64 T = 1ull << 40, G = 1ull << 32;
    switch (what) {
    case 0: e->rank = r % 7; break;
    case 1: e->type = r % 13; break; // whatever the box is
    case 2: e->address = (u32)ENCODE_PICK(0, 1, 2, 4, 8, 16, 24, 32, 48, 64); break;
    case 3:
        e->dim[d] =
            ENCODE_PICK(0, 1, 2, 3, 255, 256, 1u << 31, 0xffffffff, 1ull << 32, (1ull << 32) + 1, 1ull << 40);
        break;
    case 4:
        e->stride[d % 4] = ENCODE_PICK(0, 8, 15, 16, 32, 48, 112, 1008, 1ull << 32, (1ull << 40) - 16,
                                       (1ull << 40) - 8, 1ull << 40, (1ull << 40) + 16);
        break;
    case 5: e->box[d] = (u32)ENCODE_PICK(0, 1, 2, 255, 256, 257, 512, 65536); break;
    case 6: e->box[0] = (u32)ENCODE_PICK(1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256); break;
    case 7: e->step[d] = r % 11; break;
    case 8: e->swizzle = r % 4; break;
    case 9: e->swizzle = r % 8; break;
    case 10: e->l2 = r % 6; break;
    case 11: e->fill = r % 3; break;
    case 12:
        for (int k = 1; k < 5; k++) e->box[k] = (u32)ENCODE_PICK(1, 2, 4, 8, 16, 64, 128, 255, 256);
        e->rank = 1 + r % 5;
        break;
    case 13: e->map = (u32)ENCODE_PICK(0, 8, 16, 32, 64, 96); break;
    case 14: e->null_address = r % 2; break;
    case 15: // the least and the most
        e->rank = 1 + r % 5;
        for (int k = 0; k < 5; k++) e->dim[k] = r >> (8 + k) & 1 ? G : 1;
        for (int k = 0; k < 5; k++) e->stride[k] = r >> (16 + k) & 1 ? T - 16 : 16;
        break;
    case 16: encode_large_box(e, false); break;
    case 17: encode_large_box(e, true); break;
    default: break;
    }
}

struct encode_form {
    int from, to; // what is spoiled: each of these in turn
    int count;    // how many at once
};
static void draw_encode(const struct variant *v, u8 **inputs)
{
    const struct encode_form *f = (const struct encode_form *)v->about;
    struct encode_args *e = (struct encode_args *)inputs[0];
    for (int n = 0; n < ENCODE_CASES; n++) {
        e[n] = encode_good((u32)random_u64() % 13);
        e[n].swizzle = (u32)random_u64() % 2 * ((u32)random_u64() % 3 + 1);
        for (int k = 0; k < f->count; k++)
            encode_spoil(&e[n], f->from + (int)(random_u64() % (u32)(f->to - f->from + 1)));
    }
}
static void encode_launch(u8 *out, u8 *const *in)
{
    static u8 maps[1024];
    u8 *const aligned = maps + (128 - (uintptr_t)maps % 128) % 128;
    const struct encode_args *e = (const struct encode_args *)host_inputs[0];
    static u32 result[ENCODE_CASES];
    for (int n = 0; n < ENCODE_CASES; n++, e++)
        result[n] = tma_encoder()((CUtensorMap *)(aligned + e->map), (CUtensorMapDataType)e->type, e->rank,
                                  e->null_address ? NULL : in[1] + e->address, (const cuuint64_t *)e->dim,
                                  (const cuuint64_t *)e->stride, e->box, e->step,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, (CUtensorMapSwizzle)e->swizzle,
                                  (CUtensorMapL2promotion)e->l2, (CUtensorMapFloatOOBfill)e->fill);
    CUDA_CHECK(cudaMemcpy(out, result, sizeof result, cudaMemcpyHostToDevice));
}
#define ENCODE(NAME, FROM, TO, COUNT)                                            \
    static const struct encode_form NAME##_form = {FROM, TO, COUNT};             \
    VARIANT(NAME, draw_encode, encode_launch, &NAME##_form, ENCODE_CASES * 4, 4, \
            ENCODE_CASES * sizeof(struct encode_args), 256)
ENCODE(encode_rank_type, 0, 1, 1)
ENCODE(encode_address, 2, 2, 1)
ENCODE(encode_dimensions, 3, 3, 2)
ENCODE(encode_strides, 4, 4, 2)
ENCODE(encode_boxes, 5, 6, 1)
ENCODE(encode_element_strides, 7, 7, 2)
ENCODE(encode_swizzles, 8, 9, 1)
ENCODE(encode_promotion_fill, 10, 11, 1)
ENCODE(encode_box_bytes, 12, 12, 1)
ENCODE(encode_map_alignment, 13, 13, 1)
ENCODE(encode_null_address, 14, 14, 1)
ENCODE(encode_extremes, 15, 15, 1)
ENCODE(encode_large_boxes, 16, 16, 1)
ENCODE(encode_large_strided_boxes, 17, 17, 1)
ENCODE(encode_any_two, 0, 15, 2)
ENCODE(encode_any_four, 0, 15, 4)
