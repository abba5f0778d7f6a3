#include "options.h"

#include <getopt.h>
#include <math.h>

#include "../../../common/harness/error.h"
#include "checkpoint.h"

enum flag {
    BATCH = 256,
    LENGTH,
    LAYERS,
    HEADS,
    CHANNELS,
    TYPE,
    TF32,
    ATTENTION,
    PRODUCTS,
    ALGORITHMS,
    DETERMINISTIC,
    RECOMPUTE,
    STEP,
    STEPS,
    LR,
    WARMUP,
    FINAL_LR,
    BETA1,
    BETA2,
    WEIGHT_DECAY,
    MAX_NORM,
    SEED,
    VALIDATION,
    VALIDATION_FILE,
    VALIDATE_EVERY,
    SAVE,
    SAVE_EVERY,
    RESUME,
    INIT,
    CHECK,
    SAMPLE,
    TEMPERATURE,
    TOKENIZER,
    JSON,
    RECORD,
    PROFILE,
    HELP,
};

// In the order of enum flag.
static const struct option flags[] = {
    {"batch", required_argument, NULL, BATCH},
    {"length", required_argument, NULL, LENGTH},
    {"layers", required_argument, NULL, LAYERS},
    {"heads", required_argument, NULL, HEADS},
    {"channels", required_argument, NULL, CHANNELS},
    {"type", required_argument, NULL, TYPE},
    {"tf32", no_argument, NULL, TF32},
    {"attention", required_argument, NULL, ATTENTION},
    {"products", required_argument, NULL, PRODUCTS},
    {"algorithms", required_argument, NULL, ALGORITHMS},
    {"deterministic", no_argument, NULL, DETERMINISTIC},
    {"recompute", no_argument, NULL, RECOMPUTE},
    {"step", required_argument, NULL, STEP},
    {"steps", required_argument, NULL, STEPS},
    {"lr", required_argument, NULL, LR},
    {"warmup", required_argument, NULL, WARMUP},
    {"final-lr", required_argument, NULL, FINAL_LR},
    {"beta1", required_argument, NULL, BETA1},
    {"beta2", required_argument, NULL, BETA2},
    {"weight-decay", required_argument, NULL, WEIGHT_DECAY},
    {"max-norm", required_argument, NULL, MAX_NORM},
    {"seed", required_argument, NULL, SEED},
    {"validation", required_argument, NULL, VALIDATION},
    {"validation-file", required_argument, NULL, VALIDATION_FILE},
    {"validate-every", required_argument, NULL, VALIDATE_EVERY},
    {"save", required_argument, NULL, SAVE},
    {"save-every", required_argument, NULL, SAVE_EVERY},
    {"resume", required_argument, NULL, RESUME},
    {"init", required_argument, NULL, INIT},
    {"check", required_argument, NULL, CHECK},
    {"sample", required_argument, NULL, SAMPLE},
    {"temperature", required_argument, NULL, TEMPERATURE},
    {"tokenizer", required_argument, NULL, TOKENIZER},
    {"json", required_argument, NULL, JSON},
    {"record", required_argument, NULL, RECORD},
    {"profile", required_argument, NULL, PROFILE},
    {"help", no_argument, NULL, HELP},
    {0},
};

// The names of the training steps.
static const char *step_names(void)
{
    static char text[200];
    text[0] = 0;
    for (const struct named_step *step = parallel_steps; step->name; step++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] ? ", " : "", step->name);
    return text;
}

static void help(const char *program)
{
    printf(
        "usage: %s [FLAG...] FILE...\n"
        "Trains GPT-2 on text: files of which each byte is a token, or llm.c's files of GPT-2 tokens.\n\n"
        "the model       --layers 2 --heads 2 --channels 64 --length 64; GPT-2's smallest: 12, 12, 768, 1024\n"
        "                --init FILE          begin with llm.c's gpt2_124M.bin, whose shape it then has\n"
        "how it computes --type f32|bf16      of weights and activations; bf16 with parameters in fp32 beside it\n"
        "                --tf32               products of fp32 may round to TF32\n"
        "                --attention 9|12|17  9: cuBLAS and softmax; 12: chapter 12 forward; 17: chapter 15 forward; both\n"
        "                                     have chapter 17's backward, and need bf16 and heads of 64 or 128 channels\n"
        "                --products 9|14      forward products by cuBLAS, or by chapter 14 (bf16); backward by cuBLAS\n"
        "                --algorithms FILE    cuBLASLt's products by its fastest algorithms, which FILE names, or gets to name: the same\n"
        "                                     bits only with the same FILE (with several GPUs FILE.RANK)\n"
        "                --recompute          keep a layer's activations for one layer at a time\n"
        "                --step NAME          the training step: %s\n"
        "the training    --batch 4 --steps 100 --lr 1e-3 --warmup 10 --final-lr 0.1 (of lr) --seed 1\n"
        "                --beta1 0.9 --beta2 0.95 --weight-decay 0.1 --max-norm 1\n"
        "                --validation 0.1     that share of the text, its end, is not trained on; --validation-file FILE\n"
        "                --validate-every 50  steps, on at most 20 batches\n"
        "checkpoints     --save FILE          at the end, and --save-every N steps\n"
        "                --resume FILE        go on, with its settings but for flags that say otherwise\n"
        "                --check FILE         only say whether it is whole\n"
        "what is shown   --sample 200         tokens of text at the end, --temperature 0.8; --tokenizer FILE: llm.c's\n"
        "                --json FILE          a line for each step, for tools/loss_curve.py\n"
        "                --profile N          where the time of the last N steps goes, launch by launch\n\n"
        "exit status: 0; 1: the loss is not a number any more; 2: bad usage or input; 3: CUDA\n",
        program, step_names());
    exit(EXIT_RIGHT);
}

