// Chapter 9: attention and the layers' products, with cuBLAS to multiply: what is left to write, and where the bytes go.
#include "../../common/device/scratch.h"
#include "../../common/harness/chapter.h"
#include "launchers.h"

enum { B, T, S, NUM_HEADS, PER_HEAD }; // dimensions of permute and unpermute
enum { LENGTH = 1, H, HEAD_DIM };      // of attention, from the second on
enum { ROWS, OC };                     // of the products

#define DATA(name) run_data(run, name)
#define SIZE(name) (int)run_dim(run, name, 0)

// Device memory for `parts` arrays of (b, t, h, d).
static void *scratch(const struct run *run, size_t parts)
{
    void *memory;
    CUDA_CHECK(
        get_scratch(parts * SIZE("b") * SIZE("t") * SIZE("h") * SIZE("d") * dtype_bytes(run->type), &memory));
    return memory;
}

LAUNCH(head_permute, DATA("inp"), DATA("out"), SIZE("b"), SIZE("t"), SIZE("s"), SIZE("h"), SIZE("d"))
LAUNCH(attention_forward, DATA("qkv"), DATA("att"), DATA("out"), scratch(run, 4), SIZE("b"), SIZE("t"),
       SIZE("h"), SIZE("d"))
LAUNCH(attention_backward, DATA("qkv"), DATA("att"), DATA("dout"), DATA("datt"), DATA("dqkv"),
       scratch(run, 7), SIZE("b"), SIZE("t"), SIZE("h"), SIZE("d"))
LAUNCH(bias_backward, DATA("dout"), DATA("dbias"), SIZE("rows"), SIZE("oc"))
LAUNCH(matmul_backward, DATA("inp"), DATA("weight"), DATA("dout"), DATA("dinp"), DATA("dweight"),
       DATA("dbias"), SIZE("rows"), SIZE("c"), SIZE("oc"))
LAUNCH(matmul_gelu_forward, DATA("inp"), DATA("weight"), DATA("bias"), DATA("pre"), DATA("out"), SIZE("rows"),
       SIZE("c"), SIZE("oc"))
LAUNCH(matmul_gelu_backward, DATA("dout"), DATA("weight"), DATA("pre"), DATA("dpre"), SIZE("rows"), SIZE("c"),
       SIZE("oc"))

static const char *check_heads(const int64_t *dim)
{
    if (dim[B] > 65535) return "b must be below 65536";
    if (dim[S] > 65535 || dim[NUM_HEADS] > 65535) return "s and h must be below 65536";
    const int64_t blocks = dim[S] * dim[NUM_HEADS] * ((dim[PER_HEAD] + 255) / 256);
    return blocks > 65535 ? "s * h, times d / 256 rounded up, must be below 65536" : NULL;
}

static const char *check_attention(const int64_t *dim)
{
    if (dim[LENGTH] > 16384) return "t must be at most 16384";
    if (dim[B] > 65535 || dim[H] > 21845 || dim[H] * 3 * ((dim[HEAD_DIM] + 255) / 256) > 65535)
        return "b must be below 65536, and 3 h, times d / 256 rounded up, too";
    return dim[B] * dim[H] * dim[LENGTH] > INT32_MAX ? "b * h * t must be below 2^31" : NULL;
}

static const char *check_epilogue(const int64_t *dim)
{
    return dim[OC] % 8 ? "oc must be a multiple of 8" : NULL;
}

#define LAYER .types = {F32, BF16}
#define BYTES LAYER, .baseline = DEVICE_COPY, .limit = LIMIT_MEMORY
// 16 sequences of GPT-2's smallest and its largest, and one with heads of 128.
#define HEADS                                                                                                \
    BYTES, .dims = {"b", "t", "s", "h", "d"}, .check_shape = check_heads,                                    \
           .bench = {"b=16,t=1024,s=3,h=12,d=64", "b=16,t=1024,s=3,h=25,d=64", "b=16,t=1024,s=3,h=32,d=128", \
                     "b=16,t=1024,s=1,h=32,d=128"},                                                          \
           .bytes = "2*size*b*t*s*h*d"
#define ATTENTION                                                        \
    LAYER, .dims = {"b", "t", "h", "d"}, .check_shape = check_attention, \
           .bench = {"b=16,t=1024,h=12,d=64", "b=16,t=1024,h=25,d=64"}, .bench_difference = 0.02
#define PRODUCT \
    LAYER, .dims = {"rows", "oc", "c"}, .bench = {"rows=16384,oc=3072,c=768", "rows=16384,oc=6400,c=1600"}

