/* The lab's GPU state as C sees it: just enough JSON, the file, one GPU's values. Included by shim.c alone. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MAX_GPUS 64
#define MAX_PIDS 256
#define MIB (1024ULL * 1024ULL)

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25, UNKNOWN = 999
};
#define TRY(call) do { int rc_ = (call); if (rc_ != OK) return rc_; } while (0)

typedef struct { char uuid[96]; } Device;

static int initialized;
static Device devices[MAX_GPUS];

/* ---- just enough JSON: positions in a text that Python wrote, so it is well formed ------------------------------- */

static const char *blank(const char *p) { while (isspace((unsigned char)*p)) p++; return p; }

static const char *past_string(const char *p) {
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1]) p++;
    return *p ? p + 1 : p;
}

static const char *past_value(const char *p) {
    p = blank(p);
    if (*p == '"') return past_string(p);
    if (*p == '{' || *p == '[') {
        int depth = 0;
        do {
            if (*p == '"') { p = past_string(p); continue; }
            depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
            p++;
        } while (depth && *p);
        return p;
    }
    while (*p && *p != ',' && *p != '}' && *p != ']' && !isspace((unsigned char)*p)) p++;
    return p;
}

static const char *member(const char *object, const char *key) {
    size_t n = strlen(key);
    for (const char *p = blank(object + 1); *p == '"';) {
        int here = strncmp(p + 1, key, n) == 0 && p[1 + n] == '"';
        p = blank(past_string(p)); /* the colon */
        p = blank(p + 1);
        if (here) return p;
        p = blank(past_value(p));
        if (*p == ',') p = blank(p + 1);
    }
    return NULL;
}

static const char *element(const char *array, unsigned index) {
    const char *p = blank(array + 1);
    for (unsigned i = 0; *p && *p != ']'; i++) {
        if (i == index) return p;
        p = blank(past_value(p));
        if (*p == ',') p = blank(p + 1);
    }
    return NULL;
}

static int number(const char *p, double *out) {
    if (!p || !strncmp(p, "null", 4)) return NOT_SUPPORTED;
    if (!strncmp(p, "true", 4) || !strncmp(p, "false", 5)) { *out = *p == 't'; return OK; }
    *out = strtod(p, NULL);
    return OK;
}

static int string(const char *p, char *out, size_t size) {
    if (!p || *p != '"') return NOT_SUPPORTED;
    size_t n = 0;
    for (p++; *p && *p != '"' && n + 1 < size; p++) {
        if (*p == '\\' && p[1]) p++;
        out[n++] = *p;
    }
    out[n] = 0;
    return OK;
}

/* ---- the state ----------------------------------------------------------------------------------------------- */

static __thread char *text; /* the file as this thread read it last */

static const char *state(void) {
    FILE *in = fopen(STATE_FILE, "re");
    if (!in) return NULL;
    struct stat found;
    fstat(fileno(in), &found);
    text = realloc(text, (size_t)found.st_size + 1);
    size_t n = fread(text, 1, (size_t)found.st_size, in);
    text[n] = 0;
    fclose(in);
    return blank(text);
}

static const char *gpu_of(const char *s, const char *key, const char *wanted) {
    const char *gpus = member(s, "gpus"), *gpu;
    char value[128];
    for (unsigned i = 0; gpus && (gpu = element(gpus, i)); i++)
        if (string(member(gpu, key), value, sizeof value) == OK && !strcasecmp(value, wanted)) return gpu;
    return NULL;
}

static int open_gpu(Device *device, const char **gpu) {
    double lost = 0;
    const char *s;
    if (!initialized) return UNINITIALIZED;
    if (device < devices || device >= devices + MAX_GPUS || !device->uuid[0]) return INVALID_ARGUMENT;
    if (!(s = state())) return DRIVER_NOT_LOADED;
    if (!(*gpu = gpu_of(s, "uuid", device->uuid))) return GPU_IS_LOST;
    number(member(*gpu, "lost"), &lost);
    return lost ? GPU_IS_LOST : OK;
}

static int value(Device *device, const char *key, double *out) {
    const char *gpu;
    TRY(open_gpu(device, &gpu));
    return number(member(gpu, key), out);
}

static int whole(Device *device, const char *key, double factor, unsigned *out) {
    double found;
    TRY(value(device, key, &found));
    *out = (unsigned)(found * factor + 0.5);
    return OK;
}

static int words(Device *device, const char *key, char *out, unsigned size) {
    const char *gpu;
    TRY(open_gpu(device, &gpu));
    return string(member(gpu, key), out, size);
}

static int system_words(const char *key, char *out, unsigned size) {
    const char *s = state();
    return s ? string(member(s, key), out, size) : DRIVER_NOT_LOADED;
}

static double monotonic(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Put `with` where the GPU's value is, under the lock that the Python side takes. */
static int put(Device *device, const char *key, const char *with) {
    int lock = open(STATE_FILE ".lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600), rc;
    const char *gpu, *at = NULL;
    double root = 0;
    if (lock < 0) return UNKNOWN;
    flock(lock, LOCK_EX);
    rc = open_gpu(device, &gpu);
    if (rc == OK) number(member(blank(text), "root"), &root);
    if (rc == OK && !root) rc = NO_PERMISSION;
    if (rc == OK && !(at = member(gpu, key))) rc = NOT_SUPPORTED;
    if (rc == OK) {
        FILE *out = fopen(STATE_FILE ".shim", "we");
        rc = out ? OK : UNKNOWN;
        if (out) {
            fwrite(text, 1, (size_t)(at - text), out);
            fputs(with, out);
            fputs(past_value(at), out);
            if (fclose(out) || rename(STATE_FILE ".shim", STATE_FILE)) rc = UNKNOWN;
        }
    }
    close(lock);
    return rc;
}

/* Pids that have the GPU's device file open: the kernel's word, as for the nvidia-smi stand-in. */
static unsigned holders(const char *gpu, unsigned *pids) {
    char path[512], device[512];
    struct stat wanted, held;
    struct dirent *process, *fd;
    unsigned n = 0;
    DIR *proc = opendir("/proc"), *fds;
    if (proc && string(member(gpu, "device"), device, sizeof device) == OK && stat(device, &wanted) == 0)
        while ((process = readdir(proc)) && n < MAX_PIDS) {
            if (!isdigit((unsigned char)process->d_name[0])) continue;
            snprintf(path, sizeof path, "/proc/%.20s/fd", process->d_name);
            if (!(fds = opendir(path))) continue;
            while ((fd = readdir(fds))) {
                snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", process->d_name, fd->d_name);
                if (fd->d_name[0] != '.' && stat(path, &held) == 0 && held.st_dev == wanted.st_dev &&
                    held.st_ino == wanted.st_ino) { pids[n++] = (unsigned)atoi(process->d_name); break; }
            }
            closedir(fds);
        }
    if (proc) closedir(proc);
    return n;
}

static int is_mps_client(const char *gpu, unsigned pid) {
    const char *clients = member(gpu, "mps_clients"), *one;
    double found;
    for (unsigned i = 0; clients && (one = element(clients, i)); i++)
        if (number(one, &found) == OK && (unsigned)found == pid) return 1;
    return 0;
}
