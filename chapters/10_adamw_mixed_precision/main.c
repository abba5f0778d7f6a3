// Chapter 10: what becomes of a gradient: AdamW, parameters in 16 bits, the gradient's norm, the scale of the loss.
#include "../../common/harness/chapter.h"
#include "launchers.h"

enum { N };

static struct adamw_settings settings(const struct run *run)
{
    return (struct adamw_settings){
        .lr = (float)run_param(run, "lr", 0), // 0 where it is in device memory
        .beta1 = (float)run_param(run, "beta1", 0),
        .beta2 = (float)run_param(run, "beta2", 0),
        .epsilon = (float)run_param(run, "epsilon", 0),
        .weight_decay = (float)run_param(run, "weight_decay", 0),
    };
}

static struct update_state state(const struct run *run)
{
    return (struct update_state){
        .scale = run_data(run, "scale"),
        .good_steps = run_data(run, "good_steps"),
        .steps = run_data(run, "steps"),
        .norm = run_data(run, "norm"),
        .control = run_data(run, "control"),
    };
}

#define DATA(name)  run_data(run, name)
#define PARAM(name) run_param(run, name, 0)

LAUNCH(adamw_update, DATA("grad"), DATA("param"), DATA("m"), DATA("v"), run->dim[N], settings(run),
       PARAM("t"))
LAUNCH(master_update, DATA("grad"), DATA("param"), DATA("master"), DATA("m"), DATA("v"), run->dim[N],
       settings(run), PARAM("t"))
LAUNCH(stochastic_update, DATA("grad"), DATA("param"), DATA("m"), DATA("v"), run->dim[N], settings(run),
       PARAM("t"), (uint32_t)PARAM("seed"))
LAUNCH(gradient_norm, DATA("grad"), DATA("norm"), DATA("factor"), run->dim[N], PARAM("max_norm"))
LAUNCH(scaled_norm, DATA("grad"), run->dim[N], PARAM("max_norm"), PARAM("beta1"), PARAM("beta2"),
       PARAM("growth_interval"), state(run))
LAUNCH(whole_update, DATA("grad"), DATA("param"), DATA("master"), DATA("m"), DATA("v"), run->dim[N],
       DATA("lr"), PARAM("max_norm"), settings(run), PARAM("growth_interval"), state(run))

// GPT-2's smallest and its second, 124 and 355 million parameters, and a tenth of the latter.
#define FLAT                                                                                    \
    .types = {F32, BF16}, .dims = {"n"}, .bench = {"n=35482317", "n=124439808", "n=354823168"}, \
    .baseline = DEVICE_COPY, .limit = LIMIT_MEMORY
#define GRADIENT {"grad", RUN_TYPE, IN, "n"},
#define MEANS    {"m", F32, INOUT, "n"}, {"v", F32, INOUT, "n", .positive = true},
#define BETAS    {"beta1", F32, PARAM, "", .bench = 0.9}, {"beta2", F32, PARAM, "", .bench = 0.95},
#define DECAY    {"epsilon", F32, PARAM, "", .bench = 1e-8}, {"weight_decay", F32, PARAM, "", .bench = 0.1},
#define STEP_T   {"lr", F32, PARAM, "", .bench = 3e-4}, {"t", I32, PARAM, ""},
#define STEP_LR  {"lr", F32, IN, "1", .positive = true},
#define STATE                                                                                             \
    {"scale", F32, INOUT, "1", .positive = true}, {"good_steps", I32, INOUT, "1", .below = "2000"},       \
        {"steps", I32, INOUT, "1", .below = "2000"}, {"norm", F32, OUT, "1"}, {"control", F32, OUT, "3"}, \
        {"max_norm", F32, PARAM, ""}, {"growth_interval", I32, PARAM, "", .bench = 2000},

static const struct operation operations[] = {
    {
        .name = "adamw",
        .title = "AdamW on parameters in fp32",
        FLAT,
        .tensors = {{"param", F32, INOUT, "n"}, GRADIENT MEANS BETAS DECAY STEP_T},
        .steps = STEPS(STEP(1, adamw_update, adamw), STEP(2, adamw_update, adamw_fours)),
        .launch = launch_adamw_update,
        .bytes = "(size+24)*n",
    },
    {
        .name = "adamw_master",
        .title = "AdamW on a master copy in fp32; the parameters are the nearest bf16",
        FLAT,
        .tensors = {{"param", BF16, OUT, "n"},
                    {"master", F32, INOUT, "n"},
                    GRADIENT MEANS BETAS DECAY STEP_T},
        .steps = STEPS(STEP(3, master_update, adamw_master)),
        .launch = launch_master_update,
        .bytes = "(size+26)*n",
    },
    {
        .name = "adamw_stochastic",
        .title = "AdamW on parameters in bf16, rounded up or down by chance",
        FLAT,
        .tensors = {{"param", BF16, INOUT, "n"}, {"seed", I32, PARAM, ""}, GRADIENT MEANS BETAS DECAY STEP_T},
        .steps = STEPS(STEP(4, stochastic_update, adamw_stochastic)),
        .launch = launch_stochastic_update,
        .bytes = "(size+20)*n",
    },
    {
        .name = "grad_norm",
        .title = "norm = sqrt(sum of grad^2), factor = min(1, max_norm / (norm + 1e-6))",
        FLAT,
        .tensors =
            {{"norm", F32, OUT, "1"}, {"factor", F32, OUT, "1"}, {"max_norm", F32, PARAM, ""}, GRADIENT},
        .steps = STEPS(STEP(5, gradient_norm, norm_atomics), STEP(6, gradient_norm, norm_partials),
                       STEP(7, gradient_norm, norm_last_block)),
        .launch = launch_gradient_norm,
        .bytes = "size*n",
    },
    {
        .name = "scaled_norm",
        .title = "the norm of a scaled gradient, the next scale of the loss, and what the update must know",
        FLAT,
        .tensors = {GRADIENT STATE BETAS},
        .steps = STEPS(STEP(8, scaled_norm, loss_scale)),
        .launch = launch_scaled_norm,
        .bytes = "size*n",
    },
    {
        .name = "mixed_update",
        .title =
            "scaled_norm, then AdamW on a master copy, with the clipped gradient, unless it has overflowed",
        FLAT,
        .tensors = {{"param", BF16, INOUT, "n"},
                    {"master", F32, INOUT, "n"},
                    GRADIENT MEANS STATE BETAS DECAY STEP_LR},
        .steps = STEPS(STEP(9, whole_update, update_in_one_pass)),
        .launch = launch_whole_update,
        .bytes = "(2*size+26)*n",
    },
    {
        .name = "update",
        .title = "the same without parameters in bf16",
        FLAT,
        .tensors = {{"master", F32, INOUT, "n"}, GRADIENT MEANS STATE BETAS DECAY STEP_LR},
        .steps = STEPS(STEP(9, whole_update, update_in_one_pass)),
        .launch = launch_whole_update,
        .bytes = "(2*size+24)*n",
    },
};

CHAPTER(operations)
