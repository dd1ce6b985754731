/* An NVML for the lab: libnvidia-ml.so.1 that tells of the GPUs in the lab's state file.
 *
 * Built by drills/lab/gpu/shim.py with -DSTATE_FILE="...". With -DOLD_DRIVER it lacks the functions that old drivers
 * lack, so that callers meet FunctionNotFound. Layouts and values follow NVIDIA's nvml.h; the sizes that nvidia-ml-py
 * expects are asserted below. Every call reads the file afresh: a change is seen by the next call, in any process.
 */
#include "shim_state.h"

typedef struct { unsigned fieldId, scopeId; long long timestamp, latencyUsec; unsigned valueType; int nvmlReturn;
                 union { double d; unsigned ui; unsigned long long ull; } value; } FieldValue;
typedef struct { Device *device; unsigned long long eventType, eventData; unsigned gpuInstanceId, computeInstanceId; } EventData;
typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } PciInfo;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } ProcessInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned version, sensorType; int temperature; } Temperature;
typedef struct { unsigned version; unsigned char clusterUuid[16]; int status; unsigned cliqueId; unsigned char state;
                 unsigned healthMask; unsigned char healthSummary; } FabricInfo;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned environment, ccFeature, devToolsMode; } ConfCompute;
typedef struct { unsigned uptime; } Uptime;

_Static_assert(sizeof(FieldValue) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(EventData) == 32, "nvmlEventData_t");
_Static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(ProcessInfo) == 24, "nvmlProcessInfo_v2_t");
_Static_assert(sizeof(Memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(Memory2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(Temperature) == 12, "nvmlTemperature_v1_t");
_Static_assert(sizeof(FabricInfo) == 40, "nvmlGpuFabricInfo_v3_t");
_Static_assert(sizeof(ConfCompute) == 12, "nvmlConfComputeSystemState_t");
_Static_assert(sizeof(Uptime) == 4, "nvmlGpuUptime_v1_t");

API int drillLabShim = 1; /* callers can tell this library from NVIDIA's */

static int memory(Device *device, Memory2 *m) {
    const char *gpu;
    double total, reserved, idle;
    unsigned pids[MAX_PIDS];
    TRY(open_gpu(device, &gpu));
    TRY(number(member(gpu, "memory_total_mib"), &total));
    TRY(number(member(gpu, "memory_reserved_mib"), &reserved));
    TRY(number(member(gpu, "memory_idle_mib"), &idle));
    m->total = (unsigned long long)total * MIB;
    m->reserved = (unsigned long long)reserved * MIB;
    m->used = (unsigned long long)(idle + (holders(gpu, pids) ? (total - reserved - idle) * 0.9 : 0)) * MIB;
    m->free = m->total - m->reserved - m->used;
    return OK;
}

/* ---- library and system -------------------------------------------------------------------------------------- */

API int nvmlInitWithFlags(unsigned flags) { (void)flags; if (!state()) return DRIVER_NOT_LOADED; initialized++; return OK; }
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) { if (!initialized) return UNINITIALIZED; initialized--; return OK; }
API int nvmlSystemGetDriverVersion(char *out, unsigned size) { return system_words("driver_version", out, size); }
API int nvmlSystemGetNVMLVersion(char *out, unsigned size) { return system_words("nvml_version", out, size); }

API const char *nvmlErrorString(int rc) {
    switch (rc) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

API int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    const char *s = state();
    double found;
    if (!s) return DRIVER_NOT_LOADED;
    TRY(number(member(s, "cuda_version"), &found));
    *out = (int)found;
    return OK;
}

API int nvmlSystemGetConfComputeState(ConfCompute *out) {
    const char *s = state();
    double on;
    if (!s) return DRIVER_NOT_LOADED;
    TRY(number(member(s, "conf_compute"), &on));
    *out = (ConfCompute){0, on != 0, 0};
    return OK;
}

API int nvmlDeviceGetCount_v2(unsigned *count) {
    const char *s = initialized ? state() : NULL, *gpus;
    if (!s) return initialized ? DRIVER_NOT_LOADED : UNINITIALIZED;
    gpus = member(s, "gpus");
    for (*count = 0; gpus && element(gpus, *count);) ++*count;
    return OK;
}

/* ---- handles ------------------------------------------------------------------------------------------------- */

static int handle(const char *gpu, Device **out) {
    char uuid[96];
    double lost = 0;
    if (!gpu) return NOT_FOUND;
    TRY(string(member(gpu, "uuid"), uuid, sizeof uuid));
    number(member(gpu, "lost"), &lost);
    if (lost) return GPU_IS_LOST;
    for (Device *d = devices; d < devices + MAX_GPUS; d++)
        if (!d->uuid[0] || !strcmp(d->uuid, uuid)) { strcpy(d->uuid, uuid); *out = d; return OK; }
    return UNKNOWN;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    const char *s = initialized ? state() : NULL, *gpu;
    if (!s) return initialized ? DRIVER_NOT_LOADED : UNINITIALIZED;
    return (gpu = element(member(s, "gpus"), index)) ? handle(gpu, out) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    const char *s = initialized ? state() : NULL;
    return s ? handle(gpu_of(s, "uuid", uuid), out) : UNINITIALIZED;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device **out) {
    char full[32];
    const char *s = initialized ? state() : NULL;
    snprintf(full, sizeof full, "%s%.20s", strlen(bus) == 12 ? "0000" : "", bus);
    return s ? handle(gpu_of(s, "pci", full), out) : UNINITIALIZED;
}

/* ---- one GPU ------------------------------------------------------------------------------------------------- */

API int nvmlDeviceGetName(Device *d, char *out, unsigned size) { return words(d, "name", out, size); }
API int nvmlDeviceGetUUID(Device *d, char *out, unsigned size) { return words(d, "uuid", out, size); }
API int nvmlDeviceGetSerial(Device *d, char *out, unsigned size) { return words(d, "serial", out, size); }
API int nvmlDeviceGetIndex(Device *d, unsigned *out) { return whole(d, "index", 1, out); }
API int nvmlDeviceGetMinorNumber(Device *d, unsigned *out) { return whole(d, "minor", 1, out); }
API int nvmlDeviceGetPersistenceMode(Device *d, unsigned *out) { return whole(d, "persistence", 1, out); }
API int nvmlDeviceGetDisplayActive(Device *d, unsigned *out) { return whole(d, "display_active", 1, out); }
API int nvmlDeviceGetPowerUsage(Device *d, unsigned *mw) { return whole(d, "power_w", 1000, mw); }
API int nvmlDeviceGetPowerManagementLimit(Device *d, unsigned *mw) { return whole(d, "power_limit_w", 1000, mw); }
API int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *mw) { return whole(d, "power_limit_w", 1000, mw); }
API int nvmlDeviceGetPowerManagementDefaultLimit(Device *d, unsigned *mw) { return whole(d, "power_default_w", 1000, mw); }

