/* main.c: the simgpu command: checks its arguments and the program, sets the environment that its libraries read
 * (runtime/options.c), and becomes the program, with those libraries in front of NVIDIA's. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char USAGE[] =
    "usage: simgpu [options] PROGRAM [ARGS...]\n"
    "\n"
    "Runs a CUDA program without a GPU: executes the PTX inside it on a simulated SM90 GPU.\n"
    "PROGRAM must be linked with `-cudart shared` and hold PTX for sm_90a or older\n"
    "(nvcc -arch=sm_90a -cudart shared -lineinfo).\n"
    "\n"
    "  --threads N           host threads that run blocks (default: one for each core)\n"
    "  --seed S              start blocks, run warps and graphs in an order drawn from S, do what streams are asked for\n"
    "                        as late as CUDA allows, and let dynamic shared memory begin at an address no better\n"
    "                        aligned than the kernel declares (default 0: in order, at once)\n"
    "  --races N             run PROGRAM N times, with seeds from 1 on (from S on with --seed S), until a run meets\n"
    "                        a fault or fails, and say which seed that was; --threads 1 makes a seed repeat exactly\n"
    "  --sms N               multiprocessors of the device (default 132)\n"
    "  --memory SIZE         device memory, such as 512M or 24G (default 16G)\n"
    "  --max-instructions N  stop a launch that executes more warp instructions\n"
    "  --max-idle N          stop a launch whose warps run on for N instructions each while no memory changes;\n"
    "                        where all of them only poll, they count 256-fold, and a look that sees what it saw\n"
    "                        before for 256 of them (default 1G; 0: never)\n"
    "  --faults=stop|report  what hardware most often lets pass (a race in global memory or between streams, an address\n"
    "                        that strays into another allocation, a missing proxy fence, an mbarrier.init that is not\n"
    "                        fenced or comes twice, a thread that leaves with an open bulk store) stops the launch, as\n"
    "                        every fault does (default), or is reported once a line and the launch goes on\n"
    "  --explain             after a fault, name the section of the notes that teaches what it is about\n"
    "  --exact-mma           tensor cores add in exact f32, instead of as an H200 does\n"
    "  --profile[=LINES]     count per source line, print the LINES that cost most (default 20)\n"
    "  --json FILE           write the counts to FILE as JSON (implies --profile)\n"
    "  --dump NAME           print each kernel whose name holds NAME as it is executed: its PTX with the places that\n"
    "                        registers got, and where the lanes of branches meet again\n"
    "  --verbose             say which kernels are launched and how\n"
    "  --version, --help\n"
    "\n"
    "Exit status: PROGRAM's, with --races that of the last run, or 1 when it met a fault and took no notice;\n"
    "2 for bad usage or a PROGRAM that cannot be run.\n";

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("simgpu: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

/* ---- Options ------------------------------------------------------------------------------------------------------ */

static void set_number(const char *variable, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    setenv(variable, text, 1);
}

/* A whole number from `least` to `most`; with `units`, K, M, G or T may follow. */
static uint64_t parse(const char *option, const char *text, uint64_t least, uint64_t most, bool units)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10), unit = 1;
    if (units && *end && !end[1]) {
        const char *at = strchr("KMGT", *end);
        if (at) {
            unit = 1ull << (10 * (at - "KMGT" + 1));
            end++;
        }
    }
    bool number = text[0] >= '0' && text[0] <= '9' && !*end && !errno;
    if (!number || value > most / unit || value * unit < least)
        die("%s: '%s', expected a whole number from %llu to %llu%s", option, text, (unsigned long long)least,
            (unsigned long long)most, units ? ", K, M, G or T may follow" : "");
    return value * unit;
}

/* The report is written when the program ends, wherever it is then: so the path is made absolute, and tried, now. */
static void set_json(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) die("--json: cannot write %s: %s", path, strerror(errno));
    close(file);
    char *absolute = realpath(path, NULL);
    if (!absolute) die("--json: %s: %s", path, strerror(errno));
    setenv("SIMGPU_JSON", absolute, 1);
    free(absolute);
}

