/* Memory: bounds, alignment, and who touched each byte last, from which races follow. */
#define _GNU_SOURCE
#include "machine.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MAX_NOTES 256
#define MAX_RANGES 256

/* Who touched a byte last. Serial numbers and epochs only grow, so nothing is ever cleared. */
struct Byte {
    u32 write_cta, write_epoch, write_warp_epoch, write_insn;
    u32 read_cta, read_epoch, read_warp_epoch, read_insn;
    u16 write_tid, read_tid;
    u8 write_order, read_order;
    u8 many_lanes, many_warps, many_ctas;   /* have read it */
    u8 others;   /* 1, 2: atomics of other threads, and of other CTAs, before the last write */
};
typedef struct { u64 begin, end; } Range;

static u8 *arena;
static Byte *arena_bytes;
static u64 arena_size;
static Range ranges[MAX_RANGES];
static u32 num_ranges;
static Note notes[MAX_NOTES];
static u32 num_notes;

void *reserve(u64 size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(0, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) { perror("mmap"); abort(); }
    return memory;
}

/* Return the memory that tensors are copied to. What it had before may be lost. */
u8 *machine_arena(u64 size) {
    if (size <= arena_size) return arena;
    if (arena) { munmap(arena, arena_size); munmap(arena_bytes, arena_size * sizeof(Byte)); }
    arena_size = size < (64u << 20) ? 64u << 20 : size * 2;
    arena = reserve(arena_size);
    arena_bytes = reserve(arena_size * sizeof(Byte));
    return arena;
}
Byte *new_shared_bytes(void) { return reserve((u64)SHARED_SIZE * sizeof(Byte)); }

void begin_memory(const u64 *pairs, u32 num_pairs) {
    if (num_pairs > MAX_RANGES) abort();
    num_ranges = num_pairs;
    memcpy(ranges, pairs, sizeof(Range) * num_pairs);
}

Note *machine_notes(void) { return notes; }
u32 machine_note_size(void) { return sizeof(Note); }
u32 number_of_notes(void) { return num_notes; }
void forget_notes(void) { num_notes = 0; has_fault = 0; }

/* Note what a thread did wrong after another instruction, once for each pair of instructions. */
void note_pair(Thread *thread, int kind, u32 other, u64 what, u32 by_cta, u32 by_tid) {
    u32 k = 0;
    if (kind < FATAL) has_fault = 1;
    while (k < num_notes && !(notes[k].kind == (u32)kind && notes[k].insn == thread->insn && notes[k].other == other)) k++;
    if (k < num_notes) notes[k].count++;
    else if (k < MAX_NOTES)
        notes[num_notes++] = (Note){kind, thread->insn, other, 1, thread->cta->number, thread->tid,
                                    by_cta - first_serial, by_tid, what};
}

/* Return whether a barrier lies between an access by another thread of the CTA, and now. */
static int is_ordered(Thread *thread, u32 tid, u32 its_epoch, u32 its_warp_epoch) {
    return tid == thread->tid || its_epoch < thread->cta->epoch
        || (tid / 32 == thread->warp && its_warp_epoch < thread->cta->warp_epoch[thread->warp]);
}

static int is_inside(u32 k, u64 at, u32 size) {
    return at >= ranges[k].begin && at <= ranges[k].end && size <= ranges[k].end - at;
}

/* Return the history of what an access touches, and where it lies; 0 after a fault. */
static Byte *place(Thread *thread, int space, u64 at, u32 size, u8 **host) {
    static u32 last;   /* range of the access before */
    if (at % size) { note_pair(thread, MISALIGNED, 0, at, 0, 0); return 0; }
    if (space == SHARED) {
        if (at < SHARED_BASE || at + size > SHARED_BASE + shared_size) {
            note_pair(thread, OUT_OF_BOUNDS, 0, at, 0, 0);
            return 0;
        }
        *host = thread->cta->shared + (at - SHARED_BASE);
        return thread->cta->shared_bytes + (at - SHARED_BASE);
    }
    if (last >= num_ranges || !is_inside(last, at, size)) {
        for (last = 0; last < num_ranges && !is_inside(last, at, size); last++);
        if (last == num_ranges) { note_pair(thread, OUT_OF_BOUNDS, 0, at, 0, 0); return 0; }
    }
    *host = (u8 *)at;
    return arena_bytes + (at - (u64)arena);
}