API int nvmlDeviceGetPowerManagementLimitConstraints(Device *d, unsigned *low, unsigned *high) {
    TRY(whole(d, "power_min_w", 1000, low));
    return whole(d, "power_max_w", 1000, high);
}

API int nvmlDeviceGetPciInfo_v3(Device *d, PciInfo *out) {
    char bus[32];
    TRY(words(d, "pci", bus, sizeof bus));
    memset(out, 0, sizeof *out);
    snprintf(out->busId, sizeof out->busId, "%s", bus);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%.12s", bus + 4);
    sscanf(bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    out->pciDeviceId = 0x233510DE;
    return OK;
}

API int nvmlDeviceGetTemperature(Device *d, unsigned sensor, unsigned *out) {
    return sensor ? INVALID_ARGUMENT : whole(d, "temperature_c", 1, out);
}

API int nvmlDeviceGetTemperatureV(Device *d, Temperature *t) {
    if (t->version != (sizeof *t | 1u << 24)) return VERSION_MISMATCH;
    return nvmlDeviceGetTemperature(d, t->sensorType, (unsigned *)&t->temperature);
}

API int nvmlDeviceGetClockInfo(Device *d, unsigned type, unsigned *mhz) {
    const char *gpu, *locked;
    double limit, standard, top;
    if (type == 2) return whole(d, "memory_clock_mhz", 1, mhz);
    if (type > 1) return NOT_SUPPORTED;
    TRY(whole(d, "sm_clock_mhz", 1, mhz));
    TRY(open_gpu(d, &gpu));
    if (number(member(gpu, "power_limit_w"), &limit) == OK && number(member(gpu, "power_default_w"), &standard) == OK &&
        limit < standard) *mhz = (unsigned)(*mhz * limit / standard);
    locked = member(gpu, "locked_clocks_mhz");
    if (locked && *locked == '[' && number(element(locked, 1), &top) == OK && top < *mhz) *mhz = (unsigned)top;
    return OK;
}

API int nvmlDeviceGetMaxClockInfo(Device *d, unsigned type, unsigned *mhz) {
    return type > 2 ? NOT_SUPPORTED : whole(d, type == 2 ? "memory_clock_max_mhz" : "sm_clock_max_mhz", 1, mhz);
}

API int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *out) {
    const char *gpu;
    unsigned pids[MAX_PIDS], now, free_mhz;
    double reasons, limit, standard;
    TRY(open_gpu(d, &gpu));
    TRY(value(d, "event_reasons", &reasons));
    *out = (unsigned long long)reasons & (holders(gpu, pids) ? ~0x1ULL : ~0ULL); /* who holds it makes it work */
    if (!value(d, "power_limit_w", &limit) && !value(d, "power_default_w", &standard) && limit < standard &&
        !nvmlDeviceGetClockInfo(d, 1, &now) && !whole(d, "sm_clock_mhz", 1, &free_mhz) &&
        now == (unsigned)(free_mhz * limit / standard)) *out |= 0x4; /* else a clock lock is what holds it down */
    return OK;
}

