/* The machine that translated kernels run on: its threads, its memory, and what it notes.

   A thread of a kernel is a fiber. memory.c has accesses and their checks, threads.c barriers, what
   a warp does together, and the schedule. */
#pragma once
#include <stdint.h>
#include <string.h>

typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef int8_t i8; typedef int16_t i16; typedef int32_t i32; typedef int64_t i64;
typedef unsigned __int128 u128; typedef __int128 i128;

#define MAX_THREADS 1024
#define MAX_CTAS 8              /* at once */
#define SHARED_SIZE (228u << 10)
#define SHARED_BASE 0x400u      /* as ptxas has it; address 0 is none */

/* What a thread waits for; from AT_BARRIER on, not for its own warp alone. */
enum { SHUFFLE, VOTE, REDUX, AT_WARP_BARRIER, LDMATRIX, STMATRIX, AT_BARRIER, RUNNING, ENDED };
enum { UP, DOWN, BUTTERFLY, INDEX };
enum { BALLOT, ANY, ALL, UNI };
enum { GLOBAL, SHARED };
enum { LOADED, STORED, UPDATED, CONFLICTS };   /* what is counted; the first three in sectors */
enum { PLAIN, ATOMIC };   /* ATOMIC: atom, red, and loads and stores that are relaxed or stronger */
/* What is noted; KINDS in emulator.py has the words. Those up to FATAL end a launch. */
enum { OUT_OF_BOUNDS, MISALIGNED, DIVERGED, DEADLOCK, ENDLESS, TRAP, FATAL,
       UNINITIALISED, RACE_READ, RACE_OVERWRITE, RACE_WRITES, SAME_WRITES,
       CTA_READ, CTA_OVERWRITE, CTA_WRITES, CTA_SAME_WRITES,
       ZERO_DIVISION, NO_LANE, APPROXIMATE, FUSIBLE, WARP_READ, WARP_OVERWRITE, WARP_WRITES };

typedef u64 (*Update)(u64 old, u64 operand, u64 other);   /* what an atomic operation stores */
typedef struct Byte Byte;
typedef struct Cta Cta;

typedef struct Thread {
    void *stack_pointer;        /* where the fiber waits */
    Cta *cta;
    u32 tid, lane, warp;
    u32 state, insn, block;     /* insn, block: numbers of the instruction and block that run */
    u32 how, mask, value, operand, clamp, result, is_there;   /* of what the warp does together */
    Update update;
    u32 matrices[4];
    u64 fuel;                   /* backward branches that are left */
} Thread;

struct Cta {
    u32 ctaid[3], number;       /* number: of all that are launched */
    u32 serial, epoch, warp_epoch[32];   /* epochs end at barriers of the CTA and of a warp */
    u8 *shared; Byte *shared_bytes; Thread *threads;
    int is_live;
};

typedef struct { u32 nctaid[3], ntid; } Grid;
typedef struct { u32 kind, insn, other, count, cta, tid, by_cta, by_tid; u64 what; } Note;
extern Grid grid;
extern Thread *running;
extern int has_fault;
extern u32 epoch, first_serial, shared_size;
extern u32 *block_runs, num_blocks;   /* of counters.c */

static inline void begin_block(Thread *thread, u32 number) {
    thread->block = number;
    if (block_runs) block_runs[thread->tid * num_blocks + number]++;
}

void load(int space, u64 at, u32 size, void *to, int order);
void store(int space, u64 at, u32 size, const void *from, int order);
u64 atomic(int space, u64 at, u32 size, Update update, u64 operand, u64 other);
void wait_for(int state, u32 mask);
void note(int kind, u64 what);               /* of the running thread; a fault does not return */

/* Between the files of the machine. */
void note_pair(Thread *thread, int kind, u32 other, u64 what, u32 by_cta, u32 by_tid);
void let_others_run(void);
u32 random_below(u32 limit);
void forget_notes(void);
u32 number_of_notes(void);
void count_access(int space, int kind, u64 at, u32 size);
void count_cta(u32 num_threads);
void begin_memory(const u64 *pairs, u32 num_pairs);
Byte *new_shared_bytes(void);
void *reserve(u64 size);
void load_here(Thread *thread, int space, u64 at, u32 size, void *to, int order);
void store_here(Thread *thread, int space, u64 at, u32 size, const void *from, int order);