static void look_at_read(Thread *thread, int space, Byte *byte, int order, u64 at) {
    Cta *cta = thread->cta;
    u32 warp_epoch = cta->warp_epoch[thread->warp], first = space == SHARED ? cta->serial : first_serial;
    if (byte->write_cta >= first) {
        int atomics = order == ATOMIC && byte->write_order == ATOMIC, kind = -1;
        int is_near = byte->write_tid / 32 == thread->warp && !(byte->others & 1);
        if (byte->write_cta != cta->serial || byte->others & 2) kind = CTA_READ;
        else if (!is_ordered(thread, byte->write_tid, byte->write_epoch, byte->write_warp_epoch)
                 || (byte->others & 1 && byte->write_epoch == cta->epoch))
            kind = is_near ? WARP_READ : RACE_READ;
        if (!atomics && kind >= 0)
            note_pair(thread, kind, byte->write_insn, at, byte->write_cta, byte->write_tid);
    } else if (space == SHARED)
        note_pair(thread, UNINITIALISED, 0, at, 0, 0);
    int is_same = byte->read_cta == cta->serial && byte->read_epoch == cta->epoch;
    byte->many_ctas = byte->read_cta >= first && (byte->many_ctas || byte->read_cta != cta->serial);
    byte->many_warps = is_same && (byte->many_warps || byte->read_tid / 32 != thread->warp);
    byte->many_lanes = is_same && byte->read_warp_epoch == warp_epoch
        && (byte->many_lanes || byte->read_tid != thread->tid);
    byte->read_cta = cta->serial; byte->read_epoch = cta->epoch; byte->read_warp_epoch = warp_epoch;
    byte->read_tid = thread->tid; byte->read_insn = thread->insn; byte->read_order = order;
}

static void look_at_write(Thread *thread, int space, Byte *byte, int order, u64 at, int is_same_value) {
    Cta *cta = thread->cta;
    u32 warp_epoch = cta->warp_epoch[thread->warp], first = space == SHARED ? cta->serial : first_serial;
    int after_atomic = order == ATOMIC && byte->write_order == ATOMIC, kind = -1;
    if (byte->write_cta >= first && !after_atomic) {
        if (byte->write_cta != cta->serial) kind = is_same_value ? CTA_SAME_WRITES : CTA_WRITES;
        else if (!is_ordered(thread, byte->write_tid, byte->write_epoch, byte->write_warp_epoch))
            kind = is_same_value ? SAME_WRITES : byte->write_tid / 32 == thread->warp ? WARP_WRITES : RACE_WRITES;
        if (kind >= 0) note_pair(thread, kind, byte->write_insn, at, byte->write_cta, byte->write_tid);
    }
    if (byte->read_cta >= first && !(order == ATOMIC && byte->read_order == ATOMIC)) {
        int is_lane = !byte->many_warps && byte->read_tid / 32 == thread->warp;
        kind = -1;
        if (byte->read_cta != cta->serial || byte->many_ctas) kind = CTA_OVERWRITE;
        else if (byte->read_epoch == cta->epoch
                 && (byte->many_warps || (byte->many_lanes && byte->read_warp_epoch == warp_epoch)
                     || !is_ordered(thread, byte->read_tid, byte->read_epoch, byte->read_warp_epoch)))
            kind = is_lane ? WARP_OVERWRITE : RACE_OVERWRITE;
        if (kind >= 0) note_pair(thread, kind, byte->read_insn, at, byte->read_cta, byte->read_tid);
    }
    if (!after_atomic || byte->write_cta < first) byte->others = 0;
    else if (byte->write_cta != cta->serial) byte->others = 2;
    else byte->others = (byte->others & 2)
        | (byte->write_epoch == cta->epoch && (byte->others & 1 || byte->write_tid != thread->tid));
    byte->write_cta = cta->serial; byte->write_epoch = cta->epoch; byte->write_warp_epoch = warp_epoch;
    byte->write_tid = thread->tid; byte->write_insn = thread->insn; byte->write_order = order;
}

void load_here(Thread *thread, int space, u64 at, u32 size, void *to, int order) {
    u8 *host;
    Byte *bytes = place(thread, space, at, size, &host);
    if (!bytes) return;
    for (u32 k = 0; k < size; k++) look_at_read(thread, space, bytes + k, order, at + k);
    memcpy(to, host, size);
}
void store_here(Thread *thread, int space, u64 at, u32 size, const void *from, int order) {
    u8 *host;
    Byte *bytes = place(thread, space, at, size, &host);
    if (!bytes) return;
    for (u32 k = 0; k < size; k++)
        look_at_write(thread, space, bytes + k, order, at + k, host[k] == ((const u8 *)from)[k]);
    memcpy(host, from, size);
}

/* A fault ends the launch: its thread does not go on. */
static void stop_after_a_fault(void) { if (has_fault) let_others_run(); }
void note(int kind, u64 what) {
    note_pair(running, kind, 0, what, 0, 0);
    stop_after_a_fault();
}
void load(int space, u64 at, u32 size, void *to, int order) {
    if (!random_below(4)) let_others_run();
    if (block_runs) count_access(space, LOADED, at, size);
    load_here(running, space, at, size, to, order);
    stop_after_a_fault();
}
void store(int space, u64 at, u32 size, const void *from, int order) {
    if (!random_below(4)) let_others_run();
    if (block_runs) count_access(space, STORED, at, size);
    store_here(running, space, at, size, from, order);
    stop_after_a_fault();
}
u64 atomic(int space, u64 at, u32 size, Update update, u64 operand, u64 other) {
    u64 old = 0, now;
    if (!random_below(4)) let_others_run();
    if (block_runs) count_access(space, UPDATED, at, size);
    load_here(running, space, at, size, &old, ATOMIC);
    stop_after_a_fault();
    now = update(old, operand, other);
    store_here(running, space, at, size, &now, ATOMIC);
    return old;
}
