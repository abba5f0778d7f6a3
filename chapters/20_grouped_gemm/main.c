// Chapter 20: products of 8-bit numbers of many groups at once, and the layer that needs them.
#include "../../common/harness/chapter.h"
#include "baseline.h"
#include "launchers.h"

#define DATA(name) run_data(run, name)
#define DIM(name)  (int)run_dim(run, name, 0)
#define OPERANDS   DATA("A"), DATA("B"), DATA("scale_A"), DATA("scale_B")

static cudaError_t launch_grouped_rows(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    const int32_t *of_groups = DATA("row_group") ? DATA("row_group") : DATA("counts");
    // Both are of the same type, and so are their launchers.
    return ((grouped_rows *)launcher)(OPERANDS, of_groups, DATA("D"), DIM("m"), DIM("n"), DIM("k"), DIM("g"),
                                      stream);
}

static cudaError_t launch_masked_rows(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((masked_rows *)launcher)(OPERANDS, DATA("counts"), DATA("D"), DIM("c"),
                                     (int)run_param(run, "e", 1), DIM("n"), DIM("k"), DIM("g"), stream);
}

static cudaError_t launch_grouped_columns(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((grouped_columns *)launcher)(OPERANDS, DATA("counts"), DATA("D"), DIM("m"), DIM("n"), DIM("k"),
                                         DIM("g"), stream);
}

static cudaError_t launch_moe(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    const struct moe_layer layer = {
        .tokens = DIM("t"),
        .hidden = DIM("h"),
        .inner = DIM("f"),
        .experts = DIM("e"),
        .top = DIM("k"),
        .x = DATA("x"),
        .logits = DATA("logits"),
        .W1 = DATA("W1"),
        .W2 = DATA("W2"),
        .scale_W1 = DATA("scale_W1"),
        .scale_W2 = DATA("scale_W2"),
        .y = DATA("y"),
        .expert = DATA("expert"),
        .weight = DATA("weight"),
        .counts = DATA("counts"),
        .place = DATA("place"),
        .source = DATA("source"),
        .gate_up = DATA("gate_up"),
        .out = DATA("out"),
        .dy = DATA("dy"),
        .W1_t = DATA("W1_t"),
        .W2_t = DATA("W2_t"),
        .scale_W1_t = DATA("scale_W1_t"),
        .scale_W2_t = DATA("scale_W2_t"),
        .dx = DATA("dx"),
        .dlogits = DATA("dlogits"),
        .dW1 = DATA("dW1"),
        .dW2 = DATA("dW2"),
    };
    return ((moe_forward *)launcher)(&layer, stream);
}

enum { MOST = INT32_MAX - 1023 }; // the last tile may go beyond the matrix

static const char *check_sizes(int64_t rows, int64_t n, int64_t k, int64_t groups)
{
    if (rows > MOST || groups * n > MOST || k > MOST)
        return "m (g c), g n and k must be at most 2147482624, so that every row and column of a tile is an int";
    if (k % 16)
        return "k must be a multiple of 16, so that every row of A and B begins at a multiple of 16 bytes";
    return NULL;
}

static const char *check_rows(const int64_t *dim) // m, n, k, g
{
    return check_sizes(dim[0], dim[1], dim[2], dim[3]);
}

static const char *check_masked(const int64_t *dim) // g, c, n, k, e
{
    return check_sizes(dim[0] * dim[1], dim[2], dim[3], dim[0]);
}

static const char *check_columns(const int64_t *dim) // m, n, k, g
{
    if (dim[2] % 128) return "k must be a multiple of 128, since every group begins at one";
    return check_sizes(dim[0], dim[1], dim[2], 1);
}

static const char *check_moe(const int64_t *dim) // t, h, f, e, k
{
    if (dim[1] % 16 || dim[2] % 16) return "h and f must be multiples of 16, as TMA needs rows of e4m3";
    if (dim[4] > 32 || dim[4] > dim[3]) return "k must be at most 32, and at most e";
    return check_sizes(dim[0] * dim[4] + 128 * dim[3], dim[1] > 2 * dim[2] ? dim[1] : 2 * dim[2], 16, dim[3]);
}

// The backward of a benchmark has a router that gives every expert about the same.
static void draw_expert(const struct run *run, int32_t *values) // copy i of a token
{
    const int64_t copies = run_dim(run, "t", 0) * run_dim(run, "k", 0);
    for (int64_t i = 0; i < copies; i++) values[i] = (int32_t)(i % run_dim(run, "e", 1));
}

// Row r is copy source[r]: expert by expert, each e-th copy.
static void draw_source(const struct run *run, int32_t *values)
{
    const int64_t copies = run_dim(run, "t", 0) * run_dim(run, "k", 0), experts = run_dim(run, "e", 1);
    int64_t row = 0;
    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = e; i < copies; i += experts) values[row++] = (int32_t)i;
}