static const char *name_of(int flag)
{
    return flags[flag - BATCH].name;
}

static double number(int flag, double least, double most)
{
    char *end;
    const double value = strtod(optarg, &end);
    if (end == optarg || *end || !(value >= least && value <= most))
        die_input("--%s: found '%s', expected a number from %g to %g", name_of(flag), optarg, least, most);
    return value;
}

static int whole(int flag, int least)
{
    const double value = number(flag, least, INT32_MAX);
    if (value != floor(value)) die_input("--%s: found '%s', expected a whole number", name_of(flag), optarg);
    return (int)value;
}

static const struct settings usual = {
    .model = {.layers = 2,
              .heads = 2,
              .channels = 64,
              .batch = 4,
              .length = 64,
              .dtype = F32,
              .attention = ATTENTION_9,
              .products = PRODUCTS_CUBLAS,
              .beta1 = 0.9f,
              .beta2 = 0.95f,
              .epsilon = 1e-8f,
              .weight_decay = 0.1f,
              .max_norm = 1},
    .steps = 100,
    .warmup = 10,
    .lr = 1e-3f,
    .final_lr = 0.1f,
    .seed = 1,
};

static void take(struct options *o, int flag)
{
    struct settings *s = &o->settings;
    struct model_config *c = &s->model;
    switch (flag) {
    case BATCH: c->batch = whole(flag, 1); break;
    case LENGTH: c->length = whole(flag, 1); break;
    case LAYERS: c->layers = whole(flag, 1); break;
    case HEADS: c->heads = whole(flag, 1); break;
    case CHANNELS: c->channels = whole(flag, 1); break;
    case TYPE:
        if (strcmp(optarg, "f32") != 0 && strcmp(optarg, "bf16") != 0)
            die_input("--type: found '%s', expected f32 or bf16", optarg);
        c->dtype = strcmp(optarg, "bf16") == 0 ? BF16 : F32;
        break;
    case TF32: s->tf32 = true; break;
    case ATTENTION:
        c->attention = whole(flag, 1);
        if (c->attention != ATTENTION_9 && c->attention != ATTENTION_12 && c->attention != ATTENTION_17)
            die_input("--attention: found '%s', expected 9, 12 or 17", optarg);
        break;
    case PRODUCTS:
        c->products = whole(flag, 1);
        if (c->products != PRODUCTS_CUBLAS && c->products != PRODUCTS_14)
            die_input("--products: found '%s', expected 9 or 14", optarg);
        break;
    case ALGORITHMS: o->algorithms = optarg; break;
    case DETERMINISTIC: c->deterministic = true; break;
    case RECOMPUTE: c->recompute = true; break;
    case STEP:
        for (o->step = parallel_steps; o->step->name && strcmp(optarg, o->step->name) != 0;) o->step++;
        if (!o->step->name) die_input("--step: found '%s', expected one of %s", optarg, step_names());
        break;
    case STEPS: s->steps = whole(flag, 0); break;
    case LR: s->lr = (float)number(flag, 0, 1e30); break;
    case WARMUP: s->warmup = whole(flag, 0); break;
    case FINAL_LR: s->final_lr = (float)number(flag, 0, 1); break;
    case BETA1: c->beta1 = (float)number(flag, 0, 0.999999); break;
    case BETA2: c->beta2 = (float)number(flag, 0, 0.999999); break;
    case WEIGHT_DECAY: c->weight_decay = (float)number(flag, 0, 1e6); break;
    case MAX_NORM: c->max_norm = (float)number(flag, 1e-30, 1e30); break;
    case SEED: s->seed = (uint64_t)whole(flag, 0); break;
    case VALIDATION: o->validation = number(flag, 0, 0.99); break;
    case VALIDATION_FILE: o->validation_file = optarg; break;
    case VALIDATE_EVERY: o->validate_every = whole(flag, 1); break;
    case SAVE: o->save = optarg; break;
    case SAVE_EVERY: o->save_every = whole(flag, 1); break;
    case RESUME: break; // read before the others
    case INIT: o->init = optarg; break;
    case CHECK: o->check = optarg; break;
    case SAMPLE: o->sample = whole(flag, 0); break;
    case TEMPERATURE: o->temperature = (float)number(flag, 1e-3, 1e3); break;
    case TOKENIZER: o->tokenizer = optarg; break;
    case JSON: o->json = optarg; break;
    case RECORD: o->record = optarg; break;
    case PROFILE: o->profile = whole(flag, 1); break;
    case HELP: help(o->program);
    }
}

struct options options_read(int argc, char **argv, struct checkpoint *checkpoint)
{
    struct options o = {.settings = usual, .program = argv[0], .validation = 0.1, .validate_every = 50};
    struct error error;
    int flag;
    o.sample = 200, o.temperature = 0.8f;
    for (o.step = parallel_steps; o.step[1].name;) o.step++;
    opterr = 0;
    while ((flag = getopt_long(argc, argv, ":", flags, NULL)) != -1)
        if (flag == RESUME) o.resume = optarg;
    if (o.resume) {
        if (!checkpoint_load(o.resume, checkpoint, &error)) die_input("--resume %s", error.text);
        o.settings = checkpoint->settings;
    }
    optind = 1;
    while ((flag = getopt_long(argc, argv, ":", flags, NULL)) != -1) {
        if (flag == '?') die_input("%s: no such flag; --help lists them", argv[optind - 1]);
        if (flag == ':') die_input("%s: expected a value", argv[optind - 1]);
        take(&o, flag);
    }
    if (o.resume && o.init) die_input("--resume and --init: expected one of them");
    o.files = argv + optind;
    o.file_count = argc - optind;
    return o;
}