API int nvmlDeviceGetUtilizationRates(Device *d, Utilization *out) {
    TRY(whole(d, "utilisation", 1, &out->gpu));
    return whole(d, "memory_utilisation", 1, &out->memory);
}

API int nvmlDeviceGetMemoryInfo(Device *d, Memory *out) {
    Memory2 m;
    TRY(memory(d, &m));
    *out = (Memory){m.total, m.free, m.used + m.reserved};
    return OK;
}

API int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory2 *out) {
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    return memory(d, out);
}

API int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) {
    TRY(whole(d, "mig", 1, current));
    *pending = *current;
    return OK;
}

API int nvmlDeviceGetEccMode(Device *d, unsigned *current, unsigned *pending) {
    TRY(whole(d, "ecc_mode", 1, current));
    *pending = *current;
    return OK;
}

API int nvmlDeviceGetComputeMode(Device *d, unsigned *mode) { return whole(d, "compute_mode", 1, mode); }

API int nvmlDeviceGetApplicationsClock(Device *d, unsigned type, unsigned *mhz) {
    return type > 1 ? NOT_SUPPORTED : whole(d, "app_clock_mhz", 1, mhz);
}

API int nvmlDeviceGetDefaultApplicationsClock(Device *d, unsigned type, unsigned *mhz) {
    return type > 1 ? NOT_SUPPORTED : whole(d, "app_clock_default_mhz", 1, mhz);
}

API int nvmlDeviceGetRemappedRows(Device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
    TRY(whole(d, "remapped_correctable", 1, corrected));
    TRY(whole(d, "remapped_uncorrectable", 1, uncorrected));
    TRY(whole(d, "remapped_pending", 1, pending));
    return whole(d, "remapped_failure", 1, failure);
}

API int nvmlDeviceGetTotalEccErrors(Device *d, unsigned type, unsigned counter, unsigned long long *out) {
    char key[64];
    double found;
    if (type > 1 || counter > 1) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "ecc_%s_%s", counter ? "aggregate" : "volatile", type ? "uncorrected" : "corrected");
    TRY(value(d, key, &found));
    *out = (unsigned long long)found;
    return OK;
}

API int nvmlDeviceGetGpuFabricInfoV(Device *d, FabricInfo *out) {
    static const char *states[] = {"not_supported", "not_started", "in_progress", "completed"};
    char now[32];
    if (out->version != (sizeof *out | 3u << 24)) return VERSION_MISMATCH;
    TRY(words(d, "fabric", now, sizeof now));
    *out = (FabricInfo){.version = out->version};
    for (unsigned char i = 0; i < 4; i++)
        if (!strcmp(now, states[i])) out->state = i;
    return OK;
}

/* Each entry carries its own return: a driver without a field answers OK and says NOT_SUPPORTED in there, value 0. */
API int nvmlDeviceGetFieldValues(Device *d, int count, FieldValue *values) {
    const char *gpu;
    TRY(open_gpu(d, &gpu));
    for (int i = 0; i < count; i++) {
        double found = 0;
        int is_action = values[i].fieldId == 230;
        values[i].nvmlReturn = is_action ? number(member(gpu, "recovery_action"), &found) : NOT_SUPPORTED;
        values[i].valueType = 1;
        values[i].value.ull = (unsigned long long)found;
    }
    return OK;
}

static int processes(Device *d, unsigned *count, ProcessInfo *out, int mps) {
    const char *gpu;
    unsigned pids[MAX_PIDS], all, n = 0;
    Memory2 m;
    TRY(memory(d, &m));
    TRY(open_gpu(d, &gpu));
    all = holders(gpu, pids);
    for (unsigned i = 0; i < all; i++)
        if (is_mps_client(gpu, pids[i]) == mps) pids[n++] = pids[i];
    if (n > *count || (n && !out)) { *count = n; return INSUFFICIENT_SIZE; }
    for (unsigned i = 0; i < n; i++) out[i] = (ProcessInfo){pids[i], m.used / all, 0xFFFFFFFF, 0xFFFFFFFF};
    *count = n;
    return OK;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, ProcessInfo *out) { return processes(d, count, out, 0); }