enum {
    HELP = 256,
    VERSION,
    THREADS,
    SEED,
    RACES,
    SMS,
    PROFILE,
    JSON,
    DUMP,
    FAULTS,
    EXPLAIN,
    EXACT_MMA,
    MAX_INSTRUCTIONS,
    MAX_IDLE,
    MEMORY,
    VERBOSE
};
static const struct option OPTIONS[] = {
    {"help", no_argument, NULL, HELP},
    {"version", no_argument, NULL, VERSION},
    {"threads", required_argument, NULL, THREADS},
    {"seed", required_argument, NULL, SEED},
    {"races", required_argument, NULL, RACES},
    {"sms", required_argument, NULL, SMS},
    {"profile", optional_argument, NULL, PROFILE},
    {"json", required_argument, NULL, JSON},
    {"dump", required_argument, NULL, DUMP},
    {"faults", required_argument, NULL, FAULTS},
    {"explain", no_argument, NULL, EXPLAIN},
    {"exact-mma", no_argument, NULL, EXACT_MMA},
    {"max-instructions", required_argument, NULL, MAX_INSTRUCTIONS},
    {"max-idle", required_argument, NULL, MAX_IDLE},
    {"memory", required_argument, NULL, MEMORY},
    {"verbose", no_argument, NULL, VERBOSE},
    {NULL, 0, NULL, 0},
};

static uint64_t races; /* --races, 0: not asked for */

/* Returns the index of PROGRAM. */
static int parse_options(int argc, char **argv)
{
    opterr = 0;
    int option;
    while ((option = getopt_long(argc, argv, "+:h", OPTIONS, NULL)) != -1) {
        switch (option) {
        case 'h':
        case HELP: fputs(USAGE, stdout); exit(0);
        case VERSION: puts("simgpu: the Kernel Cookbook's simulated GPU, sm_90a, CUDA 13"); exit(0);
        case THREADS: set_number("SIMGPU_THREADS", parse("--threads", optarg, 1, 1024, false)); break;
        case SEED: set_number("SIMGPU_SEED", parse("--seed", optarg, 0, UINT64_MAX, false)); break;
        case RACES: races = parse("--races", optarg, 1, 1000000, false); break;
        case SMS: set_number("SIMGPU_SMS", parse("--sms", optarg, 1, 1024, false)); break;
        case PROFILE:
            setenv("SIMGPU_PROFILE", "1", 1);
            if (optarg) set_number("SIMGPU_PROFILE_LINES", parse("--profile", optarg, 1, 1000000, false));
            break;
        case JSON:
            setenv("SIMGPU_PROFILE", "1", 1);
            set_json(optarg);
            break;
        case DUMP: setenv("SIMGPU_DUMP", optarg, 1); break;
        case FAULTS:
            if (strcmp(optarg, "stop") != 0 && strcmp(optarg, "report") != 0)
                die("--faults: '%s', expected stop or report", optarg);
            set_number("SIMGPU_FAULTS_REPORT", strcmp(optarg, "report") == 0);
            break;
        case EXPLAIN: setenv("SIMGPU_EXPLAIN", "1", 1); break;
        case EXACT_MMA: setenv("SIMGPU_EXACT_MMA", "1", 1); break;
        case MAX_INSTRUCTIONS:
            set_number("SIMGPU_MAX_INSTRUCTIONS", parse("--max-instructions", optarg, 1, UINT64_MAX, false));
            break;
        case MAX_IDLE: set_number("SIMGPU_MAX_IDLE", parse("--max-idle", optarg, 0, 1ull << 62, true)); break;
        case MEMORY: set_number("SIMGPU_MEMORY", parse("--memory", optarg, 1 << 20, 1ull << 42, true)); break;
        case VERBOSE: setenv("SIMGPU_VERBOSE", "1", 1); break;
        case ':': die("%s needs a value; see simgpu --help", argv[optind - 1]);
        default: die("unknown option %s; see simgpu --help", argv[optind - 1]);
        }
    }
    return optind;
}

/* ---- The program -------------------------------------------------------------------------------------------------- */