static void draw_place(const struct run *run, int32_t *values)
{
    const int64_t copies = run_dim(run, "t", 0) * run_dim(run, "k", 0), experts = run_dim(run, "e", 1);
    int64_t row = 0;
    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = e; i < copies; i += experts) values[i] = (int32_t)row++;
}

static void draw_moe_counts(const struct run *run, int32_t *values)
{
    const int64_t copies = run_dim(run, "t", 0) * run_dim(run, "k", 0), experts = run_dim(run, "e", 1);
    for (int64_t e = 0; e < experts; e++) values[e] = (int32_t)(copies / experts + (e < copies % experts));
}

#define FP8 .types = {E4M3}, .limit = LIMIT_FP8_TENSOR
#define ROW_SCALES(name, rows)                                          \
    {                                                                   \
        name, F32, IN, "(k+127)/128,(" rows "+3)/4*4", .positive = true \
    }
#define ROWS                                                                              \
    {"A", RUN_TYPE, IN, "m,k"}, {"B", RUN_TYPE, IN, "g,n,k"}, ROW_SCALES("scale_A", "m"), \
        {"scale_B", F32, IN, "g,(n+127)/128,(k+127)/128", .positive = true},              \
    {                                                                                     \
        "D", BF16, INOUT, "m,n"                                                           \
    }
// cuBLASLt's product with one scale for a group's A and one for its B, called once for each group, by a host that knows the counts.
#define ONE_BY_ONE \
    .baseline = {.name = "cuBLASLt e4m3, a call a group", .launch = launch_one_by_one, .other_work = true}

// DeepGEMM's own test shapes.
#define PREFILL                                                                                    \
    {                                                                                              \
        "m=34304,n=6144,k=7168,g=4", "m=33024,n=7168,k=3072,g=4", "m=35456,n=4096,k=4096,g=4",     \
            "m=32512,n=4096,k=2048,g=4", "m=38656,n=6144,k=7168,g=8", "m=35328,n=7168,k=3072,g=8", \
            "m=33920,n=4096,k=4096,g=8", "m=32384,n=4096,k=2048,g=8",                              \
    }
#define DECODE                                                                    \
    {                                                                             \
        "g=32,c=4096,n=6144,k=7168,e=192", "g=32,c=4096,n=7168,k=3072,e=192",     \
            "g=32,c=4096,n=4096,k=4096,e=192", "g=32,c=4096,n=4096,k=2048,e=192", \
            "g=6,c=4096,n=6144,k=7168,e=1024", "g=6,c=4096,n=7168,k=3072,e=1024", \
            "g=6,c=4096,n=4096,k=4096,e=1024", "g=6,c=4096,n=4096,k=2048,e=1024", \
            "g=32,c=4096,n=6144,k=7168,e=20", "g=32,c=4096,n=7168,k=3072,e=20",   \
            "g=32,c=4096,n=4096,k=4096,e=20", "g=32,c=4096,n=4096,k=2048,e=20",   \
            "g=6,c=4096,n=6144,k=7168,e=20", "g=6,c=4096,n=7168,k=3072,e=20",     \
            "g=6,c=4096,n=4096,k=4096,e=20", "g=6,c=4096,n=4096,k=2048,e=20",     \
    }
#define DEEP                                                                                   \
    {                                                                                          \
        "m=4096,n=7168,k=32768,g=4", "m=7168,n=2048,k=32768,g=4", "m=4096,n=7168,k=32768,g=8", \
            "m=7168,n=2048,k=32768,g=8",                                                       \
    }

#define SQUARES(name, rows, cols)                                                  \
    {                                                                              \
        name, F32, IN, "e,(" rows "+127)/128,(" cols "+127)/128", .positive = true \
    }
// Layers of a small mixture and of DeepSeek-V3's (32 of its 256 experts, what a GPU of eight has).
#define MOE                                                                                 \
    FP8, .dims = {"t", "h", "f", "e", "k"}, .check_shape = check_moe, .launch = launch_moe, \
         .bench_difference = 0.01,                                                          \
         .bench = {"t=16384,h=2048,f=1024,e=16,k=4", "t=8192,h=7168,f=2048,e=32,k=8"}