API int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *d, unsigned *count, ProcessInfo *out) { return processes(d, count, out, 1); }
API int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *d, unsigned *count, ProcessInfo *out) {
    const char *gpu;
    (void)out;
    TRY(open_gpu(d, &gpu));
    *count = 0;
    return OK;
}

API int nvmlDeviceQueryDrainState(PciInfo *pci, unsigned *out) {
    Device *d;
    TRY(nvmlDeviceGetHandleByPciBusId_v2(pci->busId, &d));
    *out = 0;
    return OK;
}

#ifndef OLD_DRIVER
API int nvmlDeviceGetGpuUptime_v1(Device *d, Uptime *out) {
    double start;
    TRY(value(d, "uptime_start_mono", &start));
    out->uptime = (unsigned)(monotonic() - start);
    return OK;
}
#endif

/* ---- settings ------------------------------------------------------------------------------------------------ */

API int nvmlDeviceSetPersistenceMode(Device *d, unsigned on) { return put(d, "persistence", on ? "true" : "false"); }
API int nvmlDeviceResetGpuLockedClocks(Device *d) { return put(d, "locked_clocks_mhz", "null"); }

API int nvmlDeviceSetGpuLockedClocks(Device *d, unsigned low, unsigned high) {
    char with[64];
    snprintf(with, sizeof with, "[%u, %u]", low, high);
    return put(d, "locked_clocks_mhz", with);
}

API int nvmlDeviceSetPowerManagementLimit(Device *d, unsigned mw) {
    char with[64];
    unsigned low, high;
    TRY(nvmlDeviceGetPowerManagementLimitConstraints(d, &low, &high));
    if (mw < low || mw > high) return INVALID_ARGUMENT;
    snprintf(with, sizeof with, "%u.%03u", mw / 1000, mw % 1000);
    return put(d, "power_limit_w", with);
}

/* ---- events: each Xid is delivered once to each set that was registered before it ------------------------------ */

typedef struct { unsigned long long wanted[MAX_GPUS]; double after; } EventSet;
#define EVENTS (0x8ULL | 0x8000ULL) /* Xid, recovery action */

API int nvmlEventSetCreate(EventSet **set) { return (*set = calloc(1, sizeof **set)) ? OK : UNKNOWN; }
API int nvmlEventSetFree(EventSet *set) { free(set); return OK; }

API int nvmlDeviceGetSupportedEventTypes(Device *d, unsigned long long *out) {
    const char *gpu;
    TRY(open_gpu(d, &gpu));
    *out = EVENTS;
    return OK;
}

API int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, EventSet *set) {
    const char *gpu;
    TRY(open_gpu(d, &gpu));
    if (types & ~EVENTS) return NOT_SUPPORTED;
    set->wanted[d - devices] = types;
    if (!set->after) number(member(blank(text), "xid_count"), &set->after);
    return OK;
}

/* The first Xid after the last one delivered, of any registered GPU. */
static int next_event(EventSet *set, EventData *out) {
    const char *s = state(), *gpu, *xids, *one;
    double best = 0, n, xid;
    if (!s) return DRIVER_NOT_LOADED;
    for (unsigned slot = 0; slot < MAX_GPUS; slot++) {
        if (!set->wanted[slot] || !(gpu = gpu_of(s, "uuid", devices[slot].uuid))) continue;
        xids = member(gpu, "xids");
        for (unsigned i = 0; xids && (one = element(xids, i)); i++) {
            if (number(member(one, "n"), &n) || number(member(one, "xid"), &xid)) continue;
            unsigned long long type = xid == 154 ? 0x8000 : 0x8;
            if (n <= set->after || (best && n >= best) || !(set->wanted[slot] & type)) continue;
            best = n;
            *out = (EventData){&devices[slot], type, type == 0x8 ? (unsigned long long)xid : 0, 0xFFFFFFFF, 0xFFFFFFFF};
        }
    }
    if (best) set->after = best;
    return best ? OK : TIMEOUT;
}

API int nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    double deadline = monotonic() + timeout_ms / 1000.0;
    for (;;) {
        int rc = next_event(set, out);
        if (rc != TIMEOUT || monotonic() >= deadline) return rc;
        usleep(20000);
    }
}