/* Finds the program as a shell would; the result is malloc'ed. */
static char *find_program(const char *name)
{
    struct stat st;
    char *path = NULL;
    if (strchr(name, '/')) {
        path = strdup(name);
    } else {
        char *folders = strdup(getenv("PATH") ? getenv("PATH") : ""), *rest = folders;
        for (char *folder; !path && (folder = strsep(&rest, ":"));) {
            if (asprintf(&path, "%s/%s", *folder ? folder : ".", name) < 0) path = NULL;
            if (path && (access(path, X_OK) != 0 || stat(path, &st) != 0 || !S_ISREG(st.st_mode))) {
                free(path);
                path = NULL;
            }
        }
        free(folders);
        if (!path)
            die("%s: no such program in PATH%s", name,
                access(name, F_OK) == 0 ? " (did you mean ./ before it?)" : "");
    }
    if (stat(path, &st) != 0) die("%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) die("%s: is a folder, not a program", path);
    if (access(path, X_OK) != 0) die("%s: is not executable", path);
    return path;
}

struct program {
    bool dynamic, device_code; /* has a dynamic linker, has a section of device code */
    bool needs_cudart, needs_cuda, needs_cublas, needs_cublaslt,
        needs_nccl;        /* itself, or a library that it needs */
    char other_cudart[64]; /* a libcudart of another version that it needs */
};

struct file {
    const uint8_t *bytes;
    size_t size;
};

/* `count` elements of `element` bytes at `offset` of the file; NULL when they do not lie in it. */
static const void *part(const struct file *f, uint64_t offset, uint64_t count, uint64_t element)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, element, &bytes) || offset > f->size || bytes > f->size - offset)
        return NULL;
    return f->bytes + offset;
}

/* Reads the program's headers. */
static void inspect(const struct file *f, struct program *p)
{
    const Elf64_Ehdr *header = part(f, 0, 1, sizeof *header);
    const Elf64_Phdr *segments = part(f, header->e_phoff, header->e_phnum, sizeof *segments);
    for (int i = 0; segments && i < header->e_phnum; i++)
        if (segments[i].p_type == PT_INTERP) p->dynamic = true;
    const Elf64_Shdr *sections = part(f, header->e_shoff, header->e_shnum, sizeof *sections);
    if (!sections || header->e_shstrndx >= header->e_shnum) return;
    const Elf64_Shdr *names = &sections[header->e_shstrndx];
    const char *table = part(f, names->sh_offset, names->sh_size, 1);
    static const char fatbin[] = ".nv_fatbin";
    for (int i = 0; table && i < header->e_shnum; i++)
        if (sections[i].sh_name + sizeof fatbin <= names->sh_size &&
            memcmp(table + sections[i].sh_name, fatbin, sizeof fatbin) == 0)
            p->device_code = true;
}

/* Has the dynamic linker list the libraries that the program needs, itself or through others, as ldd does. */
static void list_libraries(const char *path, struct program *p)
{
    int ends[2];
    if (pipe(ends) != 0) die("%s", strerror(errno));
    pid_t child = fork();
    if (child < 0) die("%s", strerror(errno));
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO); /* its complaints come again when the program is run */
        close(ends[0]);
        close(ends[1]);
        setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
        execl(path, path, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *lines = fdopen(ends[0], "r");
    if (!lines) die("%s", strerror(errno));
    char line[PATH_MAX + 256], name[64];
    while (fgets(line, sizeof line, lines)) {
        if (sscanf(line, " %63s", name) != 1) continue;
        if (strcmp(name, "libcudart.so.13") == 0)
            p->needs_cudart = true;
        else if (strncmp(name, "libcudart.so", 12) == 0)
            strcpy(p->other_cudart, name);
        if (strcmp(name, "libcuda.so.1") == 0) p->needs_cuda = true;
        if (strcmp(name, "libcublas.so.13") == 0) p->needs_cublas = true;
        if (strcmp(name, "libcublasLt.so.13") == 0) p->needs_cublaslt = true;
        if (strcmp(name, "libnccl.so.2") == 0) p->needs_nccl = true;
    }
    fclose(lines);
    waitpid(child, NULL, 0);
}

/* Ends with a message unless simgpu's libraries can stand in for the program's. */
static struct program check_program(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) die("%s: %s", path, strerror(errno));
    struct file f = {.size = (size_t)st.st_size};
    void *mapped = f.size ? mmap(NULL, f.size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (mapped == MAP_FAILED) die("%s: cannot be read", path);
    f.bytes = mapped;
    if (f.size > 2 && memcmp(f.bytes, "#!", 2) == 0)
        die("%s: is a script; run simgpu on the CUDA program that it starts", path);
    const Elf64_Ehdr *header = part(&f, 0, 1, sizeof *header);
    if (!header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64)
        die("%s: is not a 64-bit ELF program", path);
    struct program p = {.dynamic = false};
    inspect(&f, &p);
    munmap(mapped, f.size);
    if (p.dynamic) list_libraries(path, &p);
    if (p.needs_cudart || (p.needs_cuda && !p.device_code && !p.other_cudart[0])) return p;
    if (p.other_cudart[0])
        die("%s: needs %s; simgpu runs programs built with CUDA 13 (libcudart.so.13)", path, p.other_cudart);
    if (p.device_code)
        die("%s: has the CUDA runtime linked into it; link it with `nvcc -cudart shared`", path);
    die("%s: is not a CUDA program (it does not need libcudart.so.13 and holds no device code)", path);
}