static const struct operation operations[] = {
    {
        .name = "permute",
        .title = "out[s,b,h,t,d] = inp[b,t,s,h,d]",
        HEADS,
        .tensors = {{"inp", RUN_TYPE, IN, "b,t,s,h,d"}, {"out", RUN_TYPE, OUT, "s,b,h,t,d"}},
        .steps = STEPS(STEP(1, head_permute, permute), STEP(2, head_permute, permute_packs)),
        .launch = launch_head_permute,
    },
    {
        .name = "unpermute",
        .title = "out[b,t,s,h,d] = inp[s,b,h,t,d]",
        HEADS,
        .tensors = {{"inp", RUN_TYPE, IN, "s,b,h,t,d"}, {"out", RUN_TYPE, OUT, "b,t,s,h,d"}},
        .steps = STEPS(STEP(3, head_unpermute, unpermute_packs)),
        .launch = launch_head_permute,
    },
    {
        .name = "attention_forward",
        .title = "att = softmax of the causal Q K^T / sqrt(d), out = att V",
        ATTENTION,
        .tensors = {{"qkv", RUN_TYPE, IN, "b,t,3,h,d"},
                    {"att", RUN_TYPE, OUT, "b,h,t,t"},
                    {"out", RUN_TYPE, OUT, "b,t,h,d"}},
        .steps = STEPS(STEP(4, attention_forward, attention_permuted),
                       STEP(5, attention_forward, attention_in_place),
                       STEP(6, attention_forward, attention_reverse)),
        .launch = launch_attention_forward,
        .flops = "4*b*h*t*t*d",
        .bytes = "size*(4*b*t*h*d+b*h*t*t)",
    },
    {
        .name = "attention_backward",
        .title = "dqkv, and datt, the gradient of Q K^T, of attention_forward",
        ATTENTION,
        .tensors = {{"qkv", RUN_TYPE, IN, "b,t,3,h,d"},
                    {"att", RUN_TYPE, IN, "b,h,t,t"},
                    {"dout", RUN_TYPE, IN, "b,t,h,d"},
                    {"datt", RUN_TYPE, OUT, "b,h,t,t"},
                    {"dqkv", RUN_TYPE, OUT, "b,t,3,h,d"}},
        .steps = STEPS(STEP(7, attention_backward, gradient_permuted),
                       STEP(8, attention_backward, gradient_in_place)),
        .launch = launch_attention_backward,
        .flops = "8*b*h*t*t*d",
        .bytes = "size*(7*b*t*h*d+2*b*h*t*t)",
    },
    {
        .name = "bias_backward",
        .title = "dbias, in fp32, += the sum of the rows of dout",
        BYTES,
        .dims = {"rows", "oc"},
        .tensors = {{"dout", RUN_TYPE, IN, "rows,oc"}, {"dbias", F32, INOUT, "oc"}},
        .steps = STEPS(STEP(9, bias_backward, bias_atomics), STEP(10, bias_backward, bias_partials)),
        .launch = launch_bias_backward,
        .bytes = "size*rows*oc+8*oc",
        .bench = {"rows=16384,oc=768", "rows=16384,oc=3072", "rows=16384,oc=6400", "rows=32768,oc=3072"},
    },
    {
        .name = "matmul_backward",
        .title =
            "dinp = dout weight, and in fp32 dweight += dout^T inp, dbias += the sum of the rows of dout",
        PRODUCT,
        .tensors = {{"inp", RUN_TYPE, IN, "rows,c"},
                    {"weight", RUN_TYPE, IN, "oc,c"},
                    {"dout", RUN_TYPE, IN, "rows,oc"},
                    {"dinp", RUN_TYPE, OUT, "rows,c"},
                    {"dweight", F32, INOUT, "oc,c"},
                    {"dbias", F32, INOUT, "oc"}},
        .steps = STEPS(STEP(11, matmul_backward, matmul_gradient)),
        .launch = launch_matmul_backward,
        .flops = "4*rows*oc*c",
        .bytes = "size*(2*rows*c+oc*c+rows*oc)+8*(oc*c+oc)",
    },
    {
        .name = "matmul_gelu",
        .title = "pre = inp weight^T + bias, out = GELU(pre)",
        PRODUCT,
        .check_shape = check_epilogue,
        .tensors = {{"inp", RUN_TYPE, IN, "rows,c"},
                    {"weight", RUN_TYPE, IN, "oc,c"},
                    {"bias", RUN_TYPE, IN, "oc"},
                    {"pre", RUN_TYPE, OUT, "rows,oc"},
                    {"out", RUN_TYPE, OUT, "rows,oc"}},
        .steps = STEPS(STEP(12, matmul_gelu_forward, matmul_gelu),
                       STEP(13, matmul_gelu_forward, matmul_gelu_epilogue)),
        .launch = launch_matmul_gelu_forward,
        .bench_difference = 0.02,
        .flops = "2*rows*oc*c",
        .bytes = "size*(rows*c+oc*c+oc+2*rows*oc)",
    },
    {
        .name = "matmul_gelu_backward",
        .title = "dpre = dout weight * the derivative of GELU at pre",
        PRODUCT,
        .check_shape = check_epilogue,
        .tensors = {{"dout", RUN_TYPE, IN, "rows,c"},
                    {"weight", RUN_TYPE, IN, "c,oc"},
                    {"pre", RUN_TYPE, IN, "rows,oc"},
                    {"dpre", RUN_TYPE, OUT, "rows,oc"}},
        .steps = STEPS(STEP(14, matmul_gelu_backward, matmul_gelu_gradient),
                       STEP(15, matmul_gelu_backward, matmul_gelu_gradient_epilogue)),
        .launch = launch_matmul_gelu_backward,
        .bench_difference = 0.02,
        .flops = "2*rows*oc*c",
        .bytes = "size*(rows*c+oc*c+2*rows*oc)",
    },
};

CHAPTER(operations)