static const struct operation operations[] = {
    {
        .name = "aligned",
        .title = "D = A · Bᵀ in bf16 with the B of each row's group: one for each tile of 128 rows",
        FP8,
        .dims = {"m", "n", "k", "g"},
        .check_shape = check_rows,
        .launch = launch_grouped_rows,
        .tensors = {ROWS, {"row_group", I32, IN, "m", .draw = draw_row_group}},
        .steps = STEPS(STEP(1, grouped_rows, aligned_segments)),
        ONE_BY_ONE,
        .flops = "2*m*n*k",
        .bench = PREFILL,
    },
    {
        .name = "ragged",
        .title = "the same with counts[i] rows of group i, one group behind the other",
        FP8,
        .dims = {"m", "n", "k", "g"},
        .check_shape = check_rows,
        .launch = launch_grouped_rows,
        .tensors = {ROWS, {"counts", I32, IN, "g", .draw = draw_counts}},
        .steps = STEPS(STEP(2, counted_rows, ragged_segments)),
        ONE_BY_ONE,
        .flops = "2*m*n*k",
        .bench = PREFILL,
    },
    {
        .name = "masked",
        .title = "the same with room for c rows of each group, of which counts[i] are there, about e",
        FP8,
        .dims = {"g", "c", "n", "k", "e"},
        .check_shape = check_masked,
        .launch = launch_masked_rows,
        .tensors = {{"A", RUN_TYPE, IN, "g,c,k"},
                    {"B", RUN_TYPE, IN, "g,n,k"},
                    ROW_SCALES("scale_A", "g*c"),
                    {"scale_B", F32, IN, "g,(n+127)/128,(k+127)/128", .positive = true},
                    {"D", BF16, INOUT, "g,c,n"},
                    {"counts", I32, IN, "g", .draw = draw_masked},
                    {"e", I32, PARAM, ""}},
        .steps = STEPS(STEP(3, masked_rows, masked)),
        ONE_BY_ONE,
        .flops = "2*g*e*n*k",
        .bench = DECODE,
    },
    {
        .name = "k_groups",
        .title =
            "D[i] += A · Bᵀ in fp32 over the counts[i] columns of group i, which begin at a multiple of 128",
        FP8,
        .dims = {"m", "n", "k", "g"},
        .check_shape = check_columns,
        .launch = launch_grouped_columns,
        .tensors = {{"A", RUN_TYPE, IN, "m,k"},
                    {"B", RUN_TYPE, IN, "n,k"},
                    ROW_SCALES("scale_A", "m"),
                    ROW_SCALES("scale_B", "n"),
                    {"D", F32, INOUT, "g,m,n"},
                    {"counts", I32, IN, "g", .draw = draw_columns}},
        .steps = STEPS(STEP(4, grouped_columns, k_groups)),
        ONE_BY_ONE,
        .flops = "2*m*n*k",
        .bench = DEEP,
    },
    {
        .name = "moe",
        .title = "a layer of e experts, forward: each of t tokens goes to k of them",
        MOE,
        .tensors = {{"x", BF16, IN, "t,h"},
                    {"logits", F32, IN, "t,e"},
                    {"W1", RUN_TYPE, IN, "e,2*f,h"},
                    {"W2", RUN_TYPE, IN, "e,h,f"},
                    {"k", I32, PARAM, ""},
                    SQUARES("scale_W1", "2*f", "h"),
                    SQUARES("scale_W2", "h", "f"),
                    {"y", BF16, OUT, "t,h"},
                    {"expert", I32, OUT, "t,k"},
                    {"weight", F32, OUT, "t,k"},
                    {"counts", I32, OUT, "e"},
                    {"place", I32, OUT, "t,k"},
                    {"source", I32, OUT, "t*k"},
                    {"gate_up", BF16, OUT, "t*k,2*f"},
                    {"out", BF16, OUT, "t*k,h"}},
        .steps = STEPS(STEP(5, moe_forward, moe)),
        .flops = "6*t*k*h*f",
    },
    {
        .name = "moe_gradient",
        .title = "its gradients, from what the forward left",
        MOE,
        .tensors = {{"x", BF16, IN, "t,h"},
                    {"dy", BF16, IN, "t,h"},
                    {"W1_t", RUN_TYPE, IN, "e,h,2*f"},
                    {"W2_t", RUN_TYPE, IN, "e,f,h"},
                    SQUARES("scale_W1_t", "h", "2*f"),
                    SQUARES("scale_W2_t", "f", "h"),
                    {"expert", I32, IN, "t,k", .draw = draw_expert},
                    {"weight", F32, IN, "t,k", .positive = true},
                    {"counts", I32, IN, "e", .draw = draw_moe_counts},
                    {"place", I32, IN, "t,k", .draw = draw_place},
                    {"source", I32, IN, "t*k", .draw = draw_source},
                    {"gate_up", BF16, IN, "t*k,2*f"},
                    {"out", BF16, IN, "t*k,h"},
                    {"dx", BF16, OUT, "t,h"},
                    {"dlogits", F32, OUT, "t,e"},
                    {"dW1", F32, INOUT, "e,2*f,h"},
                    {"dW2", F32, INOUT, "e,h,f"}},
        .steps = STEPS(STEP(6, moe_backward, moe_gradient)),
        .flops = "12*t*k*h*f",
    },
};

CHAPTER(operations)