/* ---- The environment ---------------------------------------------------------------------------------------------- */

static void put_in_front(const char *variable, const char *value)
{
    const char *rest = getenv(variable);
    char *text;
    if (asprintf(&text, "%s%s%s", value, rest && *rest ? ":" : "", rest ? rest : "") < 0)
        die("out of memory");
    setenv(variable, text, 1);
    free(text);
}

static void preload(const char *folder, const char *library)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, library);
    if (access(path, R_OK) != 0) die("%s: %s; run `make simgpu`", path, strerror(errno));
    put_in_front("LD_PRELOAD", path); /* so that it wins even over a path inside the program (RPATH) */
}

/* ---- --races --------------------------------------------------------------------------------------------------------- */

/* Runs the program once. Through the pipe that SIMGPU_FAULTS names, the library says when there was a fault. */
static int run_once(const char *program, char **argv)
{
    int ends[2], status;
    char byte;
    if (pipe(ends) != 0) die("%s", strerror(errno));
    pid_t child = fork();
    if (child < 0) die("%s", strerror(errno));
    if (child == 0) {
        close(ends[0]);
        set_number("SIMGPU_FAULTS", (uint64_t)ends[1]);
        execv(program, argv);
        die("%s: %s", program, strerror(errno));
    }
    close(ends[1]);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) die("%s", strerror(errno));
    fcntl(ends[0], F_SETFL,
          O_NONBLOCK); /* what the program has started may live on, and hold the other end */
    bool fault = read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return code ? code : fault;
}

static int run_races(const char *program, char **argv)
{
    const char *text = getenv("SIMGPU_SEED");
    uint64_t first = text && strtoull(text, NULL, 10) ? strtoull(text, NULL, 10) : 1;
    for (uint64_t k = 0; k < races; k++) {
        set_number("SIMGPU_SEED", first + k);
        int code = run_once(program, argv);
        if (!code) continue;
        fprintf(stderr, "simgpu: --races: that was seed %llu, run %llu of %llu\n",
                (unsigned long long)(first + k), (unsigned long long)k + 1, (unsigned long long)races);
        return code;
    }
    fprintf(stderr, "simgpu: --races: no fault in %llu runs, seeds %llu to %llu\n", (unsigned long long)races,
            (unsigned long long)first, (unsigned long long)(first + races - 1));
    return 0;
}

int main(int argc, char **argv)
{
    int program_index = parse_options(argc, argv);
    if (program_index == argc) die("no program given; see simgpu --help");
    char *program = find_program(argv[program_index]);
    struct program p = check_program(program);

    char folder[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 8);
    if (length < 0) die("cannot find its own folder: %s", strerror(errno));
    folder[length] = 0;
    strcpy(strrchr(folder, '/'), "/lib");
    if (strpbrk(folder, ": ;"))
        die("its libraries are in '%s': the dynamic linker cannot preload from a path with a space, colon or semicolon",
            folder);
    put_in_front("LD_LIBRARY_PATH", folder);
    if (p.needs_nccl) preload(folder, "libnccl.so.2");
    if (p.needs_cublaslt) preload(folder, "libcublasLt.so.13");
    if (p.needs_cublas) preload(folder, "libcublas.so.13");
    if (p.needs_cuda) preload(folder, "libcuda.so.1");
    preload(folder, "libcudart.so.13");
#ifdef SANITIZER /* built with SAN=...: gcc's library for it must come first, since PROGRAM itself is not built so */
    put_in_front("LD_PRELOAD", SANITIZER);
    setenv("ASAN_OPTIONS", "detect_leaks=0",
           0); /* modules and what they are made of stay until the program ends */
#endif

    if (races) {
        int code = run_races(program, argv + program_index);
        free(program);
        return code;
    }
    execv(program, argv + program_index);
    die("%s: %s", program, strerror(errno));
}
